"""Components whose covariances have few directions of their own: a mixture of factor analysers.

Samples near a curved sheet of few dimensions want many components, each flat; a covariance free in
all directions has too many numbers for the samples that a component has. Here it is one noise
matrix that all components share, widened along at most `rank` directions.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..linalg import lapack_eigh
from .components import Components


def with_factors(
    components: Components,
    counts: Float[Array, " k"],
    noise: Float[Array, "d d"],
    rank: Int[Array, ""],
) -> tuple[Components, Float[Array, "d d"]]:
    """The M-step of factor analysis: components given the noise, and the noise given components.

    In coordinates in which the noise is I, the covariance of greatest likelihood keeps the `rank`
    largest variances of the component's own that exceed 1. The noise is then the mean over all
    points of what the factors leave, E[e e'] = C^-1 T C^-1 + I - C^-1, where T is a component's own
    covariance and C what it became.

    Args:
        components: with covariances free in all directions.
        counts: (k,), points that each component answers for.
        noise: (d, d), what components shared until now.
        rank: directions that a component may be wider in.

    Returns:
        The components, and the noise for the next step.
    """
    root, inverse = _powers(noise)
    own = jnp.einsum("ij,kjl,lm->kim", inverse, components.covs, inverse)
    spectral = jax.vmap(lapack_eigh)(own)
    variances, vectors = spectral.values, spectral.vectors
    dim = noise.shape[0]
    wider = jnp.arange(dim)[None] >= dim - rank
    kept = jnp.where(wider, jnp.maximum(variances, 1.0), 1.0)
    half = jnp.einsum("ij,kjl->kil", root, vectors * jnp.sqrt(kept)[:, None])
    left = variances / kept**2 + 1.0 - 1.0 / kept
    shares = counts / jnp.sum(counts)
    rest = jnp.einsum("k,kij,kj,klj->il", shares, vectors, left, vectors)
    covs = jnp.einsum("kij,klj->kil", half, half)
    return components._replace(covs=covs), root @ rest @ root


def _powers(noise: Float[Array, "d d"]) -> tuple[Float[Array, "d d"], Float[Array, "d d"]]:
    """Its symmetric root, and the inverse of that."""
    variances, vectors = jnp.linalg.eigh(noise)
    stds = jnp.sqrt(variances)
    return (vectors * stds[None]) @ vectors.T, (vectors / stds[None]) @ vectors.T
