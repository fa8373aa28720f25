"""Decisions in plain NumPy: the same draws as those of compiled programs, and none compiled."""

import time

import jax
import numpy as np
import pytest
from numpy.typing import NDArray

import diffprior as dp
import reference
from cases import LOGISTIC, NEGATIVE_BINOMIAL, POISSON, LikelihoodCase
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.decisions import Policy
from diffprior.bandits.updates import State

RNG = np.random.default_rng(12)
FEATURES = RNG.standard_normal((6, 3))


def covs(count: int, dim: int) -> NDArray[np.float64]:
    roots = RNG.standard_normal((count, dim, dim))
    return roots @ roots.swapaxes(1, 2) + 0.1 * np.eye(dim)


PRIORS = {
    "gaussian": dp.GaussianPrior(np.ones(3), covs(1, 3)[0]),
    "one component": dp.MixturePrior(np.ones(1), np.ones((1, 3)), covs(1, 3)),
    "mixture": dp.MixturePrior([0.7, 0.0, 0.3], 3 * RNG.standard_normal((3, 3)), covs(3, 3)),
    "wide mixture": dp.MixturePrior(np.ones(4), RNG.standard_normal((4, 9)), covs(4, 9)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_draws_are_those_of_the_compiled_program(name: str) -> None:
    """Under no evidence, little of it, and far more than the prior; at any number."""
    prior = PRIORS[name]
    stds = np.sqrt(np.diagonal(np.asarray(prior.moments().cov)))
    theta = RNG.standard_normal(prior.dim)
    for num_rows, noise_std, scale in ((0, 1.0, 1.0), (2, 0.5, 1.0), (50, 1e-4, 1e3)):
        bandit = Bandit(prior, dp.Linear(noise_std), seed=2**40 + 5, temperature=0.7)
        features = scale * RNG.standard_normal((num_rows, prior.dim))
        noise = noise_std * RNG.standard_normal(num_rows)
        bandit.update(features, features @ theta + noise)
        policy, state = bandit._policy, bandit._state
        for number in (*range(5), 70, 2**32 - 1):
            found = policy._closed_form.draw(state, number)
            index, failed = policy._draw("index", state, policy._decisions, number, 1)
            assert not failed[0]
            np.testing.assert_allclose(found / stds, index.theta[0] / stds, atol=1e-6, rtol=1e-6)


def test_weights_are_exact_where_large_terms_cancel() -> None:
    """Two components of equal shape, which precise evidence cannot tell apart: their weights are
    the densities of the prior at the one point that is left."""
    prior = dp.MixturePrior([0.5, 0.5], [[1e3], [1e3 + 1.0]], np.ones((2, 1, 1)))
    bandit = Bandit(prior, dp.Linear(1e-5), seed=0)
    bandit.update(np.ones((100, 1)), np.full(100, 1e3 + 0.2))
    assert not bandit.decide(np.ones((2, 1))).failed
    given = bandit._policy._closed_form._given[1]
    np.testing.assert_allclose(np.diff(given.log_weights), -0.3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("mixture", LOGISTIC),
        ("wide mixture", LOGISTIC),
        ("gaussian", POISSON),
        ("gaussian", NEGATIVE_BINOMIAL),
    ],
    ids=lambda each: getattr(each, "name", each),
)
def test_draws_given_rows_are_those_of_the_compiled_program(
    name: str, case: LikelihoodCase
) -> None:
    """Under no rows, few, many, and far more evidence than the prior; faded and tempered."""
    prior = PRIORS[name]
    stds = np.sqrt(np.diagonal(np.asarray(prior.moments().cov)))
    for num_rows, scale in ((0, 1.0), (3, 1.0), (100, 1.0), (20, 30.0)):
        bandit = Bandit(prior, case.make(), seed=2**40 + 5, temperature=0.7)
        features = scale / np.sqrt(prior.dim) * RNG.standard_normal((num_rows, prior.dim))
        rewards = case.draw(RNG, np.clip(features.sum(axis=1), -3.0, 3.0))
        bandit.update(features, rewards)
        policy, state = bandit._policy, bandit._state
        for number in (0, 1, 2**32 - 1):
            found = policy._closed_form.draw(state, number)
            index, failed = policy._draw("index", state, policy._decisions, number, 1)
            assert not failed[0]
            np.testing.assert_allclose(found / stds, index.theta[0] / stds, atol=1e-6, rtol=1e-6)


def test_draws_given_rows_are_from_the_posterior() -> None:
    """Of a bimodal one of two parameters, on a grid; in double precision whatever JAX's is."""
    weights, means, covs = [0.7, 0.3], [[-2.0, 0.0], [2.0, 1.0]], [np.eye(2), 0.5 * np.eye(2)]
    bandit = Bandit(dp.MixturePrior(weights, means, covs), dp.Logistic(), seed=1)
    features = RNG.standard_normal((8, 2))
    rewards = np.arange(8) % 2.0
    bandit.update(features, rewards)
    draws = np.stack([bandit._policy._closed_form.draw(bandit._state, i) for i in range(4000)])

    def log_density(points: NDArray[np.float64]) -> NDArray[np.float64]:
        rows = reference.family_log_density(rewards, points @ features.T, "logistic", 1.0)
        return rows.sum(axis=1) + reference.mixture_log_density(points, weights, means, covs)

    low, high = np.full(2, -8.0), np.full(2, 8.0)
    mean, cov, _ = reference.grid_moments_2d(log_density, low, high, 400)
    standard = np.linalg.solve(np.linalg.cholesky(cov), (draws - mean).T).T
    for values in (*standard.T, *(standard**2 - 1.0).T, standard[:, 0] * standard[:, 1]):
        assert abs(values.mean()) < 5.0 * values.std() / np.sqrt(len(values))


def test_after_warming_up_the_program_decides_likewise() -> None:
    given = PRIORS["mixture"], dp.Logistic()
    first, second = Bandit(*given, seed=4), Bandit(*given, seed=4)
    second.warm_up(6)
    assert second._policy._compiled
    for reward in (0.0, 1.0, 1.0):
        decisions = [bandit.decide(FEATURES) for bandit in (first, second)]
        np.testing.assert_allclose(*(decision.scores for decision in decisions), atol=1e-6)
        for bandit in (first, second):
            bandit.update(FEATURES[decisions[0].action], reward)


def test_the_program_is_compiled_in_a_thread_and_used_at_a_fixed_number() -> None:
    """Twice as many decisions later; linear rewards, for which NumPy is faster, have none."""
    for likelihood, compiles in ((dp.Logistic(), True), (dp.Linear(1.0), False)):
        bandit, other = (Bandit(PRIORS["mixture"], likelihood, seed=4) for _ in range(2))
        other._policy = Policy(other.agent, 4, compile_after=2)
        for number in range(6):
            decisions = [each.decide(FEATURES) for each in (bandit, other)]
            np.testing.assert_allclose(*(each.scores for each in decisions), atol=1e-6)
            assert (other._policy._compiling is not None) == (compiles and number >= 1)
            assert other._policy._compiled == (compiles and number >= 3)
            for each in (bandit, other):
                each.update(FEATURES[decisions[0].action], number % 2.0)


def test_decisions_wait_for_a_program_that_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    bandit = Bandit(PRIORS["mixture"], dp.Logistic(), seed=4)
    policy, state = Policy(bandit.agent, 4, compile_after=1), State.of(dp.Logistic().empty(1), None)
    monkeypatch.setattr(policy, "_draw", lambda *_: time.sleep(0.3))
    policy._compile_in_time(state, 1)
    assert not policy._compiled
    policy._compile_in_time(state, 2)
    assert policy._compiled and policy._compiling is not None and not policy._compiling.is_alive()


@pytest.mark.parametrize("likelihood", [dp.Linear(1.0), dp.Logistic()], ids=["linear", "logistic"])
def test_nothing_is_compiled_for_a_decision(likelihood: dp.AbstractLikelihood) -> None:
    bandit = Bandit(PRIORS["mixture"], likelihood, seed=0)
    names: list[str] = []

    def listen(event: str, duration: float, **details: str) -> None:
        names.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    bandit.decide(FEATURES)
    bandit.update(FEATURES[0], 1.0)
    bandit.decide(FEATURES, mask=np.arange(6) > 2)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert names == []


@pytest.mark.parametrize("likelihood", [dp.Linear(1.0), dp.Logistic()], ids=["linear", "logistic"])
def test_evidence_that_numpy_cannot_factorize_is_left_to_the_program(
    likelihood: dp.AbstractLikelihood,
) -> None:
    bandit = Bandit(PRIORS["mixture"], likelihood, seed=0)
    bandit.update(np.ones(3), 1.0)
    nan = bandit._state._replace(leaves=[_broken(a) for a in bandit._state.leaves])
    assert bandit._policy._closed_form.draw(nan, 0) is None
    bandit._state = nan
    assert bandit.decide(FEATURES, throw=False).failed


def _broken(leaf: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.full_like(leaf, np.nan) if leaf.dtype.kind == "f" else leaf
