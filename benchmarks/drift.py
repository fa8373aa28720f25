"""Gain from forgetting: bandits with and without a half-life, on tasks that change or do not.

`python -m benchmarks.drift`
"""

import functools
import warnings

import numpy as np
from jaxtyping import Float
from scipy.stats import sem

import diffprior as dp

from .harness import Bench, Measurement, command

DIM, NUM_ACTIONS, NOISE_STD = 3, 10, 1.0
RUNS, QUICK_RUNS = 64, 4
ROUNDS = 600  # the task changes after half of them
HALF_LIVES = {"linear": 100.0, "logistic": 200.0}  # decisions; one bit says less than a number


def regret(
    kind: str, half_life: float | None, changes: bool, seed: int, rounds: int = ROUNDS
) -> Float[np.ndarray, " n"]:
    """Regret of every round of one bandit, whose task may become another half way."""
    rng = np.random.default_rng(seed)
    thetas = 2.0 * rng.standard_normal((2, DIM))
    prior = dp.GaussianPrior(np.zeros(DIM), 4.0 * np.eye(DIM))
    logistic = kind == "logistic"
    likelihood = dp.Logistic() if logistic else dp.Linear(NOISE_STD)
    bandit, lost = dp.Bandit(prior, likelihood, seed=seed, half_life=half_life), np.empty(rounds)
    for number in range(rounds):
        theta = thetas[int(changes and number >= rounds // 2)]
        features = rng.standard_normal((NUM_ACTIONS, DIM))
        eta = features @ theta
        means = 1.0 / (1.0 + np.exp(-eta)) if logistic else eta
        chosen = bandit.decide(features).action
        noisy = means[chosen] + NOISE_STD * rng.standard_normal()
        reward = float(rng.random() < means[chosen]) if logistic else noisy
        bandit.update(features[chosen], reward)
        lost[number] = means.max() - means[chosen]
    return lost


def forgetting(kind: str, bench: Bench) -> list[Measurement]:
    """Regret of the rounds that count, and the share that forgetting saves."""
    warnings.simplefilter("ignore", dp.NoiseWarning)  # that tasks change is the point
    rows, seeds = [], range(QUICK_RUNS if bench.quick else RUNS)
    for case, changes in (("after the change", True), ("nothing changes", False)):
        start = ROUNDS // 2 if changes else 0
        before, after = (
            np.array([regret(kind, life, changes, seed)[start:].sum() for seed in seeds])
            for life in (None, HALF_LIVES[kind])
        )
        ratio = after.mean() / before.mean()
        quantities = {
            "all evidence": float(before.mean()),
            "± ": float(sem(before)),
            f"half-life {HALF_LIVES[kind]:g}": float(after.mean()),
            "±": float(sem(after)),
            "change, %": float(100 * (ratio - 1)),
            "± %": float(100 * sem(after - ratio * before) / before.mean()),
        }
        rows.append(Measurement(f"{kind}, {case}", quantities))
    return rows


if __name__ == "__main__":
    command({kind: functools.partial(forgetting, kind) for kind in HALF_LIVES})
