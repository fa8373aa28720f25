"""A Gaussian mixture prior: MixTS, and the oracle of most tests."""

from typing import Any, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import (
    covariance,
    describe,
    is_traced,
    on_device,
    plausible_covariance,
    positive_int,
    random_key,
    real_array,
)
from ..evidence.base import AbstractEvidence
from ..fitting.samples import checked_samples, checked_weights, whitening
from ..gaussian import Gaussian
from ..linalg import cholesky, one_at_a_time, solve_half, solve_lower
from ..mixture import GaussianMixture, log_normalize, mixture_moments
from ..threefry import unrolled
from .base import AbstractClosedFormPrior, centered, probabilities
from .conditional import ConditionalPrior


class MixturePrior(AbstractClosedFormPrior):
    """sum_k weights_k N(means_k, covs_k).

    Args:
        weights: Probability of each component (k,), up to a factor.
        means: (k, d).
        covs: Covariances (k, d, d), positive definite.

    Attributes:
        noise: (g, d, d), if it is known that the first k / g covariances are noise_0 +
            loadings_k loadings_k', and so on; then components are weighed by their factors.
        loadings: (k, d, r).
    """

    weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]
    noise: Float[Array, "g d d"] | None = None
    loadings: Float[Array, "k d r"] | None = None

    def __init__(self, weights: ArrayLike, means: ArrayLike, covs: ArrayLike) -> None:
        means = real_array("means", means, ("k", "d"), "pass one row for each component")
        k, d = means.shape
        self.weights = probabilities(weights, k, "pass the probability of each component")
        self.means = means
        self.covs = covariance("covs", covs, (k, d, d))
        self.noise = self.loadings = None

    @overload
    @staticmethod
    def fit(
        samples: ArrayLike,
        num_components: int | None = None,
        sample_weights: ArrayLike | None = None,
        seed: int = 0,
        *,
        attributes: None = None,
    ) -> "MixturePrior": ...

    @overload
    @staticmethod
    def fit(
        samples: ArrayLike,
        num_components: int | None = None,
        sample_weights: ArrayLike | None = None,
        seed: int = 0,
        *,
        attributes: ArrayLike,
    ) -> ConditionalPrior: ...

    @staticmethod
    def fit(
        samples: ArrayLike,
        num_components: int | None = None,
        sample_weights: ArrayLike | None = None,
        seed: int = 0,
        *,
        attributes: ArrayLike | None = None,
    ) -> "MixturePrior | ConditionalPrior":
        """Learn the mixture by expectation maximization.

        Args:
            samples: (n, d), parameters of past tasks, one row each.
            num_components: K; by default up to 256, by the likelihood of samples held out, each
                covariance free, of few factors, or all of them tied; twice as many where the mean
                of two mixtures of few factors is better; one Gaussian where none is clearly so.
            sample_weights: (n,), how much each row counts beside the others; by default the same.
            seed: of the starts, and of what is held out.
            attributes: (n, a), what is known of each task, for a prior given attributes.

        Returns:
            The mixture. Covariances are drawn a little towards their pooled one, and no variance is
            below 1e-4 of the samples' own.

        Raises:
            ValueError: samples that are too few, constant or not finite; weights that are negative.
        """
        if attributes is not None:
            return ConditionalPrior.fit(
                samples,
                attributes,
                lambda rest, _: MixturePrior.fit(rest, num_components, sample_weights, seed),
                seed,
            )
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
        """The distribution of `offset` (d,) + `scale` (d, d) z, where z has this `mixture`."""
        moved = mixture.transform(np.asarray(offset), np.asarray(scale))
        prior = MixturePrior(moved.weights, moved.means, moved.covs)
        if moved.noise is None or moved.loadings is None:
            return prior
        return prior._replaced(noise=on_device(moved.noise), loadings=on_device(moved.loadings))

    def _replaced(self, **fields: Array | None) -> "MixturePrior":
        return MixturePrior.from_fields(self.file_fields() | fields)

    def validate(self) -> None:
        """Reject weights or covariances that are none."""
        super().validate()
        plausible_covariance("covs", self.covs)
        weights = np.asarray(self.weights)
        if not (np.all(weights >= 0) and abs(weights.sum() - 1) < 1e-3):
            raise ValueError(f"`weights`: expected probabilities, got {weights}")
        if (self.noise is None) != (self.loadings is None):
            raise ValueError("`loadings`: expected as many as there are components, or none")
        if self.noise is not None:
            plausible_covariance("noise", self.noise)
            if len(weights) % len(self.noise):
                raise ValueError(f"`noise`: expected a divisor of {len(weights)} of them")

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.means.shape[1]

    def __repr__(self) -> str:
        return describe(self, dim=self.dim, num_components=len(self.weights))

    def moments(self) -> Gaussian:
        """The Gaussian of the same mean and covariance."""
        numpy: Any = jnp if is_traced(self.means) else np  # which compiles nothing
        return Gaussian(
            *mixture_moments(*map(numpy.asarray, (self.weights, self.means, self.covs)))
        )

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Draws from the prior."""
        return _sample(self, random_key(key), positive_int("num_samples", num_samples))

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
        posterior = self._replaced(
            weights=weights,
            means=origin[None] + components.mean,
            covs=components.cov,
            noise=None,
            loadings=None,
        )
        return posterior, total + at_origin

    def component(self, index: Int[Array, ""]) -> Gaussian:
        """Component number `index`, from 0."""
        return Gaussian(self.means[index], self.covs[index])

    def weigh(self, evidence: AbstractEvidence) -> tuple[Float[Array, " k"], Float[Array, ""]]:
        """The weights (k,) of the posterior under quadratic `evidence`, and log p(h), without the
        posterior of any component.

        All is computed from a center, the posterior mean of one Gaussian with the moments of the
        prior: there the terms that grow with the evidence cancel before they are computed.
        """
        moments = self.moments()
        center = evidence.condition(moments)[0].mean
        precision, _ = evidence.expand(Gaussian.point(center))
        tril = cholesky(moments.cov)
        half = solve_lower(tril, (center - moments.mean)[:, None])
        gradient = solve_lower(tril[::-1, ::-1].T, half[::-1])[::-1, 0]
        noise, wider = self.covs, None  # each component its own
        if self.noise is not None and self.loadings is not None:
            noise, (d, rank) = self.noise, self.loadings.shape[1:]
            wider = self.loadings.reshape(len(noise), -1, d, rank).transpose(0, 2, 3, 1)
        trils = jax.vmap(cholesky)(noise)
        if wider is not None:
            wider = jax.vmap(_whitened)(trils, wider)
        away = (self.means - center[None]).reshape(len(noise), -1, self.dim)
        masses = one_at_a_time(_log_masses)(away, trils, wider, precision, gradient).reshape(-1)
        weights, total = log_normalize(jnp.log(self.weights) + masses)
        return weights, total + evidence.log_likelihood(center)


def _whitened(tril: Float[Array, "d d"], loadings: Float[Array, "d r m"]) -> Float[Array, "d r m"]:
    return solve_lower(tril, loadings.reshape(len(tril), -1)).reshape(loadings.shape)


def _log_masses(
    means: Float[Array, "g m d"],
    trils: Float[Array, "g d d"],
    wider: Float[Array, "g d r m"] | None,
    precision: Float[Array, "d d"],
    gradient: Float[Array, " d"],
) -> Float[Array, "g m"]:
    """Log of the mass of each N(m, L (I + V V') L') times exp(-x' precision x / 2 + gradient' x),
    where L is that of a group.

    Without V, in units of a component, x = m + L z, the origin is at z = -u, where the gradient is
    w = L' g; the precision is M = L' P L. Then the log mass is
    u' w + (w' w - (u + w)' (I + M)^-1 M (u + w) - log det(I + M)) / 2, where no large terms cancel,
    be the evidence weak, and M small, or strong, and (I + M)^-1 M nearly I. With V it has
    t' (I + T)^-1 t / 2 - log det(I + T) / 2 more, where T = V' (I + M)^-1 M V and
    t = V' (w - (I + M)^-1 M (u + w)): one large factorization in a group, and a small one each.
    """
    identity = jnp.eye(means.shape[2], dtype=means.dtype)

    def group(means: Array, tril: Array, wider: Array | None) -> Float[Array, " m"]:
        away, pull = solve_lower(tril, means.T), tril.T @ gradient
        curvature = tril.T @ precision @ tril
        both = away + pull[:, None]
        rhs = jnp.concatenate([both, curvature @ both], axis=1)
        half, log_det = solve_half(identity + curvature, rhs)
        left, right = jnp.split(half, 2, axis=1)
        masses = away.T @ pull + 0.5 * (pull @ pull - jnp.sum(left * right, axis=0) - log_det)
        if wider is None:
            return masses
        root, _ = solve_half(identity + curvature, identity)
        seen = jnp.tensordot(identity - root.T @ root, wider, 1)
        shift = jnp.sum(wider * pull[:, None, None] - seen * both[:, None], axis=0)
        small = jnp.sum(wider[:, :, None] * seen[:, None], axis=0)
        small = small + jnp.eye(len(small), dtype=small.dtype)[:, :, None]
        explained, log_dets = jax.vmap(solve_half, in_axes=-1)(small, shift[:, None])
        return masses + 0.5 * (jnp.sum(explained[:, :, 0] ** 2, axis=1) - log_dets)

    return jax.vmap(group)(means, trils, wider)


@eqx.filter_jit
def _sample(prior: MixturePrior, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
    which_key, noise_key = jax.random.split(unrolled(key))
    which = jax.random.categorical(which_key, jnp.log(prior.weights), shape=(num_samples,))
    noise = jax.random.normal(noise_key, (num_samples, prior.dim), prior.means.dtype)
    trils = jax.vmap(cholesky)(prior.covs)
    return prior.means[which] + jnp.einsum("nij,nj->ni", trils[which], noise)
