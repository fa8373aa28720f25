"""Bandits in worker processes: start them afresh, and load in each what it needs.

JAX does not survive a fork, so workers are started by 'spawn' (or 'forkserver'), never by 'fork'.
A prior is learned once and kept in a file; each worker loads it and runs the tasks it is given, one
bandit for each.

Run it with `python examples/worker_processes.py`.
"""

import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

import diffprior as dp

NUM_WORKERS, NUM_TASKS, NUM_ROUNDS, NUM_ACTIONS = 2, 4, 25, 10


def run_task(path: str, task: int) -> float:
    """Mean reward of one task, which is solved in whatever process this is called in."""
    rng = np.random.default_rng(task)
    theta = rng.standard_normal(2)
    bandit = dp.Bandit.load(path, seed=task)
    rewards = []
    for _ in range(NUM_ROUNDS):
        features = rng.uniform(-1, 1, (NUM_ACTIONS, 2))
        chosen = features[bandit.decide(features).action]
        rewards.append(chosen @ theta + 0.1 * rng.standard_normal())
        bandit.update(chosen, rewards[-1])
    return float(np.mean(rewards))


def main() -> None:
    """Keep a bandit without data, and let workers begin with it."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "start.bandit")
        prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
        dp.Bandit(prior, dp.Linear(noise_std=0.1)).save(path)
        workers = multiprocessing.get_context("spawn").Pool(NUM_WORKERS)
        with workers as pool:
            means = pool.starmap(run_task, [(path, task) for task in range(NUM_TASKS)])
    for task, mean in enumerate(means):
        print(f"task {task}: mean reward {mean:.2f}")


if __name__ == "__main__":
    main()
