"""Two hundred rounds inside other libraries, with the decisions of a `Bandit`."""

from pathlib import Path
from typing import Any

import bayesianbandits as bb
import coba
import numpy as np
import pytest

import diffprior as dp
from diffprior.integrations import learners
from diffprior.service.export import export
from diffprior.service.store import Database
from service.conftest import (  # noqa: F401  (fixtures)
    LINEAR,
    MakeService,
    database,
    decide,
    features,
    make_service,
    reward,
)

ROUNDS, ACTIONS, DIM = 200, 5, 3
PRIOR = dp.MixturePrior(
    [0.4, 0.6], np.array([[1.0, 0, -1], [-1, 1, 0]]), np.tile(np.eye(3), (2, 1, 1))
)
RNG = np.random.default_rng(0)
TABLES = RNG.uniform(-1, 1, (ROUNDS, ACTIONS, DIM))
THETA = np.array([0.5, -1.0, 0.25])
REWARDS = TABLES @ THETA + 0.5 * RNG.standard_normal((ROUNDS, ACTIONS))


def new_bandit() -> dp.Bandit:
    return dp.Bandit(PRIOR, dp.Linear(0.5), seed=7)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    """Decisions of the bandit by itself."""
    bandit, actions = new_bandit(), []
    for table, rewards in zip(TABLES, REWARDS, strict=True):
        actions.append(bandit.decide(table).action)
        bandit.update(table[actions[-1]], rewards[actions[-1]])
    return actions


class RowOfContext:
    """An arm's features are its row of the context, which is a table of all arms."""

    def transform(self, X: Any, *, action_tokens: list[int]) -> np.ndarray:
        return np.concatenate([np.asarray(X)[:, token] for token in action_tokens])


def test_an_agent_of_bayesianbandits_decides_as_the_bandit(expected: list[int]) -> None:
    learner = learners.BanditLearner(new_bandit())
    agent = bb.LipschitzContextualAgent(
        [bb.Arm(i) for i in range(ACTIONS)],
        bb.ThompsonSampling(),
        RowOfContext(),
        learner,
        random_seed=0,
    )
    found = []
    for table, rewards in zip(TABLES, REWARDS, strict=True):
        (action,) = agent.pull(table[None])
        agent.update(table[None], rewards[[action]])
        found.append(action)
    assert found == expected
    error = np.sqrt(np.trace(learner.bandit.posterior(1000, seed=1).cov))
    assert np.max(np.abs(learner.predict(TABLES[0]) - TABLES[0] @ THETA)) < 5 * error
    assert learner.sample(TABLES[0], size=3).shape == (3, ACTIONS)


def test_an_experiment_of_coba_runs_the_bandit(expected: list[int]) -> None:
    actions = [[tuple(map(float, row)) for row in table] for table in TABLES]
    simulation = coba.environments.LambdaSimulation(
        ROUNDS,
        lambda index: None,
        lambda index, context: actions[index],
        lambda index, context, action: float(REWARDS[index][actions[index].index(action)]),
    )
    both = [learners.CobaLearner(new_bandit()), coba.RandomLearner()]
    result = coba.Experiment(coba.Environments(simulation), both).run(quiet=True)
    columns = result.interactions.columns
    rows = [dict(zip(columns, row, strict=True)) for row in result.interactions]
    got = [row["reward"] for row in rows if row["learner_id"] == 0]
    np.testing.assert_allclose(got, REWARDS[np.arange(ROUNDS), expected], atol=1e-5)  # it rounds
    assert len(got) == ROUNDS


def test_coba_reads_the_log_of_the_service(
    make_service: MakeService,  # noqa: F811
    database: Database,  # noqa: F811
    tmp_path: Path,
) -> None:
    client = make_service(**LINEAR)
    paid = []
    for i in range(20):
        reply = decide(client, f"t{i % 2}", features=features(i), mask=[True, True, i % 3 > 0])
        reward(client, reply["decision_id"], 0.1 * i)
        paid.append((0.1 * i, reply["propensity"]))
    path = tmp_path / "log.parquet"
    export(database, "shop", "parquet", path)
    environment = learners.LoggedEnvironment(path)
    logged = list(environment.read())
    found = sorted((one["reward"], one["probability"]) for one in logged)
    np.testing.assert_allclose(found, sorted(paid))
    assert {one["context"] for one in logged} == {"t0", "t1"}
    assert all(one["action"] in one["actions"] for one in logged)
    learner = learners.CobaLearner(
        dp.Bandit(dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Linear(1.0))
    )
    result = coba.Experiment(
        coba.Environments(environment), learner, coba.SequentialCB(learn="off", eval=None)
    ).run(quiet=True)
    assert len(result.environments) == 1 and learner.bandit.num_decisions == 0
