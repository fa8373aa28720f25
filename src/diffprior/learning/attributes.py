"""Gain from attributes: tasks held out in turn, scored with and without them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from ..evidence.base import AbstractLikelihood
from ..executors import AbstractExecutor
from ..files.base import Serializable
from ..fitting.attributes import attribute_columns, offsets_of, regress_logs
from ..fitting.rows import block_order, blocks_of, shifted
from ..fitting.search import Search, SearchConfig, gaussian_of, refined
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from .scoring import Family, Gain, HeldOut, family_of, gain, task_log_evidence
from .search import REFINING_STEPS, turns_of

GAUSSIAN, GIVEN = "Gaussian", " given attributes"  # in the names of families
SHAPED = "diffusion shaped by attributes"
NUM_ROWS = (1, 5, 20, 50)
MIN_LONG_TASKS = 20  # of at least so many rows
MAX_COLUMNS = 20  # that are left out one at a time
HURTING = 2.0  # standard errors below zero


@dataclass(frozen=True)
class AttributeReport(Serializable):
    """Gain from attributes in nats per task, over tasks held out in turn.

    Attributes:
        names: Names of the encoded attributes.
        gain: Of a Gaussian given attributes over a Gaussian, on all rows of a task.
        num_rows: Numbers of rows of `by_rows`.
        by_rows: The same on so many first rows of a task, of tasks that have them.
        columns: Raw columns.
        losses: What leaving out each of them costs.
    """

    names: tuple[str, ...]
    gain: Gain
    num_rows: tuple[int, ...] = ()
    by_rows: tuple[Gain, ...] = ()
    columns: tuple[str, ...] = ()
    losses: tuple[Gain, ...] = ()

    @property
    def pays(self) -> bool:
        """Whether the gain exceeds its standard error."""
        return self.gain.mean > max(self.gain.error, 0.0)

    @property
    def hurts(self) -> bool:
        """Whether attributes are clearly worse than none."""
        return self.gain.mean < -HURTING * self.gain.error


def gaussian_given(
    logs: Logs,
    likelihood: AbstractLikelihood,
    gaussian: GaussianMixture,
    used: Bool[np.ndarray, " a"] | None = None,
) -> Family:
    """A Gaussian given those attributes that are `used`, from the one without attributes."""
    blocks = blocks_of(logs, likelihood)
    regression = regress_logs(logs, blocks, gaussian, used)
    assert logs.attributes is not None
    offsets = regression.offsets(logs.attributes)[block_order(logs)]
    residual = gaussian_of(shifted(blocks, offsets), start=regression.residual)
    return family_of(GAUSSIAN + GIVEN, residual, regression)


def mixture_given(
    logs: Logs,
    likelihood: AbstractLikelihood,
    gaussian: GaussianMixture,
    family: Family,
    found: Search,
    executor: AbstractExecutor,
) -> Family:
    """The mixture found for what a Gaussian family given attributes leaves.

    Coefficients are estimated again under it, and a few steps of EM follow.
    """
    assert family.components is not None
    blocks = blocks_of(logs, likelihood)
    regression = regress_logs(
        logs, blocks, gaussian, mixture=found.mixture, start=family.regression
    )
    offsets = offsets_of(regression, logs)
    assert offsets is not None
    blocks = shifted(blocks, offsets[block_order(logs)])
    mixture = refined(
        blocks, family.components, found.mixture, found.best, executor, REFINING_STEPS
    )
    return family_of(found.name + GIVEN, mixture, regression)


def turns(
    logs: Logs, likelihood: AbstractLikelihood, gaussian: GaussianMixture, config: SearchConfig
) -> list[HeldOut]:
    """Tasks held out in each turn, and Gaussians without and with attributes of the others."""
    few, fold, num_turns = turns_of(logs, config)
    found = []
    for turn in range(num_turns):
        seen = few.select(fold != turn)
        own = gaussian_of(blocks_of(seen, likelihood), start=gaussian)
        families = [family_of(GAUSSIAN, own), gaussian_given(seen, likelihood, own)]
        found.append(HeldOut(few.select(fold == turn), families, seen=seen))
    return found


def attribute_report(
    turns: Sequence[HeldOut], likelihood: AbstractLikelihood, progress: Callable[[str], None]
) -> AttributeReport:
    """Score attributes on all rows, on the first rows, and without each raw column."""
    logs = turns[0].logs
    assert isinstance(logs, Logs)

    def worth(others: Sequence[Family], count: int | None = None) -> Gain:
        """Of all attributes over others, on the first `count` rows of tasks that have so many."""
        parts = [np.zeros(0)]
        for turn, other in zip(turns, others, strict=True):
            assert isinstance(turn.logs, Logs)
            some = turn.logs if count is None else first_rows(turn.logs, count)
            if some.num_tasks:
                pair = (turn.families[1], other)
                values = (task_log_evidence(family, some, likelihood) for family in pair)
                parts.append(np.subtract(*values))
        return gain(np.concatenate(parts))

    def without(used: Bool[np.ndarray, " a"], turn: HeldOut) -> Family:
        own = turn.families[0].components
        assert isinstance(turn.seen, Logs)
        assert own is not None
        return gaussian_given(turn.seen, likelihood, own, used)

    none = [turn.families[0] for turn in turns]
    by_rows = {n: worth(none, n) for n in NUM_ROWS}
    enough = {n: found for n, found in by_rows.items() if found.num_tasks >= MIN_LONG_TASKS}
    losses = {}
    columns, names = attribute_columns(logs), _raw_columns(logs)
    if 1 < len(names) <= MAX_COLUMNS:
        for place, name in enumerate(names):
            progress(f"attributes without {name}")
            losses[name] = worth([without(columns != place, turn) for turn in turns])
    return AttributeReport(
        logs.attribute_names,
        worth(none),
        tuple(enough),
        tuple(enough.values()),
        tuple(losses),
        tuple(losses.values()),
    )


def first_rows(logs: Logs, count: int) -> Logs:
    """The first rows of tasks that have so many."""
    return logs.select(logs.counts >= count).first_rows(count)


def _raw_columns(logs: Logs) -> list[str]:
    """Names of the raw columns, in the order of their numbers."""
    if logs.attribute_encoder is not None:
        return sorted(set(logs.attribute_encoder.raw_columns))
    columns = attribute_columns(logs)
    return [", ".join(np.array(logs.attribute_names)[columns == k]) for k in np.unique(columns)]
