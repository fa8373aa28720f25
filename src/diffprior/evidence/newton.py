"""The mode of a log-concave likelihood under a standard normal prior, by damped Newton steps."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..gaussian import Gaussian
from ..linalg import cholesky, log_det_from_tril, solve_lower

MAX_ITERATIONS = 500


class Search(eqx.Module):
    """State of the damped Newton search for the mode, in units of the prior: theta = mean + L z."""

    z: Float[Array, " d"]
    objective: Float[Array, ""]
    damping: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


def find_mode(
    log_likelihood: Callable[[Array], Array],
    precision_and_score: Callable[[Array], tuple[Array, Array]],
    start: Float[Array, " d"],
) -> Search:
    """Minimize |z|^2 / 2 - log p(h | z); `precision_and_score` are minus the second derivative of
    log p(h | .), and the first."""
    identity = jnp.eye(start.shape[0], dtype=start.dtype)
    eps = jnp.finfo(start.dtype).eps

    def objective(z: Float[Array, " d"]) -> Float[Array, ""]:
        return 0.5 * z @ z - log_likelihood(z)

    def step(search: Search) -> Search:
        precision, score = precision_and_score(search.z)
        tril = cholesky(precision + (1.0 + search.damping) * identity)
        inverse_tril = solve_lower(tril, identity)
        move = inverse_tril @ (search.z - score)  # in posterior standard deviations
        z = search.z - inverse_tril.T @ move
        new = objective(z)
        rounding = 4 * eps * (1.0 + jnp.abs(search.objective))
        accept = new <= search.objective + rounding
        no_gain = 0.5 * jnp.sum(move**2) <= rounding
        small = jnp.max(jnp.abs(move)) <= small_step(z.dtype) + 64 * eps * jnp.max(jnp.abs(z))
        undamped = search.damping == 0
        lower = jnp.where(search.damping < 1e-2, 0.0, search.damping * 0.05)
        higher = jnp.maximum(search.damping * 10.0, 1.0)
        return Search(
            jnp.where(accept, z, search.z),
            jnp.where(accept, new, search.objective),
            jnp.where(accept, lower, higher),
            undamped & (small | no_gain),
            search.num_iterations + 1,
        )

    def going_on(search: Search) -> Bool[Array, ""]:
        return ~search.converged & (search.num_iterations < MAX_ITERATIONS)

    zero = jnp.zeros((), start.dtype)
    first = Search(start, objective(start), zero, jnp.array(False), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going_on, step, first)


class Laplace(eqx.Module):
    """Laplace's approximation, log p(h) under it, and how the search for the mode went."""

    posterior: Gaussian
    log_evidence: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


def laplace(
    mean: Float[Array, " d"],
    tril: Float[Array, "d d"],
    search: Search,
    precision: Float[Array, "d d"],
    score: Float[Array, " d"],
) -> Laplace:
    """The approximation about the mode that was found, where theta = mean + tril z; `precision` and
    `score` are those at the mode, of z."""
    z = search.z
    hessian_tril = cholesky(jnp.eye(z.shape[0], dtype=z.dtype) + precision)
    left = solve_lower(hessian_tril, (z - score)[:, None])  # in posterior deviations
    converged = search.converged | (jnp.max(jnp.abs(left)) <= 8 * small_step(z.dtype))
    half_cov = solve_lower(hessian_tril, tril.T)
    posterior = Gaussian(mean + tril @ z, half_cov.T @ half_cov)
    log_evidence = -search.objective - 0.5 * log_det_from_tril(hessian_tril)
    return Laplace(posterior, log_evidence, converged, search.num_iterations)


def small_step(dtype: jnp.dtype) -> float:
    """A Newton step, in posterior standard deviations, after which the error is near rounding."""
    return float(jnp.finfo(dtype).eps) ** 0.375
