"""Priors judged by the next rewards of a user's own tasks, by length of history."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..checks import on_device
from ..evidence.base import AbstractLikelihood
from ..reporting.tables import Table, plus_minus, standard_error
from .calibration import rank_uniforms
from .draws import draw_posteriors
from .tasks import Tasks, as_tasks

LENGTHS = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class PredictiveRow:
    """How well the next reward was foreseen after a number of rows.

    Args:
        num_rows: Rows seen before.
        num_tasks: Tasks with at least one row more.
        log_density: Mean log density of the next reward, in nats.
        log_density_error: Its standard error over tasks.
        coverage: Share of next rewards inside their predictive intervals.
        coverage_error: Its standard error over tasks.
        failed: Draws that failed, which are left out.
    """

    num_rows: int
    num_tasks: int
    log_density: float
    log_density_error: float
    coverage: float
    coverage_error: float
    failed: int


@dataclass(frozen=True)
class PredictiveCheck:
    """How well a sampler foresees the next reward of each task, by length of history.

    Args:
        rows: One for each length of history.
        level: What the predictive intervals are to hold.
    """

    rows: tuple[PredictiveRow, ...]
    level: float

    def to_dict(self) -> dict[str, Any]:
        """The table as plain numbers.

        Returns:
            A dictionary that JSON can hold.
        """
        return {"level": self.level, "rows": [dict(vars(row)) for row in self.rows]}

    def __str__(self) -> str:
        """A table, one row for each length of history."""
        table = [
            (
                str(row.num_rows),
                str(row.num_tasks),
                plus_minus(row.log_density, row.log_density_error),
                plus_minus(100 * row.coverage, 100 * row.coverage_error),
                str(row.failed),
            )
            for row in self.rows
        ]
        held = f"in {100 * self.level:g} % intervals, %"
        return str(Table(("after rows", "tasks", "log density", held, "failed"), table))


def predictive_check(
    sampler: Any,
    tasks: Any,
    likelihood: AbstractLikelihood | None = None,
    *,
    lengths: Sequence[int] = LENGTHS,
    level: float = 0.9,
    num_draws: int = 199,
    seed: int = 0,
) -> PredictiveCheck:
    """Foresee the next reward of each task from its first rows, and see how it came.

    No true parameters are needed, so this judges a prior on a user's own logs. Rewards that are
    counts or zeros and ones are ranked with ties broken at random, so that calibrated intervals
    hold `level` of them as well.

    Args:
        sampler: A sampler; or a prior, or any object with its four members, whose best sampler is
            taken.
        tasks: `Tasks` or `Logs`, held out of what the prior was learned from.
        likelihood: How rewards arise; needed with logs, by default the tasks' own.
        lengths: Numbers of rows to look back on; those that no task exceeds are left out.
        level: What the predictive intervals are to hold.
        num_draws: Draws from each posterior.
        seed: Of the draws.

    Returns:
        Log density and coverage of the next reward, after each number of rows.

    Raises:
        ValueError: If logs come without a likelihood, or no task has a row.
    """
    tasks = as_tasks(tasks, likelihood)
    longest = int(tasks.num_observations.max(initial=0))
    if longest == 0:
        raise ValueError("`tasks`: expected tasks with rows, got none; pass their histories")
    used = [length for length in lengths if length < longest]
    rows = [_after(sampler, tasks, length, level, num_draws, seed) for length in used]
    return PredictiveCheck(tuple(rows), level)


def _after(
    sampler: Any,
    tasks: Tasks,
    length: int,
    level: float,
    num_draws: int,
    seed: int,
) -> PredictiveRow:
    longer = tasks.select(tasks.num_observations > length)
    following = longer.starts[:-1] + length
    phi, y = longer.features[following], longer.rewards[following]
    draws = draw_posteriors(sampler, longer.first_rows(length), num_draws, seed + length)
    failed = np.isnan(draws.values[..., 0])
    eta = np.einsum("nmd,nd->nm", np.where(failed[..., None], 0.0, draws.values), phi)
    density = _log_density(tasks.likelihood, y, eta, failed)
    rewards = np.where(failed, np.nan, _rewards(tasks.likelihood, eta, seed + length))
    uniforms = rank_uniforms(rewards, y, np.random.default_rng([seed, length]))
    tail = (1 - level) / 2
    inside = ((uniforms >= tail) & (uniforms <= 1 - tail)).astype(float)
    return PredictiveRow(
        length,
        len(y),
        float(np.mean(density)),
        standard_error(density),
        float(np.mean(inside)),
        standard_error(inside),
        draws.failed,
    )


def _log_density(
    likelihood: AbstractLikelihood,
    y: Float[np.ndarray, " n"],
    eta: Float[np.ndarray, "n m"],
    failed: np.ndarray,
) -> Float[np.ndarray, " n"]:
    """Log of the mean of p(y | eta) over draws that did not fail."""
    rewards = np.broadcast_to(y[:, None], eta.shape)
    logs = np.asarray(likelihood.log_density(on_device(rewards), on_device(eta)), np.float64)
    kept = np.maximum(np.sum(~failed, axis=1), 1)
    with np.errstate(divide="ignore"):
        return logsumexp(np.where(failed, -np.inf, logs), axis=1) - np.log(kept)


def _rewards(
    likelihood: AbstractLikelihood, eta: Float[np.ndarray, "n m"], seed: int
) -> Float[np.ndarray, "n m"]:
    drawn = likelihood.sample(jax.random.key(seed), on_device(eta))
    return np.asarray(drawn, np.float64)
