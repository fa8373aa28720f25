"""Tasks of a problem, and what exact and wrong samplers look like on them."""

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball
from diffprior.evaluate.tasks import (
    distance_from,
    draw_each,
    pooled_coverage,
    random_tasks,
    true_posterior,
)
from statistic import assert_mean

PRIOR = dp.GaussianPrior(np.zeros(2), np.eye(2))
LINEAR = Ball(dp.Linear(0.5), fresh_actions=False)
EXACT = dp.Exact(PRIOR)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("likelihood", [dp.Linear(0.5), dp.Logistic()], ids=["linear", "logistic"])
def test_evidence_is_of_the_tasks_own_parameters(
    likelihood: dp.AbstractLikelihood, fresh: bool
) -> None:
    """The truth is more likely than the truth of another task."""
    tasks = random_tasks(Ball(likelihood, fresh), 300, 16, seed=0)
    own = jax.vmap(lambda e, t: e.log_likelihood(t))(tasks.evidence, tasks.thetas)
    other = jax.vmap(lambda e, t: e.log_likelihood(t))(tasks.evidence, tasks.thetas[::-1])
    assert len(tasks) == 16 and np.mean(own > other) > 0.8
    assert len(tasks.first(3)) == 3 and len(tasks.after(3)) == 13


def test_each_task_has_its_own_draws() -> None:
    tasks = random_tasks(LINEAR, 40, 5, seed=1)
    draws = draw_each(EXACT, tasks, 2000, seed=0)
    means = jax.vmap(lambda e: PRIOR.posterior(e)[0].mean)(tasks.evidence)
    error = draws.std(axis=1) / np.sqrt(2000)
    assert draws.shape == (5, 2000, 2)
    assert np.all(np.abs(draws.mean(axis=1) - means) < 5 * error)


def test_exact_draws_are_at_the_floor_and_cover() -> None:
    tasks = [random_tasks(LINEAR, size, 60, seed=size) for size in (3, 30)]
    draws = [draw_each(EXACT, t, 99, seed=7) for t in tasks]
    for t, d in zip(tasks, draws, strict=True):
        distance = distance_from(true_posterior(EXACT, t, 99, seed=8), d)
        assert abs(distance.ratio - 1) < 5 * distance.standard_error < 0.5
    share = pooled_coverage(draws, tasks)
    assert abs(share.share - 0.9) < 5 * share.standard_error < 0.2


def test_a_narrow_posterior_shows() -> None:
    tasks = random_tasks(LINEAR, 3, 60, seed=2)
    narrow = draw_each(dp.Exact(PRIOR, temperature=0.1), tasks, 99, seed=7)
    distance = distance_from(true_posterior(EXACT, tasks, 99, seed=8), narrow)
    share = pooled_coverage([narrow], [tasks])
    assert distance.ratio - 1 > 5 * distance.standard_error
    assert 0.9 - share.share > 5 * share.standard_error


def test_room_for_more_counts_no_more() -> None:
    """Five rounds of fifty: the trace of the precision is 5 E|phi|^2 / sigma^2 = 10."""
    for room in (None, 50):
        tasks = random_tasks(LINEAR, 5, 200, seed=3, room=room)
        np.testing.assert_array_equal(tasks.evidence.count, 5.0)
        assert_mean(np.trace(tasks.evidence.precision, axis1=1, axis2=2), 10.0)
