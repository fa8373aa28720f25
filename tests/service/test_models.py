"""Models and their versions: shares of the tasks, rollback, rejected priors."""

import base64
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.service.api import make_app
from diffprior.service.auth import Tokens
from diffprior.service.engine import Engine
from diffprior.service.gate import Limits
from diffprior.service.metrics import Metrics
from diffprior.service.models import Catalog, Version
from diffprior.service.settings import Settings
from diffprior.service.store import Database
from service.conftest import LINEAR, PRIOR, decide, features


def put(
    client: TestClient, prior: dp.AbstractPrior | dp.Model, name: str = "shop", **body: object
) -> dict:
    """Put a version of a model."""
    text = base64.b64encode(prior.to_bytes()).decode()
    settings = LINEAR
    body = {"prior": text, "settings": settings, **body}
    reply = client.put(f"/v1/models/{name}", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def shares(about: dict) -> dict[int, float]:
    """Shares by version."""
    return {version["version"]: version["share"] for version in about["versions"]}


def served(client: TestClient, tasks: range) -> dict[str, int]:
    """The version that serves each task."""
    bodies = [{"task": f"t{i}", "features": features(i)} for i in tasks]
    replies = client.post("/v1/models/shop/decisions", json={"decisions": bodies}).json()
    return {
        body["task"]: reply["model_version"]
        for body, reply in zip(bodies, replies["decisions"], strict=True)
    }


def test_a_new_version_takes_its_share_and_keeps_its_tasks(service: TestClient) -> None:
    other = dp.GaussianPrior(np.zeros(2), np.eye(2))
    assert shares(put(service, other, share=0.3)) == {1: 0.7, 2: 0.3}
    first = served(service, range(60))
    count = sum(version == 2 for version in first.values())
    assert abs(count - 18) < 5 * np.sqrt(60 * 0.3 * 0.7)
    service.put("/v1/models/shop/versions/2", json={"share": 0.6})
    second = served(service, range(60))
    assert all(second[task] == 2 for task, version in first.items() if version == 2)
    assert sum(version == 2 for version in second.values()) > count
    assert shares(service.post("/v1/models/shop/rollback").json()) == {1: 1.0, 2: 0.0}
    assert set(served(service, range(20)).values()) == {1}
    assert service.post("/v1/models/shop/rollback").status_code == 409


def test_no_decision_waits_for_a_version_that_another_process_has_put(
    service: TestClient, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_compile, warm_up = threading.Event(), Version.warm_up

    def slow(version: Version) -> None:
        assert may_compile.wait(60)
        warm_up(version)

    monkeypatch.setattr(Version, "warm_up", slow)
    settings = Settings(**LINEAR)
    other = Catalog(database)
    other.put("shop", settings, dp.GaussianPrior(np.zeros(2), np.eye(2)), 1.0)
    other.put("lab", settings, dp.GaussianPrior(np.zeros(2), np.eye(2)), 1.0)
    lab = "/v1/models/lab/tasks/a/decisions"
    until(lambda: service.post(lab, json={"features": features(0)}).status_code == 503)
    assert decide(service)["model_version"] == 1
    may_compile.set()
    until(lambda: decide(service)["model_version"] == 2)
    until(lambda: service.post(lab, json={"features": features(0)}).status_code == 200)


def test_calls_wait_until_the_models_are_compiled(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_compile, warm_up = threading.Event(), Version.warm_up
    monkeypatch.setattr(Version, "warm_up", lambda v: may_compile.wait(60) and warm_up(v))
    engine = Engine(database, metrics=Metrics())
    engine.catalog.put("shop", Settings(**LINEAR), PRIOR, 1.0)
    app = make_app(engine, Tokens(database, required=False), limits=Limits())
    with TestClient(app, "http://localhost") as client:
        many = {"decisions": [{"task": "a", "features": features(0)}]}
        for path, body in (("tasks/a/decisions", {"features": features(0)}), ("decisions", many)):
            reply = client.post(f"/v1/models/shop/{path}", json=body)
            assert reply.status_code == 503 and "compiled" in reply.json()["error"]
            assert reply.headers["retry-after"] == "1"
        reply = client.get("/ready")
        assert reply.status_code == 503 and "compiled" in reply.json()["problem"]
        assert client.get("/health").status_code == client.get("/v1/models").status_code == 200
        may_compile.set()
        until(lambda: client.get("/ready").status_code == 200)
        decide(client)


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Ask again until it is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_evidence_goes_with_the_task_to_another_version(service: TestClient) -> None:
    for i in range(5):
        identity = decide(service, features=features(i))["decision_id"]
        service.post(f"/v1/decisions/{identity}/reward", json={"reward": 1})
    put(service, dp.GaussianPrior(np.zeros(2), np.eye(2)), share=1.0)
    about = service.get("/v1/models/shop/tasks/a").json()
    assert about["model_version"] == 2 and about["num_rewards"] == 5
    assert np.all(np.asarray(about["posterior"]["std"]) < 1.0)


def test_a_second_model_and_its_tasks(service: TestClient) -> None:
    put(service, dp.GaussianPrior(np.zeros(3), np.eye(3)), name="lab")
    names = [model["model"] for model in service.get("/v1/models").json()["models"]]
    assert names == ["lab", "shop"]
    reply = service.post("/v1/models/lab/tasks/x/decisions", json={"features": [[1, 2, 3]]})
    assert reply.status_code == 200
    for name in "cab":
        decide(service, name)
    page = service.get("/v1/models/shop/tasks", params={"limit": 2}).json()["tasks"]
    assert [task["task"] for task in page] == ["a", "b"]
    page = service.get("/v1/models/shop/tasks", params={"after": "b"}).json()["tasks"]
    assert [task["task"] for task in page] == ["c"]


def test_a_model_brings_its_likelihood_and_a_prior_needs_one(service: TestClient) -> None:
    saved = dp.Model(PRIOR, dp.Linear(0.5), feature_names=("age", "price"))
    about = put(service, saved, "priced", settings={})["versions"][0]
    settings = about["settings"]
    assert settings["likelihood"] == "linear" and settings["likelihood_options"] == {
        "noise_std": 0.5
    }
    assert about["features"] == ["age", "price"]
    decided = service.post("/v1/models/priced/tasks/a/decisions", json={"features": features(0)})
    assert decided.status_code == 200
    for content, given, words in (
        (saved, {"likelihood": "logistic"}, "leave it out"),
        (PRIOR, {}, "which a prior does not say"),
    ):
        text = base64.b64encode(content.to_bytes()).decode()
        reply = service.put("/v1/models/other", json={"prior": text, "settings": given})
        assert reply.status_code == 422 and words in reply.json()["error"]


def test_files_that_are_not_priors_are_rejected(service: TestClient) -> None:
    evidence = dp.Logistic().observe(dim=2)
    for prior in (b"", b"!!", base64.b64encode(b"nonsense"), base64.b64encode(evidence.to_bytes())):
        reply = service.put("/v1/models/new", json={"prior": prior.decode()})
        assert reply.status_code == 422
        assert "prior" in reply.json()["error"]
    assert service.get("/v1/models/new").status_code == 404


def test_the_last_version_serves_all_tasks(service: TestClient) -> None:
    assert service.put("/v1/models/shop/versions/1", json={"share": 0.5}).status_code == 409
    assert service.put("/v1/models/shop/versions/9", json={"share": 0.5}).status_code == 404
    assert PRIOR.dim == service.get("/v1/models/shop").json()["versions"][0]["dim"]
