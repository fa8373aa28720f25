"""Components of a Gaussian mixture as an exponential family: both steps of EM are matrix products.

With the sufficient statistics T(x) = (1, x, upper triangle of x x') of a point, the log density of
every component is linear in T, and what the M-step needs is the sum of T by responsibility.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..linalg import lapack_solve_lower, of_many

SMALLEST_VARIANCE = 1e-4  # of a component, in units of the samples' own
SMALLEST_COUNT = 1e-3  # points that a component may be left with
TIED = 1e6  # a strength of pooling that leaves one covariance for all components


class Components(NamedTuple):
    """sum_k exp(log_weights_k) N(means_k, covs_k); an absent component has log weight -inf."""

    log_weights: Float[Array, " k"]
    means: Float[Array, "k d"]
    covs: Float[Array, "k d d"]


@jax.jit
def sufficient_statistics(x: Float[Array, "n d"]) -> Float[Array, "n p"]:
    """T(x) of each row, p = 1 + d + d (d + 1) / 2."""
    rows, columns = np.triu_indices(x.shape[1])
    return jnp.concatenate([jnp.ones_like(x[:, :1]), x, x[:, rows] * x[:, columns]], axis=1)


def log_joint(components: Components, statistics: Float[Array, "n p"]) -> Float[Array, "n k"]:
    """log w_k N(x_n; m_k, S_k)."""
    return statistics @ _natural(components).T


def _natural(components: Components) -> Float[Array, "k p"]:
    """What multiplies T(x) in the log of each component.

    JAX's own batched routines compile much faster than those written out in `linalg`.
    """
    log_weights, means, covs = components
    dim = means.shape[1]
    precision, log_det = of_many(_inverses, covs)
    shift = jnp.einsum("kij,kj->ki", precision, means)
    square = jnp.sum(means * shift, axis=1)
    constant = log_weights - 0.5 * (square + log_det + dim * jnp.log(2 * jnp.pi))
    rows, columns = np.triu_indices(dim)
    twice = jnp.asarray(np.where(rows == columns, 0.5, 1.0), means.dtype)
    quadratic = -twice[None] * precision[:, rows, columns]
    return jnp.concatenate([constant[:, None], shift, quadratic], axis=1)


def _inverses(covs: Float[Array, "*k d d"]) -> tuple[Float[Array, "*k d d"], Float[Array, "*k"]]:
    """Inverses of covariances, and their log determinants."""
    tril = jnp.linalg.cholesky(covs)
    identity = jnp.broadcast_to(jnp.eye(covs.shape[-1], dtype=covs.dtype), covs.shape)
    inverse = lapack_solve_lower(tril, identity)
    log_det = 2.0 * jnp.sum(jnp.log(jnp.diagonal(tril, axis1=-2, axis2=-1)), axis=-1)
    return jnp.einsum("...ji,...jl->...il", inverse, inverse), log_det


def maximize(
    statistics: Float[Array, "k p"], dim: int, pooling: Float[Array, ""] | float
) -> Components:
    """The M-step: weights, means and covariances from sums of T(x) by responsibility.

    Each covariance is drawn towards the pooled one as if `pooling` points had it, and no variance
    falls below `SMALLEST_VARIANCE`. A component that answers for nothing stays absent.

    Args:
        statistics: (k, p), sums of T(x) or of its expectation.
        dim: d.
        pooling: points' worth of the pooled covariance in each component's own; d serves well,
            `TIED` leaves one covariance for all.

    Returns:
        The components.
    """
    count = statistics[:, 0]
    kept = jnp.maximum(count, SMALLEST_COUNT)
    means = statistics[:, 1 : dim + 1] / kept[:, None]
    scatter = _symmetric(statistics[:, dim + 1 :], dim)
    scatter = scatter - count[:, None, None] * means[:, :, None] * means[:, None, :]
    pooled = jnp.sum(scatter, axis=0) / jnp.sum(count)
    covs = (scatter + pooling * pooled[None]) / jnp.maximum(count + pooling, SMALLEST_COUNT)[
        :, None, None
    ]
    floor = SMALLEST_VARIANCE * jnp.eye(dim, dtype=means.dtype)
    log_weights = jnp.where(count > 0, jnp.log(kept / jnp.sum(count)), -jnp.inf)
    return Components(log_weights, means, covs + floor[None])


def _symmetric(triangles: Float[Array, "k q"], dim: int) -> Float[Array, "k d d"]:
    index = np.zeros((dim, dim), int)
    rows, columns = np.triu_indices(dim)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return triangles[:, index]
