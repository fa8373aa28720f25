"""The posterior of a bandit, against closed forms."""

import numpy as np
import pytest
from scipy import stats

import diffprior as dp
import reference
from bandits.helpers import STANDARD, standard_prior
from diffprior.bandits.bandit import Bandit, Posterior

N = 4000
RNG = np.random.default_rng(6)
FEATURES, REWARDS = RNG.standard_normal((12, 2)), RNG.standard_normal(12)
AGENTS = {
    "prior": lambda: Bandit(standard_prior(), dp.Linear(0.5), seed=1),
    "linucb": lambda: Bandit(dp.LinUCB(standard_prior(), dp.Linear(0.5)), seed=1),
    "epsilon": lambda: Bandit(dp.EpsilonGreedy(standard_prior(), dp.Linear(0.5)), seed=1),
}


@pytest.mark.parametrize("name", AGENTS)
def test_moments_and_intervals_are_those_of_the_closed_form(name: str) -> None:
    bandit = AGENTS[name]()
    bandit.update(FEATURES, REWARDS)
    posterior = bandit.posterior(N, seed=3)
    mean, cov = reference.linear_posterior(*STANDARD, FEATURES, REWARDS, 0.5)
    assert posterior.draws.shape == (N, 2) and isinstance(posterior.draws, np.ndarray)
    stds = np.sqrt(np.diagonal(cov))
    assert np.max(np.abs(posterior.mean - mean) / stds) < 5 / np.sqrt(N)
    spread = np.sqrt((cov**2 + np.outer(stds, stds) ** 2) / N)
    assert np.max(np.abs(posterior.cov - cov) / spread) < 5
    edges = np.stack([stats.norm(mean, stds).ppf(q) for q in (0.1, 0.9)], axis=1)
    density = stats.norm.pdf(stats.norm.ppf(0.1))
    error = stds * np.sqrt(0.1 * 0.9 / N) / density
    assert np.max(np.abs(posterior.intervals(0.8) - edges) / error[:, None]) < 5


def test_draws_follow_from_the_seed() -> None:
    bandit = AGENTS["prior"]()
    one, same, other, fresh = (bandit.posterior(300, seed=s).draws for s in (1, 1, 2, None))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other) and not np.array_equal(one, fresh)
    np.testing.assert_array_equal(bandit.posterior(7, seed=1).draws, one[:7])


def test_an_agent_that_infers_nothing_says_so() -> None:
    with pytest.raises(ValueError, match="`posterior`: expected an agent that infers.*Uniform"):
        Bandit(dp.Uniform(dp.Linear(0.5), dim=2)).posterior()


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, float("nan")])
def test_level_is_a_probability(level: float) -> None:
    with pytest.raises(ValueError, match="`level`: expected a number between 0 and 1"):
        Posterior(np.zeros((3, 2))).intervals(level)


def test_one_parameter() -> None:
    posterior = Posterior(np.arange(5.0)[:, None])
    assert posterior.cov.shape == (1, 1) and posterior.intervals(0.5).tolist() == [[1.0, 3.0]]
    assert posterior.table().rows == [("parameter 1", "2", "1.58", "0.2", "3.8")]
