"""A database of the decision service with many tasks in it, made without the service."""

import itertools
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from diffprior.priors.base import AbstractPrior

from .service_load import ACTIONS, DIM

CHUNK = 2_000  # tasks of one transaction
FEATURES = np.random.default_rng(0).standard_normal((ACTIONS, DIM)).round(3)
Row = dict[str, Any]


def make_store(
    path: Path,
    prior: AbstractPrior,
    num_tasks: int,
    *,
    sampler: str = "best",
    propensity_draws: int = 16,
    num_rewards: int = 2,
) -> Path:
    """A logistic model called shop, and tasks t0, t1, ... that were rewarded so many times each."""
    from diffprior.service.catalog import Catalog
    from diffprior.service.settings import Settings
    from diffprior.service.store import Database, decisions, observations, rewards, tasks

    database, now = Database(str(path)), time.time()
    about = {"sampler": sampler, "propensity_draws": propensity_draws, "likelihood": "logistic"}
    version = Catalog(database).put("shop", Settings.model_validate(about), prior, 1.0)
    for start in range(1, num_tasks + 1, CHUNK):
        ids = range(start, min(start + CHUNK, num_tasks + 1))
        taken = list(itertools.product(ids, range(num_rewards)))
        with database.transaction() as connection:
            connection.execute(tasks.insert(), _tasks(ids, version.seed, num_rewards, now))
            connection.execute(decisions.insert(), [_decision(*each, now) for each in taken])
            connection.execute(rewards.insert(), [_reward(*each, now) for each in taken])
            connection.execute(observations.insert(), [_observation(*each, now) for each in taken])
    database.close()
    return path


def _tasks(ids: Iterable[int], model_seed: int, num_rewards: int, now: float) -> list[Row]:
    from diffprior.service.catalog import task_seed

    same = {"model": "shop", "num_decisions": num_rewards, "num_learned": num_rewards}
    names = {task: f"t{task - 1}" for task in ids}
    own = [
        {"id": t, "name": name, "seed": task_seed(model_seed, name)} for t, name in names.items()
    ]
    return [same | row | {"created": now} for row in own]


def _decision(task: int, number: int, now: float) -> Row:
    return {
        "id": f"d{task}-{number}",
        "task_id": task,
        "number": number,
        "version": 1,
        "features": FEATURES.tobytes(),
        "num_actions": ACTIONS,
        "ranking": "[0]",
        "taken": 0,
        "predicted": 0.5,
        "failed": False,
        "status": "active",
        "settled": True,
        "created": now,
    }


def _reward(task: int, number: int, now: float) -> Row:
    return {
        "decision_id": f"d{task}-{number}",
        "reward_id": "",
        "number": 0,
        "value": float(task % 2),
        "late": False,
        "received": now,
    }


def _observation(task: int, number: int, now: float) -> Row:
    return {
        "task_id": task,
        "number": number,
        "decision_id": f"d{task}-{number}",
        "features": FEATURES[0].tobytes(),
        "reward": float(task % 2),
        "source": "reward",
        "learned": now,
    }
