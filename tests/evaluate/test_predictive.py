"""Next rewards: calibrated under the true prior, foreseen worse by a wrong one, by closed form."""

import numpy as np
import pytest
from scipy import stats

import diffprior as dp
from diffprior.evaluate import predictive_check, simulate_tasks
from statistic import Z

PRIOR = dp.GaussianPrior(np.zeros(2), np.eye(2))
LINEAR = dp.Linear(0.5)
LIKELIHOODS = {"linear": LINEAR, "poisson": dp.Poisson()}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_true_prior_is_calibrated(name: str) -> None:
    """Counts too, with ties."""
    tasks = simulate_tasks(PRIOR, LIKELIHOODS[name], num_tasks=300, num_observations=4, seed=1)
    found = predictive_check(PRIOR, tasks, LIKELIHOODS[name], lengths=(0, 3, 8), num_draws=19)
    assert [row.num_rows for row in found.rows] == [0, 3]  # no task has nine rows
    for row in found.rows:
        assert abs(row.coverage - 0.9) < Z * row.coverage_error < 0.1
        assert row.num_tasks == 300 and row.failed == 0
    assert "90 % intervals" in str(found) and len(found.to_dict()["rows"]) == 2


def test_log_density_is_that_of_the_closed_form() -> None:
    """Linear rewards: the next one is Gaussian given the rows before."""
    tasks = simulate_tasks(PRIOR, LINEAR, num_tasks=200, num_observations=3, seed=2)
    (row,) = predictive_check(PRIOR, tasks, LINEAR, lengths=(2,), num_draws=400).rows
    exact = []
    for phi, y in zip(
        tasks.features.reshape(200, 3, 2), tasks.rewards.reshape(200, 3), strict=True
    ):
        precision = np.eye(2) + 4 * phi[:2].T @ phi[:2]
        mean = np.linalg.solve(precision, 4 * phi[:2].T @ y[:2])
        std = np.sqrt(0.25 + phi[2] @ np.linalg.solve(precision, phi[2]))
        exact.append(stats.norm.logpdf(y[2], phi[2] @ mean, std))
    assert row.log_density == pytest.approx(np.mean(exact), abs=0.05)


def test_a_wrong_prior_foresees_worse() -> None:
    tasks = simulate_tasks(PRIOR, dp.Linear(0.2), num_tasks=300, num_observations=2, seed=3)
    wrong = dp.GaussianPrior(np.full(2, 3.0), 0.01 * np.eye(2))
    (good,), (bad,) = (
        predictive_check(p, tasks, dp.Linear(0.2), lengths=(0,)).rows for p in (PRIOR, wrong)
    )
    assert good.log_density - bad.log_density > Z * bad.log_density_error
    assert 0.9 - bad.coverage > Z * bad.coverage_error


def test_only_rows_before_are_seen() -> None:
    """Later rows, and the reward itself, change no prediction."""
    tasks = simulate_tasks(PRIOR, LINEAR, num_tasks=40, num_observations=4, seed=4)
    short = tasks.first_rows(3)
    found = [predictive_check(PRIOR, some, LINEAR, lengths=(2,)).rows[0] for some in (tasks, short)]
    assert found[0] == found[1]


def test_tasks_without_rows_are_rejected() -> None:
    tasks = simulate_tasks(PRIOR, LINEAR, num_tasks=2, num_observations=0)
    with pytest.raises(ValueError, match="`logs`: expected tasks with rows"):
        predictive_check(PRIOR, tasks, LINEAR)
