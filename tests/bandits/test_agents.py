"""Agents: what they maximize, and that no failed draw ever chooses."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
import reference
from bandits.helpers import FailingLater
from cases import LINEAR, LOGISTIC, NEGATIVE_BINOMIAL, LikelihoodCase, case_name, problem
from diffprior.bandits.agents import (
    AbstractAgent,
    EpsilonGreedy,
    LinUCB,
    ThompsonSampling,
    Uniform,
)
from diffprior.bandits.decisions import choose

DIM = 3
RNG = np.random.default_rng(5)
FEATURES = RNG.standard_normal((6, DIM))
MEAN, COV = RNG.standard_normal(DIM), np.diag([0.5, 1.0, 2.0])
AGENTS: dict[str, Callable[[dp.AbstractLikelihood], AbstractAgent]] = {
    "thompson": lambda likelihood: ThompsonSampling(dp.Exact(prior()), likelihood),
    "linucb": lambda likelihood: LinUCB(prior(), likelihood),
    "epsilon": lambda likelihood: EpsilonGreedy(prior(), likelihood, epsilon=0.3),
    "uniform": Uniform,
}


def prior() -> dp.GaussianPrior:
    return dp.GaussianPrior(MEAN, COV)


def act(
    agent: AbstractAgent, key: jax.Array, evidence: dp.AbstractEvidence, features: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The action taken, and whether its index failed."""
    choice = choose(key, agent, evidence, features)
    return jnp.argmax(choice.preferences), choice.failed


def frequencies(agent: AbstractAgent, evidence: dp.AbstractEvidence, n: int) -> np.ndarray:
    """How often each action is taken in `n` decisions, and that none failed."""
    keys = jax.random.split(jax.random.key(0), n)
    decide = jax.jit(jax.vmap(lambda key: act(agent, key, evidence, jnp.asarray(FEATURES))))
    actions, failed = decide(keys)
    assert not np.any(failed)
    return np.bincount(actions, minlength=len(FEATURES)) / n


def assert_frequencies(observed: np.ndarray, expected: np.ndarray, n: int) -> None:
    error = np.sqrt(expected * (1 - expected) / n)
    assert np.max(np.abs(observed - expected) / error) < 5


@pytest.mark.parametrize("case", [LINEAR, LOGISTIC], ids=case_name)
def test_thompson_sampling_maximizes_over_its_draw(case: LikelihoodCase) -> None:
    likelihood = case.make()
    evidence = problem(1, DIM, 20, case).evidence(likelihood)
    exact = dp.Exact(prior())
    agent = ThompsonSampling(dp.Exact(prior(), temperature=0.5), likelihood)
    features, mask = jnp.asarray(FEATURES), jnp.ones(6, bool)

    @jax.jit
    @jax.vmap
    def decisions(key: jax.Array) -> tuple[jax.Array, ...]:
        theta, _ = exact.draw(key, evidence.temper(0.5))
        return theta, *choose(key, agent, evidence, features, mask)

    theta, preferences, index, failed = decisions(jax.random.split(jax.random.key(0), 50))
    np.testing.assert_allclose(index, theta @ FEATURES.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(preferences, index)
    assert not np.any(failed)


@pytest.mark.parametrize("case", [LOGISTIC, NEGATIVE_BINOMIAL], ids=case_name)
def test_linucb_is_optimistic_about_the_laplace_posterior(case: LikelihoodCase) -> None:
    data = problem(2, DIM, 25, case)
    agent = LinUCB(prior(), case.make(), width=1.5)
    index, _ = agent.index(jax.random.key(0), data.evidence(case.make()))
    mean, cov = reference.irls(MEAN, COV, data.features, data.rewards, case.family, case.dispersion)
    widths = np.array([np.sqrt(phi @ cov @ phi) for phi in FEATURES])
    np.testing.assert_allclose(
        index(jnp.asarray(FEATURES)), FEATURES @ mean + 1.5 * widths, rtol=1e-6
    )


def test_linucb_with_sufficient_statistics_equals_that_with_rows() -> None:
    data = problem(3, DIM, 25)
    indices = [
        LinUCB(prior(), likelihood).index(jax.random.key(0), data.evidence(likelihood))[0](
            jnp.asarray(FEATURES)
        )
        for likelihood in (dp.Linear(0.7), dp.Identity(0.7))
    ]
    np.testing.assert_allclose(*indices, rtol=1e-9)


def test_epsilon_greedy_explores_with_probability_epsilon() -> None:
    data = problem(4, DIM, 25)
    mean, _ = reference.linear_posterior(MEAN, COV, data.features, data.rewards, 0.7)
    expected = np.full(6, 0.3 / 6)
    expected[np.argmax(FEATURES @ mean)] += 0.7
    agent = EpsilonGreedy(prior(), dp.Linear(0.7), epsilon=0.3)
    observed = frequencies(agent, data.evidence(dp.Linear(0.7)), 20_000)
    assert_frequencies(observed, expected, 20_000)


def test_uniform_prefers_nothing() -> None:
    evidence = dp.Logistic().empty(DIM)
    observed = frequencies(Uniform(dp.Logistic()), evidence, 20_000)
    assert_frequencies(observed, np.full(6, 1 / 6), 20_000)


def test_saturated_means_do_not_hide_the_best_action() -> None:
    known = dp.GaussianPrior(np.array([100.0, 0.0]), 1e-12 * np.eye(2))
    agent = ThompsonSampling(dp.Exact(known), dp.Logistic())
    features = jnp.array([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])
    empty = dp.Logistic().empty(2)
    action, _ = jax.jit(lambda key: act(agent, key, empty, features))(jax.random.key(0))
    assert action == 1


def test_a_failed_draw_is_flagged_and_its_action_random() -> None:
    agent = ThompsonSampling(FailingLater(0), dp.Linear(1.0))
    features = jnp.asarray(FEATURES[:, :2])
    mask = jnp.array([False, True, True, False, True, True])
    empty = dp.Linear(1.0).empty(2)
    decide = jax.jit(jax.vmap(lambda key: choose(key, agent, empty, features, mask)))
    choice = decide(jax.random.split(jax.random.key(0), 8000))
    assert np.all(choice.failed) and np.all(np.isnan(choice.values))
    observed = np.bincount(np.argmax(choice.preferences, axis=1), minlength=6) / 8000
    np.testing.assert_array_equal(observed[[0, 3]], 0)
    assert_frequencies(observed[[1, 2, 4, 5]], np.full(4, 0.25), 8000)


@pytest.mark.float32
@pytest.mark.parametrize("name", AGENTS)
def test_an_index_is_the_same_on_the_host_and_in_programs(name: str) -> None:
    agent = AGENTS[name](dp.Linear(0.7))
    evidence = problem(6, DIM, 3).evidence(dp.Linear(0.7))
    features = jnp.asarray(FEATURES)
    keys = jax.random.split(jax.random.key(1), 16)

    @jax.jit
    @jax.vmap
    def both(key: jax.Array) -> tuple:
        return agent.index(key, evidence)[0], choose(key, agent, evidence, features).values

    indices, values = both(keys)
    for i in range(16):
        index = type(indices)(*(np.asarray(field[i]) for field in indices))
        ours = index(np.asarray(features))
        assert isinstance(ours, np.ndarray)
        np.testing.assert_allclose(ours, values[i], rtol=1e-5, atol=1e-6)
    assert agent.dim in (None, DIM)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ThompsonSampling(prior(), dp.Linear(1.0)),
            "`sampler`.*GaussianPrior.*best_sampler",
        ),
        (lambda: ThompsonSampling(dp.Exact(prior()), "linear"), "`likelihood`.*got str.*Linear"),
        (lambda: LinUCB(dp.EmpiricalPrior(FEATURES), dp.Linear(1.0)), "`prior`.*EmpiricalPrior"),
        (lambda: LinUCB(prior(), dp.Linear(1.0), width=-1.0), "`width`.*positive.*got -1"),
        (lambda: EpsilonGreedy(prior(), dp.Linear(1.0), epsilon=1.5), "`epsilon`.*probability"),
        (lambda: Uniform(None), "`likelihood`.*got NoneType"),
        (lambda: Uniform(dp.Logistic), r"`likelihood`.*got the class Logistic;.*Logistic\(\)"),
    ],
)
def test_wrong_arguments_are_rejected(make: Callable[[], AbstractAgent], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
