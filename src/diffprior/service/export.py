"""Export of a model's log to files that other tools read."""

import contextlib
import json
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from ..checks import choice
from ..files.atomic import atomic_writer
from ..logs.decisions import LoggedDecision, counted_propensity
from ..logs.writers import FORMATS
from ..progress import Progress, progress
from .models import Catalog
from .store import Database, decisions, observations, tasks

ROWS_AT_ONCE = 100  # fetched from the database at a time


@dataclass
class Exported:
    """Result of `export`."""

    num_decisions: int = 0
    num_written: int = 0
    num_propensities: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Summary in one line."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
        rest = f"; left out {reasons}" if reasons else "; none left out"
        return (
            f"{self.num_decisions} decisions, {self.num_written} with their rewards written, "
            f"{self.num_propensities} of them with a propensity{rest}"
        )


def export(database: Database, model: str, format: str, path: Path) -> Exported:
    """Write every decision of a model that was learned from, ordered by task.

    Parquet includes decisions of unknown propensity, for learning; the other formats, which are for
    off-policy estimation, leave them out.
    """
    write = FORMATS[choice("format", format, tuple(FORMATS))]
    catalog = Catalog(database)
    dim = catalog.newest(model).dim
    num_draws = {v.version: v.settings.propensity_draws for v in catalog.versions_of(model)}
    exported = Exported()

    def chosen(shown: Progress) -> Generator[LoggedDecision, None, None]:
        for row in _rows(database, model):
            exported.num_decisions += 1
            shown.advance()
            reason = _reason_left_out(row, dim, propensity_needed=format != "parquet")
            if reason is not None:
                exported.left_out[reason] += 1
                continue
            decision = _decision(row, num_draws[row["version"]])
            exported.num_written += 1
            exported.num_propensities += decision.propensity is not None
            yield decision

    count = sa.select(sa.func.count()).select_from(decisions.join(tasks))
    with database.reading() as connection:
        total = connection.execute(count.where(tasks.c.model == model)).scalar_one()
    with (
        progress("writing decisions", total) as shown,
        atomic_writer(path) as file,
        contextlib.closing(chosen(shown)) as found,
    ):
        write(file, dim, found)
    return exported


def _rows(database: Database, model: str) -> Iterator[dict[str, Any]]:
    """Decisions of a model with their observations, in the order of an index."""
    learned = [observations.c.reward, observations.c.learned, observations.c.source]
    query = (
        sa.select(decisions, tasks.c.name.label("task"), *learned)
        .join(tasks, tasks.c.id == decisions.c.task_id)
        .outerjoin(observations, observations.c.decision_id == decisions.c.id)
        .where(tasks.c.model == model)
        .order_by(decisions.c.task_id, decisions.c.number)
    )
    with database.reading() as connection:
        found = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
        yield from (dict(row) for row in found.mappings())


def _reason_left_out(row: dict[str, Any], dim: int, *, propensity_needed: bool) -> str | None:
    """Reason to leave a decision out; None if it is written."""
    if row["status"] == "cancelled":
        return "cancelled"
    if row["reward"] is None:
        return "settled without a reward" if row["settled"] else "not yet settled"
    if len(row["features"]) != 8 * row["num_actions"] * dim:
        return "with another number of features than the newest version's"
    return _reason_no_propensity(row) if propensity_needed else None


def _reason_no_propensity(row: dict[str, Any]) -> str | None:
    """Reason why the propensity is unknown; None if it is known."""
    if row["failed"]:
        return "of failed draws"
    if row["propensity"] is None:
        return "without a propensity"
    if row["top_k"] not in (None, 1):
        return "ranked, whose propensity is of the whole ranking"
    if row["shadow"]:
        return "taken by the caller in shadow mode"
    return None


def _decision(row: dict[str, Any], num_draws: int) -> LoggedDecision:
    features = np.frombuffer(row["features"]).reshape(row["num_actions"], -1)
    allowed = np.ones(len(features), bool)
    mask = allowed if row["mask"] is None else np.frombuffer(row["mask"], bool)
    same = ("version", "taken", "reward", "source", "predicted", "created", "learned", "task")
    return LoggedDecision(
        decision_id=row["id"],
        features=features,
        mask=mask,
        action=str(json.loads(row["names"])[row["taken"]] if row["names"] else row["taken"]),
        propensity=None if _reason_no_propensity(row) else _propensity(row, num_draws),
        **{name: row[name] for name in same},
    )


def _propensity(row: dict[str, Any], num_draws: int) -> float:
    if row["num_draws"] is not None or row["propensity_se"] == 0:  # or exact, of a random choice
        return float(row["propensity"])
    return counted_propensity(row["propensity"], num_draws)
