"""Raw columns and attributes over HTTP: as a `Model` takes them, and errors that name columns."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.feature_network import FeatureNetwork
from diffprior.service.models import task_seed
from diffprior.service.store import Database, decisions, read_rows
from service.conftest import MakeService, decide, reward

ROWS = [
    {"age": 20 + i % 30, "device": ("ios", "web", "tv")[i % 3], "member": i % 4 == 0}
    for i in range(90)
]
ENCODER = dp.Encoder.fit(ROWS)
DIM = ENCODER.dim
SHOPS = dp.Encoder.fit(
    [{"kind": ("toys", "food")[i % 2], "size": float(i % 7)} for i in range(60)], intercept=False
)
ACTIONS = {
    "red": {"age": 31, "device": "ios", "member": True},
    "blue": {"age": 44, "device": "radio", "member": False},
}


def given_attributes(fit: Callable[..., Any] = dp.GaussianPrior.fit) -> Any:
    """A prior that was learned with attributes of 300 tasks."""
    rng = np.random.default_rng(0)
    kinds = [{"kind": ("toys", "food")[i % 2], "size": float(i % 7)} for i in range(300)]
    z = SHOPS.encode(kinds)
    theta = z @ rng.normal(size=(SHOPS.dim, DIM)) + 0.5 * rng.normal(size=(300, DIM))
    return fit(theta, attributes=z)


MODEL = dp.Model(given_attributes(), dp.Linear(0.5), ENCODER, SHOPS)
OPTIONS: dict[str, Any] = {"prior": MODEL, "likelihood": None, "propensity_draws": 4}


@pytest.fixture
def shop(make_service: MakeService) -> TestClient:
    """A service of a model with columns and attributes."""
    return make_service(**OPTIONS)


def test_raw_actions_are_those_of_a_model(shop: TestClient, database: Database) -> None:
    seed = task_seed(shop.engine.catalog.versions_of("shop")[0].seed, "a")
    attributes = {"kind": "toys", "size": 2.0}
    bandit = MODEL.bandit(attributes, seed=seed)
    names, rows = list(ACTIONS), list(ACTIONS.values())
    for i in range(12):
        found = decide(shop, actions=ACTIONS, **({"attributes": attributes} if i == 0 else {}))
        taken = names.index(found["action"])
        assert taken == bandit.decide(rows).action
        reward(shop, found["decision_id"], 0.1 * i)
        bandit.update(rows[taken], 0.1 * i)
    with database.reading() as connection:
        (*_, row) = read_rows(connection, decisions.select())
    assert json.loads(row["raw"]) == rows
    np.testing.assert_array_equal(
        np.frombuffer(row["features"]).reshape(2, -1), ENCODER.encode(rows)
    )
    (*_, last) = [decide(shop, features=rows), decide(shop, features=ENCODER.encode(rows).tolist())]
    assert last["action"] in (0, 1)


def test_attributes_move_prior_and_posterior(shop: TestClient) -> None:
    model, likelihood = MODEL, MODEL.likelihood
    attributes = {"kind": "food", "size": 6.0}
    reply = shop.put("/v1/models/shop/tasks/a", json={"attributes": attributes})
    assert reply.status_code == 200 and reply.json()["attributes"] == attributes
    about = shop.get("/v1/models/shop/tasks/a").json()
    exact = model.prior_given(attributes)
    np.testing.assert_allclose(about["prior"]["mean"], np.asarray(exact.moments().mean), rtol=1e-6)
    assert about["attributes"] == attributes and about["features"] == list(ENCODER.names)
    rewards, taken = [], []
    for i in range(40):
        found = decide(shop, actions=ACTIONS)
        taken.append(ENCODER.encode(ACTIONS[found["action"]]))
        rewards.append(float(i % 3 > 0))
        reward(shop, found["decision_id"], rewards[-1])
    posterior = shop.get("/v1/models/shop/tasks/a").json()["posterior"]
    evidence = likelihood.observe(np.array(taken), np.array(rewards))
    draws, _ = dp.best_sampler(exact).sample_many(dp_key(), evidence, 4000)
    mean, std = np.asarray(draws).mean(axis=0), np.asarray(draws).std(axis=0)
    error = 5 * std * np.sqrt(1 / 4000 + 1 / posterior["num_draws"])
    assert np.all(np.abs(np.array(posterior["mean"]) - mean) < error)


def dp_key() -> Any:
    """A key of JAX."""
    import jax

    return jax.random.key(1)


def test_a_task_without_attributes_is_an_average_one(shop: TestClient) -> None:
    decide(shop, actions=ACTIONS)
    about = shop.get("/v1/models/shop/tasks/a").json()
    mean = np.asarray(MODEL.prior_given(None).moments().mean)
    np.testing.assert_allclose(about["prior"]["mean"], mean, rtol=1e-6)


def test_errors_name_the_column(shop: TestClient, make_service: MakeService) -> None:
    red = ACTIONS["red"]
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"actions": {"red": red | {"agee": 3}}}, "`agee`"),
        ({"actions": {"red": red | {"age": "31"}}}, "`age`"),
        ({"actions": {"red": red | {"member": "yes"}}}, "`member`"),
        ({"actions": {"red": {"age": 31, "member": True}}}, "`device`"),
        ({"actions": {"red": red | {"age": None}}}, "`age`"),
        ({"actions": {"red": red | {"age": {"years": 3}}}}, "age"),
        ({"actions": {"red": red, "blue": [1.0]}}, "one kind"),
        ({"actions": ACTIONS, "attributes": {"kind": "toys"}}, "`size`"),
        ({"actions": ACTIONS, "attributes": {"kind": "toys", "size": "big"}}, "`size`"),
    ]
    path = "/v1/models/shop/tasks/a/decisions"
    for body, words in wrong:
        reply = shop.post(path, json=body)
        assert reply.status_code == 422 and words in reply.json()["error"], reply.json()
    reply = shop.put("/v1/models/shop/tasks/a", json={"attributes": {"colour": "red"}})
    assert reply.status_code == 422 and "`colour`" in reply.json()["error"]
    assert shop.get("/v1/models/shop").json()["num_tasks"] == 0


def test_models_of_arrays_take_numbers(make_service: MakeService) -> None:
    prior = given_attributes()
    client = make_service(prior=prior, likelihood="linear", likelihood_options={"noise_std": 1.0})
    z = [1.0] * (SHOPS.dim - 1) + [None]
    reply = client.put("/v1/models/shop/tasks/a", json={"attributes": z})
    assert reply.json()["attributes"] == z
    filled = np.array([np.nan if x is None else x for x in z])
    mean = client.get("/v1/models/shop/tasks/a").json()["prior"]["mean"]
    np.testing.assert_allclose(mean, np.asarray(prior.given(filled).moments().mean), rtol=1e-6)
    for attributes in ({"kind": "toys"}, [1.0] * 9):
        reply = client.put("/v1/models/shop/tasks/a", json={"attributes": attributes})
        assert reply.status_code == 422 and "attributes" in reply.json()["error"]
    reply = client.post("/v1/models/shop/tasks/a/decisions", json={"actions": ACTIONS})
    assert reply.status_code == 422 and "learned from arrays" in reply.json()["error"]


def test_the_columns_are_described(shop: TestClient) -> None:
    about = shop.get("/v1/models/shop").json()["versions"][0]
    assert [c["name"] for c in about["columns"]] == ["age", "device", "member"]
    assert about["columns"][1]["type"] == "category" and "ios" in about["columns"][1]["levels"]
    assert [c["name"] for c in about["attributes"]] == ["kind", "size"]
    paths = shop.get("/openapi.json").json()["paths"]
    content = paths["/v1/models/{model}/tasks/{task}/decisions"]["post"]["requestBody"]["content"]
    example = content["application/json"]["examples"]["shop"]["value"]
    assert decide(shop, **example)["action"] in example["actions"]
    content = paths["/v1/models/{model}/tasks/{task}"]["put"]["requestBody"]["content"]
    example = content["application/json"]["examples"]["shop"]["value"]
    assert shop.put("/v1/models/shop/tasks/b", json=example).status_code == 200


def test_retired_tasks_get_no_decisions(service: TestClient) -> None:
    assert service.delete("/v1/models/shop/tasks/a").status_code == 404
    found = decide(service, decision_id="d")
    reply = service.delete("/v1/models/shop/tasks/a")
    assert reply.status_code == 200 and reply.json()["retired"] > 0
    assert service.delete("/v1/models/shop/tasks/a").json() == reply.json()
    body = {"features": [[1.0, 2.0]]}
    reply = service.post("/v1/models/shop/tasks/a/decisions", json=body)
    assert reply.status_code == 409 and "put it again" in reply.json()["error"]
    assert decide(service, decision_id="d") == found  # whose reply may have been lost
    assert reward(service, found["decision_id"], 1.0)["status"] == "learned"
    assert service.put("/v1/models/shop/tasks/a", json={}).json()["retired"] is None
    decide(service)
    reply = service.put("/v1/models/shop/tasks/a", json={"attributes": [1.0]})
    assert reply.status_code == 422 and "learned without" in reply.json()["error"]


def test_numbers_are_raw_rows_where_features_are_learned(
    make_service: MakeService, database: Database
) -> None:
    """The same decisions as by name, a log of the columns, and repeated calls known again."""
    rng, width = np.random.default_rng(0), 4
    shapes = (2, width), (width,), (width, width), (width,), (3 + width, 3)
    network = FeatureNetwork(np.zeros(2), np.ones(2), *map(rng.standard_normal, shapes))
    plain = dp.Encoder.fit([{"age": i / 9, "price": i % 4} for i in range(9)], ["age", "price"])
    encoder = dataclasses.replace(plain, intercept=False, network=network)
    prior = dp.GaussianPrior(np.zeros(3), np.eye(3))
    service = make_service(**OPTIONS | {"prior": dp.Model(prior, dp.Linear(0.5), encoder)})
    numbers = rng.standard_normal((4, 2))
    rows = [dict(zip(("age", "price"), row, strict=True)) for row in numbers.tolist()]
    asked = {"features": numbers.tolist(), "decision_id": "one"}
    first = decide(service, **asked)
    assert first == decide(service, **asked)
    assert decide(service, task="b", features=rows)["action"] in range(4)
    assert (
        "columns"
        in service.post("/v1/models/shop/tasks/a/decisions", json={"features": [[1.0]]}).json()[
            "error"
        ]
    )
    with database.reading() as connection:
        found = read_rows(connection, decisions.select())
    for row in found:
        assert json.loads(row["raw"]) == rows
        phi = np.frombuffer(row["features"]).reshape(4, 3)
        np.testing.assert_allclose(phi, network(numbers), rtol=1e-12)
