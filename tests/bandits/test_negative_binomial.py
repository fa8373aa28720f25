"""A family that was added by one file works behind every door."""

import numpy as np
import pytest
from scipy import special, stats

import diffprior as dp

LIKELIHOOD = dp.NegativeBinomial(2.5)
PRIOR = dp.GaussianPrior([0.5], [[1.0]])
GRID = np.linspace(-6, 6, 24_001)


def history() -> tuple[np.ndarray, np.ndarray]:
    """Counts that scatter more than Poisson's."""
    features = np.linspace(0.5, 1.5, 12)[:, None]
    return features, np.array([0, 3, 1, 9, 2, 0, 4, 14, 1, 6, 0, 5], float)


def grid_log_joint() -> np.ndarray:
    """log p(theta, h) on a grid, by SciPy's probabilities."""
    features, rewards = history()
    shares = 2.5 / (2.5 + np.exp(features @ GRID[None]))
    logs = np.sum(stats.nbinom.logpmf(rewards[:, None], 2.5, shares), axis=0)
    return np.asarray(logs + stats.norm.logpdf(GRID, 0.5, 1.0))


def grid_moments() -> tuple[float, float]:
    """Mean and standard deviation of the posterior."""
    weights = special.softmax(grid_log_joint())
    mean = weights @ GRID
    return float(mean), float(np.sqrt(weights @ (GRID - mean) ** 2))


def test_a_bandit_believes_what_the_grid_says() -> None:
    bandit = dp.Bandit(PRIOR, LIKELIHOOD, seed=0)
    bandit.update(*history())
    posterior = bandit.posterior(4000, seed=1)
    mean, std = grid_moments()
    assert posterior.mean[0] == pytest.approx(mean, abs=4 * std / np.sqrt(4000))
    assert np.sqrt(posterior.cov[0, 0]) == pytest.approx(std, rel=4 / np.sqrt(2 * 4000))


def test_held_out_tasks_are_scored_by_it() -> None:
    """The log evidence of a task is that of the grid, to the error of its estimate."""
    tasks = dp.Logs(np.zeros(12), *history(), check_features=False)
    found = dp.evaluate.estimate_log_evidence(PRIOR, tasks, LIKELIHOOD)
    log_joint = grid_log_joint()
    exact = special.logsumexp(log_joint) + np.log(GRID[1] - GRID[0])
    assert found.values[0] == pytest.approx(exact, abs=4 * np.sqrt(found.variances[0]) + 1e-6)
    assert found.variances[0] < 0.01**2
