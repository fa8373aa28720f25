"""Evidence made anew from the log, and compared with what was kept of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from .catalog import Catalog
from .database import Database
from .schema import decisions, observations, snapshots, tasks
from .tasks import TaskState, fresh_state, replay, write_snapshots
from .version import Version

PAGE = 500  # tasks of one transaction


@dataclass(frozen=True)
class Rebuilt:
    """What `rebuild` found: tasks, snapshots, and which of them differed from the log."""

    num_tasks: int
    num_snapshots: int
    different: tuple[str, ...]
    problems: tuple[str, ...]


def rebuild(database: Database) -> Rebuilt:
    """Make every snapshot anew from the log, and check the log's own counts.

    Returns:
        How many tasks there are, and every one whose snapshot or counts differed.
    """
    catalog = Catalog(database)
    num_tasks = num_snapshots = 0
    different: list[str] = []
    problems: list[str] = []
    for page in _pages(database):
        with database.transaction() as connection:
            for row in page:
                num_tasks += 1
                problems += _problems(connection, row)
                kept = _kept(connection, row.id)
                for number, (num_learned, blob) in kept.items():
                    num_snapshots += 1
                    version = catalog.version(row.model, number)
                    state = _first(connection, version, row, num_learned)
                    if state.arrays.evidence.to_bytes() != blob:
                        different.append(f"{row.model}/{row.name}")
                        write_snapshots(connection, database, [state])
    return Rebuilt(num_tasks, num_snapshots, tuple(different), tuple(problems))


def _pages(database: Database) -> Iterator[list[Any]]:
    last = 0
    while True:
        query = sa.select(tasks).where(tasks.c.id > last).order_by(tasks.c.id).limit(PAGE)
        with database.reading() as connection:
            page = list(connection.execute(query))
        if not page:
            return
        yield page
        last = page[-1].id


def _kept(connection: sa.Connection, task_id: int) -> dict[int, tuple[int, bytes]]:
    query = sa.select(snapshots).where(snapshots.c.task_id == task_id)
    return {r.version: (r.num_learned, r.evidence) for r in connection.execute(query)}


def _first(connection: sa.Connection, version: Version, row: Any, num_learned: int) -> TaskState:
    """The state of a task after its first so many observations."""
    return replay(connection, version, fresh_state(version, row.id, row.seed), until=num_learned)


def _problems(connection: sa.Connection, row: Any) -> list[str]:
    """Counts of a task that its log does not bear out."""
    counts = {
        "num_decisions": sa.select(sa.func.count()).where(decisions.c.task_id == row.id),
        "num_learned": sa.select(sa.func.count()).where(observations.c.task_id == row.id),
    }
    found = {name: connection.execute(query).scalar() for name, query in counts.items()}
    return [
        f"{row.model}/{row.name}: {name} is {getattr(row, name)}, the log has {value}"
        for name, value in found.items()
        if value != getattr(row, name)
    ]
