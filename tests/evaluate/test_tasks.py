"""Tasks: rows go to their own tasks, in order, and simulated ones follow their parameters."""

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball
from diffprior.evaluate import Tasks
from statistic import assert_mean

LINEAR = dp.Linear(0.5)
LABELS = np.array(["b", "a", "b", "c", "a", "b"])
FEATURES = np.arange(12.0).reshape(6, 2)
REWARDS = np.arange(6.0)


def table() -> Tasks:
    return Tasks.from_arrays(LABELS, FEATURES, REWARDS, LINEAR)


def test_rows_are_grouped_by_label_and_keep_their_order() -> None:
    tasks = table()
    assert tasks.logs.labels.tolist() == ["b", "a", "c"] and len(tasks) == 3 and tasks.dim == 2
    np.testing.assert_array_equal(tasks.logs.rewards, [0, 2, 5, 1, 4, 3])
    np.testing.assert_array_equal(tasks.logs.features[:, 0], [0, 4, 10, 2, 8, 6])
    np.testing.assert_array_equal(tasks.num_observations, [3, 2, 1])


def test_first_rows_and_selections() -> None:
    short = table().first_rows(2)
    np.testing.assert_array_equal(short.logs.rewards, [0, 2, 1, 4, 3])
    some = table().select([2, 0])
    assert some.logs.labels.tolist() == ["c", "b"]
    np.testing.assert_array_equal(some.logs.rewards, [3, 0, 2, 5])
    assert len(table().first_rows(0).logs.rewards) == 0 and len(table().first_rows(0)) == 3


@pytest.mark.parametrize("likelihood", [LINEAR, dp.Poisson()], ids=["linear", "poisson"])
def test_batches_hold_the_evidence_of_each_task(likelihood: dp.AbstractLikelihood) -> None:
    """Against `observe` of one task's rows; tasks of 0, 3 and 20 rows, in one batch or several."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), (3, 20, 1))
    features, rewards = rng.uniform(-1, 1, (24, 2)), rng.poisson(2.0, 24).astype(float)
    tasks = Tasks.from_arrays(labels, features, rewards, likelihood)
    empty = tasks.first_rows(0).select([2])
    theta = jax.device_put(np.array([0.3, -0.7]))
    for at_once in (1, 3):
        for which, stacked in tasks.batches(at_once):
            found = jax.vmap(lambda e: e.log_likelihood(theta))(stacked)
            rows = [likelihood.observe(features[labels == i], rewards[labels == i]) for i in which]
            expected = [float(one.log_likelihood(theta)) for one in rows]
            np.testing.assert_allclose(found, expected, rtol=1e-9)
    ((_, none),) = empty.batches(4)
    assert float(jax.vmap(lambda e: e.log_likelihood(theta))(none)[0]) == 0.0


@pytest.mark.parametrize(("likelihood", "fresh"), [(LINEAR, False), (dp.Logistic(), True)])
def test_evidence_is_of_the_tasks_own_parameters(
    likelihood: dp.AbstractLikelihood, fresh: bool
) -> None:
    """The truth is more likely than the truth of another task."""
    tasks = Tasks.simulate(Ball(likelihood, fresh), num_tasks=16, num_observations=200)
    truths = tasks.true_parameters()
    ((_, stacked),) = tasks.batches(16)
    own = jax.vmap(lambda e, t: e.log_likelihood(t))(stacked, truths)
    other = jax.vmap(lambda e, t: e.log_likelihood(t))(stacked, truths[::-1])
    assert np.mean(own > other) > 0.8


def test_a_prior_gives_rewards_of_its_likelihood() -> None:
    """Poisson counts of a known parameter have their mean and variance, and exceed 1."""
    point = dp.GaussianPrior(np.array([1.0, 0.0]), 1e-12 * np.eye(2))
    tasks = Tasks.simulate(point, dp.Poisson(), num_tasks=50, num_observations=64)
    means = np.exp(tasks.logs.features[:, 0])
    assert_mean(tasks.logs.rewards - means, 0.0)
    assert_mean((tasks.logs.rewards - means) ** 2 - means, 0.0)
    assert np.max(np.linalg.norm(tasks.logs.features, axis=1)) <= 1 and tasks.logs.rewards.max() > 1


def test_sizes_may_differ() -> None:
    tasks = Tasks.simulate(Ball(LINEAR, True), num_tasks=3, num_observations=[0, 5, 2])
    np.testing.assert_array_equal(tasks.num_observations, [0, 5, 2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tasks.from_arrays(LABELS[:3], FEATURES, REWARDS, LINEAR), "`tasks`.*task label"),
        (lambda: Tasks.from_arrays(LABELS, FEATURES, REWARDS[:3], LINEAR), "`rewards`"),
        (lambda: Tasks.from_arrays(LABELS, FEATURES, REWARDS, dp.Logistic()), "`rewards`.*0 or 1"),
        (lambda: Tasks.from_arrays(LABELS, FEATURES, REWARDS, LINEAR, np.zeros((2, 2))),
         "`parameters`.*first rows"),
        (lambda: Tasks.simulate(dp.example_mixture("blobs"), num_tasks=3, num_observations=1),
         "`likelihood`"),
        (lambda: Tasks.simulate(Ball(LINEAR, True), LINEAR, num_tasks=3, num_observations=1),
         "`likelihood`.*problem has one"),
        (lambda: Tasks.simulate(Ball(LINEAR, True), num_tasks=3, num_observations=[1, 2]),
         "`num_observations`"),
        (lambda: table().true_parameters(), "`tasks`.*predictive_check"),
        (lambda: dp.evaluate.log_evidence(dp.example_mixture("blobs"), np.zeros((3, 2))),
         "`tasks`.*Logs"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_rejected(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]
