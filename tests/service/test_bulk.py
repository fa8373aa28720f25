"""Rewards by the thousand, and tasks that bring their past along."""

from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import diffprior as dp
from cli.helpers import run
from diffprior.service.auth import create_token
from diffprior.service.bases import import_logs
from diffprior.service.store import Database
from diffprior.service.tasks import rebuild
from service.conftest import LINEAR, LOGISTIC, MakeService, decide, features, reward


def test_many_rewards_in_one_call(service: TestClient) -> None:
    """Each has an outcome of its own; they are more than one batch."""
    ids = []
    for start in (0, 150):
        bodies = [{"task": f"t{i % 7}", "features": features(i)} for i in range(start, start + 150)]
        reply = service.post("/v1/models/shop/decisions", json={"decisions": bodies}).json()
        ids += [one["decision_id"] for one in reply["decisions"]]
    reward(service, ids[3], 0.5)
    entries = [{"decision_id": identity, "reward": 1.0} for identity in ids]
    entries[5] = {"decision_id": "unknown", "reward": 1.0}
    entries[6] = {"decision_id": ids[4], "reward": 1.0, "reward_id": "more"}
    reply = service.post("/v1/rewards", json={"rewards": entries})
    assert reply.status_code == 200
    said = reply.json()["rewards"]
    assert [(i, one["status"]) for i, one in enumerate(said) if one["status"] != "learned"] == [
        (3, 409),
        (5, 404),
        (6, "ignored"),
    ]
    again = service.post("/v1/rewards", json={"rewards": entries}).json()["rewards"]
    assert again == said
    counts = [task["num_rewards"] for task in service.get("/v1/models/shop/tasks").json()["tasks"]]
    assert sum(counts) == len(ids) - 2
    for wrong in ([], [{"decision_id": "a"}], [{"decision_id": "a", "reward": 1}] * 1001):
        assert service.post("/v1/rewards", json={"rewards": wrong}).status_code == 422


def test_many_rewards_need_the_right(make_service: MakeService, database: Database) -> None:
    client = make_service(required=True, **LINEAR)
    header = {"Authorization": f"Bearer {create_token(database, ('decide',))}"}
    identity = decide_as(client, header)
    body = {"rewards": [{"decision_id": identity, "reward": 1.0}]}
    assert client.post("/v1/rewards", json=body, headers=header).status_code == 403
    other = {"Authorization": f"Bearer {create_token(database, ('reward',), 'other')}"}
    said = client.post("/v1/rewards", json=body, headers=other).json()["rewards"]
    assert said[0]["status"] == 404


def decide_as(client: TestClient, headers: dict[str, str]) -> str:
    path = "/v1/models/shop/tasks/a/decisions"
    return client.post(path, json={"features": features(0)}, headers=headers).json()["decision_id"]


def past() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks, features and rewards of 24 rows of three tasks."""
    rng = np.random.default_rng(0)
    return np.repeat(["a", "b", "c"], 8), rng.normal(size=(24, 2)), rng.normal(size=24)


def test_imported_tasks_do_not_start_cold(make_service: MakeService, database: Database) -> None:
    """They know what a bandit knows that was updated with the same rows."""
    client = make_service(**LINEAR)
    decide(client, "c")
    labels, phi, rewards = past()
    found = import_logs(database, "shop", dp.Logs(labels, phi, rewards))
    assert (found.num_tasks, found.num_rows) == (2, 16)
    assert "left out 1 tasks that have decisions already" in str(found)
    assert import_logs(database, "shop", dp.Logs(labels, phi, rewards)).num_tasks == 0
    extra = features(9)
    reply = decide(client, "a", features=extra)
    reward(client, reply["decision_id"], 0.5)
    expected = dp.Linear(1.0).observe(
        [*phi[:8], extra[reply["action"]]], np.append(rewards[:8], 0.5)
    )
    (state,) = (s for s in client.engine.task_cache.values() if s.num_learned == 9)
    np.testing.assert_allclose(state.arrays.evidence.precision, expected.precision, rtol=1e-5)
    np.testing.assert_allclose(state.arrays.evidence.shift, expected.shift, rtol=1e-5)
    about = client.get("/v1/models/shop/tasks/b").json()
    assert (about["num_decisions"], about["num_rewards"]) == (8, 8)
    assert not rebuild(database).problems
    with pytest.raises(ValueError, match="expected 2 features"):
        import_logs(database, "shop", dp.Logs(labels, np.eye(3)[np.arange(24) % 3], rewards))
    with pytest.raises(ValueError, match="1 to 200 characters"):
        import_logs(database, "shop", dp.Logs(np.repeat(["\n", "d"], 12), phi, rewards))


def test_the_command(make_service: MakeService, database: Database, tmp_path: Path) -> None:
    """Rewards outside the support are left out."""
    make_service(**LOGISTIC)
    labels, phi, rewards = past()
    ones = (rewards > 0).astype(float)
    ones[0] = 0.5
    rows = [f"{label},{x},{y},{r}" for label, (x, y), r in zip(labels, phi, ones, strict=True)]
    path = tmp_path / "past.csv"
    path.write_text("\n".join(["campaign,x1,x2,paid", *rows]))
    url = str(database.url.database)
    about = ("--database", url, "--task", "campaign", "--reward", "paid")
    said = run("import", path, "--model", "shop", *about)
    assert "3 tasks now know 23 past rewards; left out 1 rows that no version" in said
    assert "expected a model of the database (shop)" in run(
        "import", path, "--model", "none", *about, code=2
    )
