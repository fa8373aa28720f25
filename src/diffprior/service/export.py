"""Export of a model's log to files that other tools read."""

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from ..checks import choice
from ..encoders import SEPARATOR
from ..files.atomic import atomic_writer
from ..logs.decisions import (
    FORMATS,
    LoggedDecision,
    candidate_ids,
    counted_propensity,
    write_parquet,
)
from ..progress import Progress, progress
from ..tables import text_of
from .models import Catalog, Version
from .requests import Cell
from .store import Database, Row, candidates, decisions, observations, tasks

ROWS_AT_ONCE = 100  # fetched from the database at a time
MAX_COPIED = 1_000  # candidates of a choice in a format that repeats them
RESERVED = (*LoggedDecision._fields, "actions")  # columns that raw ones may not replace


@dataclass
class Exported:
    """Result of `export`."""

    num_decisions: int = 0
    num_written: int = 0
    num_propensities: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
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
    newest = catalog.newest(model)
    raw, dim = RawColumns(newest), newest.num_features
    if format == "parquet":
        sets = functools.partial(_candidate_sets, database, model)
        write = functools.partial(write_parquet, raw=raw.kinds, metadata=sets)
    num_draws = {v.version: v.settings.propensity_draws for v in catalog.versions_of(model)}
    exported = Exported()
    usual = _usual_num_actions(database, model) if format == "obd" else None  # all it can hold

    def chosen(shown: Progress) -> Generator[LoggedDecision, None, None]:
        for row in _rows(database, model):
            exported.num_decisions += 1
            shown.advance()
            reason = _reason_left_out(row, dim, format)
            if reason is None and usual not in (None, row["num_actions"]):
                reason = f"with other than {usual} actions"
            if reason is not None:
                exported.left_out[reason] += 1
                continue
            decision = _decision(row, num_draws[row["version"]])._replace(raw=raw.of(row))
            if row["candidates"] and format == "dsjson":
                decision = decision._replace(items=_allowed(database, decision))
                if len(decision.items) > MAX_COPIED:
                    exported.left_out[f"among more than {MAX_COPIED} items"] += 1
                    continue
            exported.num_written += 1
            exported.num_propensities += decision.propensity is not None
            yield decision

    count = sa.select(sa.func.count()).select_from(decisions.join(tasks))
    total = database.read_value(count.where(tasks.c.model == model))
    with (
        progress("writing decisions", total) as shown,
        atomic_writer(path) as file,
        contextlib.closing(chosen(shown)) as found,
    ):
        write(file, dim, found)
    return exported


def _usual_num_actions(database: Database, model: str) -> int | None:
    """Number of actions that most decisions among actions had."""
    number = decisions.c.num_actions
    query = sa.select(number).join(tasks, tasks.c.id == decisions.c.task_id)
    query = query.where(tasks.c.model == model, decisions.c.candidates.is_(None))
    return database.read_value(query.group_by(number).order_by(sa.func.count().desc()))


def _rows(database: Database, model: str) -> Iterator[dict[str, Any]]:
    """Decisions of a model with their observations, in the order of an index."""
    learned = [observations.c.reward, observations.c.learned, observations.c.source]
    query = (
        sa.select(decisions, tasks.c.name.label("task"), tasks.c.attributes, *learned)
        .join(tasks, tasks.c.id == decisions.c.task_id)
        .outerjoin(observations, observations.c.decision_id == decisions.c.id)
        .where(tasks.c.model == model)
        .order_by(decisions.c.task_id, decisions.c.number)
    )
    with database.reading() as connection:
        found = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query)
        yield from (dict(row) for row in found.mappings())


class RawColumns:
    """Raw columns of a model's actions and tasks, of the types that `Logs.read` takes."""

    def __init__(self, version: Version) -> None:
        encoders = {"raw": version.encoder, "attributes": version.attribute_encoder}
        reserved = {*RESERVED, *(f"x{i + 1}" for i in range(version.num_features))}
        self._columns = [
            (where, column, f"{column.name}_" * (column.name in reserved) or column.name)
            for where, encoder in encoders.items()
            for column in (() if encoder is None else encoder.columns)
        ]
        self.kinds = {name: column.kind for _, column, name in self._columns}

    def of(self, row: Row) -> dict[str, float | bool | str | None]:
        """The cells of the action taken and of its task; None where they are not known."""
        if not self._columns:
            return {}
        actions = json.loads(row["raw"] or "null")
        taken = actions and actions[0 if row["candidates"] else row["taken"]]
        given = {"raw": taken, "attributes": json.loads(row["attributes"] or "null")}
        known = {w: about if isinstance(about, dict) else {} for w, about in given.items()}
        return {
            name: _cell(column.kind, known[where].get(column.name))
            for where, column, name in self._columns
        }


def _cell(kind: str, cell: Cell) -> float | bool | str | None:
    if cell is None:
        return None
    if kind in ("number", "boolean"):
        return float(cell) if kind == "number" else bool(cell)  # type: ignore[arg-type]
    return SEPARATOR.join(cell) if isinstance(cell, list) else text_of(cell)


def _candidate_sets(database: Database, model: str) -> dict[str, bytes]:
    """Names of a model's items by id, and the sets of them that choices were among, as JSON."""
    sets = sa.select(candidates.c.id, candidates.c["items"]).where(candidates.c.model == model)
    packed = {row.id: row.items.hex() for row in database.read(sets)}
    if not packed:
        return {}
    named = sa.select(tasks.c.id, tasks.c.name).where(tasks.c.model == model)
    names = {row.id: row.name for row in database.read(named)}
    return {"items": json.dumps(names).encode(), "candidates": json.dumps(packed).encode()}


def _allowed(database: Database, decision: LoggedDecision) -> tuple[str, ...]:
    """Names of the items that a choice might take."""
    query = sa.select(candidates.c["items"]).where(candidates.c.id == decision.candidates)
    ids = candidate_ids(database.read_value(query))
    allowed = np.setdiff1d(ids, decision.excluded).tolist()
    named = sa.select(tasks.c.id, tasks.c.name).where(tasks.c.id.in_(allowed))
    names = {row.id: row.name for row in database.read(named)}
    return tuple(names[task] for task in allowed)


def _reason_left_out(row: dict[str, Any], dim: int, format: str) -> str | None:
    """Reason to leave a decision out; None if it is written."""
    if row["status"] == "cancelled":
        return "cancelled"
    if row["reward"] is None:
        return "settled without a reward" if row["settled"] else "not yet settled"
    if len(row["features"]) != 8 * row["num_actions"] * dim:
        return "with another number of features than the newest version's"
    if row["candidates"] and format == "obd":
        return "choices among items, which this format cannot hold"
    return None if format == "parquet" else _reason_no_propensity(row)


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
    same = ("version", "reward", "source", "predicted", "created", "learned", "task", "candidates")
    return LoggedDecision(
        decision_id=row["id"],
        features=features,
        mask=mask,
        taken=0 if row["candidates"] else row["taken"],
        excluded=tuple(json.loads(row["excluded"] or "[]")),
        action=str(json.loads(row["names"])[row["taken"]] if row["names"] else row["taken"]),
        propensity=None if _reason_no_propensity(row) else _propensity(row, num_draws),
        **{name: row[name] for name in same},
    )


def _propensity(row: dict[str, Any], num_draws: int) -> float:
    if row["num_draws"] is not None or row["propensity_se"] == 0:  # or exact, of a random choice
        return float(row["propensity"])
    return counted_propensity(row["propensity"], num_draws)
