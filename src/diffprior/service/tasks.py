"""Evidence of each task: a cache in memory, snapshots in the database, and the log behind both."""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float

from ..bandits.decisions import TaskRequest
from ..files.base import load_bytes
from .models import Catalog, EvidenceArrays, Version
from .requests import ServiceError
from .store import Database, decisions, observations, snapshots, tasks

SNAPSHOT_EVERY = 64  # observations between snapshots: the most that a cold task reads
REBUILD_AT_ONCE = 500  # tasks per transaction of `rebuild`
UNUSED_NUMBER = 2**31  # decisions have smaller numbers, so draws from here on are fresh
Key = tuple[int, int]  # task id and version


@dataclass(frozen=True)
class TaskState:
    """Evidence of a task under a version, after its first `num_learned` observations.

    `moment` is the time of the last of them; see `Version.moment`.
    """

    task_id: int
    version: int
    seed: int
    arrays: EvidenceArrays
    num_learned: int = 0
    moment: float = 0.0

    @property
    def key(self) -> Key:
        """What the state is stored under."""
        return self.task_id, self.version

    def learn(self, version: Version, phi: np.ndarray, reward: float, moment: float) -> "TaskState":
        """The state after one more observation."""
        faded = self.arrays.faded(version.fading(self.moment, moment))
        arrays = version.learn(faded, phi, reward)
        return replace(self, arrays=arrays, num_learned=self.num_learned + 1, moment=moment)

    def draw_request(self, version: Version, number: int, moment: float) -> TaskRequest:
        """Request for the draws of a decision."""
        arrays, temperature = self.arrays, version.fading(self.moment, moment)
        return TaskRequest(arrays.leaves, arrays.structure, self.seed, number, temperature)

    def posterior_draws(
        self, version: Version, num_decisions: int, num_calls: int
    ) -> Float[np.ndarray, "n d"]:
        """Fresh draws given the evidence: 1 + `propensity_draws` for each of `num_calls`."""
        moment = version.moment(num_decisions, time.time())
        numbers = range(UNUSED_NUMBER, UNUSED_NUMBER + num_calls)
        requests = [self.draw_request(version, number, moment) for number in numbers]
        return version.posterior_policy(requests).index.theta.reshape(-1, version.dim)


class TaskCache:
    """The states of the most recently used tasks, at most `max_tasks`."""

    def __init__(self, max_tasks: int) -> None:
        self._max_tasks = max_tasks
        self._states: OrderedDict[Key, TaskState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def get(self, key: Key) -> TaskState | None:
        """The state of a task under a version, if it is here."""
        return self._states.get(key)

    def put(self, states: list[TaskState]) -> None:
        """Store these states; the least recently used ones make room."""
        for state in states:
            self._states[state.key] = state
            self._states.move_to_end(state.key)
        while len(self._states) > self._max_tasks:
            self._states.popitem(last=False)

    def states(self) -> list[TaskState]:
        """All states, the least recently used first."""
        return list(self._states.values())

    def clear(self) -> None:
        """Forget all states, so that they are read from the log again."""
        self._states.clear()


class StateQuery(NamedTuple):
    """A task whose state under a version is needed, after its first `num_learned` observations."""

    version: Version
    task_id: int
    seed: int
    num_learned: int

    @property
    def key(self) -> Key:
        """What the state is stored under."""
        return self.task_id, self.version.version


def current_states(
    connection: sa.Connection, cache: TaskCache, queries: Iterable[StateQuery]
) -> dict[Key, TaskState]:
    """States as of this transaction, from the cache, snapshots or the log, in few queries."""
    asked = {query.key: query for query in queries}
    found = {}
    for key, query in asked.items():
        state = cache.get(key)
        if state is not None and state.num_learned <= query.num_learned:
            found[key] = state
    found |= _from_snapshots(connection, [q for key, q in asked.items() if key not in found])
    behind = defaultdict(list)
    for key, state in found.items():
        if state.num_learned < asked[key].num_learned:
            behind[state.num_learned].append((asked[key].version, state))
    for start, states in behind.items():
        found |= _replay(connection, states, start)
    return found


def empty_state(version: Version, task_id: int, seed: int) -> TaskState:
    """The state of a task without observations."""
    return TaskState(task_id, version.version, seed, version.empty)


def _replay(
    connection: sa.Connection,
    states: list[tuple[Version, TaskState]],
    start: int,
    stop: int = 2**62,
) -> dict[Key, TaskState]:
    """States that have learned `start` observations, after those of the log before `stop`.

    An observation that a version cannot learn from, because its likelihood differs, is skipped.
    """
    ids = sorted({state.task_id for _, state in states})
    query = (
        sa.select(observations)
        .where(observations.c.task_id.in_(ids))
        .where(observations.c.number >= start, observations.c.number < stop)
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
        found[state.key] = state
    return found


def _from_snapshots(connection: sa.Connection, queries: list[StateQuery]) -> dict[Key, TaskState]:
    """The newest stored state of each task; an empty one if there is none."""
    states = {query.key: empty_state(*query[:3]) for query in queries}
    ids = sorted({query.task_id for query in queries if query.num_learned >= SNAPSHOT_EVERY})
    stored = sa.select(snapshots).where(snapshots.c.task_id.in_(ids))
    for row in connection.execute(stored) if ids else ():
        key = (row.task_id, row.version)
        if key in states:
            arrays = EvidenceArrays.of(load_bytes(row.evidence))
            states[key] = replace(
                states[key], arrays=arrays, num_learned=row.num_learned, moment=row.moment
            )
    return states


def write_snapshots(connection: sa.Connection, database: Database, states: list[TaskState]) -> None:
    """Store these states in place of earlier snapshots of the same tasks."""
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
        connection.execute(database.insert_if_absent(snapshots).values(**row))


@dataclass(frozen=True)
class Rebuilt:
    """Result of `rebuild`."""

    num_tasks: int
    num_snapshots: int
    different: tuple[str, ...]
    problems: tuple[str, ...]


def rebuild(database: Database) -> Rebuilt:
    """Recompute every snapshot from the log, replace those that differ, and check the counts."""
    catalog = Catalog(database)
    num_tasks = num_snapshots = 0
    different: list[str] = []
    problems: list[str] = []
    for page in _pages(database):
        with database.transaction() as connection:
            for task in page:
                num_tasks += 1
                problems += _wrong_counts(connection, task)
                stored = sa.select(snapshots).where(snapshots.c.task_id == task.id)
                for row in connection.execute(stored).all():
                    num_snapshots += 1
                    version = catalog.version(task.model, row.version)
                    empty = empty_state(version, task.id, task.seed)
                    state = _replay(connection, [(version, empty)], 0, row.num_learned)[empty.key]
                    if state.arrays.evidence.to_bytes() != row.evidence:
                        different.append(f"{task.model}/{task.name}")
                        write_snapshots(connection, database, [state])
    return Rebuilt(num_tasks, num_snapshots, tuple(different), tuple(problems))


def _pages(database: Database) -> Iterator[list[Any]]:
    last = 0
    while True:
        query = sa.select(tasks).where(tasks.c.id > last).order_by(tasks.c.id)
        with database.reading() as connection:
            page = list(connection.execute(query.limit(REBUILD_AT_ONCE)))
        if not page:
            return
        yield page
        last = page[-1].id


def _wrong_counts(connection: sa.Connection, task: Any) -> list[str]:
    counts = {
        "num_decisions": sa.select(sa.func.count()).where(decisions.c.task_id == task.id),
        "num_learned": sa.select(sa.func.count()).where(observations.c.task_id == task.id),
    }
    found = {name: connection.execute(query).scalar() for name, query in counts.items()}
    return [
        f"{task.model}/{task.name}: {name} is {getattr(task, name)}, the log has {value}"
        for name, value in found.items()
        if value != getattr(task, name)
    ]
