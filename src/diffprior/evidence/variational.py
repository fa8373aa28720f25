"""The Gaussian closest to a posterior, for likelihoods that are not quadratic."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..gaussian import Gaussian
from ..linalg import cholesky, log_det_from_tril, solve_lower
from .base import AbstractEvidence

STEPS = 8  # of the fixed-point iteration
DAMPING = 0.7  # share of a step that is taken; whole ones oscillate where predictors vary widely


class Variational(NamedTuple):
    """N(mean, factor factor'), the log determinant of its covariance, and a bound on log p(h)."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    log_det: Float[Array, ""]
    bound: Float[Array, ""]

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance."""
        return self.factor @ self.factor.T


def variational(evidence: AbstractEvidence) -> Variational:
    """The Gaussian q of least KL(q, posterior) under the prior N(0, I).

    A few steps of the fixed-point iteration q <- prior times the expansion of the likelihood under
    q, from the mode on. Other Gaussian priors come to this one by
    `evidence.reparameterize(mean, cholesky(cov))`.

    Args:
        evidence: what the task has shown.

    Returns:
        q with the bound E_q log p(h | theta) - KL(q, prior), which is NaN where no mode was found.

    References:
        Opper and Archambeau, The variational Gaussian approximation revisited (2009), Eqs. 8, 9;
        here the averages are by quadrature over each row's linear predictor.
    """
    laplace, log_evidence = evidence.condition(
        Gaussian.standard(evidence.dim, jnp.result_type(float))
    )
    identity = jnp.eye(evidence.dim, dtype=laplace.mean.dtype)
    State = tuple[Variational, tuple[Array, Array]]

    def step(number: Any, state: State) -> State:
        q, old = state
        new = evidence.expand(Gaussian(q.mean, q.cov))
        share = jnp.where(number == 0, 1.0, DAMPING).astype(identity.dtype)
        precision, shift = (a + share * (b - a) for a, b in zip(old, new, strict=True))
        tril = cholesky(identity + precision)
        half = solve_lower(tril, identity)
        mean = half.T @ (half @ shift)
        return Variational(mean, half.T, -log_det_from_tril(tril), q.bound), (precision, shift)

    nothing = jnp.zeros_like(log_evidence)
    first = Variational(laplace.mean, jnp.zeros_like(identity), nothing, log_evidence)
    start = (first, (jnp.zeros_like(identity), jnp.zeros_like(laplace.mean)))
    q = jax.lax.fori_loop(0, STEPS, step, start)[0]
    divergence = 0.5 * (
        q.mean @ q.mean + jnp.sum(q.factor**2) - q.log_det - jnp.asarray(q.mean.shape[0])
    )
    bound = evidence.expected_log_likelihood(Gaussian(q.mean, q.cov)) - divergence
    return q._replace(bound=jnp.where(jnp.isnan(log_evidence), jnp.nan, bound))
