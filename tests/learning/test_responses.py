"""Priors of responses from logs, beside closed forms and the truth."""

import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

import diffprior as dp
from diffprior.fitting.config import LearningConfig


def saturating(theta: Array, x: Array) -> Array:
    return theta[0] * x[0] / (x[0] + jnp.exp(theta[1]))


def product(theta: Array, x: Array) -> Array:
    return x @ theta


def test_a_linear_response_has_the_prior_of_a_linear_likelihood() -> None:
    rng, n = np.random.default_rng(0), 80
    tasks, x = np.repeat(np.arange(n), 4), rng.standard_normal((4 * n, 2))
    theta = np.array([1.0, -1.0]) + rng.standard_normal((n, 2)) @ np.array([[1.0, 0.6], [0.0, 0.5]])
    logs = dp.Logs(tasks, x, np.sum(x * theta[tasks], axis=1) + 0.5 * rng.standard_normal(4 * n))
    response = dp.Response(product, dp.Linear(0.5))
    found = dp.learn(logs, response, families=["gaussian"], hedge=0.0, progress=False)
    assert found.report is not None and found.report.chosen == "Gaussian"
    assert found.report.num_report_tasks == found.report.families[0].over_gaussian.num_tasks
    nats = [
        dp.evaluate.log_evidence(prior, logs, dp.Linear(0.5)).mean()
        for prior in (found.prior, dp.GaussianPrior.fit(theta), found.families["cold start"])
    ]
    assert abs(nats[0] - nats[1]) < 0.1 < nats[0] - nats[2]


def test_two_modes_of_a_saturating_response_are_found() -> None:
    rng, n, m = np.random.default_rng(1), 120, 12
    theta = np.array([[2.0, 0.5], [1.0, -1.0]])[rng.integers(0, 2, n)]
    theta = theta + 0.15 * rng.standard_normal((n, 2))
    x = rng.uniform(0.05, 5, (n, m))
    y = theta[:, :1] * x / (x + np.exp(theta[:, 1:])) + 0.1 * rng.standard_normal((n, m))
    logs = dp.Logs(np.repeat(np.arange(n), m), x.reshape(-1, 1), y.ravel())
    response = dp.Response(saturating, dp.Linear(0.1), dim=2, num_features=1, name="saturating")
    config = LearningConfig(min_held_out_tasks=100)
    model = dp.learn(logs, response, progress=False, config=config)
    assert model.report is not None and model.report.chosen == "mixture of 2"
    assert isinstance(model.prior, dp.MixturePrior)
    means = np.asarray(model.prior.means)[np.argsort(-np.asarray(model.prior.weights))[:2]]
    order = np.argsort(means[:, 0])
    np.testing.assert_allclose(means[order], [[1.0, -1.0], [2.0, 0.5]], atol=0.15)
    again = dp.load_bytes(model.to_bytes())
    assert isinstance(again, dp.Model) and str(again.report) == str(model.report)
    with pytest.raises(ValueError, match="`adapt`: expected linear rewards"):
        again.adapt(logs)
    assert again.bandit(seed=0).decide([[0.5], [2.0]]).action in (0, 1)


def test_what_a_response_does_not_take_says_so() -> None:
    logs = dp.Logs(np.arange(30) // 2, np.arange(30.0)[:, None], np.arange(30.0))
    response = dp.Response(product, dp.Linear(1.0))
    with pytest.raises(ValueError, match="`logs`: expected Logs of at least 10 tasks"):
        dp.learn(logs.statistics(), response)
    with pytest.raises(ValueError, match="`encoder`: expected None with a Response"):
        dp.learn(logs, response, encoder=dp.NetworkEncoder())
