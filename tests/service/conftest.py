"""A service on a SQLite file, called without a network."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.service.api import make_app
from diffprior.service.auth import Tokens
from diffprior.service.engine import Engine
from diffprior.service.gate import Limits
from diffprior.service.metrics import Metrics
from diffprior.service.settings import Settings
from diffprior.service.store import Database
from service.crash import postgres

PRIOR = dp.MixturePrior([0.5, 0.5], [[-1.0, 0.5], [1.0, 0.0]], np.tile(0.2 * np.eye(2), (2, 1, 1)))
MakeService = Callable[..., TestClient]
LINEAR = {"likelihood": "linear", "likelihood_options": {"noise_std": 1.0}, "propensity_draws": 4}
LOGISTIC = {"likelihood": "logistic", "propensity_draws": 0, "max_rows": 128}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(str(tmp_path / "log.sqlite"))
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    """One PostgreSQL server for all tests, each of which makes databases of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pgserver's own
        with postgres() as server:
            yield server


@contextmanager
def running_service(
    database: Database,
    *,
    required: bool = False,
    prior: Any = PRIOR,
    draw_seconds: float = 60.0,
    **settings: Any,
) -> Iterator[TestClient]:
    """A service with these settings; `client.engine` is its engine."""
    engine = Engine(database, metrics=Metrics())
    if "shop" not in engine.catalog.names():
        engine.catalog.put("shop", Settings(**settings), prior, 1.0)
    limits = Limits(seconds=60.0, draw_seconds=draw_seconds)
    app = make_app(engine, Tokens(database, required=required), limits=limits)
    with TestClient(app, "http://localhost", raise_server_exceptions=True) as client:
        client.engine = engine
        engine.prepare()
        yield client


@pytest.fixture
def make_service(database: Database) -> Iterator[MakeService]:
    """Starts services with given settings, and stops them at the end."""
    with ExitStack() as services:
        yield lambda **settings: services.enter_context(running_service(database, **settings))


@pytest.fixture
def service(make_service: MakeService) -> TestClient:
    return make_service(**LINEAR)


def features(seed: int, num_actions: int = 3) -> list[list[float]]:
    """Features of some actions, short enough for JSON."""
    return np.random.default_rng(seed).uniform(-1, 1, (num_actions, 2)).round(3).tolist()


def decide(client: TestClient, task: str = "a", **body: Any) -> dict[str, Any]:
    """Reply to a decision, which must succeed."""
    body = body if "actions" in body or "features" in body else {"features": features(0), **body}
    reply = client.post(f"/v1/models/shop/tasks/{task}/decisions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def decide_and_reward(
    client: TestClient, tasks: Sequence[str], values: Callable[[int, int], float], at_once: int = 10
) -> None:
    """Decisions of these tasks in order, and their rewards by number and version, some at once."""
    for start in range(0, len(tasks), at_once):
        numbers = range(start, min(start + at_once, len(tasks)))
        bodies = [{"task": tasks[i], "features": features(i)} for i in numbers]
        reply = client.post("/v1/models/shop/decisions", json={"decisions": bodies}).json()
        rewards = [
            {"decision_id": each["decision_id"], "reward": values(i, each["model_version"])}
            for i, each in zip(numbers, reply["decisions"], strict=True)
        ]
        said = client.post("/v1/rewards", json={"rewards": rewards}).json()["rewards"]
        assert {one["status"] for one in said} == {"learned"}


def reward(client: TestClient, decision_id: str, value: float, **body: Any) -> dict[str, Any]:
    """Reply to a reward, which must succeed."""
    path = f"/v1/decisions/{decision_id}/reward"
    reply = client.post(path, json={"reward": value, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()
