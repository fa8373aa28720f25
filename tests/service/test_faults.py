"""Faults around the service: evidence, the database, the order in which rewards come."""

import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import diffprior as dp
import diffprior.service.store as schema
from diffprior.service.auth import create_token
from diffprior.service.requests import Decide, ServiceError
from diffprior.service.settings import Settings
from diffprior.service.store import Database, read_rows
from diffprior.service.tasks import TaskCache, current_states, rebuild
from service.conftest import LINEAR, LOGISTIC, PRIOR, MakeService, decide, features, reward


def test_a_restart_and_a_rebuild_read_the_log(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR)
    for i in range(66):  # beyond a snapshot
        reward(client, decide(client, features=features(i))["decision_id"], float(i % 2))
    keys = ("posterior", "num_rewards", "num_decisions")
    about = [c.get("/v1/models/shop/tasks/a").json() for c in (client, make_service())]
    assert [about[0][k] for k in keys] == [about[1][k] for k in keys]
    found = rebuild(database)
    assert (found.num_tasks, found.num_snapshots) == (1, 1)
    assert found.different == found.problems == []
    with database.transaction() as connection:
        where = schema.observations.c.number == 3
        changed = schema.observations.update().where(where)
        connection.execute(changed.values(features=np.array([9.0, 9.0]).tobytes()))
        connection.execute(schema.tasks.update().values(num_learned=67))
    found = rebuild(database)
    assert found.different == ["shop/a"]
    assert len(found.problems) == 1


def test_observations_that_a_new_version_cannot_learn_from_are_passed_over(
    make_service: MakeService,
) -> None:
    """And counted, so that they are read from the log once."""
    client = make_service(**LINEAR)
    for i in range(3):
        reward(client, decide(client, features=features(i))["decision_id"], 0.5)
    client.engine.catalog.put("shop", Settings(**LOGISTIC), PRIOR, 1.0)
    client.engine.prepare()
    reward(client, decide(client, features=features(3))["decision_id"], 1.0)
    (state,) = (s for s in client.engine.task_cache.values() if s.version.version == 2)
    assert state.num_learned == 4 and int(state.arrays.evidence.num_rows) == 1


def test_a_failing_database_is_reported_and_nothing_is_half_done(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = decide(service)["decision_id"]

    def full(*_: object) -> None:
        raise sa.exc.OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr("diffprior.service.batch.write_snapshots", full)
        assert (
            service.post(f"/v1/decisions/{identity}/reward", json={"reward": 1}).status_code == 503
        )
        reply = service.post("/v1/models/shop/tasks/b/decisions", json={"features": features(1)})
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        assert service.get("/ready").status_code == 503
    assert reward(service, identity, 1.0)["status"] == "learned"
    assert service.get("/ready").status_code == 200
    assert service.get("/v1/models/shop/tasks/b").status_code == 404


def test_a_full_disk_loses_nothing_committed(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "log.sqlite"))
    with database.transaction() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        row = {"name": "m", "seed": 1, "created": 0.0}
        connection.execute(schema.models.insert().values(**row))
    with pytest.raises(sa.exc.OperationalError, match="full"), database.transaction() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        for number in range(2000):
            row = {"name": f"{number}" * 40, "seed": 1, "created": 0.0}
            connection.execute(schema.models.insert().values(**row))
    with database.reading() as connection:
        assert connection.execute(sa.select(schema.models.c.name)).scalars().all() == ["m"]


def test_the_order_of_rewards_does_not_matter(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR)
    tables = [features(i) for i in range(12)]
    chosen = [decide(client, features=table) for table in tables]
    for i in np.random.default_rng(0).permutation(12):
        for _ in range(2):  # and each of them twice
            assert reward(client, chosen[i]["decision_id"], float(i))["status"] == "learned"
    rows = [table[reply["action"]] for table, reply in zip(tables, chosen, strict=True)]
    expected = dp.Linear(1.0).observe(rows, np.arange(12.0))
    (state,) = client.engine.task_cache.values()
    evidence = state.arrays.evidence
    np.testing.assert_allclose(evidence.precision, expected.precision, rtol=1e-5)
    np.testing.assert_allclose(evidence.shift, expected.shift, rtol=1e-5)
    assert not rebuild(database).problems


def test_reads_report_a_missing_database(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = decide(service)["decision_id"]

    def away(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT", {}, sqlite3.OperationalError("away"))

    monkeypatch.setattr(Database, "reading", away)
    for path in (f"/v1/decisions/{identity}", "/v1/models/shop", "/v1/models/shop/tasks/a"):
        reply = service.get(path)
        assert reply.status_code == 503 and "SELECT" not in reply.text


def test_a_cached_state_ahead_of_what_is_read_is_not_used(
    service: TestClient, database: Database
) -> None:
    """A page reads the log as it was when it began; a reward came, and is in the cache, since."""
    first, second = (decide(service)["decision_id"] for _ in range(2))
    reward(service, first, 1.0)
    version = service.engine.catalog.version("shop", 1)
    with database.reading() as connection:
        wanted = [(task, version) for task in read_rows(connection, sa.select(schema.tasks))]
        reward(service, second, -1.0)
        cache = service.engine.task_cache
        (found,) = current_states(connection, cache, wanted).values()
        (expected,) = current_states(connection, TaskCache(0), wanted).values()
    (ahead,) = cache.values()
    assert (found.num_learned, ahead.num_learned) == (1, 2)
    assert found.arrays.evidence.to_bytes() == expected.arrays.evidence.to_bytes()


def test_tokens_need_a_database_that_answers(
    make_service: MakeService, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_service(required=True, **LINEAR)
    headers = {"Authorization": f"Bearer {create_token(database)}"}

    def gone(_: Database) -> None:
        raise sa.exc.OperationalError("SELECT", {}, sqlite3.OperationalError("gone"))

    with monkeypatch.context() as patched:
        patched.setattr(Database, "reading", gone)
        for path in ("/v1/models", "/v1/models/shop/tasks/a"):
            reply = client.get(path, headers=headers)
            assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
    assert client.get("/v1/models", headers=headers).status_code == 200


def test_the_engine_outlives_errors_and_says_when_it_does_not_run(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of ours while items are drawn, or while a conflict with a process is resolved."""
    engine = service.engine
    called = threading.Event()

    def broken(*_: object) -> None:
        called.set()
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(engine.panels, "work", broken)
        decide(service)
        assert called.wait(30)
    with monkeypatch.context() as patched:
        errors = [sa.exc.IntegrityError("INSERT", {}, ValueError()), RuntimeError("a fault")]

        def fails(*_: object) -> None:
            raise errors.pop(0)

        patched.setattr(engine, "_in_one_transaction", fails)
        asked = Decide("shop", "a", np.eye(2))
        with pytest.raises(ServiceError, match="see the service's log"):
            engine.submit(asked).result(30)
    decide(service)
    assert service.get("/ready").status_code == 200
    engine.close()
    reply = service.get("/ready")
    assert reply.status_code == 503 and "stopped" in reply.json()["problem"]
