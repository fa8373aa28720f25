"""Problems whose parameters and actions are rows of matrices."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.problems.base import RowProblem, distinct
from statistic import assert_mean

PARAMETERS = np.arange(50.0).reshape(25, 2) / 50
ACTIONS = np.random.default_rng(0).standard_normal((30, 2))


def row_problem(num_actions: int = 10) -> RowProblem:
    return RowProblem(PARAMETERS, ACTIONS, Linear(noise_std=0.5), num_actions)


def contains(rows: np.ndarray, some: np.ndarray) -> bool:
    distance = np.max(np.abs(np.asarray(some)[:, None] - rows[None]), axis=2)
    return bool(np.all(np.min(distance, axis=1) < 1e-6))


def test_every_set_of_rows_is_equally_likely() -> None:
    keys = jax.random.split(jax.random.key(0), 20_000)
    chosen = np.sort(np.asarray(jax.vmap(lambda key: distinct(key, 5, 2))(keys)), axis=1)
    sets = np.array(list(itertools.combinations(range(5), 2)))
    hits = np.all(chosen[:, None] == sets[None], axis=2)
    assert np.all(np.sum(hits, axis=1) == 1)
    assert_mean(hits, np.full(10, 0.1))


def test_all_rows_may_be_chosen() -> None:
    assert sorted(distinct(jax.random.key(1), 7, 7).tolist()) == list(range(7))


def test_actions_are_different_rows_and_change_with_the_round() -> None:
    problem = row_problem()
    assert problem.fresh_actions
    first, second = (np.asarray(problem.features(jax.random.key(i))) for i in (0, 1))
    assert first.shape == (10, 2) and len(np.unique(first, axis=0)) == 10
    assert contains(ACTIONS, first) and not contains(first, second)


def test_parameters_are_rows_equally_likely() -> None:
    draws = np.asarray(row_problem().sample_parameters(jax.random.key(2), 20_000))
    rows = np.rint(draws[:, 0] * 25).astype(int)
    np.testing.assert_allclose(draws, PARAMETERS[rows], atol=1e-6)
    assert_mean(rows[:, None] == np.arange(25), np.full(25, 1 / 25))


def test_mean_rewards_are_those_of_the_likelihood() -> None:
    theta, features = PARAMETERS[3], ACTIONS[:4]
    inner = np.array([np.dot(row, theta) for row in features])
    arguments = (jnp.asarray(theta), jnp.asarray(features))
    np.testing.assert_allclose(row_problem().mean_rewards(*arguments), inner, rtol=1e-12)
    logistic = RowProblem(PARAMETERS, ACTIONS, Logistic())
    expected = 1 / (1 + np.exp(-inner))
    np.testing.assert_allclose(logistic.mean_rewards(*arguments), expected, rtol=1e-12)


def test_split_shares_the_rows_out() -> None:
    problem = row_problem()
    train, held_out = problem.split(jax.random.key(3))
    assert (len(train.parameters), len(held_out.parameters)) == (20, 5)
    together = np.concatenate([train.parameters, held_out.parameters])
    np.testing.assert_array_equal(together[np.argsort(together[:, 0])], PARAMETERS)
    np.testing.assert_array_equal(held_out.actions, problem.actions)
    again, other = problem.split(jax.random.key(3))[1], problem.split(jax.random.key(4))[1]
    np.testing.assert_array_equal(again.parameters, held_out.parameters)
    assert not np.array_equal(other.parameters, held_out.parameters)


def test_single_precision_data_serve_double_precision_programs() -> None:
    problem = RowProblem(np.float32(PARAMETERS), np.float32(ACTIONS), Linear(1.0))
    assert problem.parameters.dtype == problem.actions.dtype == jnp.zeros(()).dtype


@pytest.mark.parametrize(
    ("parameters", "actions", "num_actions", "message"),
    [
        (PARAMETERS[0], ACTIONS, 10, r"`parameters`: expected shape \(n, d\), got \(2,\)"),
        (PARAMETERS[:0], ACTIONS, 10, r"`parameters`: expected at least one row"),
        (PARAMETERS, ACTIONS[:, :1], 10, r"`actions`: expected shape \(n, 2\), got \(30, 1\)"),
        (PARAMETERS, ACTIONS, 31, "`num_actions`: expected at most 30, .*got 31"),
        (PARAMETERS, ACTIONS, 0, "`num_actions`: expected a positive integer"),
    ],
)
def test_wrong_rows_raise(
    parameters: np.ndarray, actions: np.ndarray, num_actions: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        RowProblem(parameters, actions, Linear(1.0), num_actions)


@pytest.mark.parametrize("held_out", [0.0, 0.01, 1.0])
def test_split_that_leaves_a_side_empty_raises(held_out: float) -> None:
    with pytest.raises(ValueError, match="`held_out`: expected a fraction"):
        row_problem().split(jax.random.key(0), held_out)
