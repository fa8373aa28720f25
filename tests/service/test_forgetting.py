"""A model's half-life: tasks fade as its definition says, and come out of the log as they were."""

import datetime
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from diffprior.service import engine as engines
from diffprior.service.requests import Decide, Reward
from diffprior.service.settings import Settings, checked_settings
from diffprior.service.store import Database, decisions, observations, schema_version
from diffprior.service.tasks import SNAPSHOT_EVERY, rebuild
from service.conftest import LINEAR, LOGISTIC, MakeService, decide, features, reward


def state_of(client: Any) -> Any:
    return next(reversed(client.engine.task_cache.values()))


def logged(database: Database) -> Any:
    with database.reading() as connection:
        return connection.execute(sa.select(observations).order_by(observations.c.number)).all()


def expected(rows: Any, ages: np.ndarray, half_life: float) -> np.ndarray:
    """The precision of linear evidence by its definition."""
    table = np.stack([np.frombuffer(row.features) for row in rows])
    return (table * 2.0 ** -(ages / half_life)[:, None]).T @ table


def test_evidence_fades_with_decisions(make_service: MakeService, database: Database) -> None:
    client = make_service(**LINEAR, half_life=4.5)
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
    client = make_service(
        **(LINEAR | {"propensity_draws": 16}), half_life=datetime.timedelta(days=7)
    )
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


def submit(client: Any, requests: list[Any]) -> None:
    """Serve requests of one batch."""
    for future in [client.engine.submit(request) for request in requests]:
        future.result(30)


def test_the_log_gives_the_same_evidence(make_service: MakeService, database: Database) -> None:
    client = make_service(**LOGISTIC, half_life=20)
    numbers = range(2 * SNAPSHOT_EVERY + 9)
    for some in np.array_split(numbers, 14):
        asked = [Decide("shop", "a", np.asarray(features(i)), decision_id=f"d{i}") for i in some]
        submit(client, asked)
        submit(client, [Reward(f"d{i}", float(i % 2)) for i in some])
    before = state_of(client)
    found = rebuild(database)
    assert found.num_snapshots == 1 and not found.different and not found.problems
    client.engine.task_cache.clear()
    decide(client, features=features(0))
    after = state_of(client)
    assert after.arrays.moment == before.arrays.moment > 0
    assert after.arrays.evidence.to_bytes() == before.arrays.evidence.to_bytes()


def test_an_earlier_database_learns_when_it_learned(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR)
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


def test_impossible_half_lives_are_rejected() -> None:
    for half_life in (0, -1.0, "P0D", "soon", float("inf")):
        with pytest.raises(ValueError, match="half_life"):
            Settings(half_life=half_life)


def test_a_half_life_is_a_number_of_decisions_or_a_time() -> None:
    assert Settings(half_life="500").half_life == 500.0
    saved = Settings(half_life="P7D").model_dump_json()
    assert Settings.model_validate_json(saved).half_life == datetime.timedelta(days=7)


def test_wrong_settings_are_explained_in_one_line() -> None:
    messages = [
        ({"half_life": "soon"}, "^`half_life`: .*got 'soon'; .* such as P7D$"),
        ({"half_life": -3}, "^`half_life`: expected a positive number, got -3.*500"),
        ({"temperature": -1}, "^`temperature`: .*greater than 0, got -1$"),
        ({"aggregation": "mean"}, "^`aggregation`: .*'first', 'last' or 'sum', got 'mean'$"),
    ]
    for about, message in messages:
        with pytest.raises(ValueError, match=message) as caught:
            checked_settings(about)
        assert "\n" not in str(caught.value)
        assert "pydantic" not in str(caught.value)
