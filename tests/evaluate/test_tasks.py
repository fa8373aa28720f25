"""Evidence of many tasks holds the rows of each, and simulated tasks follow their parameters."""

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball
from diffprior.evaluate import simulate_tasks
from diffprior.evaluate.tasks import draw_keys, draw_tasks, evidence_batches
from diffprior.samplers.choose import best_sampler
from statistic import assert_mean

LINEAR = dp.Linear(0.5)


@pytest.mark.parametrize("likelihood", [LINEAR, dp.Poisson()], ids=["linear", "poisson"])
def test_batches_hold_the_evidence_of_each_task(likelihood: dp.AbstractLikelihood) -> None:
    """Against `observe` of one task's rows; tasks of 0, 3 and 20 rows, in one batch or several."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), (3, 20, 1))
    features, rewards = rng.uniform(-1, 1, (24, 2)), rng.poisson(2.0, 24).astype(float)
    tasks = dp.Logs(labels, features, rewards)
    empty = tasks.first_rows(0).select(np.array([2]))
    theta = jax.device_put(np.array([0.3, -0.7]))
    for at_once in (1, 3):
        for which, stacked, _ in evidence_batches(tasks, likelihood, at_once):
            found = jax.vmap(lambda e: e.log_likelihood(theta))(stacked)
            rows = [likelihood.observe(features[labels == i], rewards[labels == i]) for i in which]
            expected = [float(one.log_likelihood(theta)) for one in rows]
            np.testing.assert_allclose(found, expected, rtol=1e-9)
    ((_, none, _),) = evidence_batches(empty, likelihood, 4)
    assert float(jax.vmap(lambda e: e.log_likelihood(theta))(none)[0]) == 0.0


@pytest.mark.parametrize(("likelihood", "fresh"), [(LINEAR, False), (dp.Logistic(), True)])
def test_evidence_is_of_the_tasks_own_parameters(
    likelihood: dp.AbstractLikelihood, fresh: bool
) -> None:
    """The truth is more likely than the truth of another task."""
    tasks = simulate_tasks(Ball(likelihood, fresh), num_tasks=16, num_observations=200)
    ((_, stacked, _),) = evidence_batches(tasks, likelihood, 16)
    own = jax.vmap(lambda e, t: e.log_likelihood(t))(stacked, tasks.parameters)
    other = jax.vmap(lambda e, t: e.log_likelihood(t))(stacked, tasks.parameters[::-1])
    assert np.mean(own > other) > 0.8


def test_draws_of_a_task_are_the_same_in_any_batch() -> None:
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    tasks = simulate_tasks(prior, LINEAR, num_tasks=6, num_observations=[3, 20, 0, 3, 20, 3])
    keys, sampler = draw_keys(0, 6, 2), best_sampler(prior)
    expected = draw_tasks(sampler, tasks, LINEAR, keys).values
    assert len(np.unique(expected)) == expected.size
    few = draw_tasks(sampler, tasks, LINEAR, keys, draws_at_once=4)
    np.testing.assert_allclose(few.values, expected, rtol=1e-9)


def test_a_prior_gives_rewards_of_its_likelihood() -> None:
    """Poisson counts of a known parameter have their mean and variance, and exceed 1."""
    point = dp.GaussianPrior(np.array([1.0, 0.0]), 1e-12 * np.eye(2))
    tasks = simulate_tasks(point, dp.Poisson(), num_tasks=50, num_observations=64)
    means = np.exp(tasks.features[:, 0])
    assert_mean(tasks.rewards - means, 0.0)
    assert_mean((tasks.rewards - means) ** 2 - means, 0.0)
    assert np.max(np.linalg.norm(tasks.features, axis=1)) <= 1 and tasks.rewards.max() > 1
    some = simulate_tasks(Ball(LINEAR, True), num_tasks=3, num_observations=[0, 5, 2])
    np.testing.assert_array_equal(some.counts, [0, 5, 2])


def test_wrong_arguments_are_rejected() -> None:
    logs, ball = dp.Logs(["b", "a", "b"], np.eye(3)[:, :2] + 1, np.arange(3.0)), Ball(LINEAR, True)
    blobs, evaluate = dp.example_mixture("blobs"), dp.evaluate
    for make, message in (
        (lambda: simulate_tasks(blobs, num_tasks=3, num_observations=1), "`likelihood`"),
        (
            lambda: simulate_tasks(ball, LINEAR, num_tasks=3, num_observations=1),
            "`likelihood`.*problem has one",
        ),
        (
            lambda: simulate_tasks(ball, num_tasks=3, num_observations=[1, 2]),
            "`num_observations`",
        ),
        (lambda: evaluate.coverage(blobs, logs, LINEAR), "`logs`.*predictive_check"),
        (lambda: evaluate.log_evidence(blobs, logs, dp.Logistic()), "`rewards`.*0 or 1"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
