"""Benefit of a prior on the tasks served, against a cold start and against its Gaussian."""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from ...logs.logs import Logs
from ...priors.gaussian import GaussianPrior
from ..models import Version
from ..settings import check_rewards
from ..store import Database, Row, observations, read_rows, tasks
from .statistics import Mean

MAX_TASKS, MAX_ROWS = 128, 64  # tasks, and first observations of each
NUM_ESTIMATES = 4  # for priors without a closed form
CACHE_SECONDS = 30.0
NOTHING = Mean(0.0, float("nan"), 0)
REST = 100.0  # times as long as the last computation took: at most one percent of a core
log = logging.getLogger("diffprior.service")


@dataclass(frozen=True)
class PriorGain:
    """What a prior gains on tasks, against N(0, s I) and against a Gaussian of its moments.

    Attributes:
        over_cold: Nats per task over the best N(0, s I).
        over_gaussian: Nats per task over a Gaussian of the same moments.
        reward: What first choices among a task's logged rows earn over those of the cold start.
        num_rows: Rewards of the tasks.
        seconds: How long it took to compute.
        problem: Why there are no numbers, if so.
    """

    over_cold: Mean = NOTHING
    over_gaussian: Mean = NOTHING
    reward: Mean = NOTHING
    num_rows: int = 0
    seconds: float = 0.0
    problem: str = ""

    def __str__(self) -> str:
        return self.problem or f"{self.over_cold:+} nats per task"

    @property
    def in_words(self) -> str:
        if self.problem:
            return self.problem
        reward = f", and {self.reward:+} per first choice" if self.reward.error > 0 else ""
        gaussian = f"{self.over_gaussian:+} nats" if self.over_gaussian.error > 0 else "nothing"
        return (
            f"{self} over starting cold{reward}; {gaussian} over a Gaussian of the same moments; "
            f"on {self.over_cold.count} tasks with {self.num_rows:,} rewards"
        )


def prior_gain(database: Database, version: Version) -> PriorGain:
    """Compute the gain of a version's prior, on a sample of tasks not older than the version."""
    from ...evaluate.comparison import COLD, compare  # SciPy, which would delay the service's start

    begin = time.perf_counter()
    found = sample_tasks(database, version)
    if found is None or found.num_tasks < 2:
        return PriorGain(problem="too few rewarded tasks since the version was added")
    moments = version.moments
    gaussian = GaussianPrior(np.asarray(moments.mean), np.asarray(moments.cov))
    priors = {"Gaussian": gaussian, "prior": version.prior}
    if isinstance(version.prior, GaussianPrior):
        priors["Gaussian"] = version.prior
    table = compare(
        priors, found, version.likelihood, baseline="Gaussian", num_estimates=NUM_ESTIMATES
    )
    seconds = time.perf_counter() - begin
    differences = (table.difference("prior", COLD), table.difference("prior"))
    if not np.all(np.isfinite(differences)):
        return PriorGain(seconds=seconds, problem="the log evidence could not be estimated")
    over_cold, over_gaussian = (Mean(*pair, found.num_tasks) for pair in differences)
    reward = Mean(*table.reward_difference("prior"), found.num_tasks)
    return PriorGain(over_cold, over_gaussian, reward, found.num_rows, seconds)


def sample_tasks(database: Database, version: Version, seed: int = 0) -> Logs | None:
    """Sample rewarded tasks of the version's model that are not older than the version."""
    o = observations.c
    with database.reading() as connection:
        ids = _sample_ids(connection, version, np.random.default_rng(seed))
        query = sa.select(o.task_id, o.features, o.reward).where(o.task_id.in_(ids))
        query = query.where(o.number < MAX_ROWS).order_by(o.task_id, o.number)
        by_task: dict[int, list[Row]] = defaultdict(list)
        for row in read_rows(connection, query):
            by_task[row["task_id"]].append(row)
    rows = [row for own in by_task.values() if _fits(own, version) for row in own]
    if not rows:
        return None
    features = np.stack([np.frombuffer(row["features"]) for row in rows])
    numbers = np.array([row["reward"] for row in rows], float)
    labels = np.array([row["task_id"] for row in rows])
    return Logs(labels, features, numbers, check_features=False)


def _sample_ids(connection: sa.Connection, version: Version, rng: np.random.Generator) -> list[int]:
    t = tasks.c
    first, last = connection.execute(sa.select(sa.func.min(t.id), sa.func.max(t.id))).one()
    if first is None:
        return []
    guesses = min(last - first + 1, 8 * MAX_TASKS)
    asked = sorted((first + rng.choice(last - first + 1, guesses, replace=False)).tolist())
    query = sa.select(t.id).where(t.id.in_(asked), t.model == version.model, t.num_learned > 0)
    found = connection.execute(query.where(t.created >= version.created)).scalars().all()
    return rng.permutation(np.array(found, int))[:MAX_TASKS].tolist()


def _fits(rows: Sequence[Row], version: Version) -> bool:
    """Whether a task's features and rewards are valid for this version, unlike for another."""
    if any(len(row["features"]) != 8 * version.num_features for row in rows):
        return False
    try:
        check_rewards(version.likelihood, np.array([row["reward"] for row in rows], float))
    except ValueError:
        return False
    return True


class PriorGains:
    """Gains by version, computed one at a time in a background thread, and cached."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._running = threading.Lock()
        self._cache: dict[tuple[str, int], tuple[float, PriorGain]] = {}  # and when it expires

    def get(self, versions: Sequence[Version]) -> dict[int, PriorGain | None]:
        """Return the newest gains; None where the first one is being computed."""
        found = {v.version: self._cache.get((v.model, v.version)) for v in versions}
        now = time.monotonic()
        expired = [v for v in versions if (found[v.version] or (0.0,))[0] < now]
        if expired and self._running.acquire(blocking=False):
            threading.Thread(target=self._compute, args=(expired,), daemon=True).start()
        return {number: None if entry is None else entry[1] for number, entry in found.items()}

    def _compute(self, versions: Sequence[Version]) -> None:
        try:
            for version in versions:
                try:
                    gain = prior_gain(self._database, version)
                except Exception:
                    log.exception("the log evidence of %s was not computed", version.model)
                    gain = PriorGain(problem="it failed; the reason is in the service's log")
                expires = time.monotonic() + CACHE_SECONDS + REST * gain.seconds
                self._cache[version.model, version.version] = (expires, gain)
        finally:
            self._running.release()
