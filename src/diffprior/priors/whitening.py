"""Samples brought to zero mean and unit covariance, and split into training and held-out rows.

All of it in double precision on the host, whatever precision draws are made in.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

ROUNDING = 8 * np.finfo(np.float64).eps  # a column that varies by less than this is constant
CONSTANT_SPREAD = 1e-6  # that a constant column is given, over its size


def constant_columns(samples: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " d"]:
    """Which parameters do not vary beyond rounding, in whatever units."""
    return np.ptp(samples, axis=0) <= ROUNDING * np.max(np.abs(samples), axis=0)


def whitening(
    samples: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"] | None = None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Mean, and lower factor of the covariance, with a little added where it is singular; of rows
    that count `weights` times, by default once."""
    share = np.ones(len(samples)) if weights is None else np.asarray(weights, np.float64)
    share = share / np.sum(share)
    offset = share @ samples
    offset = offset + share @ (samples - offset)  # what rounding left out far from zero
    stds = np.sqrt(share @ (samples - offset) ** 2)
    constant = constant_columns(samples[share > 0]) | ~(stds > 0)
    typical = np.median(stds[~constant]) if np.any(~constant) else 1.0
    size = np.where(offset != 0, np.abs(offset), typical)
    stds = np.where(constant, CONSTANT_SPREAD * size, stds)
    standard = (samples - offset) / stds
    correlation = standard.T @ (share[:, None] * standard)
    ridge = np.maximum(1e-6, 1.0 - np.diagonal(correlation))
    return offset, stds[:, None] * np.linalg.cholesky(correlation + np.diag(ridge))


def to_unit(
    samples: Float[np.ndarray, "n d"],
    offset: Float[np.ndarray, " d"],
    scale: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, "n d"]:
    """z of every row, where theta = offset + scale z."""
    return np.linalg.solve(scale, (samples - offset).T).T


def split(
    num_rows: int, seed: int, groups: Int[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " held"]]:
    """Rows to train on and rows to hold out: a tenth, a fifth of fewer than 1,000, at most 5,000.

    Rows of one group, numbered from 0, stay together; so many groups are held out that they have as
    many rows, and at least one is left to train on.
    """
    num_held_out = min(num_rows // 10 if num_rows >= 1000 else num_rows // 5, 5000)
    rng = np.random.default_rng(seed)
    if groups is None:
        order = rng.permutation(num_rows)
        return order[num_held_out:], order[:num_held_out]
    sizes = np.bincount(groups)
    order = rng.permutation(len(sizes))
    count = 1 + int(np.searchsorted(np.cumsum(sizes[order]), num_held_out))
    held_out = np.isin(groups, order[: min(count, len(sizes) - 1)])
    rows = rng.permutation(num_rows)
    return rows[~held_out[rows]], rows[held_out[rows]]
