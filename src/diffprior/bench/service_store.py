"""A database of the decision service with many tasks in it, made without the service."""

import time
from pathlib import Path

import numpy as np

from ..priors.base import AbstractPrior
from .service_load import ACTIONS, DIM

CHUNK = 2_000  # tasks of one transaction


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
    from ..service.catalog import Catalog, task_seed
    from ..service.database import Database
    from ..service.schema import decisions, observations, rewards, tasks
    from ..service.settings import Settings

    database = Database(str(path))
    about = {"sampler": sampler, "propensity_draws": propensity_draws, "likelihood": "logistic"}
    version = Catalog(database).put("shop", Settings.model_validate(about), prior, 1.0)
    features = np.random.default_rng(0).standard_normal((ACTIONS, DIM)).round(3)
    now = time.time()
    for start in range(0, num_tasks, CHUNK):
        rows = [
            {
                "id": number + 1,
                "model": "shop",
                "name": f"t{number}",
                "seed": task_seed(version.seed, f"t{number}"),
                "num_decisions": num_rewards,
                "num_learned": num_rewards,
                "created": now,
            }
            for number in range(start, min(start + CHUNK, num_tasks))
        ]
        ids = range(start + 1, start + len(rows) + 1)
        taken = [(task, number) for task in ids for number in range(num_rewards)]
        decided = [
            {
                "id": f"d{task}-{number}",
                "task_id": task,
                "number": number,
                "version": 1,
                "features": features.tobytes(),
                "num_actions": ACTIONS,
                "ranking": "[0]",
                "taken": 0,
                "predicted": 0.5,
                "failed": False,
                "status": "active",
                "settled": True,
                "created": now,
            }
            for task, number in taken
        ]
        given = [
            {
                "decision_id": f"d{task}-{number}",
                "reward_id": "",
                "number": 0,
                "value": float(task % 2),
                "late": False,
                "received": now,
            }
            for task, number in taken
        ]
        learned = [
            {
                "task_id": task,
                "number": number,
                "decision_id": f"d{task}-{number}",
                "features": features[0].tobytes(),
                "reward": float(task % 2),
                "source": "reward",
                "learned": now,
            }
            for task, number in taken
        ]
        with database.transaction() as connection:
            for table, new in (
                (tasks, rows),
                (decisions, decided),
                (rewards, given),
                (observations, learned),
            ):
                if new:
                    connection.execute(table.insert(), new)
    database.close()
    return path
