"""The noise of linear rewards, and a mixture of tasks, estimated from logs."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from ..checks import kind_of
from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..executors import AbstractExecutor
from ..fitting.attributes import Regression, offsets_of
from ..fitting.config import LOGS_SEARCH
from ..fitting.em import HERE, AbstractBlock, fit_gaussian
from ..fitting.rows import AnyLogs, RowTasks, block_order, blocks_of, linear_blocks
from ..fitting.search import Search, SearchConfig, Splits, refined, search
from ..logs.logs import Logs
from ..logs.statistics import TaskStatistics, folds, pooled_residuals
from ..mixture import GaussianMixture

MIN_RESIDUAL_FREEDOM = 200  # degrees of freedom from which pooled residuals are trusted alone
MAX_NOISE_TASKS = 100_000
REFINING_STEPS = 4  # over all tasks, of a mixture found from some of them


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
    if statistics.num_tasks > MAX_NOISE_TASKS:
        statistics = statistics.select(block_order(statistics)[:MAX_NOISE_TASKS])
    residual, freedom = pooled_residuals(statistics)
    if freedom >= MIN_RESIDUAL_FREEDOM:
        return Noise(float(np.sqrt(residual / freedom)), freedom, "pooled")
    start = max(residual / freedom, 0.0) if freedom >= 1 and residual > 0 else 0.0
    if start == 0.0:
        start = max(float(statistics.yy.sum()) / max(float(statistics.counts.sum()), 1.0), 1e-300)
    noise_std = float(np.sqrt(start))
    fit = fit_gaussian(linear_blocks(statistics, noise_std), noise_std=noise_std)
    return Noise(float(fit.noise_std or noise_std), freedom, "joint")


def resolve(logs: AnyLogs, likelihood: object) -> tuple[AbstractLikelihood, Noise | None]:
    """The likelihood with its noise, estimated where it is linear and unknown."""
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(
            f"`likelihood`: expected a likelihood, got {kind_of(likelihood)}; "
            "pass dp.Linear(), dp.Logistic(), dp.Poisson() or another"
        )
    if isinstance(likelihood, Linear):
        if likelihood.noise_std is not None:
            return likelihood, Noise(float(likelihood.noise_std), 0.0, "given")
        found = estimate_noise(logs.statistics())
        return Linear(noise_std=found.noise_std), found
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


def turns_of(
    logs: AnyLogs, config: SearchConfig = LOGS_SEARCH
) -> tuple[AnyLogs, Int[np.ndarray, " n"], int]:
    """The tasks that candidates are scored on, the fold of each, and how many are held out."""
    few = logs
    if logs.num_tasks > config.max_tasks:
        few = logs.select(np.sort(block_order(logs)[: config.max_tasks]))
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
    regressions: Sequence[Regression] | None = None,
) -> Search:
    """The mixture that explains tasks held out in turn best; whole tasks are held out, by label.

    Where `logs` are a part of `everything`, of which `gaussian` is the Gaussian, what is found is
    refined on all tasks; so it is if there are very many. With `regressions` on attributes, one
    from the tasks that are seen in each turn, and one from all, the mixture is of residuals.
    """
    few, which, num_turns = turns_of(logs, config)
    if few.num_tasks < logs.num_tasks and everything is None:
        regression = None if regressions is None else regressions[-1]
        everything = blocks_of(logs, likelihood, offsets_of(regression, logs))
    room = int(few.num_tasks / config.tasks_per_component)
    config = dataclasses.replace(config, max_components=min(config.max_components, room))

    def subset(mask: np.ndarray, turn: int = -1) -> list[RowTasks]:
        part = few.select(mask)
        regression = None if regressions is None else regressions[turn]
        return blocks_of(part, likelihood, offsets_of(regression, part))

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
