"""The registry: every agent is made, in any dimension, with the prior that it names."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball
from experiments.agents import (
    NAMES,
    NUM_ATOMS,
    NUM_ATOMS_GLM,
    LearnedPriors,
    agent_specs,
    agents_table,
    true_prior,
)
from experiments.experiment import Effort
from experiments.results import Results

WIDE = Ball(dp.Linear(0.5), fresh_actions=True, dim=3)
SAMPLES = np.random.default_rng(0).standard_normal((207, 3))


def test_every_agent_is_made(results: Results, learned: list) -> None:
    priors = LearnedPriors("some", SAMPLES, results)
    made = {}
    for spec in agent_specs():
        prior = true_prior(WIDE, 0) if spec.prior == "true" else priors[spec.prior]
        made[spec.name] = spec.agent(prior, WIDE.likelihood)
    assert all(agent.dim == 3 for agent in made.values())
    assert [(n, preset) for _, n, preset, _ in learned] == [(207, "paper"), (207, "default")]
    sampler = {n: a.sampler for n, a in made.items() if isinstance(a, dp.ThompsonSampling)}
    assert (
        sampler["DiffTS"].covariance == "paper" and sampler["DiffTS fitted"].covariance == "fitted"
    )
    np.testing.assert_array_equal(sampler["TS"].prior.cov, np.eye(3))
    np.testing.assert_allclose(sampler["TunedTS"].prior.mean, SAMPLES.mean(axis=0), rtol=1e-6)


def test_mixtures_are_fitted_once(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    fit = dp.MixturePrior.fit

    def remember(samples: np.ndarray, num_components: int | None, *, seed: int) -> dp.MixturePrior:
        asked.append(num_components)
        return fit(samples, 2, seed=seed)

    monkeypatch.setattr(dp.MixturePrior, "fit", remember)
    for _ in range(2):
        priors = LearnedPriors("some", SAMPLES, results)
        assert priors["mixture of 2"].weights.shape == priors["mixture, K chosen"].weights.shape
    assert len(asked) == 2 and asked[0] == 2


def test_diffusion_priors_are_fitted_with_their_presets(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dp.FitConfig] = []

    def remember(samples: np.ndarray, *, config: dp.FitConfig, **_: Any) -> dp.DiffusionPrior:
        asked.append(config)
        return dp.DiffusionPrior.from_prior(dp.GaussianPrior.fit(samples))

    monkeypatch.setattr(dp.DiffusionPrior, "fit", remember)
    priors, schedule = LearnedPriors("some", SAMPLES, results), dp.Schedule.constant(3, 0.5)
    monkeypatch.setattr(results, "saved", lambda name, settings, compute: compute())
    assert priors["default"].dim == priors.diffusion("paper", schedule).dim == 3
    assert asked[0] == dp.FitConfig() and asked[1].schedule is schedule


def test_names_are_in_order_and_explained() -> None:
    assert [spec.name for spec in agent_specs(("EvidenceDPS", "TS"))] == ["TS", "EvidenceDPS"]
    with pytest.raises(ValueError, match="`agent`: expected one of 'TS'.*got 'UCB'"):
        agent_specs(("UCB",))
    rows = agents_table(NAMES).rows
    assert [row[0] for row in rows] == list(NAMES) and all(row[2] for row in rows)


def test_what_stands_for_the_true_prior() -> None:
    assert isinstance(true_prior(dp.synthetic("cross"), 0), dp.MixturePrior)
    past = dp.synthetic("rays").sample_parameters(jax.random.key(2**29), 500)
    for problem, count in (
        (dp.synthetic("rays"), NUM_ATOMS),
        (dp.synthetic("cross", dp.Logistic()), NUM_ATOMS_GLM),
    ):
        atoms = np.asarray(true_prior(problem, 0).atoms)
        assert atoms.shape == (count, 2) and not np.any(np.isin(atoms[:, 0], past[:, 0]))


def test_slow_agents_get_a_share() -> None:
    ts, smc = agent_specs(("TS", "TwistedSMC"))
    eighth = Effort(slow_share=1 / 8)
    assert [eighth.share(smc, n) for n in (512, 8, 1)] == [64, 2, 1]
    assert eighth.share(ts, 512) == 512 == Effort(slow_share=1.0).share(smc, 512)


def test_effort() -> None:
    assert Effort.of(None, quick=False) == Effort()
    assert Effort.of(None, quick=True).num_runs == 256
    few = Effort.of(16, quick=False)
    assert (few.num_runs, few.temperature_runs) == (16, 16)
    assert Effort.of(1000, quick=False).temperature_runs == 128


def test_the_demo_asks_for_agents_that_exist() -> None:
    import re

    text = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    asked = re.findall(r"--agent (?:'([^']+)'|(\w+))", text)
    names = {quoted or plain for quoted, plain in asked}
    assert {"MixTS", "MixTS(K)", "EvidenceDPS"} <= names <= set(NAMES)
