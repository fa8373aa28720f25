"""What forgetting is worth: bandits with and without a half-life, on tasks that change or do not.

python -m diffprior.bench.drift --runs 64
"""

import warnings
from typing import Annotated

import numpy as np
import typer
from jaxtyping import Float
from scipy.stats import sem

from diffprior.bandits.bandit import Bandit
from diffprior.bandits.noise import NoiseWarning
from diffprior.evidence.base import AbstractLikelihood
from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.priors.gaussian import GaussianPrior
from diffprior.progress import progress

DIM, NUM_ACTIONS, NOISE_STD = 3, 10, 1.0
ROUNDS = 600  # the task changes after half of them
HALF_LIVES = {"linear": 100.0, "logistic": 200.0}  # decisions; one bit says less than a number


def regret(
    likelihood: AbstractLikelihood, half_life: float | None, changes: bool, seed: int
) -> Float[np.ndarray, " n"]:
    """Regret of every round of one bandit, whose task may become another half way."""
    rng = np.random.default_rng(seed)
    thetas = 2.0 * rng.standard_normal((2, DIM))
    prior = GaussianPrior(np.zeros(DIM), 4.0 * np.eye(DIM))
    bandit, lost = Bandit(prior, likelihood, seed=seed, half_life=half_life), np.empty(ROUNDS)
    for number in range(ROUNDS):
        theta = thetas[int(changes and number >= ROUNDS // 2)]
        features = rng.standard_normal((NUM_ACTIONS, DIM))
        means = _means(likelihood, features @ theta)
        chosen = bandit.decide(features).action
        bandit.update(features[chosen], _reward(likelihood, rng, means[chosen]))
        lost[number] = means.max() - means[chosen]
    return lost


def _means(likelihood: AbstractLikelihood, eta: Float[np.ndarray, " k"]) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-eta)) if isinstance(likelihood, Logistic) else eta


def _reward(likelihood: AbstractLikelihood, rng: np.random.Generator, mean: float) -> float:
    if isinstance(likelihood, Logistic):
        return float(rng.random() < mean)
    return mean + NOISE_STD * rng.standard_normal()


def main(runs: Annotated[int, typer.Option(min=2, help="Runs of each kind.")] = 64) -> None:
    """Print regret with and without forgetting."""
    warnings.simplefilter("ignore", NoiseWarning)  # that tasks change is the point
    kinds = {"linear": Linear(NOISE_STD), "logistic": Logistic()}
    with progress("bandits", 4 * len(kinds) * runs) as told:
        for name, likelihood in kinds.items():
            for changes in (True, False):
                both = []
                for half_life in (None, HALF_LIVES[name]):
                    found = []
                    for seed in range(runs):
                        found.append(regret(likelihood, half_life, changes, seed))
                        told.advance()
                    both.append(np.asarray(found))
                typer.echo(_line(name, changes, *both))


def _line(
    name: str, changes: bool, kept: Float[np.ndarray, "r n"], faded: Float[np.ndarray, "r n"]
) -> str:
    """Regret of the rounds that count, and the share that forgetting saves, with its error."""
    start = ROUNDS // 2 if changes else 0
    before, after = kept[:, start:].sum(axis=1), faded[:, start:].sum(axis=1)
    ratio = after.mean() / before.mean()
    error = float(sem(after - ratio * before)) / before.mean()
    what = "after the change" if changes else "nothing changes"
    return (
        f"{name}, {what}: {before.mean():.1f} ± {sem(before):.1f} with all evidence, "
        f"{after.mean():.1f} ± {sem(after):.1f} with a half-life of {HALF_LIVES[name]:g}: "
        f"{100 * (ratio - 1):+.0f} ± {100 * error:.0f} %"
    )


if __name__ == "__main__":
    typer.run(main)
