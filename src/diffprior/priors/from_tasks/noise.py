"""The noise of linear rewards, when nobody knows it."""

from dataclasses import dataclass

import numpy as np

from ...logs.statistics import TaskStatistics, unpacked
from .gaussian import fit_gaussian
from .linear import linear_blocks

ENOUGH_FREEDOM = 200  # residual degrees of freedom from which pooled residuals are trusted alone
MAX_TASKS = 100_000
RANK = 1e-9


@dataclass(frozen=True)
class Noise:
    """The noise, and where it came from."""

    noise_std: float
    degrees_of_freedom: float
    how: str  # "given", "pooled" residuals or "joint" with a Gaussian prior


def estimate_noise(statistics: TaskStatistics) -> Noise:
    """Pooled residuals within tasks, sum RSS / sum (N - rank); unbiased whatever the prior is.

    With fewer than 200 degrees of freedom, jointly with a Gaussian prior by maximum likelihood.
    """
    if statistics.num_tasks > MAX_TASKS:
        order = np.argsort(statistics.hashes, kind="stable")
        statistics = statistics.select(order[:MAX_TASKS])
    residual, freedom = residuals(statistics)
    if freedom >= ENOUGH_FREEDOM:
        return Noise(float(np.sqrt(residual / freedom)), freedom, "pooled")
    start = max(residual / freedom, 0.0) if freedom >= 1 and residual > 0 else 0.0
    if start == 0.0:
        start = max(float(statistics.yy.sum()) / max(float(statistics.counts.sum()), 1.0), 1e-300)
    fit = fit_gaussian(linear_blocks(statistics, float(np.sqrt(start))), estimate_noise=True)
    return Noise(float(fit.noise_std or np.sqrt(start)), freedom, "joint")


def residuals(statistics: TaskStatistics) -> tuple[float, float]:
    """Summed squares of residuals of each task's own regression, and their degrees of freedom."""
    total, freedom = 0.0, 0.0
    for start in range(0, statistics.num_tasks, 8192):
        part = statistics.select(np.arange(start, min(start + 8192, statistics.num_tasks)))
        scale = np.sqrt(np.maximum(part.xx.sum(axis=0)[_diagonal(part.dim)], 1e-300))
        values, vectors = np.linalg.eigh(unpacked(part.xx) / np.outer(scale, scale))
        used = values > RANK * np.maximum(values[:, -1:], 1e-300)
        along = np.einsum("nij,ni->nj", vectors, part.xy / scale)
        explained = np.sum(np.where(used, along**2 / np.where(used, values, 1.0), 0.0), axis=1)
        spare = part.counts - used.sum(axis=1)
        left = np.where(spare > 0, part.yy - explained, 0.0)
        total += float(np.sum(np.maximum(left, 0.0)))
        freedom += float(np.sum(np.maximum(spare, 0.0)))
    return total, freedom


def _diagonal(dim: int) -> np.ndarray:
    return np.cumsum(np.arange(dim) + 1) - 1
