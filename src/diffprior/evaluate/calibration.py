"""Whether credible intervals cover what they say, and whether the truth ranks uniformly."""

from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Coverage:
    """Share of truths inside central intervals, and its standard error over tasks."""

    share: float
    standard_error: float


def coverage(draws: np.ndarray, truths: np.ndarray, level: float = 0.9) -> Coverage:
    """Share of `truths` (tasks, d) in the central intervals of `draws` (tasks, n, d).

    Quantiles are at ranks q (n + 1), so that exact draws cover `level` on average at any n.
    """
    if not 0 < level < 1:
        raise ValueError(f"`level`: expected a number in (0, 1), got {level}; 0.9 is usual")
    tail = (1 - level) / 2
    low, high = np.quantile(draws, [tail, 1 - tail], axis=1, method="weibull")
    inside = np.mean((truths >= low) & (truths <= high), axis=1)
    return Coverage(float(inside.mean()), float(inside.std(ddof=1) / np.sqrt(len(inside))))


def ranks(draws: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """How many draws lie below the truth, per task and coordinate: uniform on 0..n if exact."""
    return np.sum(draws < truths[:, None, :], axis=1)


def rank_uniformity(all_ranks: np.ndarray, num_draws: int, num_bins: int = 20) -> float:
    """p-value that ranks (tasks,) are uniform on 0..num_draws, by a chi-square test on bins."""
    edges = np.linspace(0, num_draws + 1, num_bins + 1)
    sizes = np.diff(np.ceil(edges))
    counts = np.histogram(all_ranks, bins=np.ceil(edges) - 0.5)[0]
    expected = len(all_ranks) * sizes / sizes.sum()
    return float(stats.chisquare(counts, expected).pvalue)
