"""The Gaussian closest to a posterior, for likelihoods that are not quadratic."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..gaussian import Gaussian
from .base import AbstractEvidence

STEPS = 6  # of the fixed-point iteration
DAMPING = 0.7  # share of a step that is taken; whole ones oscillate where predictors vary widely


def variational(prior: Gaussian, evidence: AbstractEvidence) -> tuple[Gaussian, Float[Array, ""]]:
    """The Gaussian q of least KL(q, posterior), and the bound on log p(h) that it gives.

    A few steps of the fixed-point iteration q <- prior times the expansion of the likelihood under
    q, from Laplace's approximation on.

    Args:
        prior: Gaussian over the parameters.
        evidence: what the task has shown.

    Returns:
        q, and E_q log p(h | theta) - KL(q, prior); NaN where Laplace's approximation was not found.

    References:
        Opper and Archambeau, The variational Gaussian approximation revisited (2009), Eqs. 8, 9;
        here the averages are by quadrature over each row's linear predictor.
    """
    laplace, log_evidence = evidence.condition(prior)
    if evidence.quadratic:
        return laplace, log_evidence

    def step(_: Any, state: tuple[Gaussian, Array, Array]) -> tuple[Gaussian, Array, Array]:
        belief, *old = state
        new = evidence.expand(belief)
        precision, shift = (a + DAMPING * (b - a) for a, b in zip(old, new, strict=True))
        return prior.tilt(precision, shift)[0], precision, shift

    first = evidence.expand(laplace)
    belief, _, _ = jax.lax.fori_loop(0, STEPS, step, (prior.tilt(*first)[0], *first))
    bound = evidence.expected_log_likelihood(belief) - belief.kl(prior)
    return belief, jnp.where(jnp.isnan(log_evidence), jnp.nan, bound)
