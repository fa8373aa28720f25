"""What is known of each task: evidence in memory, a snapshot now and then, the log behind both."""

from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from ..evidence.base import AbstractEvidence
from ..files.base import load_bytes
from .catalog import Version
from .database import Database
from .draws import streams_of
from .errors import ServiceError
from .schema import observations, snapshots

SNAPSHOT_EVERY = 64  # observations between snapshots, so that few rows are read with each


@dataclass(frozen=True)
class TaskState:
    """The evidence of a task after its first `num_learned` observations."""

    task_id: int
    version: int
    evidence: AbstractEvidence
    num_learned: int
    streams: np.ndarray

    def learn(self, version: Version, phi: np.ndarray, reward: float) -> "TaskState":
        """The state after one more observation."""
        evidence = version.learn(self.evidence, phi, reward)
        return replace(self, evidence=evidence, num_learned=self.num_learned + 1)


class TaskCache:
    """States of the tasks that were used last, at most `max_tasks` of them."""

    def __init__(self, max_tasks: int) -> None:
        self._max_tasks = max_tasks
        self._states: OrderedDict[tuple[int, int], TaskState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def get(self, task_id: int, version: int) -> TaskState | None:
        """The state of a task under a version, if it is here."""
        return self._states.get((task_id, version))

    def put(self, states: list[TaskState]) -> None:
        """Keep these; those not used for longest make room."""
        for state in states:
            key = (state.task_id, state.version)
            self._states[key] = state
            self._states.move_to_end(key)
        while len(self._states) > self._max_tasks:
            self._states.popitem(last=False)

    def forget(self) -> None:
        """Read every task from the log again, because it is not known what the log holds."""
        self._states.clear()


def current_state(
    connection: sa.Connection,
    cache: TaskCache,
    version: Version,
    task_id: int,
    seed: int,
    num_learned: int,
) -> TaskState:
    """The state of a task as of this transaction, from the cache, a snapshot or the log."""
    state = cache.get(task_id, version.version)
    if state is None or state.num_learned > num_learned:
        state = _from_snapshot(connection, version, task_id, seed)
    if state.num_learned < num_learned:
        state = replay(connection, version, state)
    return state


def fresh_state(version: Version, task_id: int, seed: int) -> TaskState:
    """A task of which nothing is known."""
    return TaskState(task_id, version.version, version.empty(), 0, streams_of(seed))


def replay(
    connection: sa.Connection, version: Version, state: TaskState, until: int = 2**62
) -> TaskState:
    """The state after the observations in the log that it does not have yet.

    One that this version cannot learn from, because it is of another likelihood, is passed over.
    """
    query = (
        sa.select(observations.c.features, observations.c.reward)
        .where(observations.c.task_id == state.task_id)
        .where(observations.c.number >= state.num_learned, observations.c.number < until)
        .order_by(observations.c.number)
    )
    for row in connection.execute(query):
        try:
            state = state.learn(version, np.frombuffer(row.features), row.reward)
        except ServiceError:
            state = replace(state, num_learned=state.num_learned + 1)
    return state


def _from_snapshot(
    connection: sa.Connection, version: Version, task_id: int, seed: int
) -> TaskState:
    where = (snapshots.c.task_id == task_id) & (snapshots.c.version == version.version)
    row = connection.execute(sa.select(snapshots).where(where)).one_or_none()
    state = fresh_state(version, task_id, seed)
    if row is None:
        return state
    return replace(state, evidence=load_bytes(row.evidence), num_learned=row.num_learned)


def write_snapshots(connection: sa.Connection, database: Database, states: list[TaskState]) -> None:
    """Keep the evidence of these tasks, in place of what was kept of them before."""
    for state in states:
        where = (snapshots.c.task_id == state.task_id) & (snapshots.c.version == state.version)
        connection.execute(snapshots.delete().where(where))
        row = {
            "task_id": state.task_id,
            "version": state.version,
            "num_learned": state.num_learned,
            "evidence": state.evidence.to_bytes(),
        }
        connection.execute(database.insert_new(snapshots).values(**row))
