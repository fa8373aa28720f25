"""Other libraries: an exact Thompson sampler to compare with, and an experiment to run ours in."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball, standard_prior
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.simulate import Environment, simulate
from diffprior.problems.synthetic import synthetic


def test_regret_is_that_of_bayesianbandits() -> None:
    """Linear Thompson sampling with N(0, I) on cross, in the same environments."""
    peer = pytest.importorskip("bayesianbandits")
    problem, num_runs, num_rounds = synthetic("cross"), 128, 40
    ours = simulate(problem, {"TS": dp.Exact(standard_prior())}, num_runs, num_rounds)
    runs = Environment.of(problem, range(num_runs), 0)
    halves = [runs.rounds(jnp.arange(first, first + 20)) for first in (0, 20)]
    features = np.asarray(halves[0].features[:, 0], dtype=np.float64)
    means, rewards = (
        np.concatenate([np.asarray(getattr(half, name)) for half in halves], axis=1)
        for name in ("means", "rewards")
    )
    theirs = np.zeros(num_runs)
    for run in range(num_runs):
        model = peer.NormalRegressor(alpha=1.0, beta=1.0, random_state=run)
        for k in range(num_rounds):
            action = np.argmax(model.sample(features[run])[0])
            theirs[run] += np.max(means[run, k]) - means[run, k, action]
            model.partial_fit(features[run, action][None], rewards[run, k, action][None])
    difference = ours.regret["TS"][:, -1] - theirs
    error = np.std(difference, ddof=1) / np.sqrt(num_runs)
    assert error < 0.1 * np.mean(theirs)
    assert abs(np.mean(difference)) < 2 * error


class CobaLearner:
    """Our bandit as coba wants its learners: actions are feature vectors."""

    def __init__(self, seed: int) -> None:
        self._bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=seed)

    @property
    def params(self) -> dict[str, Any]:
        return {"family": "diffprior"}

    def predict(self, context: Any, actions: Sequence[Any]) -> tuple[Any, float]:
        decision = self._bandit.decide(np.array(actions), propensity_draws=20)
        return actions[decision.action], max(decision.propensity, 1 / 20)

    def learn(self, context: Any, action: Any, reward: float, probability: float) -> None:
        self._bandit.update(np.array(action), reward)


def test_coba_runs_our_bandit() -> None:
    coba = pytest.importorskip("coba")
    problem = Ball(dp.Linear(0.5), fresh_actions=True)
    rounds = Environment.of(problem, range(4), 0).rounds(jnp.arange(15))
    features, rewards = (np.asarray(part[0]) for part in (rounds.features, rounds.rewards))
    actions = [[tuple(map(float, phi)) for phi in now] for now in features]
    simulation = coba.environments.LambdaSimulation(
        15,
        lambda index: None,
        lambda index, context: actions[index],
        lambda index, context, action: float(rewards[index][actions[index].index(action)]),
    )
    learners = [CobaLearner(seed=0), coba.RandomLearner()]
    result = coba.Experiment(coba.Environments(simulation), learners).run(quiet=True)
    simulated = simulate(problem, {"TS": dp.Exact(standard_prior())}, 4, 15)
    expected = rewards[np.arange(15), simulated.actions["TS"][0]]
    columns = result.interactions.columns
    rows = [dict(zip(columns, row, strict=True)) for row in result.interactions]
    got = [[row["reward"] for row in rows if row["learner_id"] == index] for index in (0, 1)]
    np.testing.assert_allclose(got[0], expected, atol=1e-5)  # coba rounds what it keeps
    assert len(got[1]) == 15
