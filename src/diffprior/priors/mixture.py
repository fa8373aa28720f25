"""A Gaussian mixture prior: MixTS, and the oracle of most tests."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import covariance, describe, plausible_covariance, positive_int, real_array
from ..evidence.base import AbstractEvidence
from ..fitting.samples import checked_samples, checked_weights, whitening
from ..gaussian import Gaussian
from ..linalg import cholesky, one_at_a_time, solve_half, solve_lower
from ..mixture import GaussianMixture, log_normalize
from ..threefry import unrolled
from .base import AbstractClosedFormPrior, centered, probabilities


class MixturePrior(AbstractClosedFormPrior):
    """sum_k weights_k N(means_k, covs_k).

    Args:
        weights: Probability of each component (k,), up to a factor.
        means: (k, d).
        covs: Covariances (k, d, d), positive definite.
    """

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]

    def __init__(self, weights: ArrayLike, means: ArrayLike, covs: ArrayLike) -> None:
        means = real_array("means", means, ("k", "d"), "pass one row for each component")
        k, d = means.shape
        self.weights = probabilities(weights, k, "pass the probability of each component")
        self.means = means
        self.covs = covariance("covs", covs, (k, d, d))

    @staticmethod
    def fit(
        samples: ArrayLike,
        num_components: int | None = None,
        sample_weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> "MixturePrior":
        """Learn the mixture by expectation maximization.

        Args:
            samples: (n, d), parameters of past tasks, one row each.
            num_components: K; by default up to 256, by the likelihood of samples held out, each
                covariance free, of few factors, or all of them tied; twice as many where the mean
                of two mixtures of few factors is better; one Gaussian where none is clearly so.
            sample_weights: (n,), how much each row counts beside the others; by default the same.
            seed: of the starts, and of what is held out.

        Returns:
            The mixture. Covariances are drawn a little towards their pooled one, and no variance is
            below 1e-4 of the samples' own.

        Raises:
            ValueError: samples that are too few, constant or not finite; weights that are negative.
        """
        # Slow to import, and not needed to decide.
        from ..fitting.em import CovarianceModel
        from ..fitting.search import MixtureCandidate, fit_samples, search_samples

        if num_components is not None:
            num_components = positive_int("num_components", num_components)
        array = checked_samples(samples, at_least=max(2, num_components or 2))
        weights = checked_weights(sample_weights, len(array))
        array, weights = array[weights > 0], weights[weights > 0]
        varies = np.ptp(array, axis=0) > 0
        if not np.all(varies):
            raise ValueError(
                "`samples`: expected every parameter to vary, got a constant column "
                f"{int(np.argmin(varies))}; drop it or add a little noise"
            )
        center, scale = whitening(array, weights)
        unit = np.linalg.solve(scale, (array - center).T).T
        if num_components is None:
            found = search_samples(unit, weights, seed=seed).mixture
        else:
            candidate = MixtureCandidate(num_components, CovarianceModel(float(unit.shape[1])))
            found = fit_samples(unit, weights, candidate, seed=seed)
        return MixturePrior.from_mixture(found, center, scale)

    @staticmethod
    def from_mixture(
        mixture: GaussianMixture, offset: ArrayLike, scale: ArrayLike
    ) -> "MixturePrior":
        """The distribution of offset + scale z, where z has this mixture.

        Args:
            mixture: Of z.
            offset: (d,).
            scale: (d, d).

        Returns:
            The mixture.
        """
        parts = (mixture.weights, mixture.means, mixture.factors)
        weights, means, factors = (np.asarray(part, np.float64) for part in parts)
        offset, scale = np.asarray(offset), np.asarray(scale)
        half = scale @ factors
        covs = half @ np.swapaxes(half, 1, 2)
        return MixturePrior(weights, offset + means @ scale.T, covs)

    def validate(self) -> None:
        """Refuse weights or covariances that are none."""
        super().validate()
        plausible_covariance("covs", self.covs)
        weights = np.asarray(self.weights)
        if not (np.all(weights >= 0) and abs(weights.sum() - 1) < 1e-3):
            raise ValueError(f"`weights`: expected probabilities, got {weights}")

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.means.shape[1]

    def __repr__(self) -> str:
        return describe(self, dim=self.dim, num_components=len(self.weights))

    @eqx.filter_jit
    def moments(self) -> Gaussian:
        """The Gaussian of the same mean and covariance."""
        mean = self.weights @ self.means
        centered = self.means - mean[None]
        within = jnp.einsum("k,kij->ij", self.weights, self.covs)
        return Gaussian(mean, within + (centered * self.weights[:, None]).T @ centered)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Draws from the prior."""
        return _sample(self, key, positive_int("num_samples", num_samples))

    @eqx.filter_jit
    def posterior(self, evidence: AbstractEvidence) -> tuple["MixturePrior", Float[Array, ""]]:
        """Each component conditioned, its weight multiplied by its evidence; and log p(h).

        Laplace's approximation unless rewards are linear.
        """
        origin, local, at_origin = centered(evidence, self.weights @ self.means)
        components, log_evidence = jax.vmap(
            lambda mean, cov: local.condition(Gaussian(mean - origin, cov))
        )(self.means, self.covs)
        weights, total = log_normalize(jnp.log(self.weights) + log_evidence)
        new = (weights, origin[None] + components.mean, components.cov)
        where = lambda p: (p.weights, p.means, p.covs)  # noqa: E731
        return eqx.tree_at(where, self, new), total + at_origin

    def component(self, index: Int[Array, ""]) -> Gaussian:
        """One of the components.

        Args:
            index: Which, from 0.

        Returns:
            Its mean and covariance.
        """
        return Gaussian(self.means[index], self.covs[index])

    def weigh(self, evidence: AbstractEvidence) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        """The weights of the posterior and log p(h), without the posterior of any component.

        All is reckoned from a center, the posterior mean of one Gaussian with the moments of the
        prior: there the terms that grow with the evidence cancel before they are computed.

        Args:
            evidence: What the task has shown so far; quadratic.

        Returns:
            Weights (k,) and log p(h).
        """
        moments = self.moments()
        center = evidence.condition(moments)[0].mean
        precision, _ = evidence.expand(Gaussian.point(center))
        tril = cholesky(moments.cov)
        half = solve_lower(tril, (center - moments.mean)[:, None])
        gradient = solve_lower(tril[::-1, ::-1].T, half[::-1])[::-1, 0]
        away, trils = self.means - center[None], jax.vmap(cholesky)(self.covs)
        masses = one_at_a_time(_log_masses)(away, trils, precision, gradient)
        weights, total = log_normalize(jnp.log(self.weights) + masses)
        return weights, total + evidence.log_likelihood(center)


def _log_masses(
    means: Float[Array, "k d"],
    trils: Float[Array, "k d d"],
    precision: Float[Array, "d d"],
    gradient: Float[Array, " d"],
) -> Float[Array, " k"]:
    """Log of the mass of each N(m, L L') times exp(-x' precision x / 2 + gradient' x).

    In units of a component, x = m + L z, the origin is at z = -u, where the gradient is w = L' g;
    the precision is M = L' P L. Then the log mass is
    u' w + (w' w - (u + w)' (I + M)^-1 M (u + w) - log det(I + M)) / 2, where no large terms cancel,
    be the evidence weak, and M small, or strong, and (I + M)^-1 M nearly I.
    """
    identity = jnp.eye(means.shape[1], dtype=means.dtype)

    def log_mass(mean: Float[Array, " d"], tril: Float[Array, "d d"]) -> Float[Array, ""]:
        away, pull = solve_lower(tril, mean[:, None])[:, 0], tril.T @ gradient
        curvature = tril.T @ precision @ tril
        both = away + pull
        rhs = jnp.stack([both, curvature @ both], axis=1)
        half, log_det = solve_half(identity + curvature, rhs)
        return away @ pull + 0.5 * (pull @ pull - half[:, 0] @ half[:, 1] - log_det)

    return jax.vmap(log_mass)(means, trils)


@eqx.filter_jit
def _sample(prior: MixturePrior, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
    which_key, noise_key = jax.random.split(unrolled(key))
    which = jax.random.categorical(which_key, jnp.log(prior.weights), shape=(num_samples,))
    noise = jax.random.normal(noise_key, (num_samples, prior.dim), prior.means.dtype)
    trils = jax.vmap(cholesky)(prior.covs)
    return prior.means[which] + jnp.einsum("nij,nj->ni", trils[which], noise)
