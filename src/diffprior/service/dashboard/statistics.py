"""Statistics of the newest decisions: outcomes, means with standard errors over tasks, bins."""

import threading
import time
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa
from jaxtyping import Bool, Float, Int

from ...reporting.tables import plus_minus
from ..store import Database, decisions, observations, rewards, tasks

WINDOW_SIZE = 10_000  # decisions that the dashboard looks at, however many there are
CACHE_SECONDS = 2.0  # so that many readers cost no more than one
Window = np.recarray  # some of the newest decisions, oldest first, with these fields
FIELDS = [
    ("model", object),
    ("task", int),  # id
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


def read_window(connection: sa.Connection, size: int = WINDOW_SIZE) -> Window:
    """Read the newest decisions of all models."""
    d, o, r = decisions.c, observations.c, rewards.c
    newest = sa.select(decisions).order_by(d.created.desc()).limit(size).subquery().c
    late = sa.select(sa.func.count()).where(r.decision_id == newest.id, r.late).scalar_subquery()
    query = (
        sa.select(tasks.c.model, newest.task_id, newest.number, newest.version, newest.created)
        .add_columns(newest.propensity, newest.predicted, newest.failed, newest.settled)
        .add_columns(newest.status, o.reward, o.source == "default", late)
        .add_columns(newest.candidates.isnot(None))
        .join(tasks, tasks.c.id == newest.task_id)
        .outerjoin(observations, o.decision_id == newest.id)
        .order_by(newest.created)
    )
    rows = [tuple(row) for row in connection.execute(query)]
    return np.array(rows, FIELDS).view(np.recarray)


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


class WindowReader:
    """Reads the window of a database, at most once every `CACHE_SECONDS`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._expires = 0.0
        self._window: Window | None = None

    def read(self) -> Window:
        """Return the newest decisions of all models, at most some seconds old."""
        with self._lock:
            if self._window is None or time.monotonic() > self._expires:
                with self._database.reading() as connection:
                    self._window = read_window(connection)
                self._expires = time.monotonic() + CACHE_SECONDS
            return self._window


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
