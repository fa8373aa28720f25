"""Means with standard errors over tasks, and bins."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int


@dataclass(frozen=True)
class Mean:
    """A mean, its standard error over tasks (NaN below two tasks), and of how many numbers."""

    value: float
    error: float
    count: int

    def __str__(self) -> str:
        """The mean and its error, to one digit of the error, or two where it begins with a 1."""
        if self.count == 0:
            return "none yet"
        if not np.isfinite(self.error) or self.error <= 0:
            return f"{self.value:.3g}"
        digits = min(6, max(0, -int(np.floor(np.log10(self.error / 1.95)))))  # two below 20
        return f"{self.value:.{digits}f} ± {self.error:.{digits}f}"

    @property
    def low(self) -> float:
        """Two standard errors below."""
        return self.value - 2 * np.nan_to_num(self.error)

    @property
    def high(self) -> float:
        """Two standard errors above."""
        return self.value + 2 * np.nan_to_num(self.error)


def task_mean(values: Float[np.ndarray, " n"], tasks: Int[np.ndarray, " n"]) -> Mean:
    """The mean of all numbers; those of one task may lean the same way, so that only tasks count
    as independent: with residual sums u_t of T tasks, error² = T / (T - 1) Σ u_t² / n²."""
    if len(values) == 0:
        return Mean(float("nan"), float("nan"), 0)
    mean = float(np.mean(values))
    _, which = np.unique(tasks, return_inverse=True)
    sums = np.bincount(which, weights=values - mean)
    num_tasks = len(sums)
    if num_tasks < 2:
        return Mean(mean, float("nan"), len(values))
    error = np.sqrt(num_tasks / (num_tasks - 1) * np.sum(sums**2)) / len(values)
    return Mean(mean, float(error), len(values))


@dataclass(frozen=True)
class Bin:
    """Numbers whose key is in [low, high): the means of key and value."""

    low: float
    high: float
    key: float
    mean: Mean


def binned(
    keys: Float[np.ndarray, " n"],
    values: Float[np.ndarray, " n"],
    tasks: Int[np.ndarray, " n"],
    edges: Float[np.ndarray, " m"],
) -> list[Bin]:
    """Means of values by bins of their keys, the last one closed; bins without any are left out."""
    place = np.clip(np.searchsorted(edges, keys, side="right") - 1, 0, len(edges) - 2)
    inside: Bool[np.ndarray, " n"] = (keys >= edges[0]) & (keys <= edges[-1])
    found = []
    for number in range(len(edges) - 1):
        own = inside & (place == number)
        if np.any(own):
            mean = task_mean(values[own], tasks[own])
            low, high = float(edges[number]), float(edges[number + 1])
            found.append(Bin(low, high, float(np.mean(keys[own])), mean))
    return found


def quantile_edges(keys: Float[np.ndarray, " n"], num_bins: int) -> Float[np.ndarray, " m"]:
    """Edges of bins that hold about as many numbers each; fewer where numbers repeat."""
    edges = np.unique(np.quantile(keys, np.linspace(0, 1, num_bins + 1)))
    return edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1.0])


def doubling_edges(longest: int) -> Float[np.ndarray, " m"]:
    """1, 2, 3, 5, 9, 17, ...: bins 1, 2, 3-4, 5-8, 9-16 up to the one that holds `longest`."""
    edges = [1, 2]
    while edges[-1] <= longest:
        edges.append(2 * edges[-1] - 1 if edges[-1] > 2 else 3)
    return np.asarray(edges, float)
