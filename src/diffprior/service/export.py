"""The log of a model, streamed from the database to a file that other tools read."""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from ..checks import choice
from ..files.atomic import atomic_writer
from ..logs.decisions import LoggedDecision, counted_propensity
from ..logs.writers import FORMATS
from .catalog import Catalog
from .store import Database, decisions, observations, tasks

ROWS_AT_ONCE = 100  # fetched from the database


@dataclass
class Exported:
    """How many decisions there are, how many were written, and why the others were not.

    Attributes:
        num_decisions: Decisions in the log.
        num_written: Decisions in the file, each with its reward.
        num_propensities: Of these, decisions with a propensity.
        left_out: Reasons, and how many decisions each of them left out.
    """

    num_decisions: int = 0
    num_written: int = 0
    num_propensities: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """One line."""
        reasons = ", ".join(f"{count} {reason}" for reason, count in self.left_out.most_common())
        rest = f"; left out {reasons}" if reasons else "; none left out"
        return (
            f"{self.num_decisions} decisions, {self.num_written} with their rewards written, "
            f"{self.num_propensities} of them with a propensity{rest}"
        )


def export(database: Database, model: str, format: str, path: Path) -> Exported:
    """Write the log of a model: every decision that was learned from, in the order of tasks.

    Parquet keeps decisions whose propensity is not known, for learning; the other formats, which
    are for off-policy estimates, leave them out.

    Args:
        database: Where the log is; it may be in use.
        model: Name of the model.
        format: parquet, dsjson or obd.
        path: The file, which is written whole or not at all.

    Returns:
        What was written and what was not.

    Raises:
        ValueError: There is no such model or format.
    """
    kind = FORMATS[choice("format", format, tuple(FORMATS))]
    catalog = Catalog(database)
    if model not in catalog.names():
        listed = ", ".join(catalog.names()) or "none"
        raise ValueError(f"`model`: expected a model of the database ({listed}), got {model!r}")
    dim = catalog.versions_of(model)[0].dim
    num_draws = {v.version: v.settings.propensity_draws for v in catalog.versions_of(model)}
    exported = Exported()
    with atomic_writer(path) as file, contextlib.closing(kind(file, dim)) as writer:
        for row in _rows(database, model):
            exported.num_decisions += 1
            why = _why_not(row, dim, propensity_needed=format != "parquet")
            if why is not None:
                exported.left_out[why] += 1
                continue
            decision = _decision(row, num_draws[row["version"]])
            exported.num_written += 1
            exported.num_propensities += decision.propensity is not None
            writer.write(decision)
        writer.finish()
    return exported


def _rows(database: Database, model: str) -> Iterator[dict[str, Any]]:
    """Decisions of a model with what was learned from them, in an order that has an index."""
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


def _why_not(row: dict[str, Any], dim: int, *, propensity_needed: bool) -> str | None:
    """Why a decision is left out, if it is."""
    if row["status"] == "cancelled":
        return "cancelled"
    if row["reward"] is None:
        return "settled without a reward" if row["settled"] else "not yet settled"
    if len(row["features"]) != 8 * row["num_actions"] * dim:
        return "with another number of features than the newest version's"
    return _why_no_propensity(row) if propensity_needed else None


def _why_no_propensity(row: dict[str, Any]) -> str | None:
    """Why it is not known how likely the action was, if it is not."""
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
    kept = ("version", "taken", "reward", "source", "predicted", "created", "learned", "task")
    return LoggedDecision(
        decision_id=row["id"],
        features=features,
        mask=mask,
        action=str(json.loads(row["names"])[row["taken"]] if row["names"] else row["taken"]),
        propensity=None if _why_no_propensity(row) else _propensity(row, num_draws),
        **{name: row[name] for name in kept},
    )


def _propensity(row: dict[str, Any], num_draws: int) -> float:
    if row["propensity_se"] == 0:  # known, of a choice at random
        return row["propensity"]
    return counted_propensity(row["propensity"], num_draws)
