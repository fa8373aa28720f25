"""`learn`: from logs to a prior, by a ladder of families judged on tasks held out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checks import choice
from ..evidence.glm import AbstractFamily
from ..executors import AbstractExecutor, InProcess
from ..files.cache import ResultCache
from ..logs.labels import Selection
from ..logs.logs import Logs
from ..logs.shards import ShardedLogs
from ..priors.from_tasks.data import is_logs, resolve
from ..progress import progress as progress_bar
from .cautions import FEW_TASKS
from .diffusion import REPORT_SHARE
from .passes import Passes
from .run import Learned, Run
from .source import AbstractSource, InMemory, InShards

HEDGE = 0.003
FEWEST_TASKS = 10  # that can teach something, and be held out in turn
FAMILIES = ("gaussian", "mixture", "diffusion")


def learn(
    logs: Any,
    likelihood: Any,
    *,
    seed: int = 0,
    hedge: float = HEDGE,
    families: Sequence[str] | None = None,
    simulate: bool = True,
    executor: AbstractExecutor | None = None,
    checkpoint_dir: str | Path | None = None,
    progress: bool | None = None,
) -> Learned:
    """Learn a prior from what past tasks have shown, and judge it on tasks held out.

    A tenth of the tasks, chosen by their labels, is kept for the report and seen by nothing else.
    From the others come, one after the other: the noise of linear rewards where it is unknown; a
    Gaussian by maximum marginal likelihood; mixtures of Gaussians, their number of components or
    width of kernels chosen by the evidence of tasks held out in turn; and a diffusion model
    distilled from the best of these. A richer family is chosen only where it beats a simpler one by
    more than a standard error.

    Args:
        logs: `Logs`, `ShardedLogs` of any size, or `TaskStatistics` for linear rewards; of at
            least ten tasks. Of shards, a sample of about 50,000 tasks is held in memory, by which
            families are chosen and judged; what is chosen is fitted to all of them.
        likelihood: how rewards arise; `Linear()` without noise has it estimated.
        seed: of everything random. Tasks are split by their labels, whatever the seed.
        hedge: share of a wide Gaussian mixed into the prior, so that a task unlike any before is
            learned instead of denied.
        families: families to choose from, some of "gaussian", "mixture" and "diffusion"; all by
            default.
        simulate: whether to simulate the regret of the families for the report.
        executor: where passes over the tasks run: `executors.Processes()`, `executors.Ray(...)`;
            by default in this process. The result does not depend on it.
        checkpoint_dir: folder for every finished pass over shards; a run that was interrupted
            resumes from there.
        progress: False shows nothing; by default a bar on a terminal.

    Returns:
        The prior, the likelihood with its noise, and the report.

    Raises:
        ValueError: logs or a likelihood that are not; fewer than ten tasks; rewards that the
            likelihood cannot produce.
    """
    if not is_logs(logs) and not isinstance(logs, ShardedLogs):
        raise ValueError(
            f"`logs`: expected Logs, ShardedLogs or TaskStatistics, got {type(logs).__name__}; "
            "make them by dp.Logs(tasks, features, rewards), or fit a prior to parameters"
        )
    if checkpoint_dir is not None and not isinstance(logs, ShardedLogs):
        raise ValueError(
            f"`checkpoint_dir`: expected None with {type(logs).__name__}, got {checkpoint_dir}; "
            "only passes over shards are saved, so write some with dp.ShardedLogs.write"
        )
    allowed = frozenset(choice("families", name, FAMILIES) for name in families or FAMILIES)
    if not 0.0 <= hedge < 1.0:
        raise ValueError(f"`hedge`: expected a share in [0, 1), got {hedge:g}; 0.01 is usual")
    with progress_bar("learning", 24, visible=progress) as bar:

        def advance(name: str) -> None:
            bar.describe(name)
            bar.advance()

        cache = None if checkpoint_dir is None else ResultCache(checkpoint_dir)
        if not isinstance(logs, ShardedLogs):
            passes = Passes(executor or InProcess())
            return _prepared(InMemory(logs), likelihood, seed, hedge, passes).run(
                allowed, simulate, advance
            )
        passes = Passes(executor or InProcess(), bar.describe, cache, logs.digest)
        source = InShards(logs, likelihood, passes)
        try:
            return _prepared(source, likelihood, seed, hedge, passes).run(
                allowed, simulate, advance
            )
        finally:
            source.close()


def _prepared(
    source: AbstractSource, likelihood: Any, seed: int, hedge: float, passes: Passes
) -> Run:
    """What is to be learned from, with what is held out for the report."""
    sample, num_tasks = source.sample, source.num_tasks
    if num_tasks < FEWEST_TASKS:
        raise ValueError(
            f"`logs`: expected at least {FEWEST_TASKS} tasks, got {num_tasks}; a prior is "
            "what tasks have in common, so collect the logs of more, or check their labels"
        )
    selection = Selection(0.0 if num_tasks < FEW_TASKS else REPORT_SHARE)
    out = ~selection.mask(sample.hashes)
    if isinstance(likelihood, AbstractFamily) and isinstance(sample, Logs):
        likelihood.check_rewards(sample.rewards)  # of all tasks, those of the report too
    resolved = resolve(sample.select(~out), likelihood)
    return Run(source, selection, out, *resolved, seed, hedge, passes)
