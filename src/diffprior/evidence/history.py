"""Rows of a history on the host: room for more of them, and equal ones merged."""

import numpy as np

from .blocks import room_for

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
