"""Choices among items over HTTP: Thompson sampling exactly, logged once, learned by the item."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.logs.decisions import candidate_ids
from diffprior.service.engine import Engine
from diffprior.service.panels import Panels
from diffprior.service.requests import Choose, Decide
from diffprior.service.store import Database, candidates, decisions, read_rows, tasks
from diffprior.service.tasks import rebuild
from service.conftest import LINEAR, LOGISTIC, PRIOR, MakeService, decide, reward, running_service
from service.crash import new_database
from service.test_raw import OPTIONS

CONTEXT = [0.8, -0.6]
ITEMS = ["a", "b", "c"]


def choose(client: TestClient, status: int = 200, **body: Any) -> dict[str, Any]:
    """Reply to a choice."""
    body = {"context": CONTEXT, **body}
    reply = client.post("/v1/models/shop/choices", json=body)
    assert reply.status_code == status, reply.text
    return reply.json()


def put(client: TestClient, *items: str) -> None:
    for item in items:
        assert client.put(f"/v1/models/shop/tasks/{item}", json={}).status_code == 200


def best_probabilities(posteriors: list[dp.MixturePrior], x: np.ndarray) -> np.ndarray:
    """Probabilities that each item is the best, by integration on a grid."""
    grid = np.linspace(-12, 12, 20_001)
    density, below = np.zeros((2, len(posteriors), len(grid)))
    for i, posterior in enumerate(posteriors):
        for weight, mean, cov in zip(
            posterior.weights, posterior.means, posterior.covs, strict=True
        ):
            one = norm(x @ np.asarray(mean), np.sqrt(x @ np.asarray(cov) @ x))
            density[i] += float(weight) * one.pdf(grid)
            below[i] += float(weight) * one.cdf(grid)
    others = [np.prod(np.delete(below, i, axis=0), axis=0) for i in range(len(posteriors))]
    return np.trapezoid(density * np.stack(others), grid, axis=1)


def test_choices_are_thompson_sampling_and_propensities_weights(
    make_service: MakeService,
) -> None:
    num = 1024
    client = make_service(**(LINEAR | {"propensity_draws": 64}), panel_draws=num)
    engine = client.engine
    engine.panels = Panels(engine.database, engine.catalog, engine.task_cache, seed=0)
    rng, seen = np.random.default_rng(0), {item: [] for item in ITEMS}
    for item in ITEMS[:2] * 4:
        x = rng.uniform(-1, 1, 2).round(3).tolist()
        found = choose(client, context=x, items=[item])
        assert found["item"] == item and found["propensity"] == 1.0
        reward(client, found["decision_id"], 0.3)
        seen[item].append(x)
    put(client, "c")
    engine.panels.build("shop")
    x = np.asarray(CONTEXT)
    futures = [engine.submit(Choose("shop", x[None])) for _ in range(num)]
    replies = [future.result(60) for future in futures]
    posteriors = [
        PRIOR.posterior(dp.Linear(1.0).observe(np.array(rows), np.full(len(rows), 0.3)))[0]
        if rows
        else PRIOR
        for rows in seen.values()
    ]
    exact = best_probabilities(posteriors, x)
    counts = np.array([sum(reply["item"] == item for reply in replies) for item in ITEMS])
    z = (counts - num * exact) / np.sqrt(num * exact * (1 - exact))
    assert np.all(np.abs(z) < 5), (counts, exact)
    weights = np.array([1 / reply["propensity"] for reply in replies])
    error = weights.std() / np.sqrt(num / 2)  # draws are those of other choices too
    assert abs(weights.mean() - len(ITEMS)) < 5 * error


def test_evidence_is_that_of_the_item_and_of_the_log(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LOGISTIC, panel_draws=8)
    put(client, *ITEMS)
    rng = np.random.default_rng(0)
    for i in range(24):
        found = choose(client, context=rng.uniform(-1, 1, 2).round(3).tolist())
        reward(client, found["decision_id"], float(i % 2))
        if i % 10 == 0:
            decide(client, "a")  # a task is an item
    with database.reading() as connection:
        rows = read_rows(connection, decisions.select())
        (found,) = read_rows(connection, candidates.select())
        named = {row["id"]: row for row in read_rows(connection, tasks.select())}
    assert [named[i]["name"] for i in candidate_ids(found["items"])] == ITEMS
    about = client.get("/v1/models/shop/tasks/a").json()
    assert about["num_decisions"] == sum(named[row["task_id"]]["name"] == "a" for row in rows)
    for (task, _), state in client.engine.task_cache.items():
        assert state.num_learned == named[task]["num_learned"]
    cached = dict(client.engine.task_cache)
    with running_service(database) as again:
        assert choose(again)["item"] in ITEMS  # items were drawn on the start
        restored = {k: s.arrays.evidence.to_bytes() for k, s in again.engine.task_cache.items()}
    for key, content in restored.items():
        assert cached[key].arrays.evidence.to_bytes() == content
    assert rebuild(database).problems == []


def test_the_same_choice_twice_is_one(service: TestClient) -> None:
    first = choose(service, items=ITEMS, decision_id="x1")
    assert choose(service, items=ITEMS, decision_id="x1") == first
    assert choose(service, 409, items=["a"], decision_id="x1")["error"]
    body = {"features": [CONTEXT], "decision_id": "x1"}
    assert service.post("/v1/models/shop/tasks/a/decisions", json=body).status_code == 409
    same = [Choose("shop", np.array([CONTEXT]), decision_id="x2") for _ in range(3)]
    replies = [service.engine.submit(request).result(60) for request in same]
    assert replies[0] == replies[1] == replies[2]
    assert reward(service, "x1", 1.0)["status"] == "learned"
    found = service.get("/v1/decisions/x1").json()
    assert found["item"] == found["task"] == first["item"] and len(found["rewards"]) == 1


def test_who_may_be_chosen(service: TestClient) -> None:
    assert "put tasks" in choose(service, 422)["error"]
    put(service, *ITEMS)
    for _ in range(20):
        assert choose(service, exclude=["a", "never seen"])["item"] in ("b", "c")
    assert choose(service, exclude=["a", "c"], items=["a", "b"])["item"] == "b"
    ranked = choose(service, top_k=2)["item"]
    assert len(set(ranked)) == 2
    service.delete("/v1/models/shop/tasks/b")
    assert sorted(choose(service, top_k=2)["item"]) == ["a", "c"]
    assert "retired" in choose(service, 409, items=["a", "b"])["error"]
    assert "`top_k`: expected 1 to 2" in choose(service, 422, top_k=3)["error"]
    put(service, "b")
    assert sorted(choose(service, top_k=3)["item"]) == ITEMS
    assert choose(service, items=["new"])["item"] == "new"
    shadow = choose(service, item_taken="b", exclude=["c"])
    assert shadow["item"] == "b" and shadow.get("recommended", "b") in ("a", "b", "new")
    assert "`item_taken`" in choose(service, 422, item_taken="c", exclude=["c"])["error"]
    deferred = choose(service, deferred=True)
    assert deferred["status"] == "deferred" and deferred["expires"] is None


def test_choices_do_not_wait_long_for_the_first_draws(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked to try again, so that they are not all the requests that may be under way."""
    service = make_service(**LINEAR, draw_seconds=0.1)
    put(service, *ITEMS)
    may_draw, fill = threading.Event(), Panels._fill
    monkeypatch.setattr(Panels, "_fill", lambda *a: may_draw.wait(60) and fill(*a))
    with ThreadPoolExecutor(8) as callers:
        found = list(callers.map(lambda _: choose(service, 503), range(8)))
    assert all("being drawn" in each["error"] for each in found)
    decide(service)
    may_draw.set()
    end = time.monotonic() + 60
    while service.engine.panels.missing("shop") and time.monotonic() < end:
        time.sleep(0.05)
    assert choose(service)["item"] in ITEMS


def test_rejected_choices_say_why(make_service: MakeService) -> None:
    service = make_service(**LINEAR, unknown_items="reject")
    assert "got 'z'" in choose(service, 404, items=["z"])["error"]
    for body in (
        {"context": [1, 2, 3]},
        {"context": {"age": 3}},
        {"context": [[1, 2]]},
        {"items": ["a", "a"]},
        {"items": []},
        {"top_k": 0},
        {"extra": 1},
    ):
        assert choose(service, 422, **body)["error"]
    reply = service.post("/v1/models/none/choices", json={"context": CONTEXT})
    assert reply.status_code == 404
    assert service.get("/v1/models/shop").json()["num_tasks"] == 0


def test_raw_contexts_and_attributes_of_items(make_service: MakeService) -> None:
    """An item known to be of a good kind is chosen before it has shown anything."""
    shop = make_service(**OPTIONS)
    for kind in ("toys", "food"):
        body = {"attributes": {"kind": kind, "size": 3.0}}
        assert shop.put(f"/v1/models/shop/tasks/{kind}", json=body).status_code == 200
    visitor = {"age": 31, "device": "ios", "member": True}
    picked = [choose(shop, context=visitor)["item"] for _ in range(40)]
    means = {
        kind: shop.get(f"/v1/models/shop/tasks/{kind}").json()["prior"] for kind in ("toys", "food")
    }
    x = OPTIONS["prior"].encode(visitor)
    gap = x @ (np.array(means["toys"]["mean"]) - np.array(means["food"]["mean"]))
    std = np.sqrt(sum(np.sum((x * np.array(m["std"])) ** 2) for m in means.values()))
    share, expected = picked.count("toys") / 40, norm.cdf(gap / std)
    assert abs(share - expected) < 5 * np.sqrt(0.25 / 40)
    error = choose(shop, 422, context=visitor | {"age": "31"})["error"]
    assert error.startswith("`age`")
    paths = shop.get("/openapi.json").json()["paths"]
    content = paths["/v1/models/{model}/choices"]["post"]["requestBody"]["content"]
    example = content["application/json"]["examples"]["shop"]["value"]
    assert choose(shop, **example)["item"] in ("toys", "food")


@pytest.mark.parametrize("sampler", ["random", "linucb"])
def test_other_agents(make_service: MakeService, sampler: str) -> None:
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    client = make_service(**LINEAR, sampler=sampler, prior=prior)
    put(client, *ITEMS)
    if sampler == "linucb":
        assert "`sampler`" in choose(client, 422)["error"]
    else:
        assert choose(client)["propensity"] == pytest.approx(1 / 3)
        assert choose(client, top_k=2)["propensity"] == pytest.approx(2 / 3)


def test_versions_share_choices_and_evidence(make_service: MakeService) -> None:
    client = make_service(**LINEAR)
    put(client, *ITEMS)
    engine = client.engine
    settings = engine.catalog.versions_of("shop")[0].settings
    engine.catalog.put("shop", settings, dp.GaussianPrior(np.zeros(2), np.eye(2)), 0.5)
    engine.prepare()
    replies = [choose(client, decision_id=f"d{i}") for i in range(40)]
    assert {reply["model_version"] for reply in replies} == {1, 2}
    assert json.loads(json.dumps(replies)) == [
        choose(client, decision_id=f"d{i}") for i in range(40)
    ]
    for reply in replies:
        reward(client, reply["decision_id"], 1.0)
    for panel in engine.panels._panels.values():
        while panel.due:  # until all items have been drawn again, under both versions
            choose(client)
    for panel in engine.panels._panels.values():
        assert not panel.due and [item["num_learned"] for item in panel._items] == [
            client.get(f"/v1/models/shop/tasks/{item['name']}").json()["num_rewards"]
            for item in panel._items
        ]


@pytest.fixture
def engines(postgres_server: Any) -> Iterator[list[Engine]]:
    """Of two processes on one PostgreSQL."""
    opened = [Database(new_database(postgres_server, "two"))]
    opened.append(Database(opened[0].url.render_as_string(hide_password=False)))
    with ExitStack() as stack:
        for database in opened:
            stack.callback(database.close)
        yield [stack.enter_context(running_service(d, **LINEAR)).engine for d in opened]


@pytest.mark.filterwarnings("ignore")  # of pgserver's own
def test_processes_do_the_same_at_once(engines: list[Engine]) -> None:
    """Every choice is made, in whatever order each first sees its new items; of two decisions of
    one id, of different tasks, one is.
    """
    rng = np.random.default_rng(0)
    for engine in engines:
        engine.panels.build("shop")
    for turn in range(3):
        futures = [
            engine.submit(Choose("shop", np.array([CONTEXT]), [f"{turn}-{i}" for i in some]))
            for _ in range(60)
            for engine in engines
            for some in [rng.choice(200, 5, replace=False)]
        ]
        assert all(future.result(60) for future in futures)
    for turn in range(20):
        futures = [
            engine.submit(Decide("shop", f"{turn}-{i}", np.eye(2), decision_id=f"same-{turn}"))
            for i, engine in enumerate(engines)
        ]
        errors = [future.exception(60) for future in futures]
        assert [error.status for error in errors if error] == [409]
    assert all(engine.healthy for engine in engines)
