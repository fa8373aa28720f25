"""Versions that earn less are rolled back by themselves; holdouts stay as they are."""

import numpy as np
import sqlalchemy as sa
from scipy.stats import norm
from starlette.testclient import TestClient

from diffprior.service.guard import MIN_TASKS, TYPICAL, Totals, look
from diffprior.service.models import Catalog
from diffprior.service.settings import Settings
from diffprior.service.store import Database, decisions
from service.conftest import LINEAR, PRIOR, MakeService, decide, decide_and_reward, features, reward

ERROR_RATE = 0.05
TASKS, LOOKS, PER_LOOK = 100, 60, 250


def stopped(rng: np.random.Generator, effect: float, spread: float) -> bool:
    """Whether an experiment ends with a rollback: tasks of unequal rates, a look after every
    `PER_LOOK` decisions; the new version multiplies rates by 1 + `effect`.
    """
    new = rng.permutation(TASKS) < TASKS // 2
    rates = 0.3 * np.exp(spread * rng.standard_normal(TASKS) - spread**2 / 2)
    rates = np.clip(np.where(new, rates * (1 + effect), rates), 0, 1)
    counts, sums = np.zeros(TASKS), np.zeros(TASKS)
    for _ in range(LOOKS):
        some = np.bincount(rng.integers(TASKS, size=PER_LOOK), minlength=TASKS)
        counts, sums = counts + some, sums + rng.binomial(some, rates)
        groups = [
            Totals(counts[g], sums[g], sums[g]) for g in (new & (counts > 0), ~new & (counts > 0))
        ]
        found = look(*groups, ERROR_RATE)
        if found is not None and found.worse:
            return True
    return False


def test_false_alarms_are_as_rare_as_stated() -> None:
    """With z = 5, in experiments without a difference; and a difference is found."""
    rng, num = np.random.default_rng(0), 200
    alarms = sum(stopped(rng, 0.0, spread) for spread in (0.0, 0.3) for _ in range(num // 2))
    most = num * ERROR_RATE + 5 * np.sqrt(num * ERROR_RATE * (1 - ERROR_RATE))
    assert alarms <= most, alarms
    assert sum(stopped(rng, -0.4, 0.3) for _ in range(20)) >= 19


def test_errors_count_tasks_and_limits_are_wider_than_of_one_look() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(2, MIN_TASKS))
    ones = np.ones(MIN_TASKS)
    new, old = (Totals(ones, v, v**2) for v in values)
    found = look(new, old, ERROR_RATE)
    expected = np.sqrt((values.var(axis=1, ddof=1) / MIN_TASKS).sum())
    assert found is not None and np.isclose(found.error, expected)
    assert np.isclose(found.gap, values[0].mean() - values[1].mean())
    assert found.limit > norm.ppf(1 - ERROR_RATE) * found.error
    again = [Totals(4 * ones, 4 * v, 4 * v**2) for v in values]  # the same, four times per task
    four = look(*again, ERROR_RATE)
    assert four is not None and np.isclose(four.error, found.error)
    short = Totals(ones[1:], values[0][1:], values[0][1:] ** 2)
    assert look(short, old, ERROR_RATE) is None
    constant = Totals(ones, ones, ones)
    assert look(constant, constant, ERROR_RATE) is None


def test_the_limit_is_the_boundary_of_a_normal_mixture() -> None:
    """There the mixture over differences is 1 / alpha times as likely as no difference."""
    rng = np.random.default_rng(0)
    ones = np.ones(50)
    totals = [Totals(ones, v, v**2) for v in rng.normal(size=(2, 50))]
    found = look(*totals, ERROR_RATE)
    assert found is not None
    alpha, variance = 2 * ERROR_RATE, (totals[0].variance + totals[1].variance) / 2
    scale = -2 * np.log(alpha)
    spread = np.sqrt(variance * (scale + np.log1p(scale)) / TYPICAL)
    ratio = norm.pdf(found.limit, 0, np.hypot(found.error, spread)) / norm.pdf(
        found.limit, 0, found.error
    )
    assert np.isclose(ratio, 1 / alpha)


def serve_both(client: TestClient, worse: float, num_tasks: int = 80) -> None:
    """Reward two decisions per task; those of version 2 earn less."""
    names = [f"t{number}" for number in range(num_tasks) for _ in range(2)]
    noise = np.random.default_rng(0).normal(size=num_tasks)

    def value(number: int, version: int) -> float:
        return float(noise[number // 2]) - worse * (version == 2)

    decide_and_reward(client, names, value, at_once=80)


def test_a_version_that_earns_less_is_rolled_back(
    make_service: MakeService, database: Database
) -> None:
    """And only if it is guarded; the dashboard says so."""
    client = make_service(**LINEAR)
    catalog, guard = client.engine.catalog, client.engine.guard
    catalog.put("shop", Settings(**LINEAR, temperature=0.5), PRIOR, 0.5)
    client.engine.prepare()
    serve_both(client, worse=2.0)
    assert guard.pair("shop") is None and guard.about("shop") is None
    catalog.put("shop", Settings(**LINEAR, temperature=0.7, guard=ERROR_RATE), PRIOR, 0.5)
    client.engine.prepare()
    guard.check(["shop"])  # decisions from before the shares changed do not count
    assert guard.about("shop")[0] == "Yes" and "30 tasks" in guard.about("shop")[1]
    catalog.retire("shop", 1)
    with database.transaction() as connection:  # as if 2 and 3 had been 1 and 2
        moved = decisions.update().values(version=decisions.c.version + 1)
        connection.execute(moved.values(created=decisions.c.created + 1e6))
    guard.check(["shop"])
    assert [(v.version, v.share) for v in catalog.versions_of("shop")] == [(3, 0.0), (2, 1.0)]
    assert "version 3 earned" in Catalog(database).versions_of("shop")[0].rolled_back
    assert 'diffprior_rolled_back_total{model="shop"} 1.0' in client.get("/metrics").text
    page = client.get("/").text
    assert "Rolled back" in page and "less per decision than version 2" in page
    assert client.post("/v1/models/shop/rollback").status_code == 409


def test_a_version_that_earns_the_same_stays(make_service: MakeService) -> None:
    client = make_service(**LINEAR)
    catalog, guard = client.engine.catalog, client.engine.guard
    catalog.put("shop", Settings(**LINEAR, temperature=0.5, guard=ERROR_RATE), PRIOR, 0.5)
    client.engine.prepare()
    serve_both(client, worse=0.0)
    guard.check(["shop"])
    assert catalog.versions_of("shop")[0].share == 0.5
    answer, why, _ = guard.about("shop")
    assert answer == "Yes" and "the difference is" in why


def test_a_holdout_neither_learns_nor_explores_and_keeps_its_tasks(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(**LINEAR)
    catalog = client.engine.catalog
    catalog.put("shop", Settings(**LINEAR, sampler="prior-mean"), PRIOR, 0.25)
    client.engine.prepare()
    names = [f"t{number}" for number in range(200)]

    def held() -> list[str]:
        return [n for n in names if catalog.for_task("shop", n).version == 2]

    tasks = held()
    assert 20 < len(tasks) < 80
    mean = np.asarray(PRIOR.moments().mean)
    for number in range(12):
        table = np.asarray(features(number, 4))
        found = decide(client, tasks[0], features=table.tolist())
        assert found["action"] == int(np.argmax(table @ mean)) and found["propensity"] == 1.0
        reward(client, found["decision_id"], -50.0)
    for share in (0.5, 1.0):
        catalog.put("shop", Settings(**LINEAR, temperature=share / 2), PRIOR, share)
    client.engine.prepare()
    assert held() == tasks
    assert [(v.version, v.share) for v in catalog.versions_of("shop")] == [
        (4, 0.75),
        (3, 0.0),
        (2, 0.25),
        (1, 0.0),
    ]
    client.post("/v1/models/shop/rollback")
    assert [v.share for v in catalog.versions_of("shop")] == [0.0, 0.75, 0.25, 0.0]
    assert held() == tasks
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(decisions)).scalar() == 12
