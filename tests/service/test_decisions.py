"""Decisions and rewards over HTTP: what a `Bandit` would do, once each, whatever is repeated."""

import numpy as np
import pytest
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.bandits.decisions import TASKS_PER_CALL, TaskRequest
from diffprior.service.models import task_seed
from service.conftest import LINEAR, LOGISTIC, PRIOR, MakeService, decide, features, reward


@pytest.mark.parametrize(
    ("settings", "likelihood", "half_life"),
    [(LINEAR, dp.Linear(1.0), None), (LOGISTIC, dp.Logistic(), 20)],
)
def test_decisions_are_those_of_a_bandit(
    make_service: MakeService,
    settings: dict,
    likelihood: dp.AbstractLikelihood,
    half_life: int | None,
) -> None:
    client = make_service(**settings, half_life=half_life)
    seed = task_seed(client.engine.catalog.versions_of("shop")[0].seed, "a")
    bandit = dp.Bandit(PRIOR, likelihood, seed=seed, half_life=half_life, max_rows=128)
    for i in range(30):
        table = features(i, 6)
        found = decide(client, features=table)
        assert found["action"] == bandit.decide(np.asarray(table)).action
        if i % 3:
            reward(client, found["decision_id"], float(i % 2))
            bandit.update(table[found["action"]], float(i % 2))


@pytest.mark.parametrize(
    ("sampler", "kind"), [("linucb", dp.LinUCB), ("epsilon-greedy", dp.EpsilonGreedy)]
)
def test_other_agents_are_served(make_service: MakeService, sampler: str, kind: type) -> None:
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    client = make_service(**LINEAR, sampler=sampler, prior=prior)
    seed = task_seed(client.engine.catalog.versions_of("shop")[0].seed, "a")
    bandit = dp.Bandit(kind(prior, dp.Linear(1.0)), seed=seed)
    for i in range(8):
        table = features(i, 6)
        found = decide(client, features=table)
        assert found["action"] == bandit.decide(np.asarray(table)).action
        reward(client, found["decision_id"], float(i % 2))
        bandit.update(table[found["action"]], float(i % 2))


def test_evidence_beyond_its_bound_is_that_of_a_bandit(make_service: MakeService) -> None:
    client = make_service(**LOGISTIC)
    version = client.engine.catalog.versions_of("shop")[0]
    bandit = dp.Bandit(PRIOR, dp.Logistic(), seed=0, max_rows=128)
    arrays, rng = version.empty, np.random.default_rng(0)
    for i in range(140):
        phi = rng.standard_normal(2)
        arrays = version.learn(arrays, phi, float(i % 3 > 0), 0.0)
        bandit.update(phi, float(i % 3 > 0))
    ours, theirs = arrays.evidence, bandit.evidence
    assert int(ours.num_rows) == int(theirs.num_rows) < 128
    np.testing.assert_array_equal(ours.features, theirs.features)
    np.testing.assert_allclose(ours.folded.precision, theirs.folded.precision, rtol=1e-9)
    assert ours.to_bytes() == dp.load_bytes(ours.to_bytes()).to_bytes()


def test_draws_do_not_depend_on_who_else_asks(service: TestClient) -> None:
    version = service.engine.catalog.versions_of("shop")[0]
    empty, seeds = version.empty, range(2 * TASKS_PER_CALL)
    requests = [TaskRequest(empty.leaves, empty.structure, seed, 5) for seed in seeds]
    together = version.policy(requests)
    for i, request in enumerate(requests):
        alone = version.policy([request]).of(0).theta
        np.testing.assert_array_equal(together.of(i).theta, alone)


def test_reward_reaches_the_posterior(service: TestClient) -> None:
    for i in range(30):
        table = [[1.0, 0.0], [1.0, 0.0]]
        reward(service, decide(service, features=table)["decision_id"], float(i % 10 > 0))
    about = service.get("/v1/models/shop/tasks/a").json()
    assert about["num_decisions"] == about["num_rewards"] == 30
    rewards = (np.arange(30) % 10 > 0).astype(float)
    exact, _ = PRIOR.posterior(dp.Linear(1.0).observe(np.tile([1.0, 0.0], (30, 1)), rewards))
    moments = exact.moments()
    error = 5 * np.sqrt(np.diagonal(moments.cov) / about["posterior"]["num_draws"])
    assert np.all(np.abs(about["posterior"]["mean"] - np.asarray(moments.mean)) < error)
    assert about["prior"]["mean"] == pytest.approx([0.0, 0.25])


def test_the_same_decision_twice_is_one(service: TestClient) -> None:
    first = decide(service, decision_id="x1")
    assert decide(service, decision_id="x1") == first
    assert service.get("/v1/models/shop/tasks/a").json()["num_decisions"] == 1
    body = {"features": features(5), "decision_id": "x1"}
    assert service.post("/v1/models/shop/tasks/a/decisions", json=body).status_code == 409
    body = {"features": features(0), "decision_id": "x1"}
    assert service.post("/v1/models/shop/tasks/b/decisions", json=body).status_code == 409


def test_the_same_reward_twice_is_one(service: TestClient) -> None:
    identity = decide(service)["decision_id"]
    assert reward(service, identity, 1.0)["status"] == "learned"
    assert reward(service, identity, 1.0)["status"] == "learned"
    assert reward(service, identity, 0.0, reward_id="second")["status"] == "ignored"
    again = service.post(f"/v1/decisions/{identity}/reward", json={"reward": 0.0})
    assert again.status_code == 409
    assert service.get("/v1/models/shop/tasks/a").json()["num_rewards"] == 1


def test_named_actions_masks_and_rankings(service: TestClient) -> None:
    named = {"red": [1.0, 0.0], "blue": [0.0, 1.0], "green": [-1.0, 0.0]}
    assert decide(service, actions=named)["action"] in named
    only = decide(service, actions=named, mask=[False, True, False], decision_id="m")
    assert only["action"] == "blue" and only["propensity"] == 1.0
    ranked = decide(service, actions=named, top_k=2)["action"]
    assert len(ranked) == len(set(ranked)) == 2


def test_shadow_mode_takes_the_callers_action(service: TestClient) -> None:
    for i in range(8):
        reply = decide(service, features=[[1.0, 0.0], [-1.0, 0.0]], action_taken=1)
        assert reply["action"] == 1
        assert reply.get("recommended", 1) in (0, 1)
        reward(service, reply["decision_id"], float(i % 2))
    assert 0 <= reply["propensity"] <= 1


def test_many_tasks_in_one_call(service: TestClient) -> None:
    body = [{"task": f"t{i}", "features": features(i)} for i in range(20)]
    body.append({"task": "bad", "features": [[1.0]]})
    reply = service.post("/v1/models/shop/decisions", json={"decisions": body}).json()
    good, bad = reply["decisions"][:-1], reply["decisions"][-1]
    assert len({decision["decision_id"] for decision in good}) == 20
    assert bad["status"] == 422 and "features" in bad["error"]


def test_propensities_add_up_to_one(make_service: MakeService) -> None:
    client = make_service(**(LINEAR | {"propensity_draws": 512}))
    table = [[0.3, 0.2], [-0.1, 0.4], [0.2, -0.3]]
    replies = [decide(client, features=table, action_taken=action) for action in range(3)]
    shares = [reply["propensity"] for reply in replies]
    error = 5 * np.sqrt(sum(reply["propensity_se"] ** 2 for reply in replies))
    assert abs(sum(shares) - 1.0) < error and all(0 < share < 1 for share in shares)


def test_rejected_requests_say_why(service: TestClient) -> None:
    bodies = [
        {"features": [[1, 2, 3]]},
        {"features": [[1, 2], [1]]},
        {"features": []},
        {},
        {"features": [[1, 2]], "mask": [False]},
        {"features": [[1, 2]], "top_k": 2},
        {"features": [[1, 2]], "action_taken": 7},
        {"features": [[1, 2]], "extra": 1},
        {"features": [[1, 2]], "decision_id": "a b"},
    ]
    calls = [("/v1/models/shop/tasks/a/decisions", body, 422) for body in bodies]
    calls += [
        ("/v1/models/none/tasks/a/decisions", {"features": [[1, 2]]}, 404),
        ("/v1/decisions/none/reward", {"reward": 1}, 404),
        ("/v1/decisions/none/cancel", None, 404),
    ]
    for path, body, status in calls:
        reply = service.post(path, json=body)
        assert reply.status_code == status, (path, body)
        assert reply.json()["error"]
    assert service.get("/v1/models/shop").json()["num_tasks"] == 0


def test_a_reward_outside_the_support_is_rejected(make_service: MakeService) -> None:
    service = make_service(**LOGISTIC)
    identity = decide(service)["decision_id"]
    reply = service.post(f"/v1/decisions/{identity}/reward", json={"reward": 0.5})
    assert reply.status_code == 422 and "0 or 1" in reply.json()["error"]
    assert reward(service, identity, 1.0)["status"] == "learned"
