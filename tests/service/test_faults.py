"""What goes wrong around the service: the database, the disk, bodies, and the process itself."""

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

import diffprior.service.schema as schema
from diffprior.service.database import Database
from diffprior.service.rebuild import rebuild
from service.conftest import LINEAR, MakeService, decide, features, reward
from service.crash import crash


def test_rebuild_finds_evidence_that_is_not_of_the_log(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR, propensity_draws=0)
    for i in range(66):
        reward(client, decide(client, features=features(i))["decision_id"], float(i % 2))
    found = rebuild(database)
    assert (found.num_tasks, found.num_snapshots) == (1, 1)
    assert not found.different and not found.problems
    with database.transaction() as connection:
        where = schema.observations.c.number == 3
        changed = schema.observations.update().where(where)
        connection.execute(changed.values(features=np.array([9.0, 9.0]).tobytes()))
        connection.execute(schema.tasks.update().values(num_learned=67))
    found = rebuild(database)
    assert found.different == ("shop/a",) and len(found.problems) == 1


def test_a_database_that_fails_is_told_and_nothing_is_half_done(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = decide(service)["decision_id"]

    def full(*_: object) -> None:
        raise sa.exc.OperationalError("INSERT", {}, sqlite3.OperationalError("disk is full"))

    with monkeypatch.context() as patched:
        patched.setattr("diffprior.service.learner.write_snapshots", full)
        assert (
            service.post(f"/v1/decisions/{identity}/reward", json={"reward": 1}).status_code == 503
        )
        reply = service.post("/v1/models/shop/tasks/b/decisions", json={"features": features(1)})
        assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
        assert service.get("/ready").status_code == 503
    assert reward(service, identity, 1.0)["status"] == "learned"
    assert service.get("/ready").status_code == 200
    assert service.get("/v1/models/shop/tasks/b").status_code == 404


def test_a_full_disk_keeps_what_was_acknowledged(tmp_path: Path) -> None:
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


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            ["features", "actions", "mask", "top_k", "decision_id", "reward", "reward_id",
             "action_taken", "deferred", "decisions", "task", "prior", "settings", "share"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
PATHS = st.sampled_from(
    [
        ("POST", "/v1/models/shop/tasks/a/decisions"),
        ("POST", "/v1/models/shop/decisions"),
        ("POST", "/v1/decisions/x/reward"),
        ("PUT", "/v1/models/shop"),
        ("PUT", "/v1/models/shop/versions/1"),
        ("PUT", "/v1/models/shop/versions/x"),
        ("GET", "/v1/models/%00/tasks/%ff"),
        ("POST", "/v1/decisions/%2e%2e/cancel"),
    ]
)


def test_no_body_breaks_the_service(service: TestClient) -> None:
    @settings(max_examples=150)
    @given(call=PATHS, body=JSON)
    def malformed(call: tuple[str, str], body: object) -> None:
        import json

        reply = service.request(call[0], call[1], content=json.dumps(body))
        assert reply.status_code < 500, (call, body, reply.text)

    malformed()
    decide(service)


def test_oversized_and_broken_bodies_are_refused(service: TestClient) -> None:
    path = "/v1/models/shop/tasks/a/decisions"
    assert service.post(path, content=b"x" * (3 * 2**20)).status_code == 413
    assert service.post(path, content=b'{"features": [[1').status_code == 422
    assert service.post(path, content=b"\xff\xfe").status_code == 422
    many = {"features": [[1.0, 2.0]] * 1001}
    assert service.post(path, json=many).status_code == 422


def test_no_kill_loses_or_doubles_anything_on_sqlite(tmp_path: Path) -> None:
    counts = crash(str(tmp_path / "log.sqlite"), kills=2)
    assert counts["decisions"] >= 10 and counts["rewards"] >= 5


@pytest.mark.filterwarnings("ignore")
def test_no_kill_loses_or_doubles_anything_on_postgresql(tmp_path: Path) -> None:
    import pgserver

    folder = tmp_path / "postgres"
    with pgserver.get_server(folder) as server:
        server.psql("CREATE DATABASE crash;")
        counts = crash(server.get_uri(database="crash"), kills=1, processes=2)
    shutil.rmtree(folder, ignore_errors=True)
    assert counts["decisions"] >= 5 and counts["rewards"] >= 1
