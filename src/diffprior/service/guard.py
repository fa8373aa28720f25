"""Automatic rollback: a sequential test of whether the newest version earns less than before.

Logs with a quota are measured on the same occasions.
"""

import logging
import math
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float

from ..reporting.tables import plus_minus
from .metrics import Metrics
from .models import Catalog, Version
from .store import Database, decisions, observations, tasks

MIN_TASKS = 30  # with a reward, of each version, for a standard error over tasks
TYPICAL = 2_000.0  # rewards' worth of information at which the test is most powerful
CHECK_SECONDS = 10.0  # between two looks, or
CHECK_SHARE = 0.01  # at most this share of the time for reading the log
log = logging.getLogger("diffprior.service")


class Totals(NamedTuple):
    """Rewards of each task with one: how many, their sum, and the sum of their squares."""

    counts: Float[np.ndarray, " t"]
    sums: Float[np.ndarray, " t"]
    squares: Float[np.ndarray, " t"]

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.counts.sum())

    @property
    def error(self) -> float:
        """Standard error of the mean, with tasks as the independent units."""
        num_tasks, residuals = len(self.counts), self.sums - self.mean * self.counts
        size = num_tasks / (num_tasks - 1) * np.sum(residuals**2)
        return float(np.sqrt(size) / self.counts.sum())

    @property
    def variance(self) -> float:
        return float(self.squares.sum() / self.counts.sum() - self.mean**2)


class Look(NamedTuple):
    """One look at the difference of mean rewards: below -`limit`, it is no chance."""

    gap: float
    error: float
    limit: float

    @property
    def worse(self) -> bool:
        return self.gap < -self.limit


def look(new: Totals, old: Totals, error_rate: float) -> Look | None:
    """Compare two versions; None while there are too few tasks.

    However often one looks, a version that earns the same is found worse with a probability of at
    most about `error_rate`. The limit is the boundary of a normal mixture at the information
    v = variance / error^2, which counts independent rewards: with rho^2 = a / `TYPICAL`, it is
    error sqrt((1 + 1 / (v rho^2)) log((1 + v rho^2) / (4 error_rate^2))).

    References:
        Robbins (1970), Annals of Mathematical Statistics 41; Waudby-Smith et al. (2024), Annals of
        Statistics 52, for standard errors that are estimated.
    """
    if min(len(new.counts), len(old.counts)) < MIN_TASKS:
        return None
    gap, error = new.mean - old.mean, math.hypot(new.error, old.error)
    variance = (new.variance + old.variance) / 2
    if not error > 0 or not variance > 0:
        return None
    alpha = 2 * error_rate  # of a test on both sides
    scale = -2 * math.log(alpha)
    information = variance / error**2 * (scale + math.log1p(scale)) / TYPICAL
    factor = (1 + 1 / information) * math.log((1 + information) / alpha**2)
    return Look(gap, error, error * math.sqrt(factor))


class Guard:
    """Looks at versions that are guarded from time to time, and rolls them back."""

    def __init__(self, database: Database, catalog: Catalog, metrics: Metrics) -> None:
        self._database, self._catalog, self._metrics = database, catalog, metrics
        self._next, self._checking = 0.0, threading.Lock()
        self._looks: dict[tuple[str, int], Look | None] = {}

    def check_in_background(self) -> None:
        """Look at all models if it is time to."""
        if time.monotonic() < self._next or self._checking.locked():
            return
        names = [m for m in self._catalog.names() if self.pair(m) or self._catalog.quota(m)]
        if names:
            threading.Thread(target=self.check, args=(names,), name="guard", daemon=True).start()

    def check(self, models: Sequence[str]) -> None:
        """Look at these models: roll back versions that earn less, measure logs with a quota."""
        with self._checking:
            begin = time.monotonic()
            try:
                for model in models:
                    self._check(model)
                    self._catalog.measure_log(model)
            except sa.exc.SQLAlchemyError as error:
                log.error("database failed: %s", type(error.__cause__ or error).__name__)
            seconds = time.monotonic() - begin
            self._next = begin + max(CHECK_SECONDS, seconds / CHECK_SHARE)

    def pair(self, model: str) -> tuple[Version, Version] | None:
        """The newest version that serves and is guarded, and the one before, which serves too."""
        found = self._catalog.serving(model)
        if len(found) < 2 or found[0].settings.guard is None:
            return None
        return found[0], found[1]

    def _check(self, model: str) -> None:
        pair = self.pair(model)
        if pair is None or pair[0].settings.guard is None:
            return
        totals = self._totals(model, pair)
        new, old = (totals.get(version.version) for version in pair)
        found = None if not new or not old else look(new, old, pair[0].settings.guard)
        self._looks[model, pair[0].version] = found
        if found is not None and found.worse:
            number, before = pair[0].version, pair[1].version
            gap = plus_minus(-found.gap, found.error)
            why = f"version {number} earned {gap} less per decision than version {before}"
            log.warning("%s: %s; rolled back", model, why)
            self._catalog.set_share(model, before, 1.0, (number, why))
            self._metrics.rolled_back.labels(model).inc()

    def _totals(self, model: str, pair: tuple[Version, Version]) -> dict[int, Totals]:
        """Rewards by version and task, since the shares are what they are."""
        d, r = decisions.c, observations.c.reward
        query = (
            sa.select(d.version, sa.func.count(), sa.func.sum(r), sa.func.sum(r * r))
            .select_from(decisions.join(observations).join(tasks, tasks.c.id == d.task_id))
            .where(tasks.c.model == model, d.version.in_([v.version for v in pair]))
            .where(d.created >= max(version.since for version in pair))
            .group_by(d.version, d.task_id)
        )
        rows = np.array([tuple(row) for row in self._database.read(query)], float).reshape(-1, 4)
        return {int(v): Totals(*rows[rows[:, 0] == v, 1:].T) for v in np.unique(rows[:, 0])}

    def about(self, model: str) -> tuple[str, str, str] | None:
        """Answer, reason and status for the dashboard; None if nothing is guarded."""
        pair = self.pair(model)
        if pair is None:
            versions = self._catalog.versions_of(model)
            why = next((v.rolled_back for v in versions if v.rolled_back), None)
            return None if why is None else ("Rolled back", f"By itself: {why}.", "bad")
        new, old = (version.version for version in pair)
        found = self._looks.get((model, new))
        about = f"Version {new} is rolled back if it earns less than version {old}"
        if found is None:
            return "Yes", f"{about}; {MIN_TASKS} tasks of each with a reward are needed.", ""
        gap = plus_minus(found.gap, found.error)
        return "Yes", f"{about}: the difference is {gap}, the limit {-found.limit:.2g}.", "good"
