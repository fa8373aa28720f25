"""Rows of a history in arrays of fixed length: room for more, merged, and summed in blocks, so that
one compiled program serves every number of rows.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from ..gaussian import Gaussian

Sums = TypeVar("Sums")  # an array, or a tree of arrays
BLOCK = 64  # rows that are summed at once


def sum_over_rows(
    function: Callable[..., Sums], columns: tuple[Array, ...], num_rows: Int[Array, ""]
) -> Sums:
    """The sum over blocks of `function(*block of every column)`, a tree of arrays.

    Blocks beyond `num_rows` are not visited; rows beyond it in the last block are, and must count
    for nothing. The loop has a dynamic length, which reverse-mode differentiation cannot pass.
    """
    capacity = columns[0].shape[0]
    if capacity <= BLOCK:
        return function(*columns)

    def block(index: int | Int[Array, ""]) -> Sums:
        start = index * BLOCK
        return function(*(jax.lax.dynamic_slice_in_dim(c, start, BLOCK) for c in columns))

    def add(index: Int[Array, ""], total: Sums) -> Sums:
        return jax.tree.map(jnp.add, total, block(index))

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(block, 0))
    num_blocks = (_longest(num_rows) + (BLOCK - 1)) // BLOCK
    found: Sums = jax.lax.fori_loop(0, num_blocks, add, nothing)
    return found


@jax.jit
def put_rows(
    old: tuple[Array, ...], start: Int[Array, ""], new: tuple[Array | np.ndarray, ...]
) -> tuple[Array, ...]:
    """Columns with new rows from number `start` on, and then how many rows there are."""
    columns = (
        jax.lax.dynamic_update_slice_in_dim(column, jnp.asarray(rows, column.dtype), start, 0)
        for column, rows in zip(old, new, strict=True)
    )
    return *columns, start + jnp.asarray(new[0].shape[0], start.dtype)


def room_for(num_rows: int) -> int:
    """The smallest capacity for so many rows: itself, or whole blocks."""
    return num_rows if num_rows <= BLOCK else -(-num_rows // BLOCK) * BLOCK


@custom_vmap
def _longest(num_rows: Int[Array, ""]) -> Int[Array, ""]:
    """The largest number of rows of all histories side by side.

    So the loop is as long for all of them, and blocks are slices instead of gathered rows.
    """
    return num_rows


@_longest.def_vmap
def _longest_of_many(
    axis_size: int, in_batched: list[bool], num_rows: Int[Array, " n"]
) -> tuple[Int[Array, ""], bool]:
    return _longest(jnp.max(num_rows)), False


def predictors(
    belief: Gaussian, x: Float[Array, "n d"], offset: Float[Array, " n"]
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """Mean and variance of the linear predictor of every row."""
    return x @ belief.mean + offset, products(x) @ belief.cov.reshape(-1)


def products(x: Float[Array, "n d"]) -> Float[Array, "n d_d"]:
    """All products of two features of every row: with them, sums over rows for many beliefs at once
    are products of two matrices, not of many small ones.
    """
    return (x[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1)


MIN_CAPACITY = 128
SMALL_ROOM = 2**22  # numbers
Columns = tuple[
    np.ndarray, np.ndarray, np.ndarray, np.ndarray
]  # features, rewards, weights, offsets


def capacity_for(num_rows: int) -> int:
    """The power of two, at least MIN_CAPACITY, that holds `num_rows` rows."""
    return max(MIN_CAPACITY, 1 << max(num_rows - 1, 0).bit_length())


def small_room(capacity: int, dim: int) -> bool:
    """Whether a file may ask for room for so many rows without holding them."""
    return capacity * (dim + 3) <= SMALL_ROOM


def padded(columns: Columns, capacity: int) -> Columns:
    """The rows, and zeros up to `capacity` rows or the next whole block."""
    missing = room_for(capacity) - len(columns[0])
    features, rewards, weights, offsets = (
        np.pad(column, [(0, missing)] + [(0, 0)] * (column.ndim - 1)) for column in columns
    )
    return features, rewards, weights, offsets


def merged(columns: Columns) -> Columns:
    """Equal rows as one row that has their weights, at the place of the first."""
    features, rewards, weights, offsets = columns
    table = np.column_stack([features, rewards, offsets])
    _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    kept = first[order]
    totals = np.bincount(which.reshape(-1), weights)[order].astype(weights.dtype)
    return features[kept], rewards[kept], totals, offsets[kept]
