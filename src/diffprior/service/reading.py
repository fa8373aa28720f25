"""Read access to models, tasks with their posterior, decisions and rewards."""

import json
from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from ..encoders import Encoder
from ..priors.conditional import ConditionalPrior
from .models import Catalog, Version
from .requests import Reply, decision_reply, not_found
from .store import Database, Row, decisions, read_rows, rewards, tasks
from .tasks import TaskCache, TaskState, current_states

MIN_DRAWS = 256  # for the summary of a posterior


class Reader:
    """Reads the log without locking it."""

    def __init__(self, database: Database, catalog: Catalog, cache: TaskCache) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache

    def models(self, allowed: Sequence[str] | None = None) -> list[Reply]:
        """All models, or those among `allowed`."""
        names = self._catalog.names()
        return [self.model(name) for name in names if allowed is None or name in allowed]

    def model(self, name: str) -> Reply:
        found = self._catalog.versions_of(name)
        count = sa.select(sa.func.count()).where(tasks.c.model == name)
        num_tasks = self._database.read_value(count)
        return {"model": name, "num_tasks": num_tasks, "versions": [_about(v) for v in found]}

    def task(self, model: str, name: str) -> Reply:
        """Counts, posterior and prior of a task."""
        row, state = self.task_state(model, name)
        version, prior = state.version, state.version.moments
        given = version.known_condition(row["attributes"])
        mean = np.asarray(prior.mean) + (0.0 if given is None else given[: version.dim])
        return {
            "model": model,
            "task": name,
            "model_version": version.version,
            "num_decisions": row["num_decisions"],
            "num_rewards": row["num_learned"],
            "created": row["created"],
            "attributes": json.loads(row["attributes"] or "null"),
            "retired": row["retired"],
            "features": list(version.feature_names),
            "posterior": _posterior(state, row),
            "prior": {
                "mean": mean.tolist(),
                "std": np.sqrt(np.diagonal(np.asarray(prior.cov))).tolist(),
            },
        }

    def task_state(self, model: str, name: str) -> tuple[Row, TaskState]:
        """A task's row, and its state under the version that serves it."""
        version = self._catalog.for_task(model, name)
        with self._database.reading() as connection:
            where = (tasks.c.model == model) & (tasks.c.name == name)
            found = read_rows(connection, sa.select(tasks).where(where))
            if not found:
                raise not_found("task", name)
            (state,) = current_states(connection, self._cache, [(found[0], version)]).values()
            return found[0], state

    def tasks(self, model: str, after: str, limit: int) -> list[Reply]:
        self._catalog.versions_of(model)
        query = (
            sa.select(tasks.c.name, tasks.c.num_decisions, tasks.c.num_learned)
            .where(tasks.c.model == model, tasks.c.name > after)
            .order_by(tasks.c.name)
            .limit(limit)
        )
        return [
            {"task": r.name, "num_decisions": r.num_decisions, "num_rewards": r.num_learned}
            for r in self._database.read(query)
        ]

    def decision(self, decision_id: str, allowed: Sequence[str] | None) -> Reply:
        """A decision and its rewards; `allowed` are the models it may be of, None for all."""
        with self._database.reading() as connection:
            query = sa.select(decisions, tasks.c.model, tasks.c.name.label("task")).join(tasks)
            found = read_rows(connection, query.where(decisions.c.id == decision_id))
            if not found or (allowed is not None and found[0]["model"] not in allowed):
                raise not_found("decision_id", decision_id)
            row, given = found[0], sa.select(rewards).where(rewards.c.decision_id == decision_id)
            received = read_rows(connection, given.order_by(rewards.c.number))
        more = {k: row[k] for k in ("model", "task", "created", "predicted")}
        listed = [{k: r[k] for k in ("reward_id", "value", "late", "received")} for r in received]
        return decision_reply(row) | more | {"rewards": listed}


def _about(version: Version) -> Reply:
    prior = version.prior
    return {
        "version": version.version,
        "share": version.share,
        "created": version.created,
        "prior": repr(prior),
        "dim": version.dim,
        "features": list(version.feature_names),
        "columns": _columns(version.encoder),
        "attributes": _columns(version.attribute_encoder),
        "num_attributes": prior.num_attributes if isinstance(prior, ConditionalPrior) else 0,
        "settings": json.loads(version.settings.model_dump_json()),
    }


def _columns(encoder: Encoder | None) -> list[Reply]:
    """JSON schema of a row, by column."""
    return [
        {"name": c.name, "type": c.kind, "optional": c.optional, "levels": list(c.levels)}
        for c in (() if encoder is None else encoder.columns)
    ]


def _posterior(state: TaskState, task: Row) -> Reply:
    """Mean, standard deviation and central 90 % intervals of fresh draws."""
    draws = state.posterior_draws(task, MIN_DRAWS)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return {
        "mean": draws.mean(axis=0).tolist(),
        "std": draws.std(axis=0).tolist(),
        "interval_90": np.stack([low, high], axis=1).tolist(),
        "num_draws": len(draws),
    }
