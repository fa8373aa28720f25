"""The registry: every recipe makes an agent, in any dimension and at any temperature."""

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball
from diffprior.reproduce.agents import NAMES, NUM_ATOMS, USUAL, Materials, Tempered, recipes
from diffprior.reproduce.parts import Parts
from diffprior.reproduce.study import Effort

CROSS = dp.synthetic("cross")
WIDE = Ball(dp.Linear(0.5), fresh_actions=True, dim=3)


def materials(problem: dp.AbstractProblem, parts: Parts) -> Materials:
    samples = problem.sample_parameters(jax.random.key(1), 207)
    return Materials("a problem", problem, samples, parts)


def some_mixture(samples: np.ndarray, num_components: int, seed: int) -> dp.MixturePrior:
    """A mixture of so many components, at once; expectation maximisation is tested elsewhere."""
    covs = np.tile(np.eye(samples.shape[1]), (num_components, 1, 1))
    return dp.MixturePrior(np.ones(num_components), samples[:num_components], covs)


def test_every_recipe_makes_its_agent(
    parts: Parts, unlearned: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dp.MixturePrior, "fit", some_mixture)
    made = materials(WIDE, parts)
    agents = {recipe.name: made.agent(recipe) for recipe in recipes(NAMES)}
    assert all(agent.dim == 3 for agent in agents.values())
    assert len(unlearned) == 2  # the paper's prior and the default one, once each
    sampler = {n: a.agent.sampler for n, a in agents.items() if isinstance(a, Tempered)}
    assert sampler["DiffTS"].covariance == "paper"
    assert sampler["DiffTS fitted"].covariance == "fitted"
    assert sampler["DiffTS"].schedule == sampler["DPS"].schedule == dp.Schedule.constant()
    assert sampler["TwistedSMC"].prior is sampler["EvidenceDPS"].prior
    assert [sampler[n].prior.weights.shape for n in ("MixTS", "MixTS(10)")] == [(2,), (10,)]
    np.testing.assert_array_equal(sampler["TS"].prior.cov, np.eye(3))
    np.testing.assert_allclose(sampler["TunedTS"].prior.mean, made.samples.mean(axis=0), rtol=1e-6)


def test_the_usual_agents_are_in_order() -> None:
    assert [r.name for r in recipes(("EvidenceDPS", "TS"))] == ["TS", "EvidenceDPS"]
    assert "MixTS(10)" in NAMES and "MixTS(10)" not in USUAL
    with pytest.raises(ValueError, match="`agent`: expected one of 'TS'.*got 'UCB'"):
        recipes(("UCB",))


def test_what_stands_for_the_true_prior_is_said(parts: Parts) -> None:
    (exact,) = recipes(("Exact",))
    closed = materials(CROSS, parts)
    assert closed.label_of(exact) == "Exact" and isinstance(closed.true(), dp.MixturePrior)
    for problem in (dp.synthetic("rays"), dp.synthetic("cross", dp.Logistic())):
        made = materials(problem, parts)
        atoms = made.true().atoms
        assert made.label_of(exact) == f"Exact ({len(atoms):,} samples)"
        assert not np.any(np.isin(atoms[:, 0], made.samples[:, 0]))  # fresh ones
    assert len(materials(dp.synthetic("rays"), parts).true().atoms) == NUM_ATOMS


@pytest.mark.parametrize("likelihood", [dp.Linear(0.5), dp.Logistic()], ids=["linear", "logistic"])
def test_temperature_is_that_of_the_sampler(likelihood: dp.AbstractLikelihood) -> None:
    problem = Ball(likelihood, fresh_actions=True)
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    (recipe,) = recipes(("TS",))
    agents = {
        "rows": recipe.agent(prior, likelihood, 0.25),
        "sampler": dp.ThompsonSampling(dp.Exact(prior, temperature=0.25), likelihood),
        "warm": recipe.agent(prior, likelihood),
        "plain": dp.Exact(prior),
    }
    result = dp.simulate(problem, agents, 4, 8)
    np.testing.assert_array_equal(result.actions["rows"], result.actions["sampler"])
    np.testing.assert_array_equal(result.actions["warm"], result.actions["plain"])
    assert np.any(result.actions["warm"] != result.actions["rows"])


def test_wrong_temperatures_are_refused() -> None:
    prior, likelihood = dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Linear(1.0)
    linucb, ts = recipes(("LinUCB", "TS"))[::-1]
    with pytest.raises(ValueError, match="`temperature`: expected 1 for LinUCB.*got 0.5"):
        linucb.agent(prior, likelihood, 0.5)
    with pytest.raises(ValueError, match="`temperature`: expected a positive number, got 0"):
        ts.agent(prior, likelihood, 0.0)
    assert isinstance(ts.agent(prior, likelihood), Tempered)


def test_slow_agents_get_a_share() -> None:
    ts, smc = recipes(("TS", "TwistedSMC"))
    eighth = Effort(slow_share=1 / 8)
    assert [eighth.share(smc, n) for n in (512, 8, 1)] == [64, 2, 1]
    assert eighth.share(ts, 512) == 512
    assert Effort(slow_share=1.0).share(smc, 512) == 512
