"""The imperative bandit: equal to the simulator, its propensities true, its arguments checked."""

from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import diffprior as dp
import reference
from bandits.helpers import STANDARD, Ball, Counting, FailingLater, standard_prior
from diffprior.bandits._dispatch import partition
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.decisions import TaskPolicy, TaskRequest
from diffprior.bandits.simulate import Environment, simulate

RNG = np.random.default_rng(2)
FEATURES = RNG.standard_normal((7, 2))
BATCH = RNG.standard_normal((11, 7, 2))  # in two blocks
LIKELIHOODS = {"linear": dp.Linear(0.5), "logistic": dp.Logistic()}


def taught(likelihood: dp.AbstractLikelihood | None = None, seed: int = 0) -> Bandit:
    """A bandit with ten observations."""
    bandit = Bandit(dp.Exact(standard_prior()), likelihood or dp.Linear(0.5), seed=seed)
    rewards = np.array([0.0, 1.0] * 5)
    bandit.update(np.linspace(-1, 1, 20).reshape(10, 2) ** 3, rewards)
    return bandit


@pytest.mark.parametrize(("name", "num_rounds"), [("linear", 30), ("logistic", 75)])
def test_decisions_are_those_of_the_simulator(name: str, num_rounds: int, tmp_path: Path) -> None:
    task = Ball(LIKELIHOODS[name], fresh_actions=True, num_actions=5)
    simulated = simulate(task, {"TS": dp.Exact(standard_prior())}, 4, num_rounds, seed=9)
    bandit = Bandit(standard_prior(), task.likelihood, seed=9)
    runs = Environment.of(task, range(4), 9)
    for first in range(0, num_rounds, 15):
        rounds = runs.rounds(jnp.arange(first, first + 15))
        features, rewards = (np.asarray(part[0]) for part in (rounds.features, rounds.rewards))
        for k in range(15):
            action = bandit.decide(features[k]).action
            assert action == simulated.actions["TS"][0, first + k]
            bandit.update(features[k, action], rewards[k, action])
        bandit.save(tmp_path / "x.bandit")
        bandit = Bandit.load(tmp_path / "x.bandit", keep_seed=True)
    assert bandit.num_decisions == num_rounds


def test_a_batch_is_decided_as_one_by_one() -> None:
    together = taught().decide(BATCH)
    bandit = taught()
    apart = [bandit.decide(features) for features in BATCH]
    assert together.action.shape == (11,) and together.scores.shape == (11, 7)
    np.testing.assert_array_equal(together.action, [decision.action for decision in apart])
    np.testing.assert_allclose(together.scores, [decision.scores for decision in apart])
    assert isinstance(apart[0].action, int) and apart[0].propensity is None
    both = taught()
    both.decide(BATCH)
    assert both.num_decisions == bandit.num_decisions == 11
    np.testing.assert_allclose(both.decide(FEATURES).scores, bandit.decide(FEATURES).scores)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_scores_are_mean_rewards_of_the_draw(name: str) -> None:
    decision = taught(LIKELIHOODS[name]).decide(FEATURES)
    assert decision.action == np.argmax(decision.scores) and not decision.failed
    if name == "logistic":
        assert np.all((decision.scores > 0) & (decision.scores < 1))
    eta = special.logit(decision.scores) if name == "logistic" else decision.scores
    theta = np.linalg.lstsq(FEATURES, eta)[0]
    np.testing.assert_allclose(FEATURES @ theta, eta, atol=1e-9)


def test_mask_and_top_k() -> None:
    everything = taught().decide(FEATURES, top_k=7)
    order = np.argsort(-everything.scores)
    np.testing.assert_array_equal(everything.action, order)
    mask = np.ones(7, bool)
    mask[order[0]] = mask[order[2]] = False
    assert taught().decide(FEATURES, mask=mask).action == order[1]
    top = taught().decide(FEATURES, mask=mask, top_k=3)
    np.testing.assert_array_equal(top.action, order[[1, 3, 4]])
    masks = np.eye(7, dtype=bool)[np.arange(11) % 7]
    np.testing.assert_array_equal(taught().decide(BATCH, mask=masks).action, np.arange(11) % 7)
    assert np.all(taught().decide(BATCH, mask=np.eye(7, dtype=bool)[3]).action == 3)


def test_propensities_are_those_of_the_closed_form() -> None:
    """Two actions: P(delta' theta > 0) is a normal probability. 2,000 decisions in one batch."""
    pairs = np.random.default_rng(3).standard_normal((2000, 2, 2))
    bandit = taught()
    decision = bandit.decide(pairs, propensity_draws=400)
    mean, cov = reference.condition_gaussian(
        *STANDARD, np.asarray(bandit.evidence.precision), np.asarray(bandit.evidence.shift)
    )
    delta = np.take_along_axis(pairs, decision.action[:, None, None], axis=1)[:, 0]
    delta = 2 * delta - pairs.sum(axis=1)
    width = np.sqrt(np.einsum("ni,ij,nj->n", delta, cov, delta))
    expected = special.ndtr(delta @ mean / width)
    z = (decision.propensity - expected) / decision.propensity_se
    assert np.max(np.abs(z)) < 5
    assert 0.5 < np.std(z) < 1.2  # the standard errors are of the right size


def test_propensities_match_frequencies() -> None:
    """Of a logistic model, under a mask, for membership in the top two."""
    mask = np.arange(7) != 2
    n = 4000
    bandit = taught(dp.Logistic())
    decision = bandit.decide(FEATURES, mask=mask, top_k=2, propensity_draws=n)
    again = bandit.decide(np.broadcast_to(FEATURES, (n, 7, 2)), mask=mask, top_k=2)
    share = [np.mean(np.any(again.action == action, axis=1)) for action in decision.action]
    error = np.hypot(decision.propensity_se, np.sqrt(np.multiply(share, np.subtract(1, share)) / n))
    assert np.max(np.abs(decision.propensity - share) / error) < 5
    assert decision.propensity.shape == (2,) and np.all(decision.propensity_se > 0)


def test_every_decision_has_draws_of_its_own_for_propensities() -> None:
    bandit, pair = taught(), np.array([[1.0, 0.3], [-1.0, -0.3]])
    found = [bandit.decide(pair, propensity_draws=63) for _ in range(6)]
    first = [d.propensity if d.action == 0 else 1 - d.propensity for d in found]
    assert len(set(np.round(first, 6))) > 1 and 0 < min(first) <= max(first) < 1
    agent, evidence = (
        dp.ThompsonSampling(dp.Exact(standard_prior()), dp.Linear(0.5)),
        bandit.evidence,
    )
    policy = TaskPolicy(agent, dp.Linear(0.5).empty(2), 128, 63)
    leaves, structure = partition(evidence)
    leaves = [np.asarray(leaf) for leaf in leaves]
    requests = [TaskRequest(leaves, structure, 5, number) for number in range(3)]
    theta = policy(requests).index.theta  # of the same task
    assert len(np.unique(theta.reshape(-1, 2), axis=0)) == 3 * 64


def test_asking_for_propensities_changes_no_decision() -> None:
    plain, asked = taught(), taught()
    for _ in range(3):
        decision = asked.decide(FEATURES, propensity_draws=10)
        assert decision.action == plain.decide(FEATURES).action
        assert isinstance(decision.propensity, float) and decision.propensity_se > 0


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_rewards_may_come_in_batches_late_and_out_of_order(name: str) -> None:
    rng = np.random.default_rng(4)
    features, rewards = rng.standard_normal((13, 2)), rng.integers(0, 2, 13).astype(float)
    bandits = [Bandit(standard_prior(), LIKELIHOODS[name]) for _ in range(3)]
    for phi, y in zip(features, rewards, strict=True):
        bandits[0].update(phi, y)
    bandits[1].update(features, rewards)
    order = rng.permutation(13)
    bandits[2].update(features[order[:9]], rewards[order[:9]])
    bandits[2].decide(FEATURES)
    bandits[2].update(features[order[9:]], rewards[order[9:]])
    thetas = rng.standard_normal((4, 2))
    values = [
        [float(bandit.evidence.log_likelihood(jnp.asarray(theta))) for theta in thetas]
        for bandit in bandits
    ]
    np.testing.assert_allclose(values[1:], values[:1] * 2, rtol=1e-9)


def test_works_before_any_data() -> None:
    bandit = Bandit(standard_prior(), dp.Logistic())
    assert 0 <= bandit.decide(FEATURES).action < 7
    assert isinstance(bandit.sampler, dp.Exact) and isinstance(bandit.likelihood, dp.Logistic)
    bandit.update(np.zeros((0, 2)), np.zeros(0))
    assert int(bandit.evidence.num_rows) == 0


def test_no_program_is_made_per_call() -> None:
    sampler = Counting()
    bandit = Bandit(sampler, dp.Linear(1.0))
    bandit.decide(FEATURES)
    once = sampler.tally.count
    for size in range(1, 20):
        bandit.update(np.ones((size, 2)), np.ones(size))
        bandit.decide(list(FEATURES), mask=np.arange(7) > 2)
    assert sampler.tally.count == once


def test_one_program_serves_a_growing_history_of_a_glm() -> None:
    sampler = Counting()
    bandit = Bandit(sampler, dp.Logistic(), max_rows=256)
    bandit.warm_up(7)
    once = sampler.tally.count
    for row in np.random.default_rng(0).standard_normal((150, 2)):
        bandit.update(row, 1.0)
        bandit.decide(FEATURES)
    assert sampler.tally.count == once


def test_a_failed_draw_raises_or_is_marked() -> None:
    bandit = Bandit(FailingLater(1), dp.Linear(1.0))
    assert not bandit.decide(FEATURES).failed
    bandit.update(FEATURES[0], 1.0)
    with pytest.raises(RuntimeError, match="`decide`: a draw is not finite.*throw=False"):
        bandit.decide(FEATURES)
    decision = bandit.decide(BATCH, throw=False)
    assert np.all(decision.failed) and np.all(np.isnan(decision.scores))
    assert np.all((decision.action >= 0) & (decision.action < 7))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda b: b.decide(FEATURES[0]), r"`features`: expected shape \(K, 2\), got \(2,\)"),
        (lambda b: b.decide(np.ones((7, 3))), r"`features`.*\(K, 2\), got \(7, 3\)"),
        (lambda b: b.decide(np.ones((2, 7, 3))), r"`features`.*\(B, K, 2\), got \(2, 7, 3\)"),
        (lambda b: b.decide(np.ones((0, 2))), "`features`: expected an action"),
        (lambda b: b.decide([[1.0, 2.0], [1.0]]), "`features`.*ragged"),
        (lambda b: b.decide(np.full((3, 2), np.nan)), "`features`: expected finite"),
        (lambda b: b.decide(FEATURES, mask=np.ones(6, bool)), r"`mask`.*\(7,\).*\(6,\)"),
        (lambda b: b.decide(FEATURES, mask=np.ones(7)), "`mask`: expected booleans"),
        (lambda b: b.decide(FEATURES, mask=np.zeros(7, bool)), "`mask`.*at least one"),
        (lambda b: b.decide(FEATURES, top_k=8), "`top_k`: expected at most 7.*got 8"),
        (lambda b: b.decide(FEATURES, top_k=0), "`top_k`.*got 0"),
        (lambda b: b.decide(FEATURES, propensity_draws=0), "`propensity_draws`.*got 0"),
        (lambda b: b.update(np.ones(3), 1.0), r"`features`: expected shape \(2,\), got \(3,\)"),
        (lambda b: b.update(np.ones((4, 2)), np.ones(3)), r"`reward`.*\(4,\), got \(3,\)"),
        (lambda b: b.update(np.ones(2), np.inf), "`reward`: expected finite"),
        (lambda b: b.update(np.ones(2), 2.0), "expected 0 or 1, got 2"),
        (lambda b: Bandit(np.ones(3), dp.Linear(1.0)), "`prior`.*got ndarray"),
        (lambda b: Bandit(dp.Exact, dp.Linear(1.0)), "`prior`.*got the class Exact"),
        (lambda b: Bandit(standard_prior(), None), "`likelihood`.*got NoneType"),
        (lambda b: Bandit(standard_prior(), dp.Linear()), r"`noise_std`.*Linear\(noise_std="),
        (lambda b: Bandit(standard_prior(), dp.Linear(1.0), seed=-1), "`seed`.*got -1"),
    ],
)
def test_wrong_arguments_are_rejected(call: Callable[[Bandit], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(Bandit(standard_prior(), dp.Logistic()))


def test_a_rejected_batch_of_rewards_leaves_no_trace() -> None:
    bandit = Bandit(standard_prior(), dp.Logistic())
    with pytest.raises(ValueError, match="0 or 1"):
        bandit.update(FEATURES, np.array([1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 5.0]))
    assert int(bandit.evidence.num_rows) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda b: b.decide(FEATURES, propensity_draws=0),
        lambda b: b.decide(FEATURES, propensity_draws=2**24 + 1),
        lambda b: b.decide(FEATURES, top_k=8),
        lambda b: b.decide(FEATURES, mask=np.zeros(7, bool)),
        lambda b: b.decide(np.full((7, 2), np.inf)),
        lambda b: b.update(FEATURES[0], np.nan),
        lambda b: b.posterior(0),
        lambda b: b.warm_up(0),
    ],
)
def test_a_rejected_call_changes_nothing(call: Callable[[Bandit], object]) -> None:
    bandit, untouched = taught(), taught()
    evidence = bandit.evidence
    with pytest.raises(ValueError):
        call(bandit)
    assert bandit.num_decisions == 0 and bandit.evidence is evidence
    assert bandit.decide(FEATURES).action == untouched.decide(FEATURES).action


def test_neither_warming_up_nor_asking_for_the_posterior_changes_decisions() -> None:
    bandit, untouched = taught(), taught()
    bandit.warm_up(7, propensity_draws=10)
    bandit.posterior(10)
    assert bandit.num_decisions == 0
    same = np.broadcast_to(FEATURES, (5, 7, 2))
    np.testing.assert_array_equal(bandit.decide(same).scores, untouched.decide(same).scores)


def test_any_agent_runs() -> None:
    """As in the simulator, run 0."""
    task = Ball(dp.Linear(0.5), fresh_actions=True, num_actions=5)
    prior, likelihood = standard_prior(), task.likelihood
    agents = {
        "LinUCB": dp.LinUCB(prior, likelihood),
        "EpsilonGreedy": dp.EpsilonGreedy(prior, likelihood, epsilon=0.5),
        "Uniform": dp.Uniform(likelihood, dim=2),
    }
    simulated = simulate(task, agents, 2, 15, seed=2**40 + 3)
    rounds = Environment.of(task, range(2), 2**40 + 3).rounds(jnp.arange(15))
    features, rewards = (np.asarray(part[0]) for part in (rounds.features, rounds.rewards))
    for name, agent in agents.items():
        bandit = Bandit(agent, seed=2**40 + 3)
        assert name in repr(bandit) and bandit.agent is agent
        for k in range(15):
            action = bandit.decide(features[k]).action
            assert action == simulated.actions[name][0, k]
            bandit.update(features[k, action], rewards[k, action])


def test_agents_have_likelihood_temperature_and_dimension() -> None:
    agent = dp.LinUCB(standard_prior(), dp.Linear(0.5))
    with pytest.raises(ValueError, match="`likelihood`: expected None with an agent.*LinUCB has"):
        Bandit(agent, dp.Linear(0.5))
    with pytest.raises(ValueError, match="`temperature`: expected None with an agent"):
        Bandit(agent, temperature=0.5)
    with pytest.raises(ValueError, match="number of parameters, got Uniform.*dim="):
        Bandit(dp.Uniform(dp.Linear(0.5)))
    with pytest.raises(ValueError, match="`sampler`.*LinUCB.*`agent`"):
        _ = Bandit(agent).sampler


def test_temperature_reaches_the_sampler() -> None:
    """Evidence counted four times leaves half the width."""
    warm, cold = (Bandit(standard_prior(), dp.Linear(0.5), temperature=t) for t in (1.0, 0.25))
    for bandit in (warm, cold):
        bandit.update(np.repeat(np.eye(2), 500, axis=0), np.ones(1000))
    stds = [np.sqrt(np.diagonal(b.posterior(4000, seed=1).cov)) for b in (warm, cold)]
    np.testing.assert_allclose(stds[1] / stds[0], 0.5, rtol=0.01)
    with pytest.raises(ValueError, match="`temperature`"):
        Bandit(standard_prior(), dp.Linear(0.5), temperature=0.0)
