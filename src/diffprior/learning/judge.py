"""Families on tasks that they have not seen: evidence, by length of history, and of next rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..evaluate.comparison import estimate_log_evidence
from ..evidence.base import AbstractLikelihood
from ..logs.logs import Logs
from ..priors.from_tasks.data import AnyLogs, block_order, blocks_of
from ..priors.from_tasks.em import log_evidences
from ..priors.from_tasks.rows import RowsBlock
from ..reporting.tables import standard_error
from .families import Family

JUDGING_DRAWS = 128
NUM_ESTIMATES = 8


@dataclass(frozen=True)
class Gain:
    """A mean difference in nats a task, its paired standard error, and the tasks it is over."""

    mean: float
    error: float
    num_tasks: int


@dataclass(frozen=True)
class FamilyResult:
    """How one family does on tasks held out.

    Attributes:
        name: of the family.
        log_evidence: mean log p(h) a task.
        over_gaussian: difference to the Gaussian.
        by_length: differences to the Gaussian for tasks of few, some and many rows.
        next_rows: difference to the Gaussian in the log evidence of the second half of each task's
            rows given the first; None without rows.
        chosen: whether this is the family that was chosen.
    """

    name: str
    log_evidence: float
    over_gaussian: Gain
    by_length: tuple[Gain, ...]
    next_rows: Gain | None
    chosen: bool


def task_log_evidence(
    family: Family, logs: AnyLogs, likelihood: AbstractLikelihood, seed: int = 0
) -> Float[np.ndarray, " t"]:
    """log p(h) of every task, in the order of the logs."""
    if family.components is None:
        return estimate_log_evidence(
            family.prior, logs, likelihood, num_estimates=NUM_ESTIMATES, seed=seed
        ).values
    blocks = blocks_of(logs, likelihood)
    exact = [b.corrected(JUDGING_DRAWS) if isinstance(b, RowsBlock) else b for b in blocks]
    values = np.empty(logs.num_tasks)
    values[block_order(logs)] = log_evidences(exact, family.components)
    return values


def first_halves(logs: Logs) -> tuple[Logs, np.ndarray]:
    """The first half of each task's rows, rounded down, and which rows those are."""
    place = np.arange(logs.num_rows) - np.repeat(logs.starts[:-1], logs.counts)
    first = place < np.repeat(logs.counts // 2, logs.counts)
    return logs.select_rows(first), first


def judge(
    families: Sequence[Family],
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    chosen: str,
    seed: int = 0,
) -> tuple[tuple[FamilyResult, ...], tuple[str, ...]]:
    """Every family on the same tasks, and what the groups by length are called."""
    evidence = {f.name: task_log_evidence(f, logs, likelihood, seed) for f in families}
    groups, names = length_groups(np.asarray(logs.counts, float))
    later = _next_rows(families, evidence, logs, likelihood, seed)
    base = evidence["Gaussian"]
    results = tuple(
        FamilyResult(
            f.name,
            float(evidence[f.name].mean()),
            gain(evidence[f.name] - base),
            tuple(gain((evidence[f.name] - base)[group]) for group in groups),
            None if later is None else gain(later[f.name] - later["Gaussian"]),
            f.name == chosen,
        )
        for f in families
    )
    return results, names


def gain(differences: Float[np.ndarray, " n"]) -> Gain:
    """Mean and paired standard error of differences."""
    if len(differences) == 0:
        return Gain(float("nan"), float("nan"), 0)
    return Gain(float(np.mean(differences)), standard_error(differences), len(differences))


def length_groups(counts: Float[np.ndarray, " t"]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Masks of tasks of few, some and many rows, about a third each, and their names."""
    low, high = np.quantile(counts, [1 / 3, 2 / 3])
    edges = sorted({int(low), int(high)})
    bounds = [-1, *edges, int(counts.max())]
    groups, names = [], []
    for below, top in zip(bounds[:-1], bounds[1:], strict=True):
        mask = (counts > below) & (counts <= top)
        if mask.any():
            groups.append(mask)
            least = max(below + 1, int(counts.min()))
            names.append(f"{least}" if least == top else f"{least} to {top}")
    return groups, tuple(names)


def _next_rows(
    families: Sequence[Family],
    evidence: dict[str, np.ndarray],
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    seed: int,
) -> dict[str, np.ndarray] | None:
    if not isinstance(logs, Logs) or not np.any(logs.counts >= 2):
        return None
    several = logs.counts >= 2
    first, _ = first_halves(logs.select(several))
    return {
        f.name: evidence[f.name][several] - task_log_evidence(f, first, likelihood, seed)
        for f in families
    }
