"""Evidence of each task: a cache in memory, snapshots in the database, and the log behind both."""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float

from ..bandits.decisions import TaskRequest
from ..bandits.updates import State
from ..evidence.base import AbstractEvidence
from ..files.base import load_bytes
from ..progress import progress
from .models import Catalog, Version
from .requests import ServiceError
from .store import Database, Row, bases, decisions, observations, read_rows, snapshots, tasks

SNAPSHOT_EVERY = 64  # observations between snapshots: the most that a cold task reads
REBUILD_AT_ONCE = 500  # tasks per transaction of `rebuild`
STATE_BYTES = 2048  # of the objects of a state beside its arrays
UNUSED_NUMBER = 2**31  # decisions have smaller numbers, so draws from here on are fresh
Key = tuple[int, int]  # task id and version


@dataclass(frozen=True)
class TaskState:
    """Evidence of a task under a version, after its first `num_learned` observations."""

    task_id: int
    seed: int
    version: Version
    arrays: State
    num_learned: int = 0

    @staticmethod
    def empty(task: Row, version: Version) -> "TaskState":
        """The state before the first observation."""
        return TaskState(task["id"], task["seed"], version, version.empty)

    @property
    def num_bytes(self) -> int:
        """Memory that it takes, about."""
        return STATE_BYTES + sum(leaf.nbytes for leaf in self.arrays.leaves)

    @property
    def key(self) -> Key:
        return self.task_id, self.version.version

    def learn(self, phi: np.ndarray, reward: float, clock: float) -> "TaskState":
        """The state after one more observation."""
        arrays = self.version.learn(self.arrays, phi, reward, clock)
        return replace(self, arrays=arrays, num_learned=self.num_learned + 1)

    def restored(self, content: bytes, moment: float, num_learned: int) -> "TaskState":
        """The state with this saved evidence, as of this moment."""
        evidence = load_bytes(content)
        assert isinstance(evidence, AbstractEvidence)
        arrays = State.of(evidence, self.version.settings.max_rows)._replace(moment=moment)
        return replace(self, arrays=arrays, num_learned=num_learned)

    def draw_request(self, task: Row, number: int, clock: float) -> TaskRequest:
        return self.version.draw_request(
            self.arrays, (self.seed, task["attributes"]), number, clock
        )

    def posterior_draws(self, task: Row, min_draws: int) -> Float[np.ndarray, "n d"]:
        """At least so many fresh draws given the evidence."""
        policy = self.version.posterior_policy
        num_calls = -(-min_draws // (1 + policy.num_others))
        clock = self.version.clock(task["num_decisions"], time.time())
        numbers = range(UNUSED_NUMBER, UNUSED_NUMBER + num_calls)
        requests = [self.draw_request(task, number, clock) for number in numbers]
        return policy(requests).index.theta.reshape(-1, self.version.dim)


class TaskCache(OrderedDict[Key, TaskState]):
    """The states of the most recently used tasks, in at most `max_bytes`, the last used last."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes, self._bytes = max_bytes, 0

    def put(self, states: Iterable[TaskState]) -> None:
        """Store these states; the least recently used ones make room."""
        for state in states:
            old = self.pop(state.key, None)
            self._bytes += state.num_bytes - (old.num_bytes if old else 0)
            self[state.key] = state
        while self._bytes > self._max_bytes:
            self._bytes -= self.popitem(last=False)[1].num_bytes

    def clear(self) -> None:
        super().clear()
        self._bytes = 0


def current_states(
    connection: sa.Connection, cache: TaskCache, wanted: Iterable[tuple[Row, Version]]
) -> dict[Key, TaskState]:
    """States as of this transaction, from the cache, snapshots or the log, in few queries."""
    asked = {(task["id"], version.version): (task, version) for task, version in wanted}
    found = {}
    for key, (task, _) in asked.items():
        state = cache.get(key)
        known = state is not None and state.num_learned <= task["num_learned"]
        if state is not None and known and state.num_learned >= task["pruned_learned"]:
            found[key] = state
    missing = starting_states(connection, [own for key, own in asked.items() if key not in found])
    old = {task["id"] for task, _ in asked.values() if task["num_learned"] >= SNAPSHOT_EVERY}
    found |= _from_snapshots(connection, missing, old)
    behind = defaultdict(list)
    for key, state in found.items():
        if state.num_learned < asked[key][0]["num_learned"]:
            behind[state.num_learned].append(state)
    for start, states in behind.items():
        found |= replay(connection, states, start)
    return found


def starting_states(
    connection: sa.Connection, wanted: Iterable[tuple[Row, Version]]
) -> dict[Key, TaskState]:
    """States that the observations in the log follow: empty ones, or those of pruned observations.

    A version without a base of its own learns from that of another with the same likelihood.
    """
    states = [(task, TaskState.empty(task, version)) for task, version in wanted]
    pruned = sorted({task["id"] for task, _ in states if task["pruned_learned"]})
    query = sa.select(bases).where(bases.c.task_id.in_(pruned)).order_by(bases.c.version)
    found = defaultdict(list)
    for row in connection.execute(query) if pruned else ():
        found[row.task_id].append(row)
    return {state.key: _after(state, task, found[task["id"]]) for task, state in states}


def _after(state: TaskState, task: Row, bases_of_task: list[Any]) -> TaskState:
    """A state after the pruned observations of its task."""
    state, version = replace(state, num_learned=task["pruned_learned"]), state.version
    like = [row for row in bases_of_task if row.likelihood == version.learns_as]
    if not like:
        return state
    row = next((row for row in like if row.version == version.version), like[-1])
    return state.restored(
        row.evidence, version.clock(row.num_decisions, row.learned), row.num_learned
    )


def versions_to_store(catalog: Catalog, model: str, used: set[int]) -> Iterator[Version]:
    """Versions of which a task needs a base: those that serve or have served it, and the newest of
    each other likelihood, from which later ones learn.
    """
    seen = set()
    for version in catalog.versions_of(model):
        if version.share > 0 or version.version in used or version.learns_as not in seen:
            seen.add(version.learns_as)
            yield version


def write_bases(
    connection: sa.Connection, task: Row, states: Iterable[TaskState], after: tuple[int, int, float]
) -> None:
    """Store these states as what the rest of a task's log follows, in place of earlier bases.

    `after` are the numbers of observations and decisions up to there, and the time of the last.
    """
    about = dict(zip(("num_learned", "num_decisions", "learned"), after, strict=True))
    rows = [
        about
        | {
            "task_id": task["id"],
            "version": state.version.version,
            "likelihood": state.version.learns_as,
            "evidence": state.arrays.evidence.to_bytes(),
        }
        for state in states
    ]
    connection.execute(bases.delete().where(bases.c.task_id == task["id"]))
    connection.execute(bases.insert(), rows)


def replay(
    connection: sa.Connection, states: list[TaskState], start: int, stop: int = 2**62
) -> dict[Key, TaskState]:
    """States that have learned `start` observations, after those of the log up to `stop`.

    An observation that a version cannot learn from, because its likelihood differs, is skipped.
    """
    query = (
        sa.select(observations)
        .where(observations.c.task_id.in_(sorted({state.task_id for state in states})))
        .where(observations.c.number >= start, observations.c.number < stop)
        .order_by(observations.c.task_id, observations.c.number)
    )
    rows = defaultdict(list)
    for row in connection.execute(query):
        rows[row.task_id].append(row)
    found = {}
    for state in states:
        for row in rows[state.task_id]:
            clock = state.version.clock(row.num_decisions, row.learned)
            try:
                state = state.learn(np.frombuffer(row.features), row.reward, clock)
            except ServiceError:
                state = replace(state, num_learned=state.num_learned + 1)
        found[state.key] = state
    return found


def _from_snapshots(
    connection: sa.Connection, first: dict[Key, TaskState], old: set[int]
) -> dict[Key, TaskState]:
    """The newest stored states in place of the first, of tasks that are `old` enough for one."""
    states, ids = dict(first), sorted(old & {task_id for task_id, _ in first})
    stored = sa.select(snapshots).where(snapshots.c.task_id.in_(ids))
    for row in connection.execute(stored) if ids else ():
        key = (row.task_id, row.version)
        if key in states and row.num_learned >= states[key].num_learned:
            states[key] = states[key].restored(row.evidence, row.moment, row.num_learned)
    return states


def write_snapshots(connection: sa.Connection, database: Database, states: list[TaskState]) -> None:
    """Store these states in place of earlier snapshots of the same tasks."""
    for state in states:
        task_id, version = state.key
        where = (snapshots.c.task_id == task_id) & (snapshots.c.version == version)
        connection.execute(snapshots.delete().where(where))
        row = {
            "task_id": task_id,
            "version": version,
            "num_learned": state.num_learned,
            "moment": state.arrays.moment,
            "evidence": state.arrays.evidence.to_bytes(),
        }
        connection.execute(database.insert_if_absent(snapshots).values(**row))


@dataclass
class Rebuilt:
    """Result of `rebuild`: tasks whose snapshot was `different`, counts that were wrong."""

    num_tasks: int = 0
    num_snapshots: int = 0
    different: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def rebuild(database: Database) -> Rebuilt:
    """Recompute every snapshot from the log, replace those that differ, and check the counts.

    The service should not be running.
    """
    catalog, found = Catalog(database), Rebuilt()
    total = database.read_value(sa.select(sa.func.count()).select_from(tasks))
    with progress("recomputing tasks", total) as shown:
        for page in pages(database, REBUILD_AT_ONCE):
            with database.transaction() as connection:
                for task in page:
                    found.num_tasks += 1
                    found.problems += _wrong_counts(connection, task)
                    stored = sa.select(snapshots).where(snapshots.c.task_id == task["id"])
                    for row in connection.execute(stored).all():
                        if not catalog.loaded(task["model"], row.version):
                            continue
                        found.num_snapshots += 1
                        version = catalog.version(task["model"], row.version)
                        (first,) = starting_states(connection, [(task, version)]).values()
                        start = first.num_learned
                        state = replay(connection, [first], start, row.num_learned)[first.key]
                        if state.arrays.evidence.to_bytes() != row.evidence:
                            found.different.append(f"{task['model']}/{task['name']}")
                            write_snapshots(connection, database, [state])
                    shown.advance()
    return found


def pages(database: Database, size: int, *where: sa.ColumnElement[bool]) -> Iterator[list[Row]]:
    """The tasks for which this holds, so many at a time."""
    last = 0
    while True:
        query = sa.select(tasks).where(tasks.c.id > last, *where).order_by(tasks.c.id)
        with database.reading() as connection:
            page = read_rows(connection, query.limit(size))
        if not page:
            return
        yield page
        last = page[-1]["id"]


def _wrong_counts(connection: sa.Connection, task: Row) -> list[str]:
    wrong = []
    for name, table in (("decisions", decisions), ("learned", observations)):
        count = sa.select(sa.func.count()).where(table.c.task_id == task["id"])
        value = connection.execute(count).scalar_one() + task[f"pruned_{name}"]
        if value != task[f"num_{name}"]:
            about = f"{task['model']}/{task['name']}"
            wrong.append(f"{about}: num_{name} is {task[f'num_{name}']}, the log has {value}")
    return wrong
