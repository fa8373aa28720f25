"""Statistics of decisions: outcomes, means with standard errors over tasks, bins."""

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from jaxtyping import Bool, Float, Int
from sqlalchemy.dialects import postgresql

from ...reporting.tables import plus_minus
from ..store import Database, decisions, observations, rewards, tasks
from .pages import SECONDS

WINDOW_SIZE = 10_000  # decisions that the dashboard looks at, however many there are
NUM_SLICES = 50  # of time, from each of which they are, if there are more
Window = np.recarray  # decisions, oldest first, with these fields
FIELDS = [
    ("model", object),
    ("task", int),  # id
    ("arm", object),  # name of the action, or of the item, that was taken
    ("number", int),  # decisions of the task before
    ("version", int),
    ("created", float),  # Unix time
    ("propensity", float),  # NaN if not estimated
    ("predicted", float),  # mean reward of the action taken
    ("failed", bool),  # whether the draw did
    ("settled", bool),  # whether no further reward is awaited
    ("status", object),  # active, deferred or cancelled
    ("reward", float),  # that was learned from; NaN if none was
    ("by_default", bool),  # whether it is the default reward
    ("late", int),  # number of rewards that arrived too late
    ("choice", bool),  # whether it is a choice of the task among items
]


class Sample(NamedTuple):
    """Decisions of a range of time, of `total` that it has."""

    window: Window
    total: int


def read_sample(connection: sa.Connection, since: float, size: int = WINDOW_SIZE) -> Sample:
    """Read decisions of all models; if there are more than `size`, from every slice of the time
    since then the newest ones, in proportion to how many it has.
    """
    created = decisions.c.created
    ends = sa.select(sa.func.min(created), sa.func.max(created), sa.func.count())
    first, last, total = connection.execute(ends.where(created >= since)).one()
    if total <= size:
        return Sample(read_window(connection, since, math.inf, size), total)
    edges = np.linspace(first, np.nextafter(last, np.inf), NUM_SLICES + 1)
    edges[-1] = np.inf
    parts = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = sa.select(sa.func.count()).where(created >= begin, created < end)
        count = connection.execute(inside).scalar_one()
        parts.append(read_window(connection, begin, end, round(size * count / total)))
    return Sample(np.concatenate(parts).view(np.recarray), total)


def read_window(connection: sa.Connection, begin: float, end: float, size: int) -> Window:
    """Read the newest decisions between two times."""
    d, o, r = decisions.c, observations.c, rewards.c
    newest = sa.select(decisions).where(d.created >= begin)
    if end < math.inf:
        newest = newest.where(d.created < end)
    new = newest.order_by(d.created.desc()).limit(size).subquery().c
    late = sa.select(sa.func.count()).where(r.decision_id == new.id, r.late).scalar_subquery()
    place = sa.cast(new.taken, sa.Text)
    arm = sa.case(
        (new.candidates.isnot(None), tasks.c.name),
        (new.names.is_(None), "action " + place),
        else_=sa.func.json_extract(new.names, "$[" + place + "]")
        if connection.dialect.name == "sqlite"
        else sa.cast(new.names, postgresql.JSON).op("->>")(new.taken),
    )
    query = (
        sa.select(tasks.c.model, new.task_id, arm, new.number, new.version, new.created)
        .add_columns(new.propensity, new.predicted, new.failed, new.settled)
        .add_columns(new.status, o.reward, o.source == "default", late)
        .add_columns(new.candidates.isnot(None))
        .join(tasks, tasks.c.id == new.task_id)
        .outerjoin(observations, o.decision_id == new.id)
        .order_by(new.created)
    )
    rows = [tuple(row) for row in connection.execute(query)]
    return np.array(rows, FIELDS).view(np.recarray)


def read_range(database: Database, time_range: str) -> Sample:
    """Read decisions of one of `RANGES`."""
    seconds = SECONDS.get(time_range, math.inf)
    with database.reading() as connection:
        return read_sample(connection, max(0.0, time.time() - seconds))


def of_version(window: Window, version: int) -> Window:
    """Decisions of one version."""
    return window[window.version == version]


def rewarded(window: Window) -> Window:
    """Decisions with a reward that was learned from."""
    return window[np.isfinite(window.reward)]


def explored(window: Window) -> Window:
    """Decisions with a propensity."""
    return window[np.isfinite(window.propensity)]


def versions_in(window: Window) -> list[int]:
    """Versions that made the decisions, newest first."""
    return sorted(set(window.version.tolist()), reverse=True)


def outcomes(window: Window) -> dict[str, Bool[np.ndarray, " n"]]:
    """Masks of the decisions by outcome; every decision has exactly one."""
    rewarded, cancelled = np.isfinite(window.reward), window.status == "cancelled"
    waiting, deferred = ~rewarded & ~window.settled, window.status == "deferred"
    return {
        "rewarded": rewarded & ~window.by_default,
        "default reward": rewarded & window.by_default,
        "waiting": waiting & ~deferred & ~cancelled,
        "never rewarded": ~rewarded & window.settled & ~cancelled,
        "deferred": waiting & deferred,
        "cancelled": ~rewarded & cancelled,
    }


@dataclass(frozen=True)
class Mean:
    """A mean of `count` numbers with its standard error over tasks (NaN below two tasks)."""

    value: float
    error: float
    count: int

    def __str__(self) -> str:
        return format(self)

    def __format__(self, sign: str) -> str:
        """With a sign where the format is "+"."""
        signed = sign == "+"
        return plus_minus(self.value, self.error, signed=signed) if self.count else "none yet"

    @property
    def sign(self) -> int:
        """1 or -1 if it differs from zero by more than two standard errors, else 0."""
        sure = self.error > 0 and abs(self.value) > 2 * self.error
        return int(np.sign(self.value)) if sure else 0

    @property
    def ends(self) -> tuple[float, float]:
        """Two standard errors below and above."""
        room = 2 * float(np.nan_to_num(self.error))
        return self.value - room, self.value + room


def task_mean(values: Float[np.ndarray, " n"], tasks: Int[np.ndarray, " n"]) -> Mean:
    """Mean with a standard error that counts tasks, not decisions, as independent.

    With residual sums u_t of T tasks, error² = T / (T - 1) Σ u_t² / n².
    """
    if len(values) == 0:
        return Mean(float("nan"), float("nan"), 0)
    mean = float(np.mean(values))
    _, which = np.unique(tasks, return_inverse=True)
    sums = np.bincount(which, weights=values - mean)
    if len(sums) < 2:
        return Mean(mean, float("nan"), len(values))
    error = np.sqrt(len(sums) / (len(sums) - 1) * np.sum(sums**2)) / len(values)
    return Mean(mean, float(error), len(values))


@dataclass(frozen=True)
class Bin:
    """Numbers whose key is in [low, high): the means of key and value."""

    low: float
    high: float
    key: float
    mean: Mean


def binned(
    keys: Float[np.ndarray, " n"],
    values: Float[np.ndarray, " n"],
    tasks: Int[np.ndarray, " n"],
    edges: Float[np.ndarray, " m"],
) -> list[Bin]:
    """Means of values by bins of their keys, the last bin closed; empty bins are left out."""
    place = np.clip(np.searchsorted(edges, keys, side="right") - 1, 0, len(edges) - 2)
    inside = (keys >= edges[0]) & (keys <= edges[-1])
    found = []
    for i, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        own = inside & (place == i)
        if np.any(own):
            mean = task_mean(values[own], tasks[own])
            found.append(Bin(low, high, float(np.mean(keys[own])), mean))
    return found


def quantile_edges(keys: Float[np.ndarray, " n"], num_bins: int) -> Float[np.ndarray, " m"]:
    """Edges of bins that hold about equally many numbers; fewer where numbers repeat."""
    edges = np.unique(np.quantile(keys, np.linspace(0, 1, num_bins + 1)))
    return edges if len(edges) > 1 else np.array([edges[0], edges[0] + 1.0])


def age_groups(numbers: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Groups 0, 1, 2, ... of a task's decisions 1, 2, 3-4, 5-8, 9-16, ..., counted from 0."""
    return np.ceil(np.log2(numbers + 1.0))


def age_label(group: int | float) -> str:
    """The decisions of a group of `age_groups`."""
    last = 2 ** int(group)
    return str(last) if group < 2 else f"{last // 2 + 1}–{last}"
