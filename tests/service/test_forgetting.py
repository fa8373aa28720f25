"""A model's half-life: tasks fade as its definition says, and come out of the log as they were."""

import datetime
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

import diffprior as dp
from diffprior.service import engine as engines
from diffprior.service.catalog import task_seed
from diffprior.service.settings import Settings, checked_settings
from diffprior.service.store import Database, decisions, observations, schema_version
from diffprior.service.tasks import SNAPSHOT_EVERY, rebuild
from service.conftest import LINEAR, PRIOR, MakeService, decide, features, reward


@pytest.mark.parametrize(
    ("settings", "likelihood"),
    [({"likelihood": "logistic"}, dp.Logistic()), (LINEAR, dp.Linear(1.0))],
)
def test_decisions_are_those_of_a_bandit(
    make_service: MakeService, settings: dict, likelihood: dp.AbstractLikelihood
) -> None:
    client = make_service(**settings, propensity_draws=0, half_life=3)
    seed = task_seed(client.engine.catalog.versions_of("shop")[0].seed, "a")
    bandit = dp.Bandit(PRIOR, likelihood, seed=seed, half_life=3)
    for i in range(30):
        table = features(i, 6)
        found = decide(client, features=table)
        assert found["action"] == bandit.decide(np.asarray(table)).action
        if i % 3:
            reward(client, found["decision_id"], float(i % 2))
            bandit.update(table[found["action"]], float(i % 2))


def state_of(client: Any) -> Any:
    return client.engine.task_cache.states()[-1]


def logged(database: Database) -> Any:
    with database.reading() as connection:
        return connection.execute(sa.select(observations).order_by(observations.c.number)).all()


def expected(rows: Any, ages: np.ndarray, half_life: float) -> np.ndarray:
    """The precision of linear evidence by its definition."""
    table = np.stack([np.frombuffer(row.features) for row in rows])
    return (table * 2.0 ** -(ages / half_life)[:, None]).T @ table


def test_evidence_fades_with_decisions(make_service: MakeService, database: Database) -> None:
    client = make_service(**LINEAR, propensity_draws=0, half_life=4.5)
    for i in range(20):
        found = decide(client, features=features(i))
        for _ in range(i % 3):
            decide(client, features=features(i))
        reward(client, found["decision_id"], 1.0)
    rows = logged(database)
    moments = np.array([row.num_decisions for row in rows], float)
    assert moments[-1] == 20 + sum(i % 3 for i in range(20))
    precision = expected(rows, moments[-1] - moments, 4.5)
    np.testing.assert_allclose(state_of(client).arrays.evidence.precision, precision, rtol=1e-10)


def test_evidence_fades_with_time(
    make_service: MakeService, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1.8e9]
    monkeypatch.setattr(engines.time, "time", lambda: clock[0])
    client = make_service(**LINEAR, propensity_draws=16, half_life=datetime.timedelta(days=7))
    for i in range(12):
        clock[0] += 86_400.0 * (i % 4)
        table = (4 * np.asarray(features(i))).tolist()
        reward(client, decide(client, features=table)["decision_id"], 0.5)
    rows = logged(database)
    times = np.array([row.learned for row in rows])
    precision = expected(rows, times[-1] - times, 7 * 86_400.0)
    np.testing.assert_allclose(state_of(client).arrays.evidence.precision, precision, rtol=1e-10)
    task = client.get("/v1/models/shop/tasks/a").json()
    assert task["posterior"]["std"][0] < 0.5 * task["prior"]["std"][0]
    clock[0] += 70 * 86_400.0  # ten half-lives
    later = client.get("/v1/models/shop/tasks/a").json()["posterior"]
    spread = 4 / np.sqrt(2 * later["num_draws"])  # a two-sided sample has a less variable one
    assert later["std"][0] == pytest.approx(task["prior"]["std"][0], rel=spread)


def test_the_log_gives_the_same_evidence(make_service: MakeService, database: Database) -> None:
    settings: Any = {"likelihood": "logistic", "propensity_draws": 0, "half_life": 20}
    client = make_service(**settings, max_rows=128)
    for i in range(2 * SNAPSHOT_EVERY + 9):
        reward(client, decide(client, features=features(i))["decision_id"], float(i % 2))
    before = state_of(client)
    found = rebuild(database)
    assert found.num_snapshots == 1 and not found.different and not found.problems
    client.engine.task_cache.clear()
    decide(client, features=features(0))
    after = state_of(client)
    assert after.moment == before.moment > 0
    assert after.arrays.evidence.to_bytes() == before.arrays.evidence.to_bytes()


def test_an_earlier_database_learns_when_it_learned(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR, propensity_draws=0)
    for i in range(5):
        reward(client, decide(client, features=features(i))["decision_id"], 1.0)
    decide(client, features=[[1.0, 0.0], [-1.0, 0.0]], action_taken=1, decision_id="theirs")
    with database.transaction() as connection:
        for table, column in (
            ("observations", "num_decisions"),
            ("snapshots", "moment"),
            ("decisions", "shadow"),
        ):
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        ours = decisions.c.id == "theirs"
        connection.execute(decisions.update().where(ours).values(ranking="[0]"))
        connection.execute(schema_version.update().values(version=2))
    again = Database(str(database.url.database))
    assert [row.num_decisions for row in logged(again)] == [1, 2, 3, 4, 5]
    with again.reading() as connection:
        shadows = connection.execute(sa.select(decisions.c.id).where(decisions.c.shadow)).all()
    assert [row.id for row in shadows] == ["theirs"]
    again.close()


@pytest.mark.parametrize("half_life", [0, -1.0, "P0D", "soon", float("inf")])
def test_impossible_half_lives_are_refused(half_life: Any) -> None:
    with pytest.raises(ValueError, match="half_life"):
        Settings(half_life=half_life)


def test_a_half_life_is_a_number_of_decisions_or_a_time() -> None:
    assert Settings(half_life="500").half_life == 500.0
    kept = Settings(half_life="P7D").model_dump_json()
    assert Settings.model_validate_json(kept).half_life == datetime.timedelta(days=7)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"half_life": "soon"}, "^`half_life`: .*got 'soon'; after which .* such as P7D$"),
        ({"half_life": -3}, "^`half_life`: expected a positive number, got -3.*500"),
        ({"temperature": -1}, "^`temperature`: .*greater than 0, got -1$"),
        ({"aggregation": "mean"}, "^`aggregation`: .*'first', 'last' or 'sum', got 'mean'$"),
    ],
)
def test_settings_by_hand_are_refused_in_a_line(about: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        checked_settings(about)
    assert "\n" not in str(caught.value) and "pydantic" not in str(caught.value)
