"""Exact posterior sampling under a closed-form prior: TS, TunedTS and MixTS."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..evidence.base import AbstractEvidence
from ..evidence.glm import Variational, variational
from ..linalg import MAX_UNROLLED, cholesky
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
    """A draw from the posterior of a mixture, of which only the component drawn is conditioned: the
    same draw as from its `posterior`, cheaper where factorizations are expensive.
    """
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
    """Sampling importance resampling over component and parameters, theta = m_k + L_k z: in units
    of its component every prior is N(0, I).
    """
    log_weights, trils = jnp.log(prior.weights), jax.vmap(cholesky)(prior.covs)
    units = jax.vmap(evidence.reparameterize)
    fitted = jax.vmap(variational)(units(prior.means, trils))
    weights, log_bound = log_normalize(log_weights + fitted.bound)
    uniform_key, normal_key = jax.random.split(unrolled(key))
    first, last = jax.random.uniform(uniform_key, (2,), weights.dtype)
    which = pick(weights, (jnp.arange(PROPOSALS, dtype=weights.dtype) + first) / PROPOSALS)
    z, log_proposal = _heavy_tailed(normal_key, fitted, which)
    thetas = prior.means[which] + jnp.einsum("mij,mj->mi", trils[which], z)
    d = thetas.shape[1]
    log_prior = log_weights[which] - 0.5 * (jnp.sum(z**2, axis=1) + d * jnp.log(2 * jnp.pi))
    log_joint = log_prior + jax.vmap(evidence.log_likelihood)(thetas)
    log_ratio = log_joint - log_proposal - jnp.log(weights)[which]
    shares, log_total = log_normalize(log_ratio)
    theta = thetas[pick(shares, last[None])[0]]
    log_evidence = log_total - jnp.log(PROPOSALS)
    failed = ~jnp.isfinite(log_evidence) | ~jnp.isfinite(log_bound)
    return theta, Info.of(theta, log_evidence, 1.0 / jnp.sum(shares**2), failed)


def _heavy_tailed(
    key: Key[Array, ""], fitted: Variational, which: Int[Array, " m"]
) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Draws about the chosen Gaussians by Student's t with d + 4 degrees of freedom, and their log
    densities: no weight over a Gaussian tail is unbounded. Its chi-square variable is a sum of
    squares, which compiles much faster than JAX's own.
    """
    d, dtype = fitted.mean.shape[1], fitted.mean.dtype
    freedom = jnp.asarray(d + 4, dtype)
    normal = jax.random.normal(key, (which.shape[0], 2 * d + 4), dtype)
    chi_square = jnp.sum(normal[:, d:] ** 2, axis=1)
    noise = normal[:, :d] * jnp.sqrt(freedom / chi_square)[:, None]
    draws = fitted.mean[which] + jnp.einsum("mij,mj->mi", fitted.factor[which], noise)
    log_scale = 0.5 * (fitted.log_det[which] + d * jnp.log(freedom * jnp.pi))
    log_norm = math.lgamma(d + 2.0) - math.lgamma(0.5 * d + 2.0) - log_scale
    tails = 0.5 * (freedom + d) * jnp.log1p(jnp.sum(noise**2, axis=1) / freedom)
    return draws, log_norm - tails
