"""Evidence without its log: old decisions that are pruned, and past rewards that are imported.

What a task has learned elsewhere or long ago is the base that the rest of its log follows.
"""

import re
import time
import unicodedata
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import sqlalchemy as sa

from ..logs.logs import Logs
from ..progress import progress
from .models import Catalog, task_seed
from .requests import ServiceError
from .store import (
    SUM_OF_BYTES,
    Database,
    Row,
    candidates,
    decisions,
    observations,
    read_rows,
    rewards,
    snapshots,
    tasks,
)
from .tasks import TaskState, pages, replay, starting_states, versions_to_store, write_bases

TASKS_AT_ONCE = 500  # read at a time
ROWS_AT_ONCE = 200  # observations of a task that one step deletes
SETS_AT_ONCE = 100  # sets of candidates that one transaction deletes
TURN_SECONDS = 0.02  # of a transaction, unless one step takes longer; others may wait for it


@dataclass
class Pruned:
    """Result of `prune`: what was deleted."""

    num_decisions: int = 0
    num_observations: int = 0
    num_sets: int = 0  # of candidates

    def __str__(self) -> str:
        counts = f"{self.num_decisions} decisions and {self.num_observations} observations"
        sets = f", and {self.num_sets} sets of candidates" if self.num_sets else ""
        return f"deleted {counts}{sets}"


def prune(database: Database, older_than: float) -> Pruned:
    """Delete decisions made more than so many seconds ago, with their rewards and observations.

    Those that still wait for a reward stay. What each task has learned from deleted observations
    becomes the base that the rest of its log is learned after, so that evidence does not change.
    The service may be running: a transaction is short, and as long a pause follows it.
    """
    catalog, pruned, cutoff = Catalog(database), Pruned(), time.time() - older_than
    count = sa.select(sa.func.count()).select_from(tasks).where(tasks.c.created < cutoff)
    total = database.read_value(count)
    with progress("pruning tasks", total) as shown:
        for page in pages(database, TASKS_AT_ONCE, tasks.c.created < cutoff):
            waiting = [task["id"] for task in reversed(page)]
            while waiting:
                with database.transaction() as connection:
                    begin = time.monotonic()
                    while waiting and time.monotonic() - begin < TURN_SECONDS:
                        query = sa.select(tasks).where(tasks.c.id == waiting[-1])
                        (task,) = read_rows(connection, query.with_for_update())
                        if not _prune(connection, catalog, task, cutoff, pruned):
                            waiting.pop()
                            shown.advance()
                time.sleep(time.monotonic() - begin)
    _prune_sets(database, pruned)
    return pruned


def _prune_sets(database: Database, pruned: Pruned) -> None:
    """Delete the sets of candidates that no decision refers to any more.

    They are looked at again once they are locked, as a choice may have used one meanwhile.
    """
    c = candidates.c
    unused = ~sa.select(decisions.c.id).where(decisions.c.candidates == c.id).exists()
    found = database.read(sa.select(c.model, c.id).where(unused))
    models = {row.model for row in found}
    for start in range(0, len(found), SETS_AT_ONCE):
        ids = [row.id for row in found[start : start + SETS_AT_ONCE]]
        some = c.model.in_(models), c.id.in_(ids)
        with database.transaction() as connection:
            begin = time.monotonic()
            connection.execute(sa.select(c.id).where(*some).order_by(c.id).with_for_update())
            gone = candidates.delete().where(*some, unused)
            pruned.num_sets += connection.execute(gone).rowcount
        time.sleep(time.monotonic() - begin)


def _prune(
    connection: sa.Connection, catalog: Catalog, task: Row, cutoff: float, pruned: Pruned
) -> bool:
    """Prune a task, some of its observations at a time; whether there are more."""
    own, start = observations.c.task_id == task["id"], task["pruned_learned"]
    newer = sa.select(sa.func.min(observations.c.number)).where(
        own, observations.c.learned >= cutoff
    )
    end = connection.execute(newer).scalar()
    end = task["num_learned"] if end is None else end
    stop = min(end, start + ROWS_AT_ONCE)
    if stop > start:
        _move_base(connection, catalog, task, stop)
        gone = observations.delete().where(own, observations.c.number < stop)
        pruned.num_observations += connection.execute(gone).rowcount
    num_decisions, size = _delete_decisions(connection, task, cutoff)
    pruned.num_decisions += num_decisions
    counts = {"pruned_learned": stop, "pruned_decisions": task["pruned_decisions"] + num_decisions}
    counts["num_bytes"] = task["num_bytes"] - size
    connection.execute(tasks.update().where(tasks.c.id == task["id"]).values(**counts))
    return bool(stop < end)


def _move_base(connection: sa.Connection, catalog: Catalog, task: Row, stop: int) -> None:
    """Let the bases of a task hold its first `stop` observations."""
    stored = sa.select(snapshots.c.version).where(snapshots.c.task_id == task["id"])
    used = set(connection.execute(stored).scalars())
    versions = list(versions_to_store(catalog, task["model"], used))
    first = starting_states(connection, [(task, version) for version in versions])
    states = replay(connection, list(first.values()), task["pruned_learned"], stop)
    of_task = observations.c.task_id == task["id"], observations.c.number == stop - 1
    last = connection.execute(sa.select(observations).where(*of_task)).one()
    write_bases(connection, task, states.values(), (stop, last.num_decisions, last.learned))
    older = snapshots.c.task_id == task["id"], snapshots.c.num_learned < stop
    connection.execute(snapshots.delete().where(*older))


def _delete_decisions(connection: sa.Connection, task: Row, cutoff: float) -> tuple[int, int]:
    """Delete old decisions whose observations are gone, and which wait for nothing; how many, and
    how many bytes.
    """
    d = decisions.c
    learned = sa.select(observations.c.decision_id).where(observations.c.task_id == task["id"])
    waits = sa.and_(d.settled.is_(False), d.status == "active", d.expires.is_not(None))
    old = (d.task_id == task["id"], d.created < cutoff, ~waits, d.id.not_in(learned))
    ids = sa.select(d.id).where(*old).scalar_subquery()
    size = connection.execute(sa.select(SUM_OF_BYTES).where(*old)).scalar_one()
    connection.execute(rewards.delete().where(rewards.c.decision_id.in_(ids)))
    return connection.execute(decisions.delete().where(*old)).rowcount, int(size)


@dataclass
class Imported:
    """Result of `import_logs`."""

    num_tasks: int = 0
    num_rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # tasks and rows, by reason

    def __str__(self) -> str:
        rest = "".join(f"; left out {count} {why}" for why, count in self.left_out.items())
        return f"{self.num_tasks} tasks now know {self.num_rows} past rewards{rest}"


def import_logs(database: Database, model: str, logs: Logs) -> Imported:
    """Let tasks of a model begin with what the rows of these logs, in their order, teach.

    Tasks that have decisions already are left out, so that nothing is learned twice.

    Raises:
        ValueError: The logs do not fit the model.
    """
    catalog, found = Catalog(database), Imported()
    dim = catalog.newest(model).num_features
    if logs.dim != dim:
        raise ValueError(
            f"`logs`: expected {dim} features, those of {model!r}, got {logs.dim}; name them"
        )
    if np.any(logs.weights != 1.0):
        raise ValueError("`logs`: expected one observation per row, got weights; leave them out")
    with progress("importing tasks", logs.num_tasks) as shown:
        for place in range(logs.num_tasks):
            rows = slice(int(logs.starts[place]), int(logs.starts[place + 1]))
            name = _task_name(str(logs.labels[place]))
            given = logs.features[rows], logs.rewards[rows]
            _import_task(database, catalog, (model, name), given, found)
            shown.advance()
    return found


def _task_name(label: str) -> str:
    name = unicodedata.normalize("NFC", label)
    if not re.fullmatch(r"[^\x00-\x1f\x7f]{1,200}", name):
        raise ValueError(
            f"`task`: expected names of 1 to 200 characters without control characters, got "
            f"{label!r:.60}; rename it"
        )
    return name


def _import_task(
    database: Database,
    catalog: Catalog,
    key: tuple[str, str],
    given: tuple[np.ndarray, np.ndarray],
    found: Imported,
) -> None:
    """Create a task with the evidence of its rows as base, if it has no decisions yet."""
    (model, name), now, count = key, time.time(), len(given[1])
    seed = task_seed(catalog.newest(model).seed, name)
    new = {"model": model, "name": name, "seed": seed, "created": now}
    with database.transaction() as connection:
        empty = database.insert_if_absent(tasks).values(**new, num_decisions=0, num_learned=0)
        connection.execute(empty)
        query = sa.select(tasks).where(tasks.c.model == model, tasks.c.name == name)
        (task,) = read_rows(connection, query.with_for_update())
        if task["num_decisions"]:
            found.left_out["tasks that have decisions already"] += 1
            return
        states = []
        for version in versions_to_store(catalog, model, set()):
            state, rejected = TaskState.empty(task, version), 0
            for number, (phi, reward) in enumerate(zip(*given, strict=True), 1):
                try:
                    state = state.learn(phi, float(reward), version.clock(number, now))
                except ServiceError:
                    rejected += 1
            states.append((state, rejected))
        fewest = min(rejected for _, rejected in states)
        if fewest:
            found.left_out["rows that no version can learn from"] += fewest
        write_bases(connection, task, [state for state, _ in states], (count, count, now))
        counts = dict.fromkeys(
            ("num_decisions", "num_learned", "pruned_decisions", "pruned_learned"), count
        )
        connection.execute(tasks.update().where(tasks.c.id == task["id"]).values(**counts))
    found.num_tasks += 1
    found.num_rows += count - fewest
