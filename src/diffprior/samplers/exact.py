"""Exact posterior sampling under a closed-form prior: TS, TunedTS and MixTS."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Int, Key

from ..evidence.base import AbstractEvidence
from ..evidence.variational import variational
from ..gaussian import Gaussian
from ..linalg import cholesky, log_det_from_tril, solve_lower
from ..priors.base import AbstractClosedFormPrior, log_normalise, pick
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from .base import AbstractSampler, Info, checked_temperature

PROPOSALS = 32  # of which one is drawn, where the posterior is not Gaussian


class Exact(AbstractSampler):
    """Draws from the closed-form posterior: exact for linear evidence and for empirical priors.

    For generalised linear models, each Gaussian of the prior is replaced by the Gaussian closest to
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

    def __init__(self, prior: AbstractClosedFormPrior, *, temperature: Any = 1.0) -> None:
        if not isinstance(prior, AbstractClosedFormPrior):
            raise ValueError(
                f"`prior`: expected a closed-form prior, got {type(prior).__name__}; "
                "use EvidenceDPS, LaplaceDPS or TwistedSMC for a learned one"
            )
        self.prior = prior
        self.temperature = checked_temperature(temperature)

    def draw(
        self, key: Key[Array, ""], evidence: AbstractEvidence
    ) -> tuple[Float[Array, " d"], Info]:
        """One draw, and log p(h) or an estimate of it."""
        components = _components(self.prior)
        if components is None or evidence.quadratic:
            posterior, log_evidence = self.prior.posterior(evidence)
            theta = posterior.sample(key, 1)[0]
            return theta, Info.of(theta, log_evidence, failed=~jnp.isfinite(log_evidence))
        return _resampled(key, components, evidence)


class _Components(NamedTuple):
    """A mixture of Gaussians."""

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]


def _components(prior: AbstractClosedFormPrior) -> _Components | None:
    """The Gaussians of a prior that is a mixture of them."""
    if isinstance(prior, GaussianPrior):
        return _Components(jnp.zeros(1, prior.mean.dtype), prior.mean[None], prior.cov[None])
    if isinstance(prior, MixturePrior):
        return _Components(jnp.log(prior.weights), prior.means, prior.covs)
    return None


def _resampled(
    key: Key[Array, ""], prior: _Components, evidence: AbstractEvidence
) -> tuple[Float[Array, " d"], Info]:
    """Sampling importance resampling over component and parameters."""
    fitted, bounds = jax.vmap(lambda m, c: variational(Gaussian(m, c), evidence))(
        prior.means, prior.covs
    )
    weights, log_bound = log_normalise(prior.log_weights + bounds)
    posterior = _Components(jnp.log(weights), fitted.mean, fitted.cov)
    which_key, proposal_key, last_key = jax.random.split(key, 3)
    uniform = jax.random.uniform(which_key, (), weights.dtype)
    places = (jnp.arange(PROPOSALS, dtype=weights.dtype) + uniform) / PROPOSALS
    which = pick(weights, places)
    thetas, log_proposal = _heavy_tailed(proposal_key, posterior, which)
    log_joint = _log_densities(prior, which, thetas) + jax.vmap(evidence.log_likelihood)(thetas)
    log_ratio = log_joint - log_proposal
    shares, log_total = log_normalise(log_ratio)
    theta = thetas[pick(shares, jax.random.uniform(last_key, (1,), shares.dtype))[0]]
    log_evidence = log_total - jnp.log(PROPOSALS)
    failed = ~jnp.isfinite(log_evidence) | ~jnp.isfinite(log_bound)
    return theta, Info.of(theta, log_evidence, 1.0 / jnp.sum(shares**2), failed)


def _heavy_tailed(
    key: Key[Array, ""], mixture: _Components, which: Int[Array, " m"]
) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Draws about the chosen Gaussians by Student's t with d + 4 degrees of freedom, and their log
    densities times the weight of the Gaussian: no weight over a Gaussian tail is unbounded."""
    (d,), dtype, count = mixture.means.shape[1:], mixture.means.dtype, which.shape[0]
    freedom = jnp.asarray(d + 4, dtype)
    noise_key, scale_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (count, d), dtype)
    chi_square = 2.0 * jax.random.gamma(scale_key, freedom / 2.0, (count,), dtype)
    noise = noise * jnp.sqrt(freedom / chi_square)[:, None]
    trils = jax.vmap(cholesky)(mixture.covs)
    draws = mixture.means[which] + jnp.einsum("mij,mj->mi", trils[which], noise)
    log_scale = 0.5 * jax.vmap(log_det_from_tril)(trils) + 0.5 * d * jnp.log(freedom * jnp.pi)
    log_norm = gammaln((freedom + d) / 2.0) - gammaln(freedom / 2.0) - log_scale
    tails = 0.5 * (freedom + d) * jnp.log1p(jnp.sum(noise**2, axis=1) / freedom)
    return draws, (mixture.log_weights + log_norm)[which] - tails


def _log_densities(
    mixture: _Components, which: Int[Array, " m"], thetas: Float[Array, "m d"]
) -> Float[Array, " m"]:
    """Log weight and density of each theta's Gaussian; factors are inverted once for all draws."""
    d = thetas.shape[1]
    trils = jax.vmap(cholesky)(mixture.covs)
    identity = jnp.eye(d, dtype=thetas.dtype)
    inverses = jax.vmap(lambda tril: solve_lower(tril, identity))(trils)
    log_norm = 0.5 * jax.vmap(log_det_from_tril)(trils) + 0.5 * d * jnp.log(2 * jnp.pi)
    z = jnp.einsum("mij,mj->mi", inverses[which], thetas - mixture.means[which])
    return (mixture.log_weights - log_norm)[which] - 0.5 * jnp.sum(z**2, axis=1)
