"""What the prior saved: log evidence of tasks under it, against a Gaussian of the same moments."""

import logging
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from ...evaluate.comparison import compare
from ...evaluate.tasks import Tasks
from ...priors.gaussian import GaussianPrior
from ..settings import check_rewards
from ..store import Database, observations, tasks
from ..version import Version

MAX_TASKS, MAX_ROWS = 128, 64  # tasks, and first observations of each
NUM_ESTIMATES = 4  # for priors without a closed form
KEEP_SECONDS = 30.0
REST = 100.0  # times as long as the last computation took: at most one part in a hundred of a core
log = logging.getLogger("diffprior.service")


@dataclass(frozen=True)
class PriorGain:
    """Nats a task by which the prior explains tasks better than a Gaussian of its moments.

    Args:
        gain: Mean over tasks.
        error: Its standard error.
        num_tasks: Tasks of the sample, none of which is older than the version.
        num_rows: Observations of them.
        seconds: What it took.
        problem: Why there is no number, if there is none.
    """

    gain: float = 0.0
    error: float = float("nan")
    num_tasks: int = 0
    num_rows: int = 0
    seconds: float = 0.0
    problem: str = ""

    def __str__(self) -> str:
        """The gain with its error, or why there is none."""
        return self.problem or f"{self.gain:+.2f} ± {self.error:.2f} nats a task"


def prior_gain(database: Database, version: Version) -> PriorGain:
    """The gain of a version's prior, on a sample of tasks that are not older than it is."""
    if isinstance(version.prior, GaussianPrior):
        return PriorGain(problem="the prior is Gaussian")
    begin = time.perf_counter()
    found = sample_tasks(database, version)
    if found is None or len(found) < 2:
        return PriorGain(problem="too few rewarded tasks since the version was put")
    moments = version.moments
    gaussian = GaussianPrior(np.asarray(moments.mean), np.asarray(moments.cov))
    priors = {"Gaussian": gaussian, "prior": version.prior}
    table = compare(priors, found, baseline="Gaussian", num_estimates=NUM_ESTIMATES)
    gain, error = table.difference("prior")
    seconds = time.perf_counter() - begin
    if not np.isfinite(gain):
        return PriorGain(seconds=seconds, problem="the log evidence could not be estimated")
    return PriorGain(gain, error, len(found), int(found.num_observations.sum()), seconds)


def sample_tasks(database: Database, version: Version, seed: int = 0) -> Tasks | None:
    """Tasks of the version's model that have rewards and are not older than the version: all if
    there are few, some at random if there are many. None if there are none."""
    with database.reading() as connection:
        ids = _sample_ids(connection, version, np.random.default_rng(seed))
        o = observations.c
        query = sa.select(o.task_id, o.features, o.reward).where(o.task_id.in_(ids))
        query = query.where(o.number < MAX_ROWS).order_by(o.task_id, o.number)
        rows = connection.execute(query).all()
    by_task: dict[int, list[Any]] = defaultdict(list)
    for row in rows:
        by_task[row.task_id].append(row)
    fitting = [row for own in by_task.values() if _fits(own, version) for row in own]
    if not fitting:
        return None
    features = np.stack([np.frombuffer(row.features) for row in fitting])
    numbers = np.array([row.reward for row in fitting], float)
    labels = np.array([row.task_id for row in fitting])
    return Tasks.from_arrays(labels, features, numbers, version.likelihood)


def _sample_ids(connection: sa.Connection, version: Version, rng: np.random.Generator) -> list[int]:
    t = tasks.c
    first, last = connection.execute(sa.select(sa.func.min(t.id), sa.func.max(t.id))).one()
    if first is None:
        return []
    guesses = min(last - first + 1, 8 * MAX_TASKS)
    asked = sorted((first + rng.choice(last - first + 1, guesses, replace=False)).tolist())
    query = sa.select(t.id).where(t.id.in_(asked), t.model == version.model, t.num_learned > 0)
    found = connection.execute(query.where(t.created >= version.created)).scalars().all()
    kept = rng.permutation(np.array(found, int))[:MAX_TASKS]
    return [int(one) for one in kept]


def _fits(rows: list[Any], version: Version) -> bool:
    """Whether a task's observations could be of this version: another may differ in both."""
    if any(len(row.features) != 8 * version.dim for row in rows):
        return False
    try:
        check_rewards(version.likelihood, np.array([row.reward for row in rows], float))
    except ValueError:
        return False
    return True


class PriorGains:
    """Gains by version, computed one at a time in a thread beside the engine's, and kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running = threading.Lock()
        self._kept: dict[tuple[str, int], tuple[float, PriorGain]] = {}

    def get(self, versions: list[Version]) -> dict[int, PriorGain | None]:
        """The newest numbers there are; None where the first one is being computed."""
        kept = {v.version: self._kept.get((v.model, v.version)) for v in versions}
        old = [v for v in versions if _is_old(kept[v.version])]
        if old and self._running.acquire(blocking=False):
            threading.Thread(target=self._compute, args=(old,), daemon=True).start()
        return {number: None if found is None else found[1] for number, found in kept.items()}

    def wait(self) -> None:
        """Until nothing is being computed."""
        with self._running:
            pass

    def _compute(self, versions: list[Version]) -> None:
        try:
            for version in versions:
                gain = _gain_or_problem(self._database, version)
                self._kept[version.model, version.version] = (time.monotonic(), gain)
        finally:
            self._running.release()


def _is_old(kept: tuple[float, PriorGain] | None) -> bool:
    if kept is None:
        return True
    at, gain = kept
    return time.monotonic() - at > KEEP_SECONDS + REST * gain.seconds


def _gain_or_problem(database: Database, version: Version) -> PriorGain:
    try:
        return prior_gain(database, version)
    except Exception:
        log.exception("the log evidence of %s was not computed", version.model)
        return PriorGain(problem="it failed; the reason is in the service's log")
