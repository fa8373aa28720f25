"""Parameters of past tasks as a fit takes them: checked, in unit coordinates, and split.

All of it in double precision on the host, whatever precision draws are made in.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike, DTypeLike

from ..checks import real_numbers

ROUNDING = 8 * np.finfo(np.float64).eps  # a column that varies by less than this is constant
CONSTANT_STD = 1e-6  # of a constant column, relative to its size
HEDGE_STDS = 3.0  # standard deviations of a hedge, relative to the samples' own


def to_device(array: ArrayLike | float | int, dtype: DTypeLike = np.float32) -> Array:
    """The array in single precision, in which networks learn; without compiling a program."""
    return jax.device_put(np.asarray(array, dtype))


class Rows(NamedTuple):
    """Samples in unit coordinates, how many times each counts, once if `weights` is None, and the
    standardized attributes of its task, if they are known.
    """

    samples: Float[Array, "n d"]
    weights: Float[Array, " n"] | None
    attributes: Float[Array, "n a"] | None = None

    @staticmethod
    def of(*parts: np.ndarray | None) -> "Rows":
        """On the device, in single precision."""
        return Rows(*jax.tree.map(to_device, parts))

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.samples.shape[1]

    def first(self, number: int) -> "Rows":
        """The first `number` rows."""
        return jax.tree.map(lambda leaf: to_device(np.asarray(leaf)[:number]), self)

    def indices(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Int[np.ndarray, "..."]:
        """Indices of rows drawn by their weights."""
        if self.weights is None:
            return rng.integers(0, len(self.samples), shape, np.int32)
        cumulative = np.cumsum(np.asarray(self.weights, np.float64))
        found = np.searchsorted(cumulative, rng.random(shape) * cumulative[-1], side="right")
        last = np.flatnonzero(np.asarray(self.weights))[-1]  # rounding must not draw a weight of 0
        return np.minimum(found, last).astype(np.int32)


def checked_samples(samples: ArrayLike, at_least: int) -> Float[np.ndarray, "n d"]:
    """Parameters of past tasks as float64, with enough rows."""
    raw = np.asarray(
        real_numbers("samples", samples, ("n", "d"), "pass one row of parameters per past task")
    )
    if 0 in raw.shape:
        raise ValueError(
            f"`samples`: expected at least one row and column, got shape {raw.shape}; "
            "pass the parameters of past tasks"
        )
    if raw.shape[0] < at_least:
        raise ValueError(
            f"`samples`: expected at least {at_least} rows, got {raw.shape[0]}; "
            "collect the parameters of more past tasks"
        )
    return raw.astype(np.float64)


def checked_weights(sample_weights: ArrayLike | None, num_samples: int) -> Float[np.ndarray, " n"]:
    """How many times each sample counts; once by default."""
    if sample_weights is None:
        return np.ones(num_samples)
    fix = "pass one non-negative number for each row of samples"
    weights = np.asarray(real_numbers("sample_weights", sample_weights, (num_samples,), fix), float)
    if np.any(weights < 0) or not np.sum(weights > 0) >= 2:
        raise ValueError(
            "`sample_weights`: expected non-negative numbers, at least two of them positive, "
            f"got a smallest of {weights.min()} and {int(np.sum(weights > 0))} positive; {fix}"
        )
    return weights


def checked_groups(groups: ArrayLike, counted: Bool[np.ndarray, " n"]) -> Int[np.ndarray, " m"]:
    """Labels of the tasks that the rows that count belong to, as numbers from 0."""
    labels = np.asarray(groups)
    if labels.shape != counted.shape:
        raise ValueError(
            f"`groups`: expected shape {counted.shape}, got {labels.shape}; "
            "pass one label for each row of samples"
        )
    numbers = np.unique(labels[counted], return_inverse=True)[1]
    if not np.any(numbers):
        among = "" if counted.all() else " among rows of positive weight"
        raise ValueError(
            f"`groups`: expected at least two different labels{among}, got one; without a second "
            "task nothing can be held out"
        )
    return numbers


def with_hedge(samples: Float[np.ndarray, "n d"], share: float, seed: int) -> np.ndarray:
    """Samples, and enough draws of a wide Gaussian around them to be `share` of all."""
    if not 0.0 <= share < 1.0:
        raise ValueError(f"`hedge`: expected a share in [0, 1), got {share:g}; 0.01 is usual")
    count = round(len(samples) * share / (1.0 - share))
    noise = np.random.default_rng([seed, 1]).standard_normal((count, samples.shape[1]))
    wide = samples.mean(axis=0) + HEDGE_STDS * samples.std(axis=0) * noise
    return np.concatenate([samples, wide])


def constant_columns(samples: Float[np.ndarray, "n d"]) -> Bool[np.ndarray, " d"]:
    """Parameters that do not vary beyond rounding, in whatever units."""
    return np.ptp(samples, axis=0) <= ROUNDING * np.max(np.abs(samples), axis=0)


def whitening(
    samples: Float[np.ndarray, "n d"], weights: Float[np.ndarray, " n"] | None = None
) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
    """Mean, and lower factor of the covariance, with a little added where it is singular."""
    share = np.ones(len(samples)) if weights is None else np.asarray(weights, np.float64)
    share = share / np.sum(share)
    offset = share @ samples
    offset = offset + share @ (samples - offset)  # what rounding left out far from zero
    stds = np.sqrt(share @ (samples - offset) ** 2)
    constant = constant_columns(samples[share > 0]) | ~(stds > 0)
    typical = np.median(stds[~constant]) if np.any(~constant) else 1.0
    size = np.where(offset != 0, np.abs(offset), typical)
    stds = np.where(constant, CONSTANT_STD * size, stds)
    standard = (samples - offset) / stds
    correlation = standard.T @ (share[:, None] * standard)
    ridge = np.maximum(1e-6, 1.0 - np.diagonal(correlation))
    return offset, stds[:, None] * np.linalg.cholesky(correlation + np.diag(ridge))


def whitened(
    samples: Float[np.ndarray, "n d"],
    offset: Float[np.ndarray, " d"],
    scale: Float[np.ndarray, "d d"],
) -> Float[np.ndarray, "n d"]:
    """Z of every row, where theta = offset + scale z."""
    return np.linalg.solve(scale, (samples - offset).T).T


def split_rows(
    unit: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None,
    groups: Int[np.ndarray, " n"] | None,
    seed: int,
    attributes: Float[np.ndarray, "n a"] | None = None,
) -> tuple[Rows, Rows, Int[np.ndarray, " n"] | None]:
    """Rows to train on and to hold out, and the tasks of both in this order."""
    parts = split(len(unit), seed, groups)
    columns = (unit, weights, attributes)
    train, held_out = (
        Rows.of(*(None if column is None else column[part] for column in columns)) for part in parts
    )
    return train, held_out, None if groups is None else groups[np.concatenate(parts)]


def split(
    num_rows: int, seed: int, groups: Int[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " held"]]:
    """Rows to train on and rows to hold out: a tenth, a fifth of fewer than 1,000, at most 5,000.

    Rows of one group, numbered from 0, stay together; groups are held out until they have as many
    rows, and at least one is left to train on.
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
