"""The mixture that explains tasks best, by tasks held out in turn."""

import dataclasses
from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
from jaxtyping import Int

from ..evidence.base import AbstractLikelihood
from ..executors import AbstractExecutor
from ..fitting.attributes import Regression, offsets_of
from ..fitting.config import LOGS_SEARCH
from ..fitting.em import HERE, AbstractBlock
from ..fitting.rows import AnyLogs, RowTasks, block_order, blocks_of
from ..fitting.search import Search, SearchConfig, Splits, refined, search
from ..logs.statistics import folds
from ..mixture import GaussianMixture

REFINING_STEPS = 4  # over all tasks, of a mixture found from some of them
SomeLogs = TypeVar("SomeLogs", bound=AnyLogs)


def first_tasks(logs: SomeLogs, count: int) -> SomeLogs:
    """Take at most `count` tasks, those of smallest hash, in the order of the logs."""
    return cast(SomeLogs, logs.select(np.sort(block_order(logs)[:count])))


def turns_of(
    logs: SomeLogs, config: SearchConfig = LOGS_SEARCH
) -> tuple[SomeLogs, Int[np.ndarray, " n"], int]:
    """The tasks that candidates are scored on, the fold of each, and how many are held out."""
    few = first_tasks(logs, config.max_tasks)
    in_turn = few.num_tasks <= config.one_fold_from
    num_folds, num_turns = (config.num_folds, config.num_folds) if in_turn else (4, 1)
    return few, folds(few.hashes, num_folds, salt=11), num_turns


def search_logs(
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    gaussian: GaussianMixture,
    *,
    config: SearchConfig = LOGS_SEARCH,
    seed: int = 0,
    executor: AbstractExecutor = HERE,
    everything: Sequence[AbstractBlock] | None = None,
    required: bool = False,
    regressions: Sequence[Regression | None] = (),
) -> Search:
    """The mixture that explains tasks held out in turn best; whole tasks are held out, by label.

    Where `logs` are a part of `everything`, of which `gaussian` is the Gaussian, what is found is
    refined on all tasks; so it is if there are very many. With `regressions` on attributes, one
    from the tasks that are seen in each turn, and one from all, the mixture is of residuals.
    """
    few, which, num_turns = turns_of(logs, config)
    regressions = regressions or [None]
    if few.num_tasks < logs.num_tasks and everything is None:
        everything = blocks_of(logs, likelihood, offsets_of(regressions[-1], logs))
    room = int(few.num_tasks / config.tasks_per_component)
    config = dataclasses.replace(config, max_components=min(config.max_components, room))

    def subset(mask: np.ndarray, turn: int = -1) -> list[RowTasks]:
        part = few.select(mask)
        return blocks_of(part, likelihood, offsets_of(regressions[turn % len(regressions)], part))

    splits = Splits.of(subset, which, num_turns, start=gaussian)
    found = search(
        subset(np.ones(few.num_tasks, bool)),
        splits,
        config,
        seed=seed,
        executor=executor,
        gaussian=gaussian,
        required=required,
    )
    if everything is None:
        return found
    mixture = refined(everything, gaussian, found.mixture, found.best, executor, REFINING_STEPS)
    return dataclasses.replace(found, mixture=mixture)
