"""Import of past rewards, so that tasks which ran elsewhere do not start cold."""

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
from .store import Database, read_rows, tasks
from .tasks import TaskState, versions_to_store, write_bases


@dataclass
class Imported:
    """Result of `import_logs`."""

    num_tasks: int = 0
    num_rows: int = 0
    left_out: Counter[str] = field(default_factory=Counter)  # tasks and rows, by reason

    def __str__(self) -> str:
        """Summary in one line."""
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
