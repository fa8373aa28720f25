"""Responses through bandits, items, simulations, evaluation and files, as any other likelihood."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
from diffprior.bandits.simulate import Environment
from diffprior.problems.base import AbstractProblem
from responses import CASES

CASE = next(case for case in CASES if case.name == "emax")
PRIOR = dp.GaussianPrior(CASE.mean, CASE.cov)
LIKELIHOOD = dp.Response(CASE.fn, dp.Logistic(), dim=2, num_features=1, name="tests.emax")
RNG = np.random.default_rng(0)


class Doses(AbstractProblem):
    """Doses to choose from, of one feature and two parameters."""

    likelihood: dp.AbstractLikelihood = LIKELIHOOD
    dim: int = 2
    num_actions: int = 5
    fresh_actions: bool = True

    def sample_parameters(self, key: jax.Array, num_samples: int) -> jax.Array:
        return PRIOR.sample(key, num_samples)

    def features(self, key: jax.Array) -> jax.Array:
        return jax.random.uniform(key, (5, 1), minval=0.1, maxval=3.0)


def test_decisions_are_those_of_the_simulator(tmp_path: Path) -> None:
    simulated = dp.simulate(Doses(), {"TS": PRIOR}, 2, 20, seed=9)
    bandit = dp.Bandit(PRIOR, LIKELIHOOD, seed=9)
    rounds = Environment.of(Doses(), range(2), 9).rounds(jnp.arange(20))
    features, rewards = (np.asarray(part[0]) for part in (rounds.features, rounds.rewards))
    for k in range(20):
        if k == 10:
            bandit.save(tmp_path / "x.bandit")
            bandit = dp.Bandit.load(tmp_path / "x.bandit", keep_seed=True)
        action = bandit.decide(features[k]).action
        assert action == simulated.actions["TS"][0, k]
        bandit.update(features[k, action], rewards[k, action])


def test_scores_are_mean_rewards_of_one_draw_whatever_is_asked_for() -> None:
    """One action or several, a batch, propensities: all by the same parameters."""
    doses = RNG.uniform(0.1, 3.0, (7, 1))
    scores = dp.Bandit(PRIOR, LIKELIHOOD, seed=3).decide(doses).scores
    bandit = dp.Bandit(PRIOR, LIKELIHOOD, seed=3)
    decision = bandit.decide(np.stack([doses, doses]), top_k=2, propensity_draws=64)
    assert_allclose(decision.scores[0], scores, rtol=1e-6)
    assert np.all(decision.action[:, 0] == decision.scores.argmax(axis=1))
    assert np.all((decision.propensity > 0) & (decision.propensity <= 1))
    # Of two doses, one wins where the effect is positive: a closed form of the prior.
    best = bandit.decide(np.array([[0.5], [2.0]]), propensity_draws=4096)
    effect = 0.5 + 0.5 * math.erf(0.7 / np.sqrt(0.6))
    expected = effect if best.action == 1 else 1 - effect
    assert abs(1 / best.propensity - 1 / expected) < 5 / expected / np.sqrt(16)


def test_rewards_add_up_to_the_evidence_and_all_rows_are_kept() -> None:
    doses, rewards = RNG.uniform(0.1, 3.0, (1300, 1)), RNG.integers(0, 2, 1300)
    bandit = dp.Bandit(PRIOR, LIKELIHOOD)
    bandit.update(doses[:1290], rewards[:1290])
    for dose, reward in zip(doses[1290:], rewards[1290:], strict=True):
        bandit.update(dose, reward)
    theta, whole = jnp.asarray([0.4, 0.3]), LIKELIHOOD.observe(doses, rewards)
    assert_allclose(bandit.evidence.log_likelihood(theta), whole.log_likelihood(theta), rtol=1e-5)
    posterior = bandit.posterior(200)
    assert np.all(np.isfinite(posterior.draws))
    assert posterior.draws.shape == (200, 2)
    assert 16 < posterior.effective_sample_size <= 32


def test_items_have_responses_of_their_own(tmp_path: Path) -> None:
    items = dp.Items(PRIOR, LIKELIHOOD, num_draws=8, seed=1)
    items.add(["a", "b", "c"])
    items.update(["a", "b"], [[0.5], [1.0]], [1.0, 0.0])
    items.save(tmp_path / "x.items")
    again = dp.Items.load(tmp_path / "x.items")
    for context in (np.array([1.5]), RNG.uniform(0.1, 3.0, (3, 1))):
        found = items.choose(context, top_k=3)
        thetas = items._panel.draws[(items.num_decisions - 1) % 8][:3]
        rows = zip(thetas, np.resize(context, (3, 1)), strict=True)
        etas = np.array([CASE.twin(theta, x[None])[0] for theta, x in rows])
        means = dict(zip(items.names, 1 / (1 + np.exp(-etas)), strict=True))
        assert_allclose(found.score, [means[name] for name in found.item], rtol=1e-5)
        assert again.choose(context, top_k=3).item == found.item
    wave = dp.Response(CASES[0].fn, dp.Logistic())
    result = dp.simulate(dp.ItemProblem(PRIOR, wave, num_items=4), {"TS": PRIOR}, 1, 5)
    assert np.all(result.regret["TS"] >= 0)


def test_evaluation_knows_the_response() -> None:
    tasks = dp.evaluate.simulate_tasks(Doses(), num_tasks=60, num_observations=6)
    assert tasks.parameters.shape == (60, 2) and tasks.dim == 1
    covered = dp.evaluate.coverage(PRIOR, tasks, LIKELIHOOD, num_draws=99)
    assert abs(covered.share - 0.9) < 5 * max(covered.standard_error, 0.03)
    found = dp.evaluate.log_evidence(PRIOR, tasks, LIKELIHOOD)
    wrong = dp.evaluate.log_evidence(dp.GaussianPrior(CASE.mean + 3.0, CASE.cov), tasks, LIKELIHOOD)
    assert np.mean(found) > np.mean(wrong)
    check = dp.evaluate.predictive_check(PRIOR, tasks, LIKELIHOOD, lengths=(0, 3))
    assert all(row.log_density > np.log(0.4) for row in check.rows)


def test_what_a_response_cannot_do_is_rejected() -> None:
    with pytest.raises(ValueError, match="`max_rows`: expected None"):
        dp.Bandit(PRIOR, LIKELIHOOD, max_rows=200)
    for agent in (dp.LinUCB, dp.EpsilonGreedy):
        with pytest.raises(ValueError, match="linear in the parameters, got Response"):
            agent(PRIOR, LIKELIHOOD)
    with pytest.raises(ValueError, match=r"`features`: expected .* \(K, 1\)"):
        dp.Bandit(PRIOR, LIKELIHOOD).decide(np.ones((3, 2)))


def test_the_best_sampler_is_exact_or_corrected_by_many_particles() -> None:
    learned = dp.DiffusionPrior.from_prior(dp.GaussianPrior(CASE.mean, CASE.cov))
    assert isinstance(dp.best_sampler(PRIOR, likelihood=LIKELIHOOD), dp.Exact)
    sampler = dp.best_sampler(learned, likelihood=LIKELIHOOD)
    assert isinstance(sampler, dp.TwistedSMC)
    assert sampler.num_particles == 64
