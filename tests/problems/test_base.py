"""Rewards of problems: their distribution, and the random numbers that actions share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffprior.evidence.base import AbstractLikelihood
from diffprior.evidence.families import Logistic, NegativeBinomial, Poisson
from diffprior.evidence.linear import Linear
from diffprior.problems.base import AbstractProblem
from statistic import assert_mean

MEANS: dict[str, tuple[AbstractLikelihood, np.ndarray]] = {
    "linear": (Linear(0.5), np.array([-1.0, 0.0, 2.0])),
    "logistic": (Logistic(), np.array([0.1, 0.4, 0.9])),
    "poisson": (Poisson(), np.array([0.3, 2.0, 25.0])),
    "negative-binomial": (NegativeBinomial(2.0), np.array([0.3, 2.0, 25.0])),
}
PREDICTORS = {
    "logistic": lambda mean: np.log(mean / (1 - mean)),
    "poisson": np.log,
    "negative-binomial": np.log,
}
VARIANCES = {
    "linear": lambda mean: 0.25 + 0 * mean,
    "logistic": lambda mean: mean * (1 - mean),
    "poisson": lambda mean: mean,
    "negative-binomial": lambda mean: mean + mean**2 / 2,
}


class Fixed(AbstractProblem):
    """Three actions of one parameter, with these linear predictors at theta = 1."""

    likelihood: AbstractLikelihood
    predictors: jax.Array
    dim = 1
    num_actions = 3
    fresh_actions = True

    def sample_parameters(self, key: jax.Array, num_samples: int) -> jax.Array:
        return jnp.ones((num_samples, 1))

    def features(self, key: jax.Array) -> jax.Array:
        return self.predictors[:, None]


@functools.cache
def rewards_of(name: str) -> np.ndarray:
    likelihood, means = MEANS[name]
    eta = PREDICTORS.get(name, np.asarray)(means)
    problem = Fixed(likelihood, jnp.asarray(eta, float))
    keys = jax.random.split(jax.random.key(0), 40_000)
    draw = jax.vmap(lambda key: problem.rewards(key, jnp.ones(1), problem.features(key)))
    return np.asarray(draw(keys), dtype=np.float64)


@pytest.mark.parametrize("name", MEANS)
def test_mean_and_variance(name: str) -> None:
    means, rewards = MEANS[name][1], rewards_of(name)
    assert_mean(rewards, means)
    assert_mean((rewards - means) ** 2, VARIANCES[name](means))


def test_gaussian_noise_is_common_to_all_actions() -> None:
    noise = rewards_of("linear") - MEANS["linear"][1]
    np.testing.assert_allclose(noise[:, 1:], noise[:, :1].repeat(2, axis=1), atol=1e-12)


@pytest.mark.parametrize("name", ["logistic", "poisson", "negative-binomial"])
def test_common_numbers_order_the_rewards(name: str) -> None:
    assert np.all(np.diff(rewards_of(name)[:, :2], axis=1) >= 0)


class Coin(AbstractProblem):
    """A problem with rewards of its own."""

    dim = 1
    num_actions = 2
    likelihood = Linear(1.0)
    fresh_actions = True

    def sample_parameters(self, key: jax.Array, num_samples: int) -> jax.Array:
        return jax.random.normal(key, (num_samples, 1))

    def features(self, key: jax.Array) -> jax.Array:
        return jnp.array([[-1.0], [1.0]])

    def rewards(self, key: jax.Array, theta: jax.Array, features: jax.Array) -> jax.Array:
        return jnp.sign(self.mean_rewards(theta, features))


def test_a_problem_may_define_its_own_rewards() -> None:
    problem = Coin()
    theta = problem.sample_parameters(jax.random.key(1), 1)[0]
    features = problem.features(jax.random.key(2))
    means = problem.mean_rewards(theta, features)
    np.testing.assert_allclose(means, [-theta[0], theta[0]])
    rewards = problem.rewards(jax.random.key(3), theta, features)
    np.testing.assert_array_equal(rewards, np.sign(means))
