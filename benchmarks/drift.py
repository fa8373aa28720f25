"""Gain from forgetting: bandits with and without a half-life, on tasks that change or do not.

`python -m benchmarks.drift --runs 64`
"""

import warnings
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float
from scipy.stats import sem

import diffprior as dp
from diffprior.progress import progress

DIM, NUM_ACTIONS, NOISE_STD = 3, 10, 1.0
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


def main(runs: Annotated[int, typer.Option(min=2, help="Runs of each kind.")] = 64) -> None:
    """Print regret with and without forgetting."""
    warnings.simplefilter("ignore", dp.NoiseWarning)  # that tasks change is the point
    with progress("bandits", 8 * runs) as shown:
        for kind, half_life in HALF_LIVES.items():
            for changes in (True, False):
                both = []
                for used in (None, half_life):
                    found = []
                    for seed in range(runs):
                        found.append(regret(kind, used, changes, seed))
                        shown.advance()
                    both.append(np.asarray(found))
                typer.echo(_line(kind, changes, *both))


def _line(
    kind: str, changes: bool, without: Float[np.ndarray, "r n"], fading: Float[np.ndarray, "r n"]
) -> str:
    """Regret of the rounds that count, and the share that forgetting saves, with its error."""
    start = ROUNDS // 2 if changes else 0
    before, after = without[:, start:].sum(axis=1), fading[:, start:].sum(axis=1)
    ratio = after.mean() / before.mean()
    error = float(sem(after - ratio * before)) / before.mean()
    when = "after the change" if changes else "nothing changes"
    return (
        f"{kind}, {when}: {before.mean():.1f} ± {sem(before):.1f} with all evidence, "
        f"{after.mean():.1f} ± {sem(after):.1f} with a half-life of {HALF_LIVES[kind]:g}: "
        f"{100 * (ratio - 1):+.0f} ± {100 * error:.0f} %"
    )


if __name__ == "__main__":
    typer.run(main)
