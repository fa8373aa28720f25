"""What is known of each task: evidence in memory, a snapshot now and then, the log behind both."""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa

from ..files.base import load_bytes
from .arrays import EvidenceArrays
from .database import Database
from .draws import DrawRequest
from .errors import ServiceError
from .schema import observations, snapshots
from .version import Version

SNAPSHOT_EVERY = 64  # observations between snapshots, so that few rows are read with each


@dataclass(frozen=True)
class TaskState:
    """The evidence of a task after its first `num_learned` observations, as it was at the moment
    of the last of them; see `Version.moment`."""

    task_id: int
    version: int
    seed: int
    arrays: EvidenceArrays
    num_learned: int
    moment: float = 0.0

    def learn(self, version: Version, phi: np.ndarray, reward: float, moment: float) -> "TaskState":
        """The state after one more observation."""
        faded = self.arrays.faded(version.fading(self.moment, moment))
        arrays = version.learn(faded, phi, reward)
        return replace(self, arrays=arrays, num_learned=self.num_learned + 1, moment=moment)

    def draw_request(self, version: Version, number: int, moment: float) -> DrawRequest:
        """What the draws of a decision at a moment need."""
        return DrawRequest(self.arrays, self.seed, number, version.fading(self.moment, moment))


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

    def states(self) -> list[TaskState]:
        """All states, those not used for longest first."""
        return list(self._states.values())

    def forget(self) -> None:
        """Read every task from the log again, because it is not known what the log holds."""
        self._states.clear()


class Wanted(NamedTuple):
    """A task whose state under a version is asked for, after its first `num_learned` rewards."""

    version: Version
    task_id: int
    seed: int
    num_learned: int

    @property
    def key(self) -> tuple[int, int]:
        """What the state is kept under."""
        return self.task_id, self.version.version


def current_states(
    connection: sa.Connection, cache: TaskCache, wanted: Iterable[Wanted]
) -> dict[tuple[int, int], TaskState]:
    """States of tasks as of this transaction, from the cache, snapshots or the log, by task and
    version; few queries, however many tasks there are."""
    asked = {want.key: want for want in wanted}
    found = {}
    for key, want in asked.items():
        state = cache.get(*key)
        if state is not None and state.num_learned <= want.num_learned:
            found[key] = state
    found |= _from_snapshots(connection, [w for key, w in asked.items() if key not in found])
    behind = defaultdict(list)
    for key, state in found.items():
        if state.num_learned < asked[key].num_learned:
            behind[state.num_learned].append((asked[key].version, state))
    for start, states in behind.items():
        found |= _replayed(connection, states, start)
    return found


def fresh_state(version: Version, task_id: int, seed: int) -> TaskState:
    """A task of which nothing is known."""
    return TaskState(task_id, version.version, seed, version.empty, 0)


def replay(
    connection: sa.Connection, version: Version, state: TaskState, until: int = 2**62
) -> TaskState:
    """The state after the observations in the log that it does not have yet, before `until`."""
    found = _replayed(connection, [(version, state)], state.num_learned, until)
    return found[state.task_id, state.version]


def _replayed(
    connection: sa.Connection,
    states: list[tuple[Version, TaskState]],
    start: int,
    until: int = 2**62,
) -> dict[tuple[int, int], TaskState]:
    """States that have learned `start` observations, after all that are in the log.

    One that a version cannot learn from, because it is of another likelihood, is passed over.
    """
    ids = sorted({state.task_id for _, state in states})
    query = (
        sa.select(observations)
        .where(observations.c.task_id.in_(ids))
        .where(observations.c.number >= start, observations.c.number < until)
        .order_by(observations.c.task_id, observations.c.number)
    )
    rows = defaultdict(list)
    for row in connection.execute(query):
        rows[row.task_id].append(row)
    found = {}
    for version, state in states:
        for row in rows[state.task_id]:
            try:
                moment = version.moment(row.num_decisions, row.learned)
                state = state.learn(version, np.frombuffer(row.features), row.reward, moment)
            except ServiceError:
                state = replace(state, num_learned=state.num_learned + 1)
        found[state.task_id, state.version] = state
    return found


def _from_snapshots(
    connection: sa.Connection, wanted: list[Wanted]
) -> dict[tuple[int, int], TaskState]:
    """The newest state of each that was kept; nothing known if none was."""
    states = {want.key: fresh_state(want.version, want.task_id, want.seed) for want in wanted}
    ids = sorted({want.task_id for want in wanted if want.num_learned >= SNAPSHOT_EVERY})
    query = sa.select(snapshots).where(snapshots.c.task_id.in_(ids))
    for row in connection.execute(query) if ids else ():
        key = (row.task_id, row.version)
        if key in states:
            arrays = EvidenceArrays.of(load_bytes(row.evidence))
            kept = {"num_learned": row.num_learned, "moment": row.moment}
            states[key] = replace(states[key], arrays=arrays, **kept)
    return states


def write_snapshots(connection: sa.Connection, database: Database, states: list[TaskState]) -> None:
    """Keep the evidence of these tasks, in place of what was kept of them before."""
    for state in states:
        where = (snapshots.c.task_id == state.task_id) & (snapshots.c.version == state.version)
        connection.execute(snapshots.delete().where(where))
        row = {
            "task_id": state.task_id,
            "version": state.version,
            "num_learned": state.num_learned,
            "moment": state.moment,
            "evidence": state.arrays.evidence.to_bytes(),
        }
        connection.execute(database.insert_new(snapshots).values(**row))
