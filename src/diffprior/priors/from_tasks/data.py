"""Logs and a likelihood as blocks of tasks: rewards checked, the noise estimated where unknown."""

from typing import Any

import numpy as np

from ...evidence.base import AbstractLikelihood
from ...evidence.families import Linear
from ...evidence.glm import AbstractFamily
from ...logs.logs import Logs
from ...logs.statistics import TaskStatistics
from .block import AbstractBlock
from .linear import LinearBlock, linear_blocks
from .noise import Noise, estimate_noise
from .rows import RowsBlock, row_blocks

AnyLogs = Logs | TaskStatistics


def is_logs(value: Any) -> bool:
    """Whether it is logs or their statistics, rather than parameters."""
    return isinstance(value, Logs | TaskStatistics)


def resolve(logs: AnyLogs, likelihood: Any) -> tuple[AbstractLikelihood, Noise | None]:
    """The likelihood with its noise, estimated where it is linear and unknown.

    Raises:
        ValueError: rewards that the likelihood cannot produce, by row; a likelihood that needs rows
            where there are only statistics; no likelihood.
    """
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(
            f"`likelihood`: expected how rewards arise, got {type(likelihood).__name__}; "
            "pass dp.Linear(), dp.Logistic(), dp.Poisson() or another"
        )
    if isinstance(likelihood, Linear):
        return _with_noise(logs, likelihood)
    if not isinstance(logs, Logs):
        raise ValueError(
            f"`logs`: expected rows for {type(likelihood).__name__} rewards, got statistics, which "
            "serve linear rewards alone; pass dp.Logs"
        )
    if not isinstance(likelihood, AbstractFamily):
        raise ValueError(
            f"`likelihood`: expected Linear or a family of rewards, got "
            f"{type(likelihood).__name__}; derive it from dp.AbstractFamily"
        )
    likelihood.check_rewards(logs.rewards)
    return likelihood, None


def _with_noise(logs: AnyLogs, likelihood: Linear) -> tuple[Linear, Noise]:
    known = likelihood.noise_std
    if known is not None:
        return likelihood, Noise(float(known), 0.0, "given")
    found = estimate_noise(logs.statistics())
    return Linear(noise_std=found.noise_std), found


def blocks_of(logs: AnyLogs, likelihood: AbstractLikelihood) -> list[AbstractBlock]:
    """Blocks of the tasks, in the order of their labels' hashes."""
    if isinstance(likelihood, Linear):
        assert likelihood.noise_std is not None
        return list(linear_blocks(logs.statistics(), float(likelihood.noise_std)))
    assert isinstance(logs, Logs) and isinstance(likelihood, AbstractFamily)
    return list(row_blocks(logs, likelihood))


def empty_block(dim: int, likelihood: AbstractLikelihood) -> AbstractBlock:
    """The block of no tasks."""
    hashes, none = np.zeros(0, np.uint64), np.zeros(0)
    if isinstance(likelihood, Linear):
        packed, noise = np.zeros((dim * (dim + 1) // 2, 0)), float(likelihood.noise_std or 1.0)
        return LinearBlock(hashes, packed, np.zeros((dim, 0)), none, none, noise)
    assert isinstance(likelihood, AbstractFamily)
    return RowsBlock(likelihood, hashes, np.zeros(1, np.int64), np.zeros((0, dim)), none, none)


def block_order(logs: AnyLogs) -> np.ndarray:
    """The order of tasks in blocks, as positions in the logs."""
    return np.argsort(logs.hashes, kind="stable")


def task_counts(logs: AnyLogs) -> np.ndarray:
    """Rows of every task."""
    return np.asarray(logs.counts, np.float64)
