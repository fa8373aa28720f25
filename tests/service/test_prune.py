"""Old decisions leave the log; what was learned from them stays, to the last bit."""

import threading
import time
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import diffprior as dp
from cli.helpers import run
from diffprior.service.bases import prune
from diffprior.service.batch import Batch
from diffprior.service.models import Catalog
from diffprior.service.requests import Choose
from diffprior.service.settings import Settings
from diffprior.service.store import (
    Database,
    bases,
    candidates,
    decisions,
    observations,
    rewards,
    schema_version,
    snapshots,
    tasks,
)
from diffprior.service.tasks import TaskCache, current_states, rebuild
from service.conftest import (
    LINEAR,
    LOGISTIC,
    PRIOR,
    MakeService,
    decide,
    decide_and_reward,
    features,
    reward,
    running_service,
)
from service.crash import new_database
from service.test_choices import choose, put

DAY = 86400.0


def learn(client: TestClient, count: int, task: str = "a", first: int = 0) -> None:
    """Decide and reward so many times."""
    decide_and_reward(client, [task] * count, lambda number, _: float((first + number) % 2))


def age(database: Database, num_decisions: int, days: float) -> None:
    """Let the first decisions of each task have been made, and learned, so many days ago.

    So are snapshots, which are of some of them.
    """
    old = decisions.c.number < num_decisions
    ids = sa.select(decisions.c.id).where(old).scalar_subquery()
    seconds = days * DAY
    with database.transaction() as connection:
        connection.execute(tasks.update().values(created=tasks.c.created - seconds))
        own = observations.c.decision_id.in_(ids)
        shifted = {"learned": observations.c.learned - seconds}
        connection.execute(observations.update().where(own).values(**shifted))
        shifted = {"created": decisions.c.created - seconds}
        connection.execute(decisions.update().where(old).values(**shifted))
        times = snapshots.update().where(snapshots.c.moment > 1e6)  # no numbers of decisions
        connection.execute(times.values(moment=snapshots.c.moment - seconds))


def evidence(database: Database, version: int = 1) -> dict[str, tuple[bytes, float, int]]:
    """What a service that has just started knows of each task."""
    catalog = Catalog(database)
    with database.reading() as connection:
        rows = [dict(row) for row in connection.execute(sa.select(tasks)).mappings()]
        wanted = [(row, catalog.version(row["model"], version)) for row in rows]
        states = current_states(connection, TaskCache(0), wanted).values()
    return {
        row["name"]: (s.arrays.evidence.to_bytes(), s.arrays.moment, s.num_learned)
        for row, s in zip(rows, states, strict=True)
    }


def count(database: Database, table: sa.Table) -> int:
    with database.reading() as connection:
        return connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()


@pytest.mark.parametrize(
    ("settings", "num_rewards"),
    [
        (LINEAR, 70),
        (LOGISTIC | {"half_life": "P7D"}, 140),
        (LINEAR | {"half_life": 30}, 70),
    ],
    ids=["linear", "folded rows, fading by time", "fading by decisions"],
)
def test_evidence_is_what_it_was(
    make_service: MakeService, database: Database, settings: dict, num_rewards: int
) -> None:
    client = make_service(**settings)
    learn(client, num_rewards)
    learn(client, 3, "b")
    age(database, num_rewards - 5, 100)
    before, about = evidence(database), client.get("/v1/models/shop/tasks/a").json()
    pruned = prune(database, 90 * DAY)
    assert pruned.num_decisions == pruned.num_observations == num_rewards - 5 + 3
    assert evidence(database) == before
    after = client.get("/v1/models/shop/tasks/a").json()
    assert after["num_decisions"] == about["num_decisions"] == num_rewards
    assert count(database, decisions) == count(database, rewards) == 5
    assert prune(database, 90 * DAY).num_decisions == 0
    found = rebuild(database)
    assert not found.different and not found.problems
    # A twin that was never pruned learns the same from what follows.
    client.engine.task_cache.clear()
    learn(client, 2, first=num_rewards)
    fresh = evidence(database)["a"]
    (state,) = (s for s in client.engine.task_cache.values() if s.num_learned == num_rewards + 2)
    assert fresh[0] == state.arrays.evidence.to_bytes() and fresh[2] == num_rewards + 2
    prune(database, -DAY)  # all of it
    assert evidence(database)["a"] == fresh
    assert count(database, observations) == count(database, decisions) == 0
    found = rebuild(database)
    assert not found.different and not found.problems


def test_the_cache_of_a_running_service_may_be_behind(
    make_service: MakeService, database: Database
) -> None:
    """Another process has learned more, and that was pruned."""
    client = make_service(**LINEAR)
    learn(client, 4)
    stale = dict(client.engine.task_cache)
    learn(client, 4, first=4)
    fresh = evidence(database)
    client.engine.task_cache.clear()
    client.engine.task_cache.put(stale.values())
    age(database, 9, 100)
    prune(database, 90 * DAY)
    learn(client, 1, first=8)
    (state,) = client.engine.task_cache.values()
    expected = fresh["a"][2] + 1, evidence(database)["a"][0]
    assert (state.num_learned, state.arrays.evidence.to_bytes()) == expected


def test_later_versions_learn_what_was_pruned(
    make_service: MakeService, database: Database
) -> None:
    """If their likelihood is the same; of another one, they begin with what is left."""
    client = make_service(**LINEAR)
    tables = [features(number) for number in range(6)]
    chosen = [decide(client, features=table) for table in tables]
    for number, reply in enumerate(chosen):
        reward(client, reply["decision_id"], float(number))
    age(database, 4, 100)
    prune(database, 90 * DAY)
    catalog = Catalog(database)
    catalog.put("shop", Settings(**LINEAR, temperature=0.5), PRIOR, 1.0)
    catalog.put("shop", Settings(likelihood="logistic"), PRIOR, 0.5)
    rows = [table[reply["action"]] for table, reply in zip(tables, chosen, strict=True)]
    expected = dp.Linear(1.0).observe(rows, np.arange(6.0))
    found = dp.load_bytes(evidence(database, 2)["a"][0])
    np.testing.assert_allclose(found.precision, expected.precision, rtol=1e-5)
    np.testing.assert_allclose(found.shift, expected.shift, rtol=1e-5)
    blob, _, num_learned = evidence(database, 3)["a"]
    assert num_learned == 6 and int(dp.load_bytes(blob).num_rows) == 0  # 4 and 5 are no outcomes
    prune(database, -DAY)  # everything, now under three versions
    found = dp.load_bytes(evidence(database, 1)["a"][0])
    np.testing.assert_allclose(found.shift, expected.shift, rtol=1e-5)
    with database.reading() as connection:
        assert connection.execute(sa.select(bases.c.version)).scalars().all() == [2, 3]


def test_what_waits_for_a_reward_stays(make_service: MakeService, database: Database) -> None:
    client = make_service(**LINEAR, reward_wait=1e6)
    waiting = decide(client)["decision_id"]
    gone = decide(client, deferred=True, decision_id="d")["decision_id"]
    learn(client, 1, first=2)
    age(database, 9, 1)
    assert prune(database, DAY / 2).num_decisions == 2
    assert reward(client, waiting, 1.0)["status"] == "learned"
    assert client.get(f"/v1/decisions/{gone}").status_code == 404
    reply = client.post(f"/v1/decisions/{gone}/reward", json={"reward": 1.0})
    assert reply.status_code == 404
    found = rebuild(database)
    assert not found.different and not found.problems and count(database, decisions) == 1


def test_the_command(make_service: MakeService, database: Database) -> None:
    client = make_service(**LINEAR)
    learn(client, 2)
    age(database, 9, 91)
    url = str(database.url.database)
    said = run("prune", "--database", url, "--older-than", "90d")
    assert "deleted 2 decisions and 2 observations" in said
    assert "such as 90d" in run("prune", "--database", url, "--older-than", "90", code=2)
    assert count(database, snapshots) == 0


def test_sets_of_candidates_go_with_the_last_choice_among_them(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR)
    put(client, "a", "b", "c")
    for items in (["a", "b"], ["a", "b"], ["b", "c"]):
        reward(client, choose(client, items=items)["decision_id"], 1.0)
    age(database, 99, 100)
    choose(client, items=["a", "b"])
    pruned = prune(database, 90 * DAY)
    assert (pruned.num_decisions, pruned.num_sets) == (3, 1) and count(database, candidates) == 1
    assert "1 sets of candidates" in str(pruned)
    choose(client, items=["b", "c"])  # stored again by a process that has stored it before
    assert count(database, candidates) == 2
    assert prune(database, -DAY).num_sets == 2 and not rebuild(database).problems


@pytest.mark.filterwarnings("ignore")  # of pgserver's own
def test_a_set_of_candidates_that_a_choice_just_used_stays(postgres_server: Any) -> None:
    """PostgreSQL: `prune` waits for the choice, and looks again."""
    with closing(Database(new_database(postgres_server, "sets"))) as database:
        with running_service(database, **LINEAR) as client:
            put(client, "a", "b")
            choose(client, items=["a", "b"])
            prune(database, -DAY)
            choose(client, items=["a", "b"])
            with database.transaction() as connection:
                connection.execute(decisions.delete())  # so that its set is unused
            panels, engine = client.engine.panels, client.engine
            with database.transaction() as connection:
                batch = Batch(
                    connection, database, engine.catalog, engine.task_cache, panels, time.time()
                )
                batch.run([Choose("shop", np.ones((1, 2)), ["a", "b"])])
                pruning = threading.Thread(target=prune, args=(database, 90 * DAY))
                pruning.start()
                pruning.join(0.5)
                assert pruning.is_alive()
            pruning.join(30)
        assert count(database, decisions) == count(database, candidates) == 1


def logged_bytes(database: Database) -> int:
    with database.reading() as connection:
        return connection.execute(sa.select(sa.func.sum(tasks.c.num_bytes))).scalar_one()


def test_a_model_has_a_quota(make_service: MakeService, database: Database) -> None:
    """Decisions and tasks beyond it are rejected until the log is pruned; rewards are learned."""
    client = make_service(**LINEAR, quota_gb=2e-6)
    Catalog(database).put("other", Settings(**LINEAR), PRIOR, 1.0)
    client.engine.catalog.refresh()
    client.engine.prepare()
    first = decide(client)["decision_id"]
    path = "/v1/models/shop/tasks/a/decisions"
    statuses = [client.post(path, json={"features": features(0)}).status_code for _ in range(9)]
    num = statuses.count(200)
    assert statuses == [200] * num + [507] * (9 - num) and 1 <= num < 5
    assert 0.75 < logged_bytes(database) / num / 540 < 1.3  # as the docs say of three actions
    body = {"items": ["a"], "context": [1.0, 1.0]}
    for reply in (
        client.post("/v1/models/shop/choices", json=body),
        client.put("/v1/models/shop/tasks/new", json={}),
    ):
        assert reply.status_code == 507 and "quota of 2e-06 GB; prune" in reply.json()["error"]
    assert reward(client, first, 1.0)["status"] == "learned"
    found = client.post(path.replace("shop", "other"), json={"features": features(0)})
    assert found.status_code == 200
    with database.transaction() as connection:
        connection.execute(decisions.delete().where(decisions.c.id == found.json()["decision_id"]))
        connection.execute(tasks.delete().where(tasks.c.model == "other"))
    client.engine.catalog.log_bytes.clear()  # as after a restart
    client.engine.guard.check(["shop"])
    assert client.engine.catalog.log_bytes["shop"] == logged_bytes(database)
    assert client.post(path, json={"features": features(0)}).status_code == 507
    prune(database, -DAY)
    assert logged_bytes(database) == 0
    client.engine.guard.check(["shop"])
    assert decide(client, "b")["status"] == "active"


def test_sizes_of_earlier_logs_are_measured(make_service: MakeService, database: Database) -> None:
    """As a migration finds them, they are what decisions would have added."""
    client = make_service(**LINEAR)
    learn(client, 3)
    put(client, "b")
    choose(client, exclude=["b"])
    expected = logged_bytes(database)
    with database.transaction() as connection:
        connection.execute(sa.text("DROP INDEX decisions_by_set"))
        connection.execute(sa.text("ALTER TABLE tasks DROP COLUMN num_bytes"))
        connection.execute(schema_version.update().values(version=schema_version.c.version - 1))
    again = Database(str(database.url.database))
    assert logged_bytes(again) == expected > 4 * 450
    again.close()
