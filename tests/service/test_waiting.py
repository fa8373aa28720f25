"""Rewards that come late, several, or never."""

import functools
import time
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from starlette.testclient import TestClient

from diffprior.service import engine
from diffprior.service.requests import Settle
from diffprior.service.settings import Settings
from diffprior.service.store import observations
from service.conftest import LINEAR, MakeService, decide, reward


class Clock:
    """Time that a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(engine.Clock, "now", lambda _: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def settle(client: TestClient) -> int:
    """End the wait of what is due."""
    return client.engine.submit(Settle()).result(30)


def learned(client: TestClient) -> list[tuple[float, str]]:
    """Rewards learned so far, in order, and where they came from."""
    with client.engine.database.reading() as connection:
        query = sa.select(observations.c.reward, observations.c.source)
        return [tuple(row) for row in connection.execute(query.order_by(observations.c.number))]


def test_default_reward_counts_once_when_the_wait_is_over(
    make_service: MakeService, clock: Clock
) -> None:
    client = make_service(**LINEAR, reward_wait=60, default_reward=0.0)
    first, second = decide(client)["decision_id"], decide(client)["decision_id"]
    reward(client, first, 1.0)
    assert settle(client) == 0
    clock.now += 61
    assert [settle(client), settle(client)] == [1, 0]
    assert reward(client, second, 1.0)["status"] == "late"
    assert learned(client) == [(1.0, "reward"), (0.0, "default")]
    stored = client.get(f"/v1/decisions/{second}").json()["rewards"]
    assert [(r["value"], r["late"]) for r in stored] == [(1.0, True)]


def test_a_late_reward_does_not_count_though_the_decision_waits(
    make_service: MakeService, clock: Clock
) -> None:
    client = make_service(**LINEAR, reward_wait=60, default_reward=0.0, aggregation="sum")
    early, never = decide(client)["decision_id"], decide(client)["decision_id"]
    assert reward(client, early, 3.0)["status"] == "waiting"
    clock.now += 60
    assert reward(client, early, 2.0, reward_id="last")["status"] == "waiting"
    clock.now += 1
    for identity in (early, never):
        assert reward(client, identity, 1.0, reward_id="second")["status"] == "late"
    assert settle(client) == 2
    assert sorted(learned(client)) == [(0.0, "default"), (5.0, "reward")]


@pytest.mark.parametrize(("aggregation", "expected"), [("last", 2.0), ("sum", 6.0), ("first", 1.0)])
def test_several_rewards(
    make_service: MakeService, clock: Clock, aggregation: str, expected: float
) -> None:
    client = make_service(**LINEAR, reward_wait=60, aggregation=aggregation)
    identity = decide(client)["decision_id"]
    for number, value in enumerate((1.0, 3.0, 2.0)):
        reward(client, identity, value, reward_id=f"r{number}")
        reward(client, identity, value, reward_id=f"r{number}")
    clock.now += 61
    settle(client)
    assert learned(client) == [(expected, "reward")]


def test_a_deferred_decision_waits_for_nothing(make_service: MakeService, clock: Clock) -> None:
    client = make_service(**LINEAR, reward_wait=60, default_reward=0.0)
    identity = decide(client, deferred=True)["decision_id"]
    clock.now += 1000
    assert settle(client) == 0
    early = client.post(f"/v1/decisions/{identity}/reward", json={"reward": 1})
    assert early.status_code == 409
    active = client.post(f"/v1/decisions/{identity}/activate").json()
    assert active["status"] == "active" and active["expires"] == clock.now + 60
    reward(client, identity, 1.0)
    assert learned(client) == [(1.0, "reward")]


def test_a_cancelled_decision_teaches_nothing(make_service: MakeService, clock: Clock) -> None:
    client = make_service(**LINEAR, reward_wait=60, default_reward=0.0)
    identity = decide(client)["decision_id"]
    for _ in range(2):
        assert client.post(f"/v1/decisions/{identity}/cancel").json()["status"] == "cancelled"
    assert reward(client, identity, 1.0)["status"] == "ignored"
    assert client.post(f"/v1/decisions/{identity}/activate").status_code == 409
    clock.now += 61
    assert settle(client) == 0 and learned(client) == []


def test_a_repeated_reward_of_a_cancelled_decision_is_ignored(
    make_service: MakeService, clock: Clock
) -> None:
    client = make_service(**LINEAR, reward_wait=60, aggregation="sum")
    identity = decide(client)["decision_id"]
    assert reward(client, identity, 1.0, reward_id="a")["status"] == "waiting"
    client.post(f"/v1/decisions/{identity}/cancel")
    assert reward(client, identity, 1.0, reward_id="a")["status"] == "ignored"
    clock.now += 61
    for _ in range(2):
        assert reward(client, identity, 2.0, reward_id="b")["status"] == "ignored"


def test_what_is_learned_cannot_be_cancelled(make_service: MakeService) -> None:
    client = make_service(**LINEAR)
    identity = decide(client)["decision_id"]
    reward(client, identity, 1.0)
    assert client.post(f"/v1/decisions/{identity}/cancel").status_code == 409


def test_a_clock_that_jumps_is_doubted_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """One set a year ahead and back expires nothing; one set back a little stands still."""
    times = {"time": 1e9, "monotonic": 0.0}
    now = {name: functools.partial(times.get, name) for name in times}
    monkeypatch.setattr(engine, "time", SimpleNamespace(**now))
    clock = engine.Clock()

    def after(seconds: float, change: float = 0.0) -> float:
        times["time"] += seconds + change
        times["monotonic"] += seconds
        return clock.now() - 1e9

    assert after(1) == 1
    year = 365 * 86400
    assert [after(10, year), after(10), after(10, -year)] == [11, 21, 31]
    assert after(10, -3) == 38 and after(1, -2) == 38  # it stands still
    assert after(10, -3600) == pytest.approx(48) and after(55) == pytest.approx(103)
    assert after(10) == pytest.approx(times["time"] - 1e9) and after(1) < 103  # it was right


def test_settings_that_contradict_are_rejected() -> None:
    for settings in (
        {"aggregation": "sum"},
        {"default_reward": 0.0},
        {"likelihood": "none"},
        {"likelihood_options": {"noise_std": 1.0}},
        {"default_reward": 0.5, "reward_wait": 1.0},
        {"temperature": 0.0},
    ):
        with pytest.raises(ValueError, match="`|Input should"):
            Settings(**{"likelihood": "logistic", **settings})


def test_the_engine_settles_by_itself(make_service: MakeService) -> None:
    client = make_service(**LINEAR, reward_wait=0.2, default_reward=0.0)
    decide(client)
    end = time.monotonic() + 20
    while not learned(client) and time.monotonic() < end:
        time.sleep(0.05)
    assert learned(client) == [(0.0, "default")]
