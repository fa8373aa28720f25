"""What can be looked at: models, tasks with their posterior, decisions, rewards."""

import json
from typing import Any

import numpy as np
import sqlalchemy as sa

from .catalog import Catalog
from .database import Database
from .errors import not_found
from .posterior import posterior_draws
from .replies import decision_reply
from .schema import decisions, rewards, tasks
from .tasks import TaskCache, TaskState, Wanted, current_states
from .version import Version

NUM_DRAWS = 16  # calls of a version's program that make up the picture of a posterior


class Reader:
    """Reads the log without locking anything."""

    def __init__(self, database: Database, catalog: Catalog, cache: TaskCache) -> None:
        self._database = database
        self._catalog = catalog
        self._cache = cache

    def models(self) -> list[dict[str, Any]]:
        """All models."""
        return [self.model(name) for name in self._catalog.names()]

    def model(self, name: str) -> dict[str, Any]:
        """One model with its versions."""
        found = self._catalog.versions_of(name)
        with self._database.reading() as connection:
            count = sa.select(sa.func.count()).where(tasks.c.model == name)
            num_tasks = connection.execute(count).scalar()
        return {"model": name, "num_tasks": num_tasks, "versions": [_about(v) for v in found]}

    def task(self, model: str, name: str) -> dict[str, Any]:
        """A task: how much is known of it, its posterior, and the prior beside it."""
        version, row, state = self.task_state(model, name)
        prior = version.moments
        return {
            "model": model,
            "task": name,
            "model_version": version.version,
            "num_decisions": row.num_decisions,
            "num_rewards": row.num_learned,
            "created": row.created,
            "posterior": _posterior(version, state, row.num_decisions),
            "prior": {
                "mean": np.asarray(prior.mean).tolist(),
                "std": np.sqrt(np.diagonal(np.asarray(prior.cov))).tolist(),
            },
        }

    def task_state(self, model: str, name: str) -> tuple[Version, Any, TaskState]:
        """The version that serves a task, the task's row, and what is known of it."""
        version = self._catalog.for_task(model, name)
        with self._database.reading() as connection:
            where = (tasks.c.model == model) & (tasks.c.name == name)
            row = connection.execute(sa.select(tasks).where(where)).one_or_none()
            if row is None:
                raise not_found("task", name)
            wanted = Wanted(version, row.id, row.seed, row.num_learned)
            return version, row, current_states(connection, self._cache, [wanted])[wanted.key]

    def tasks(self, model: str, after: str, limit: int) -> list[dict[str, Any]]:
        """Tasks of a model in the order of their names."""
        self._catalog.versions_of(model)
        query = (
            sa.select(tasks.c.name, tasks.c.num_decisions, tasks.c.num_learned)
            .where(tasks.c.model == model, tasks.c.name > after)
            .order_by(tasks.c.name)
            .limit(limit)
        )
        with self._database.reading() as connection:
            return [
                {"task": r.name, "num_decisions": r.num_decisions, "num_rewards": r.num_learned}
                for r in connection.execute(query)
            ]

    def decision(self, decision_id: str, models: tuple[str, ...] | None) -> dict[str, Any]:
        """A decision and its rewards."""
        with self._database.reading() as connection:
            query = sa.select(decisions, tasks.c.model, tasks.c.name.label("task")).join(tasks)
            found = connection.execute(query.where(decisions.c.id == decision_id)).mappings()
            row = found.one_or_none()
            if row is None or (models is not None and row["model"] not in models):
                raise not_found("decision_id", decision_id)
            given = sa.select(rewards).where(rewards.c.decision_id == decision_id)
            came = connection.execute(given.order_by(rewards.c.number)).mappings().all()
        kept = [{k: r[k] for k in ("reward_id", "value", "late", "received")} for r in came]
        more = {k: row[k] for k in ("model", "task", "created", "predicted")}
        return decision_reply(dict(row)) | more | {"rewards": kept}


def _about(version: Version) -> dict[str, Any]:
    return {
        "version": version.version,
        "share": version.share,
        "created": version.created,
        "prior": repr(version.prior),
        "dim": version.dim,
        "settings": json.loads(version.settings.model_dump_json()),
    }


def _posterior(version: Version, state: TaskState, num_decisions: int) -> dict[str, Any]:
    """Mean, standard deviation and central 90 % intervals of fresh draws."""
    draws = posterior_draws(version, state, num_decisions, NUM_DRAWS)
    low, high = np.quantile(draws, [0.05, 0.95], axis=0)
    return {
        "mean": draws.mean(axis=0).tolist(),
        "std": draws.std(axis=0).tolist(),
        "interval_90": np.stack([low, high], axis=1).tolist(),
        "num_draws": len(draws),
    }
