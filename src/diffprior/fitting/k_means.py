"""Clusters to start EM from: k-means, its centers spread by greedy k-means++.

It takes longer to compile than EM and runs quickly, so one program serves every number of clusters.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from ..mixture import pick
from ..threefry import written_out

SEEDED_FROM = 4096  # rows that centers are sought among
TRIALS = 4  # places tried for each center
LLOYD = 6  # rounds of k-means


@eqx.filter_jit
def clusters(
    rows: Float[Array, "n d"],
    weights: Float[Array, " n"],
    key: Key[Array, ""],
    k: Int[Array, ""],
    most: int,
) -> Int[Array, " n"]:
    """The number of each row's cluster, of `k` that are there and `most` that could be."""
    numbers = jnp.arange(most)
    alive = numbers < k
    counted = weights[:, None] * jnp.concatenate([jnp.ones_like(rows[:, :1]), rows], axis=1)
    place_key, subset_key = jax.random.split(written_out(key))
    size = min(SEEDED_FROM, rows.shape[0])
    chosen = pick(weights, jax.random.uniform(subset_key, (size,), rows.dtype))
    centers = _spread(place_key, rows[chosen], k, most)

    def nearest(centers: Float[Array, "k d"]) -> Int[Array, " n"]:
        squares = jnp.sum(centers**2, axis=1)[None] - 2.0 * rows @ centers.T
        squares = jnp.where(alive[None], squares, jnp.inf)
        least = jnp.min(squares, axis=1, keepdims=True)  # quicker than `argmin`
        return jnp.min(jnp.where(squares == least, numbers[None], most - 1), axis=1)

    def lloyd(_: Any, centers: Float[Array, "k d"]) -> Float[Array, "k d"]:
        sums = jax.ops.segment_sum(counted, nearest(centers), most)
        count = sums[:, :1]
        return jnp.where(count > 0, sums[:, 1:] / jnp.maximum(count, 1e-6), centers)

    return nearest(jax.lax.fori_loop(0, LLOYD, lloyd, centers))


def _spread(
    key: Key[Array, ""], points: Float[Array, "m d"], k: Int[Array, ""], padded: int
) -> Float[Array, "k d"]:
    """Greedy k-means++: of a few points drawn by squared distance, the one that helps most."""

    def distances(place: Float[Array, " d"]) -> Float[Array, " m"]:
        return jnp.sum((points - place[None]) ** 2, axis=1)

    def add(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        centers, nearest = state
        uniforms = jax.random.uniform(jax.random.fold_in(key, index), (TRIALS,), points.dtype)
        drawn = pick(nearest + 1e-30, uniforms)
        options = jnp.minimum(nearest[None], jax.vmap(distances)(points[drawn]))
        best = jnp.argmin(jnp.sum(options, axis=1))
        return centers.at[index].set(points[drawn[best]]), options[best]

    centers = jnp.zeros((padded, points.shape[1]), points.dtype).at[0].set(points[0])
    return jax.lax.fori_loop(1, k, add, (centers, distances(points[0])))[0]
