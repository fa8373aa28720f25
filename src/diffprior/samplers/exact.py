"""Exact posterior sampling under a closed-form prior: TS, TunedTS and MixTS."""

import math
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..evidence.approximate import Variational
from ..evidence.base import AbstractEvidence
from ..evidence.glm import variational
from ..linalg import MAX_UNROLLED, AnyArray, cholesky, numpy_of, times_each
from ..mixture import log_normalize, pick
from ..priors.base import AbstractClosedFormPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..threefry import unrolled
from .base import AbstractSampler, Info, checked_temperature

PROPOSALS = 32  # of which one is drawn, where the posterior is not Gaussian


class Exact(AbstractSampler):
    """Draws from the closed-form posterior: exact for linear evidence and for empirical priors.

    For generalized linear models, each Gaussian of the prior is replaced by the Gaussian closest to
    its posterior; of 32 draws from these, with heavier tails, one is chosen by its weight under the
    exact posterior. So it is off by a 32nd of what the Gaussians get wrong, and the mean weight is
    an unbiased estimate of p(h). The cost of a draw is fixed. Closed-form priors of one's own are
    drawn from as their `posterior` is, by Laplace's approximation.

    Args:
        prior: A closed form.
        temperature: Counts the evidence 1 / temperature times; 1 is Bayes' rule.
    """

    poor_share: ClassVar[float] = 0.7

    prior: AbstractClosedFormPrior
    temperature: Float[Array, ""]

    def __init__(self, prior: AbstractClosedFormPrior, *, temperature: ArrayLike = 1.0) -> None:
        if not isinstance(prior, AbstractClosedFormPrior):
            raise ValueError(
                f"`prior`: expected a closed-form prior, got {type(prior).__name__}; "
                "use EvidenceDPS, LaplaceDPS or TwistedSMC for a learned one"
            )
        self.prior = prior
        self.temperature = checked_temperature(temperature)

    @property
    def num_proposals(self) -> int:
        return PROPOSALS

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        prior = self.prior
        if isinstance(prior, MixturePrior) and evidence.quadratic and prior.dim > MAX_UNROLLED:
            return _from_one_component(key, prior, evidence)
        mixture = _as_mixture(prior)
        if mixture is None or evidence.quadratic:
            posterior, log_evidence = self.prior.posterior(evidence)
            theta = posterior.sample(key, 1)[0]
            return theta, Info.of(theta, log_evidence, failed=~jnp.isfinite(log_evidence))
        return _resampled(key, mixture, evidence)


def _from_one_component(
    key: Key[Array, ""], prior: MixturePrior, evidence: AbstractEvidence
) -> tuple[Float[Array, " d"], Info]:
    """As of the `posterior` of a mixture, of which only the component drawn is conditioned."""
    weights, log_evidence = prior.weigh(evidence)
    which_key, noise_key = jax.random.split(unrolled(key))
    which = jax.random.categorical(which_key, jnp.log(weights))
    posterior, _ = evidence.condition(prior.component(which))
    theta = posterior.sample(noise_key)
    return theta, Info.of(theta, log_evidence, failed=~jnp.isfinite(log_evidence))


def _as_mixture(prior: AbstractClosedFormPrior) -> MixturePrior | None:
    """The prior, where it is a mixture of Gaussians."""
    if isinstance(prior, GaussianPrior):
        return MixturePrior(np.ones(1), prior.mean[None], prior.cov[None])
    return prior if isinstance(prior, MixturePrior) else None


def _resampled(
    key: Key[Array, ""], prior: MixturePrior, evidence: AbstractEvidence
) -> tuple[Float[Array, " d"], Info]:
    trils = jax.vmap(cholesky)(prior.covs)
    fitted = jax.vmap(variational)(jax.vmap(evidence.reparameterize)(prior.means, trils))
    proposals = Proposals.of(jnp.log(prior.weights), prior.means, trils, fitted)
    uniform_key, normal_key = jax.random.split(unrolled(key))
    uniforms = jax.random.uniform(uniform_key, (2,), prior.means.dtype)
    normal = jax.random.normal(normal_key, (PROPOSALS, 2 * prior.dim + 4), prior.means.dtype)
    theta, *info = proposals.resample(jax.vmap(evidence.log_likelihood), uniforms, normal)
    return theta, Info.of(theta, *info)


class Proposals(NamedTuple):
    """Sampling importance resampling over component and parameters, theta = m_k + L_k z: in units
    of its component every prior is N(0, I). In JAX or in NumPy.
    """

    log_prior: Float[AnyArray, " k"]
    log_weights: Float[AnyArray, " k"]  # of the components given evidence
    log_bound: Float[AnyArray, ""]
    means: Float[AnyArray, "k d"]
    trils: Float[AnyArray, "k d d"]
    fitted: Variational

    @staticmethod
    def of(
        log_prior: Float[AnyArray, " k"],
        means: Float[AnyArray, "k d"],
        trils: Float[AnyArray, "k d d"],
        fitted: Variational,
    ) -> "Proposals":
        """From the components of the prior, each fitted to its posterior."""
        weights, log_bound = log_normalize(log_prior + fitted.bound)
        log_weights = numpy_of(weights).log(weights)
        return Proposals(log_prior, log_weights, log_bound, means, trils, fitted)

    def resample(
        self,
        log_likelihood: Callable[[AnyArray], AnyArray],
        uniforms: Float[AnyArray, "*n 2"],
        normal: Float[AnyArray, "*n m j"],
    ) -> tuple[Float[AnyArray, "*n d"], AnyArray, AnyArray, AnyArray]:
        """The draw that these random numbers determine; log p(h), the effective number of
        proposals, and whether it failed. In NumPy of many draws, with leading axes.
        """
        xp, d = numpy_of(self.means), self.means.shape[-1]
        weights = xp.exp(self.log_weights)
        places = (xp.arange(PROPOSALS, dtype=weights.dtype) + uniforms[..., :1]) / PROPOSALS
        which = pick(weights, places)
        z, log_proposal = _heavy_tailed(normal, self.fitted, which)
        thetas = self.means[which] + times_each(self.trils[which], z)
        log_prior = self.log_prior[which] - 0.5 * (xp.sum(z**2, -1) + d * math.log(2 * math.pi))
        log_joint = log_prior + log_likelihood(thetas)
        shares, log_total = log_normalize(log_joint - log_proposal - self.log_weights[which])
        chosen = pick(shares, uniforms[..., 1:])
        theta = xp.take_along_axis(thetas, chosen[..., None], -2)[..., 0, :]
        log_evidence = log_total - math.log(PROPOSALS)
        failed = ~(xp.isfinite(log_evidence) & xp.isfinite(self.log_bound))
        return theta, log_evidence, 1.0 / xp.sum(shares**2, -1), failed


def _heavy_tailed(
    normal: Float[AnyArray, "m k"], fitted: Variational, which: Int[AnyArray, " m"]
) -> tuple[Float[AnyArray, "m d"], Float[AnyArray, " m"]]:
    """Draws about the chosen Gaussians by Student's t with d + 4 degrees of freedom, and their log
    densities: no weight over a Gaussian tail is unbounded. Its chi-square variable is a sum of
    squares, which compiles much faster than JAX's own.
    """
    xp, d = numpy_of(normal), fitted.mean.shape[-1]
    freedom = d + 4.0
    chi_square = xp.sum(normal[..., d:] ** 2, -1)
    noise = normal[..., :d] * xp.sqrt(freedom / chi_square)[..., None]
    draws = fitted.mean[which] + times_each(fitted.factor[which], noise)
    log_scale = 0.5 * (fitted.log_det[which] + d * math.log(freedom * math.pi))
    log_norm = math.lgamma(d + 2.0) - math.lgamma(0.5 * d + 2.0) - log_scale
    tails = 0.5 * (freedom + d) * xp.log1p(xp.sum(noise**2, -1) / freedom)
    return draws, log_norm - tails
