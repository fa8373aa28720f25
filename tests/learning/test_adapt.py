"""Weights of hedges, estimated again from the tasks after learning."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import diffprior as dp
from diffprior.learning.adapt import NUM_HEDGES, PRIOR_TASKS

ROWS, HEDGE = 6, 0.02


def tasks_about(center: list[float], num_tasks: int, seed: int) -> dp.Logs:
    """Two parameters around a center, each task with six rows and what is known of it."""
    rng = np.random.default_rng(seed)
    thetas = np.asarray(center) + 0.3 * rng.standard_normal((num_tasks, 2))
    features = rng.standard_normal((num_tasks, ROWS, 2))
    rewards = np.einsum("trd,td->tr", features, thetas) + rng.standard_normal((num_tasks, ROWS))
    labels = np.repeat(np.arange(num_tasks), ROWS)
    known = np.abs(thetas[:, :1]) + 0.1 * rng.standard_normal((num_tasks, 1))
    return dp.Logs(labels, features.reshape(-1, 2), rewards.ravel(), attributes=known)


@pytest.fixture(scope="module")
def model() -> dp.Model:
    past = tasks_about([2.0, -1.0], 150, 1)
    return dp.learn(past, dp.Linear(1.0), quick=True, families=["gaussian"], progress=False)


def shares(model: dp.Model) -> np.ndarray:
    """Of what was learned, and of the two hedges."""
    prior = model.prior.residual if isinstance(model.prior, dp.ConditionalPrior) else model.prior
    weights = np.asarray(prior.weights, float)
    return np.append(weights[:-NUM_HEDGES].sum(), weights[-NUM_HEDGES:])


def test_the_hedge_fades_in_tasks_like_the_past_and_takes_over_in_others(model: dp.Model) -> None:
    like, unlike = tasks_about([2.0, -1.0], 60, 2), tasks_about([-2.0, 1.0], 60, 3)
    np.testing.assert_allclose(shares(model), [1 - HEDGE, HEDGE / 2, HEDGE / 2], rtol=1e-6)
    assert shares(model.adapt(like))[0] > 1 - HEDGE / 2
    found = model.adapt(unlike)
    assert shares(found)[0] < 0.1
    more = tasks_about([-2.0, 1.0], 60, 4)
    before, after = (
        dp.evaluate.log_evidence(one.prior, more, model.likelihood) for one in (model, found)
    )
    assert np.mean(after - before) > 1.0
    again = model.adapt(unlike).adapt(unlike)  # all tasks since learning: nothing counts twice
    np.testing.assert_allclose(shares(again), shares(found), rtol=1e-4)


def test_shares_solve_their_equation_by_another_formula(model: dp.Model) -> None:
    """Each task's rewards are Gaussian given a component; a few tasks, between the extremes."""
    logs = tasks_about([1.0, -0.5], 8, 5)
    plain = dp.learn(
        dp.Logs(*rows(tasks_about([2.0, -1.0], 150, 1))),
        dp.Linear(1.0), quick=True, families=["gaussian"], progress=False,
    )  # fmt: skip
    logs = dp.Logs(*rows(logs))
    found, prior = plain.adapt(logs), plain.prior
    joint = np.stack(
        [
            [
                multivariate_normal.logpdf(y, x @ mean, x @ cov @ x.T + np.eye(ROWS))
                for mean, cov in zip(np.asarray(prior.means), np.asarray(prior.covs), strict=True)
            ]
            for x, y in zip(
                np.split(logs.features, 8), np.split(logs.rewards, 8), strict=True
            )
        ]
    )  # fmt: skip
    joint += np.log(shares(found))
    responsibilities = np.exp(joint - logsumexp(joint, axis=1, keepdims=True))
    start = PRIOR_TASKS * np.asarray([1 - HEDGE, HEDGE / 2, HEDGE / 2])
    expected = (start + responsibilities.sum(axis=0)) / (PRIOR_TASKS + 8)
    np.testing.assert_allclose(shares(found), expected, rtol=1e-4)
    assert 0.05 < shares(found)[0] < 0.95


def rows(logs: dp.Logs) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, features and rewards."""
    return logs.labels[logs.row_tasks], logs.features, logs.rewards


def test_what_cannot_be_adapted_is_rejected(model: dp.Model) -> None:
    with pytest.raises(ValueError, match="`adapt`: expected a prior learned with a hedge"):
        dp.Model(model.prior, dp.Linear(1.0)).adapt(tasks_about([0.0, 0.0], 12, 6))
    rng = np.random.default_rng(0)
    wide = dp.Logs(np.repeat(np.arange(9), 3), rng.normal(size=(27, 3)), rng.normal(size=27))
    with pytest.raises(ValueError, match="`logs`: expected 2 features"):
        model.adapt(wide)
