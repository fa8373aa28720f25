"""Old decisions leave the log; what was learned from them stays, to the last bit."""

import numpy as np
import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

import diffprior as dp
from cli.helpers import run
from diffprior.service.models import Catalog
from diffprior.service.prune import prune
from diffprior.service.settings import Settings
from diffprior.service.store import (
    Database,
    bases,
    decisions,
    observations,
    rewards,
    snapshots,
    tasks,
)
from diffprior.service.tasks import TaskCache, current_states, rebuild
from service.conftest import LINEAR, LOGISTIC, PRIOR, MakeService, decide, features, reward

DAY = 86400.0


def learn(client: TestClient, count: int, task: str = "a", first: int = 0) -> None:
    """Decide and reward so many times."""
    for number in range(first, first + count):
        identity = decide(client, task, features=features(number))["decision_id"]
        reward(client, identity, float(number % 2))


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
        (LOGISTIC, 140),
        (LINEAR | {"half_life": 30}, 70),
        (LINEAR | {"half_life": "P7D"}, 70),
    ],
    ids=["linear", "folded rows", "fading by decisions", "fading by time"],
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
