"""Cold start from past tasks: exact inference with the simplest priors.

Two kinds of task were solved before, so their parameters form two blobs. A new task has shown only
a few rewards. Three priors turn them into a posterior:

    N(0, I)     knows nothing of the past
    Gaussian    one Gaussian over all past tasks
    mixture     one Gaussian for each kind of task

Run it with `python examples/exact_inference.py`.
"""

from collections.abc import Callable

import jax
import numpy as np

import diffprior as dp

NUM_PAST, NUM_ROWS, NUM_NEW, NUM_DRAWS = 2_000, 8, 50, 200
CENTERS = np.array([[-1.5, 1.0], [1.5, 0.5]])
SPREAD = 0.25
NOISE_STD = 1.0

Draw = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def tasks(rng: np.random.Generator, num_tasks: int) -> np.ndarray:
    """Parameters of tasks of two kinds, equally likely."""
    kinds = rng.integers(0, 2, num_tasks)
    return CENTERS[kinds] + SPREAD * rng.standard_normal((num_tasks, 2))


def linear_rewards(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    """A noisy measurement of each action's value."""
    return eta + NOISE_STD * rng.standard_normal(len(eta))


def clicks(rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    """A click, or none, for each action shown."""
    return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)


def observe(
    rng: np.random.Generator, theta: np.ndarray, likelihood: dp.AbstractLikelihood, draw: Draw
) -> dp.AbstractEvidence:
    """A few rewards of a new task."""
    features = rng.uniform(-1, 1, (NUM_ROWS, 2))
    return likelihood.observe(features, draw(rng, features @ theta))


def score(sampler: dp.Exact, likelihood: dp.AbstractLikelihood, draw: Draw) -> tuple[float, float]:
    """Over new tasks: error of the mean, and how often the truth is in the 90 % interval."""
    rng, errors, covered = np.random.default_rng(1), [], []
    for seed, theta in enumerate(tasks(rng, NUM_NEW)):
        evidence = observe(rng, theta, likelihood, draw)
        draws, _ = sampler.sample_many(jax.random.key(seed), evidence, NUM_DRAWS)
        draws = np.asarray(draws)
        errors.append(np.sum((draws.mean(axis=0) - theta) ** 2))
        rank = np.mean(draws[:, 0] < theta[0])
        covered.append(0.05 < rank < 0.95)
    return float(np.sqrt(np.mean(errors))), float(np.mean(covered))


def main() -> None:
    """Fit the priors, then compare their posteriors on new tasks."""
    past = tasks(np.random.default_rng(0), NUM_PAST)
    priors = {
        "N(0, I)": dp.GaussianPrior(np.zeros(2), np.eye(2)),
        "Gaussian": dp.GaussianPrior.fit(past),
        "mixture": dp.MixturePrior.fit(past, num_components=2),
    }
    models = {
        "linear": (dp.Linear(NOISE_STD), linear_rewards),
        "logistic": (dp.Logistic(), clicks),
    }
    mixture = priors["mixture"]
    print(f"{NUM_PAST} past tasks of two kinds; the mixture prior found")
    for weight, mean in zip(mixture.weights, mixture.means, strict=True):
        print(f"  weight {weight:.2f} at ({mean[0]:+.2f}, {mean[1]:+.2f})")
    print(f"\n{NUM_NEW} new tasks with {NUM_ROWS} rewards each\n")
    print("rewards   prior      error of the mean   truth in the 90 % interval")
    for model, (likelihood, draw) in models.items():
        for name, prior in priors.items():
            error, coverage = score(dp.Exact(prior), likelihood, draw)
            print(f"{model:9} {name:9}  {error:17.2f}   {coverage:26.0%}")
    print("\nThe closer the prior is to the past, the less a new task has to show.")


if __name__ == "__main__":
    main()
