"""What a correction is trained towards: posterior means over the samples that could be meant."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .descent import Rows

MOST_NEAR = 64  # neighbors of a sample that share in its target
NEAR_UP_TO = 3  # parameters: in more of them no neighbors are near
LARGEST = 2**15  # samples whose neighbors are sought


class Neighbors(NamedTuple):
    """Where the samples nearest a sample are, seen from it, coordinate by coordinate; and how many
    times they, and a sample drawn at random, count in units of its own weight."""

    away: Float[Array, "d *n m"]
    log_weights: Float[Array, "*n m"]
    log_drawn: Float[Array, "*n 1"]

    @staticmethod
    def of(rows: Rows, num_others: int) -> "Neighbors":
        """Of all rows, where `num_others` drawn at random stand for all."""
        from scipy.spatial import cKDTree  # slow to import, and not needed to decide

        samples = np.asarray(rows.samples)
        weights = np.ones(len(samples)) if rows.weights is None else np.asarray(rows.weights)
        size, own = min(MOST_NEAR, len(samples) - 1), np.arange(len(samples))[:, None]
        found = cKDTree(samples).query(samples, k=size + 1, workers=-1)[1]
        # Of rows that are equal another than itself may come first.
        index = np.where(found[:, 1:] == own, found[:, :1], found[:, 1:])
        away = np.moveaxis(samples[index] - samples[:, None], -1, 0)
        drawn = np.sum(weights) / num_others / weights[:, None]
        arrays = (away, np.log(weights[index] / weights[:, None]), np.log(drawn))
        return Neighbors(*(jnp.asarray(array, samples.dtype) for array in arrays))

    def pick(self, index: Int[Array, "g s"]) -> "Neighbors":
        """Of some rows."""
        return Neighbors(self.away[:, index], self.log_weights[index], self.log_drawn[index])


def posterior_means(
    u: Float[Array, "g s d"],
    precision: Float[Array, "g d d"],
    s_0: Float[Array, "g s d"],
    others: Float[Array, "m d"],
    log_counts: Float[Array, "g s m"],
    near: Neighbors | None = None,
) -> Float[Array, "g s d"]:
    """The mean of s_0 given u = s_0 + noise, over the sample it came from and `others`, each of
    which counts so many times as the sample does; not at all where it is the sample itself, which
    counted twice would seem likelier than it is.

    Any sample could have given u, so each is weighted by how likely it is to have done so: as a
    target of the regression the same mean as s_0 itself, with much less noise. Under strong
    evidence only neighbors are likely, and a few samples at random hold none. So all that are
    `near` s_0, up to the farthest, count as they are, and `others` from there on for all others.
    """
    shift = jnp.einsum("gij,gsj->gsi", precision, u)
    log_others = shift @ others.T - _half_squares(precision, others)[:, None] + log_counts
    pulled = jnp.einsum("gij,gsj->gsi", precision, s_0)
    log_own = jnp.sum((shift - 0.5 * pulled) * s_0, axis=-1, keepdims=True)
    if near is None:
        top = jnp.max(log_others, axis=-1, keepdims=True, initial=-jnp.inf)  # there may be none
        top = jnp.maximum(log_own, top)
        move, total = jnp.zeros_like(s_0), jnp.zeros_like(log_own)
    else:
        farthest = jnp.max(_squares(near.away), axis=-1, keepdims=True)
        beyond = _squared_distances(s_0, others) >= farthest
        log_others = jnp.where(beyond, log_others + near.log_drawn, -jnp.inf)
        gain = _gain(near.away, shift - pulled, precision) + near.log_weights
        log_near = jnp.where(_squares(near.away) < farthest, log_own + gain, -jnp.inf)
        top = jnp.max(log_others, axis=-1, keepdims=True, initial=-jnp.inf)
        top = jnp.maximum(log_own, jnp.maximum(top, jnp.max(log_near, axis=-1, keepdims=True)))
        shares = jnp.exp(log_near - top)
        move = jnp.stack([jnp.sum(shares * a, axis=-1) for a in near.away], axis=-1)
        total = jnp.sum(shares, axis=-1, keepdims=True)
    own, weights = jnp.exp(log_own - top), jnp.exp(log_others - top)
    # One product sums the weights and what they weigh, so that they are gone through once.
    sums = weights @ jnp.concatenate([others, jnp.ones_like(others[:, :1])], axis=1)
    beside = own + total
    return (beside * s_0 + move + sums[..., :-1]) / (beside + sums[..., -1:])


def _half_squares(precision: Float[Array, "g d d"], points: Float[Array, "m d"]) -> Array:
    """p' P p / 2 for each P and p."""
    rows, columns = np.triu_indices(points.shape[-1])
    twice = jnp.asarray(np.where(rows == columns, 0.5, 1.0), points.dtype)
    return (twice[None] * precision[:, rows, columns]) @ (points[:, rows] * points[:, columns]).T


def _squares(away: Float[Array, "d g s m"]) -> Float[Array, "g s m"]:
    return sum((a**2 for a in away[1:]), away[0] ** 2)


def _squared_distances(s_0: Float[Array, "g s d"], points: Float[Array, "m d"]) -> Array:
    return _squares(jnp.moveaxis(s_0, -1, 0)[..., None] - points.T[:, None, None])


def _gain(
    away: Float[Array, "d g s m"], pull: Float[Array, "g s d"], precision: Float[Array, "g d d"]
) -> Float[Array, "g s m"]:
    """Log likelihood of s_0 + a less that of s_0: P (u - s_0) a - a' P a / 2."""
    dim = len(away)
    terms = (pull[:, :, i, None] * away[i] for i in range(dim))
    pairs = ((i, j) for i in range(dim) for j in range(dim))
    squares = (precision[:, i, j][:, None, None] * away[i] * away[j] for i, j in pairs)
    return sum(terms, jnp.zeros_like(away[0])) - 0.5 * sum(squares, jnp.zeros_like(away[0]))
