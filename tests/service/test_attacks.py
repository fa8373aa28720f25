"""Attacks on the service, in the order of their danger; none works."""

import itertools
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import diffprior as dp
from cli.helpers import run
from diffprior.service.auth import create_token
from diffprior.service.batch import MAX_REWARDS
from diffprior.service.dashboard.model_page import ModelPage
from diffprior.service.models import Catalog, Version
from diffprior.service.requests import Decide, ServiceError, Settle
from diffprior.service.settings import Settings
from diffprior.service.store import Database, decisions, versions
from diffprior.service.tasks import TaskCache
from service.conftest import LINEAR, PRIOR, MakeService, decide, features, reward

PATH = "/v1/models/shop/tasks/a/decisions"


def test_no_body_is_read_before_the_token_is_known(
    make_service: MakeService, database: Database
) -> None:
    """1: of a body without a valid token, not a byte; large ones are for administrators."""
    client = make_service(required=True, **LINEAR)
    read = []

    def body() -> object:
        for _ in range(64):
            read.append(1)
            yield b"{" * 2**20

    for headers in ({}, {"Authorization": "Bearer dp_00000000_x"}):
        reply = client.put("/v1/models/shop", content=b"not json", headers=headers)
        assert reply.status_code == 401 and "token" in reply.json()["error"]
    decider = {"Authorization": f"Bearer {create_token(database, ('decide',))}"}
    admin = {"Authorization": f"Bearer {create_token(database, ('admin',))}"}
    large = b'{"prior": "' + b"x" * 3 * 2**20 + b'"}'
    assert client.put("/v1/models/shop", content=large, headers=decider).status_code == 413
    assert client.put("/v1/models/shop", content=large, headers=admin).status_code == 422
    many = b'{"settings": [' + b"{}," * 2**20 + b"{}]}"
    reply = client.put("/v1/models/shop", content=many, headers=admin)
    assert reply.status_code == 413 and "one long text" in reply.json()["error"]


def test_pages_of_other_origins_and_other_names_of_this_machine_can_do_nothing(
    service: TestClient,
) -> None:
    """2: nor can any page be framed."""
    identity = decide(service, deferred=True)["decision_id"]
    foreign = [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1234"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ]
    writes = [
        ("/v1/models/shop/rollback", ""),
        (f"/v1/decisions/{identity}/cancel", ""),
        (f"/v1/decisions/{identity}/activate", "x"),
        (PATH, json.dumps({"features": features(0)})),
        ("/sign-in", "token=x"),
    ]
    for headers in foreign:
        for path, body in writes:
            about = {"Content-Type": "text/plain", **headers}
            assert service.post(path, content=body, headers=about).status_code == 403, (path, about)
    assert service.get(f"/v1/decisions/{identity}").json()["status"] == "deferred"
    for host in ("evil.example", "localhost.evil.example", "", "127.0.0.2"):
        for path in ("/v1/models", "/health", "/"):
            assert service.get(path, headers={"Host": host}).status_code == 421
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]:1"):
        assert service.get("/health", headers={"Host": host}).status_code == 200
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert service.post(f"/v1/decisions/{identity}/cancel", headers=own).status_code == 200
    for path in ("/", "/docs", "/v1/models", "/nothing", "/openapi.json"):
        headers = service.get(path).headers
        assert headers["x-frame-options"] == "DENY", path
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"


def test_a_reward_of_a_version_that_another_process_added_is_learned(
    make_service: MakeService, database: Database
) -> None:
    """3: also if this process has not read the new version yet."""
    client = make_service(**LINEAR)
    identity = decide(client)["decision_id"]
    Catalog(database).put("shop", Settings(**LINEAR, temperature=0.5), PRIOR, 0.5)
    with database.transaction() as connection:
        connection.execute(decisions.update().values(version=2))
    client.engine.catalog._read = time.monotonic() + 100  # as if read just now
    assert reward(client, identity, 1.0)["status"] == "learned"


def test_cancelled_requests_are_dropped_and_a_long_queue_turns_requests_away(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4: nothing of them is in the log."""
    client = make_service(**LINEAR)
    engine, release = client.engine, threading.Event()
    serve = engine._serve

    def slow(requests: list) -> None:
        release.wait(30)
        serve(requests)

    monkeypatch.setattr(engine, "_serve", slow)
    engine.max_queued = 8
    first = engine.submit(Decide("shop", "first", np.eye(2)))
    time.sleep(0.1)  # it is being served
    gone = [engine.submit(Decide("shop", "gone", np.eye(2))) for _ in range(8)]
    assert all(future.cancel() for future in gone)
    with pytest.raises(ServiceError, match="too busy") as caught:
        engine.submit(Decide("shop", "late", np.eye(2))).result(30)
    assert caught.value.status == 503 and caught.value.retry_after
    release.set()
    first.result(30)
    engine.submit(Settle()).result(30)
    assert [task["task"] for task in client.get("/v1/models/shop/tasks").json()["tasks"]] == [
        "first"
    ]


def test_a_repeated_id_is_the_same_request(service: TestClient) -> None:
    """5: anything else in the body makes it another one."""
    body = {"features": features(0), "mask": [True, True, False], "decision_id": "x"}
    reply = decide(service, **body)
    assert decide(service, **body) == reply
    for change in (
        {"mask": [reply["action"] != i for i in range(3)]},
        {"top_k": 2},
        {"deferred": True},
        {"action_taken": 1},
        {"features": features(1)},
    ):
        assert service.post(PATH, json=body | change).status_code == 409, change
    assert service.post(PATH.replace("/a/", "/b/"), json=body).status_code == 409


def test_rewards_of_a_decision_are_limited(make_service: MakeService) -> None:
    """7: a repeated one is still answered."""
    client = make_service(**LINEAR, reward_wait=60, aggregation="sum")
    identity = decide(client)["decision_id"]
    for i in range(MAX_REWARDS):
        reward(client, identity, 1.0, reward_id=str(i))
    path = f"/v1/decisions/{identity}/reward"
    reply = client.post(path, json={"reward": 1.0, "reward_id": "more"})
    assert reply.status_code == 409 and "at most" in reply.json()["error"]
    assert reward(client, identity, 1.0, reward_id="3")["status"] == "waiting"


def test_expiry_keeps_up_with_decisions(make_service: MakeService) -> None:
    """7: it goes on while there is something to do, without waiting a second."""
    client = make_service(**(LINEAR | {"propensity_draws": 0}), reward_wait=0.2, default_reward=0.0)
    futures = [client.engine.submit(Decide("shop", f"t{i % 9}", np.eye(2))) for i in range(600)]
    for future in futures:
        future.result(60)
    served: list[float] = []
    inner = client.engine._serve

    def noted(requests: list) -> None:
        inner(requests)
        if isinstance(requests[0], Settle):
            served.append(requests[0].future.result())

    client.engine._serve = noted
    end = time.monotonic() + 30
    while sum(served) < 600 and time.monotonic() < end:
        time.sleep(0.05)
    with client.engine.database.reading() as connection:
        left = sa.select(sa.func.count()).where(decisions.c.settled.is_(False))
        assert connection.execute(left).scalar() == 0


def test_one_bad_version_stops_nothing(
    make_service: MakeService, database: Database, tmp_path: Path
) -> None:
    """9: it is not stored; one that was is reported, others serve, and it can be retired."""
    with pytest.raises(ValueError, match="expected noise_std"):
        Settings(likelihood="linear")
    catalog = Catalog(database)
    catalog.put("shop", Settings(**LINEAR), PRIOR, 1.0)
    catalog.put("shop", Settings(**LINEAR, temperature=2.0), PRIOR, 1.0)
    catalog.put("other", Settings(**LINEAR), PRIOR, 1.0)
    bad = json.dumps({"likelihood": "linear"})
    with database.transaction() as connection:
        for name, number in (("shop", 2), ("other", 1)):
            own = (versions.c.model == name) & (versions.c.version == number)
            connection.execute(versions.update().where(own).values(settings=bad))
    client = make_service(**LINEAR)
    assert decide(client)["model_version"] == 1
    ready = client.get("/ready")
    assert ready.status_code == 200 and "version 2 of shop cannot serve" in str(
        ready.json()["broken"]
    )
    assert (
        client.post(PATH.replace("shop", "other"), json={"features": features(0)}).status_code
        == 503
    )
    assert "version 2 of shop cannot serve" in client.get("/").text
    url = str(database.url.database)
    said = run("retire", "--database", url, "--model", "shop", "--version", 2)
    assert "left: 1 (100%)" in said
    assert "found none of number 7" in run(
        "retire", "--database", url, "--model", "shop", "--version", 7, code=2
    )
    assert Catalog(database).broken.keys() == {("other", 1)}


def test_the_same_version_twice_is_one(service: TestClient) -> None:
    """9: shares stay as they are."""
    catalog = service.engine.catalog
    second = catalog.put("shop", Settings(**LINEAR, temperature=0.5), PRIOR, 0.5)
    again = catalog.put("shop", Settings(**LINEAR, temperature=0.5), PRIOR, 0.5)
    assert again.version == second.version == 2
    assert [version.share for version in catalog.versions_of("shop")] == [0.5, 0.5]


def test_metrics_are_of_all_models_and_tokens_of_one_do_not_see_them(
    make_service: MakeService, database: Database
) -> None:
    """8."""
    client = make_service(required=True, **LINEAR)
    for model, status in (("shop", 403), (None, 200)):
        token = create_token(database, ("read",), model)
        headers = {"Authorization": f"Bearer {token}"}
        assert client.get("/metrics", headers=headers).status_code == status


def test_the_cookie_is_not_the_token(make_service: MakeService, database: Database) -> None:
    """8: it opens pages only, and not for ever."""
    client = make_service(required=True, **LINEAR)
    token = create_token(database, ("read",))
    client.post("/sign-in", data={"token": token}, follow_redirects=False)
    (cookie,) = client.cookies.jar
    assert token.split("_", 2)[2] not in cookie.value
    assert client.get("/").status_code == 200
    name, expires, seal = cookie.value.split(".")
    for forged in (
        f"{name}.{int(expires) + 1}.{seal}",
        f"{name}.1.{seal}",
        f"{name}.{expires}.{'0' * 64}",
        f"{name}.{expires}.é",
        f"{name}.{'9' * 5000}.{seal}",
        token,
        "..",
        "",
    ):
        client.cookies.clear()
        headers = {"Cookie": f"{cookie.name}={forged}".encode()}
        assert client.get("/", headers=headers).status_code == 401, forged
    assert (
        client.get("/v1/models", headers={"Authorization": f"Bearer {cookie.value}"}).status_code
        == 401
    )


def test_numbers_names_and_messages_are_strict(service: TestClient) -> None:
    """8: what looks the same is the same, and nothing is repeated at length."""
    row = features(0)[0]
    for body in (
        {"features": [[str(row[0]), row[1]]]},
        {"features": [[True, 0.0]]},
        {"features": [row], "top_k": "1"},
        {"features": [row], "mask": [1]},
        {"features": [row], "deferred": "yes"},
    ):
        assert service.post(PATH, json=body).status_code == 422, body
    twice = b'{"features": [[1, 0]], "features": [[0, 1]]}'
    reply = service.post(PATH, content=twice, headers={"Content-Type": "application/json"})
    assert reply.status_code == 422 and "once" in reply.json()["error"]
    for body, status in (
        (b'{"features": [[1%s, 0]]}' % (b"0" * 5000), 400),
        (b"[" * 10_000, 400),
        (b'{"actions": {"\\ud800": [1, 0]}}', 422),  # half a character
    ):
        reply = service.post(PATH, content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == status and reply.json()["error"], body[:20]
    half = (
        b'{"prior": "", "settings": {"likelihood": "linear", "likelihood_options": {"\\ud800": 1}}}'
    )
    assert service.put("/v1/models/shop", content=half).status_code == 422
    assert "Not Found" in service.get("/v1/nothing").json()["error"]
    long = service.post(PATH, json={"x" * 10**6: 1, "features": [row]})
    assert long.status_code == 422 and len(long.content) < 2000
    for task in ("%ff", "%fe"):
        assert service.post(f"/v1/models/shop/tasks/{task}/decisions", json={}).status_code == 400
    for task in ("caf\u00e9", "cafe\u0301", "a%2Fb"):
        decide(service, task)
    listed = service.get("/v1/models/shop/tasks").json()["tasks"]
    assert [(task["task"], task["num_decisions"]) for task in listed] == [
        ("a/b", 1),
        ("caf\u00e9", 2),
    ]
    assert service.get("/v1/models/shop/tasks/a%2Fb").json()["task"] == "a/b"


def test_files_are_for_their_owner_and_a_wrong_database_is_one_line(tmp_path: Path) -> None:
    """8."""
    path = tmp_path / "log.sqlite"
    Database(str(path)).close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob("*-wal"))
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes(b"this is no database" * 100)
    for url in (str(tmp_path / "no" / "x.sqlite"), str(broken), str(tmp_path)):
        with pytest.raises(ValueError, match="^`database`: expected a database that can be opened"):
            Database(url)


def test_tokens_are_listed(database: Database) -> None:
    """8."""
    url = str(database.url.database)
    assert "no tokens" in run("token", "list", "--database", url)
    text = create_token(database, ("read", "decide"), "shop", 7)
    said = run("token", "list", "--database", url)
    assert text.split("_")[1] in said and text.split("_", 2)[2] not in said
    assert "read, decide" in said and "0 of 7" in said


def test_whatever_was_learned_a_decision_comes(
    make_service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6: three rewards after which every draw of a Poisson task failed. Were they accepted, the
    prior would decide.
    """
    rows = [
        ((-3.8e-8, -3.8e-8, 3.8e-8), 1e9),
        ((-3.78e10, 2.11e10, 3.78e10), 7.0),
        ((0.0, -237.6, 171.3), 0.0),
    ]
    prior = dp.GaussianPrior([2.0, 0.0, -2.0], 0.01 * np.eye(3))
    client = make_service(likelihood="poisson", propensity_draws=4, prior=prior)
    orders = list(itertools.permutations(rows))
    for number, order in enumerate(orders + orders[:2]):
        if number == len(orders):
            monkeypatch.setattr(Version, "_leaves_room", lambda *_: True)
        for phi, value in order:
            identity = decide(client, f"t{number}", features=[phi])["decision_id"]
            status = client.post(f"/v1/decisions/{identity}/reward", json={"reward": value})
            assert status.status_code in (200, 422)
        replies = [decide(client, f"t{number}", features=np.eye(3).tolist()) for _ in range(3)]
        if number < len(orders):
            assert not any(reply["failed"] for reply in replies)
        failed = [reply["action"] for reply in replies if reply["failed"]]
        assert all(action == 0 for action in failed)  # the best under the prior
    assert failed or number


def test_tasks_in_memory_are_bounded_by_their_bytes(
    service: TestClient,
) -> None:
    """8: the last used ones stay."""
    client = service
    for task in "abc":
        decide(client, task)
    sizes = [state.num_bytes for state in client.engine.task_cache.values()]
    cache = TaskCache(sum(sizes[:2]))
    cache.put(client.engine.task_cache.values())
    assert [state.task_id for state in cache.values()] == [2, 3]
    cache.put([cache[2, 1]])
    assert [state.task_id for state in cache.values()] == [3, 2]
    cache.clear()
    cache.put(client.engine.task_cache.values())
    assert len(cache) == 2


def test_many_readers_of_the_dashboard_cost_as_much_as_one(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8."""
    decide(service)
    made = []
    inner = ModelPage.content
    monkeypatch.setattr(ModelPage, "content", lambda *a: made.append(1) or inner(*a))
    with ThreadPoolExecutor(8) as readers:
        pages = list(readers.map(lambda _: service.get("/").text, range(8)))
    assert len(set(pages)) == 1 and len(made) == 1
