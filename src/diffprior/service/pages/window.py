"""The newest decisions with what they earned, as arrays: everything the dashboard is made from."""

import datetime
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import sqlalchemy as sa
from jaxtyping import Bool, Float, Int, Shaped

from ..store import Database, decisions, observations, rewards, tasks

SIZE = 10_000  # decisions that are looked at, however many there are
KEEP_SECONDS = 2.0  # so that many readers cost no more than one


@dataclass(frozen=True)
class Window:
    """Decisions, oldest first, one place of every array each.

    `reward` is NaN where nothing was learned, `by_default` where the default reward was;
    `propensity` is NaN where it was not estimated; `late` are rewards that came too late.
    """

    model: Shaped[np.ndarray, " n"]
    task: Int[np.ndarray, " n"]
    number: Int[np.ndarray, " n"]
    version: Int[np.ndarray, " n"]
    created: Float[np.ndarray, " n"]
    propensity: Float[np.ndarray, " n"]
    predicted: Float[np.ndarray, " n"]
    reward: Float[np.ndarray, " n"]
    by_default: Bool[np.ndarray, " n"]
    failed: Bool[np.ndarray, " n"]
    settled: Bool[np.ndarray, " n"]
    status: Shaped[np.ndarray, " n"]
    late: Int[np.ndarray, " n"]

    def __len__(self) -> int:
        return len(self.task)

    def where(self, chosen: Bool[np.ndarray, " n"]) -> "Window":
        """Some of the decisions."""
        return Window(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def of_model(self, model: str) -> "Window":
        """Those of one model."""
        return self.where(self.model == model)

    @property
    def rewarded(self) -> "Window":
        """Those that something was learned from."""
        return self.where(np.isfinite(self.reward))

    @property
    def versions(self) -> list[int]:
        """Versions that took them, newest first."""
        return sorted(set(self.version.tolist()), reverse=True)


def read_window(connection: sa.Connection, size: int = SIZE) -> Window:
    """The newest decisions of all models."""
    d, o = decisions.c, observations.c
    columns = (d.id, d.task_id, d.number, d.version, d.created, d.propensity, d.predicted)
    newest = sa.select(*columns, d.failed, d.settled, d.status)
    recent = newest.order_by(d.created.desc()).limit(size).subquery()
    query = (
        sa.select(recent, tasks.c.model, o.reward, o.source)
        .join(tasks, tasks.c.id == recent.c.task_id)
        .outerjoin(observations, o.decision_id == recent.c.id)
        .order_by(recent.c.created)
    )
    rows = connection.execute(query).all()
    counted = (
        sa.select(rewards.c.decision_id, sa.func.count())
        .join(recent, recent.c.id == rewards.c.decision_id)
        .where(rewards.c.late)
        .group_by(rewards.c.decision_id)
    )
    late = {row[0]: int(row[1]) for row in connection.execute(counted)}
    return _as_window([str(column.key) for column in query.selected_columns], rows, late)


def _as_window(names: list[str], rows: Sequence[Any], late: dict[str, int]) -> Window:
    found = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))
    return Window(
        model=np.array(found["model"], object),
        task=np.array(found["task_id"], int),
        number=np.array(found["number"], int),
        version=np.array(found["version"], int),
        created=np.array(found["created"], float),
        propensity=np.array(found["propensity"], float),  # None becomes NaN
        predicted=np.array(found["predicted"], float),
        reward=np.array(found["reward"], float),
        by_default=np.array(found["source"], object) == "default",
        failed=np.array(found["failed"], bool),
        settled=np.array(found["settled"], bool),
        status=np.array(found["status"], object),
        late=np.array([late.get(one, 0) for one in found["id"]], int),
    )


class WindowReader:
    """Reads the window, at most once every `KEEP_SECONDS`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._read = -KEEP_SECONDS
        self._window: Window | None = None

    def read(self) -> Window:
        """The newest decisions of all models, at most some seconds old."""
        with self._lock:
            if self._window is None or time.monotonic() - self._read > KEEP_SECONDS:
                with self._database.reading() as connection:
                    self._window = read_window(connection)
                self._read = time.monotonic()
            return self._window


def moment(seconds: float) -> str:
    """A time in words, UTC."""
    return datetime.datetime.fromtimestamp(float(seconds), datetime.UTC).strftime("%d %b %H:%M")
