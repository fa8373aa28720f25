"""Numbers of the dashboard, against those computed by hand, and who may see it."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from starlette.testclient import TestClient

import diffprior as dp
from diffprior.evaluate import compare
from diffprior.reporting.tables import Table
from diffprior.service.auth import create_token
from diffprior.service.dashboard import model_page
from diffprior.service.dashboard.charts import Plot, round_ticks
from diffprior.service.dashboard.pages import CACHE_SECONDS, Address, Snapshots, sortable
from diffprior.service.dashboard.prior_gain import PriorGain, prior_gain, sample_tasks
from diffprior.service.dashboard.statistics import (
    FIELDS,
    Mean,
    Window,
    age_groups,
    age_label,
    binned,
    outcomes,
    read_sample,
    task_mean,
)
from diffprior.service.models import Catalog, Version
from diffprior.service.settings import Settings
from diffprior.service.store import (
    Database,
    decisions,
    metadata,
    observations,
    rewards,
    schema_version,
    tasks,
)
from service.conftest import LINEAR, PRIOR, MakeService, decide, features, reward
from service.crash import new_database
from service.test_choices import choose, put

HARMFUL = "<script>alert(1)</script>\"'&"


def insert(connection: sa.Connection, number: int, **different: Any) -> None:
    """A decision of task 1 or 2 at second `number`, with a reward of it if there is a `reward`."""
    value, late = different.pop("reward", None), different.pop("late", False)
    source = different.pop("source", "reward")
    same = {"task_id": 1 + number % 2, "number": number // 2, "version": 1, "num_actions": 2}
    same |= {"features": np.eye(2).tobytes(), "ranking": "[0]", "taken": 0, "propensity": 0.75}
    same |= {"predicted": 0.5, "failed": False, "status": "active", "settled": value is not None}
    row = same | {"id": f"d{number}", "created": float(number)} | different
    connection.execute(decisions.insert().values(row))
    if value is not None:
        given = {"decision_id": row["id"], "reward_id": "", "number": 0, "value": value}
        connection.execute(
            rewards.insert().values(given | {"late": late, "received": number + 0.5})
        )
    if value is not None and not late:
        learned = {"task_id": row["task_id"], "number": row["number"], "decision_id": row["id"]}
        learned |= {"features": np.eye(2)[0].tobytes(), "reward": value, "source": source}
        connection.execute(observations.insert().values(learned | {"learned": number + 0.5}))


def fill(database: Database) -> None:
    """Eight decisions of two tasks, with every outcome."""
    Catalog(database).put("shop", Settings(**LINEAR), PRIOR, 1.0)
    with database.transaction() as connection:
        for number in (1, 2):
            counts = {"num_decisions": 4, "num_learned": 2, "seed": 0, "created": 0.0}
            about = {"id": number, "model": "shop", "name": f"t{number}", **counts}
            connection.execute(tasks.insert().values(about))
        insert(connection, 0, reward=1.0)
        insert(connection, 1, reward=0.0, version=2)
        insert(connection, 2, reward=2.0, propensity=None, names='["a", "b"]', taken=1)
        named = {"names": '["<c>", "\\u00e4"]', "propensity": 0.25}
        insert(connection, 3, reward=0.0, source="default", version=2, **named)
        insert(connection, 4)
        insert(connection, 5, settled=True, reward=3.0, late=True)
        insert(connection, 6, status="deferred")
        insert(connection, 7, status="cancelled", settled=True, failed=True)


def check_window(database: Database) -> None:
    fill(database)
    with database.reading() as connection:
        (window, total), last = read_sample(connection, 0.0), read_sample(connection, 5.0)
        some = read_sample(connection, 0.0, 4)
    assert window.created.tolist() == list(range(8)) and total == 8
    assert last.window.created.tolist() == [5, 6, 7] and last.total == 3
    assert window.arm.tolist() == ["action 0"] * 2 + ["b", "<c>"] + ["action 0"] * 4
    assert some.total == 8 and len(some.window) <= 4
    assert window.task.tolist() == [1, 2] * 4 and set(window.model) == {"shop"}
    np.testing.assert_array_equal(window.reward, [1, 0, 2, 0, *[np.nan] * 4])
    np.testing.assert_array_equal(window.propensity[:4], [0.75, 0.75, np.nan, 0.25])
    assert window.late.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]
    counts = {name: np.flatnonzero(own).tolist() for name, own in outcomes(window).items()}
    assert counts == {
        "rewarded": [0, 1, 2],
        "default reward": [3],
        "waiting": [4],
        "never rewarded": [5],
        "deferred": [6],
        "cancelled": [7],
    }


def test_the_window_is_the_log(database: Database) -> None:
    check_window(database)
    query = sa.select(decisions.c.id).order_by(decisions.c.created.desc()).limit(10)
    with database.reading() as connection:
        plan = connection.execute(sa.text(f"EXPLAIN QUERY PLAN {query}"), {"param_1": 10}).all()
    assert "decisions_by_time" in str(plan)


@pytest.mark.filterwarnings("ignore")  # of pgserver's own
def test_the_window_is_the_log_on_postgresql(postgres_server: Any) -> None:
    database = Database(new_database(postgres_server, "log"))
    check_window(database)
    database.close()


def test_a_database_of_before_gets_the_index(database: Database) -> None:
    with database.transaction() as connection:
        connection.execute(sa.text("DROP INDEX decisions_by_time"))
        connection.execute(schema_version.update().values(version=1))
    again = Database(str(database.url.database))
    names = {index["name"] for index in sa.inspect(again._engine).get_indexes("decisions")}
    again.close()
    assert names == {index.name for index in metadata.tables["decisions"].indexes}


def test_means_have_errors_over_tasks() -> None:
    """Residual sums are -1/2 and 1/2: error² = 2 / 1 · (1/4 + 1/4) / 4²."""
    found = task_mean(np.array([1.0, 0.0, 1.0, 1.0]), np.array([7, 7, 9, 9]))
    assert (found.value, found.error, found.count) == (0.75, 0.25, 4)
    assert str(found) == "0.8 ± 0.2" or str(found) == "0.75 ± 0.25"
    assert np.isnan(task_mean(np.ones(3), np.zeros(3, int)).error)
    assert str(task_mean(np.zeros(0), np.zeros(0, int))) == "none yet"


def test_bins_hold_their_edges() -> None:
    assert age_groups(np.arange(9)).tolist() == [0, 1, 2, 2, 3, 3, 3, 3, 4]
    assert [age_label(group) for group in range(5)] == ["1", "2", "3–4", "5–8", "9–16"]
    keys, edges = np.array([0.5, 1.0, 2.5, 3.0, 4.5, 6.0]), np.array([1.0, 2.0, 3.0, 6.0])
    found = binned(keys, np.arange(6.0), np.arange(6), edges)
    assert [(b.low, b.high, b.mean.value, b.mean.count) for b in found] == [
        (1, 2, 1.0, 1),
        (2, 3, 2.0, 1),
        (3, 6, 4.0, 3),
    ]


def test_ticks_are_round() -> None:
    assert round_ticks(0.0, 10.0) == [(v, str(v)) for v in (0, 2, 4, 6, 8, 10)]
    assert [text for _, text in round_ticks(-0.13, 0.31)] == ["-0.1", "0", "0.1", "0.2", "0.3"]
    assert round_ticks(3.0, 3.0) == [(3.0, "3")] and round_ticks(0.0, 1e5)[1][1] == "20k"


def test_marks_are_where_their_numbers_are() -> None:
    plot = Plot((0.0, 10.0), (0.0, 4.0), x_title="x", height=148.0, left=20.0, right=0.0)
    plot.bars([0.0, 5.0, 10.0], [4.0, 1.0], "reward", [{"n": "first"}, {"n": "second"}])
    plot.dots([5.0], [2.0], "model", [{"n": HARMFUL}])
    drawn = plot.svg(HARMFUL)
    assert "<title>n second</title>" in drawn and "<title>n &lt;script&gt;" in drawn
    places = re.findall(r'<rect [^>]*x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', drawn)
    assert places == [("20.5", "10.0", "199.0", "100.0"), ("220.5", "85.0", "199.0", "25.0")]
    assert 'cx="220.0" cy="60.0"' in drawn
    assert "<script" not in drawn and 'role="img"' in drawn


def window_of(rewards_by_version: dict[int, list[float]]) -> Window:
    """Every decision is of its own task; versions take turns."""
    rows = [
        (float(place), version, value)
        for version, values in rewards_by_version.items()
        for place, value in enumerate(values)
    ]
    created, version, value = (np.array(column) for column in zip(*sorted(rows), strict=True))
    window = np.zeros(len(rows), FIELDS).view(np.recarray)
    window.created, window.version, window.reward = created, version, value
    window.settled, window.propensity, window.predicted = True, 0.5, 0.5
    window.model, window.status, window.task = "shop", "active", np.arange(len(rows))
    return window


def test_versions_are_compared_while_both_served() -> None:
    """The first two and the last four decisions of version 1 had no counterpart."""
    early = window_of({1: [1.0, 1.0, *[0.0, 1.0] * 50, 1.0, 1.0, 1.0, 1.0]})
    late = window_of({2: [0.0, *[1.0] * 99]})
    late.created, late.task = late.created + 2.0, late.task + 1000
    window = np.concatenate([early, late]).view(np.recarray)
    together = model_page.served_together(window, 2, 1)
    assert (np.sum(together.version == 1), np.sum(together.version == 2)) == (100, 100)
    versions = [Version("shop", 0, v, Settings(**LINEAR), PRIOR, 0.5, 0.0) for v in (2, 1)]
    found = model_page.better_version(window, versions)
    assert found.short == "Version 2" and "0.49 ± 0.05" in found.why


def test_answers_follow_the_numbers() -> None:
    right = window_of({1: [0.0, 1.0] * 50})
    wrong = window_of({1: [1.0] * 99 + [0.9]})
    assert model_page.calibrated(right).status == "good"
    assert model_page.calibrated(wrong).short == "Too low"
    assert model_page.health(right, True).status == "good"
    assert model_page.health(right, False).status == "bad"
    gains = {"Yes": 0.5, "It costs": -0.5, "No difference so far": 0.1}
    for expected, gain in gains.items():
        over_cold = Mean(gain, 0.1, 9)
        found = model_page.prior_pays({1: PriorGain(over_cold, num_rows=99)})
        assert found.short == expected and f"{gain:+.2f} ± 0.10 nats" in found.why
    better, even, worse = Mean(0.5, 0.1, 9), Mean(0.1, 0.1, 9), Mean(-0.038, 0.013, 9)
    for over_cold, first_choice, expected in (
        (better, worse, "Yes and no"),
        (better, even, "Yes"),
        (even, worse, "It costs"),
        (even, better, "Yes"),
    ):
        found = model_page.prior_pays({1: PriorGain(over_cold, reward=first_choice, num_rows=99)})
        assert found.short == expected and f"{first_choice:+} per first choice" in found.why
    assert model_page.prior_pays({1: None}).short == "Not known yet"


def test_the_gain_of_a_prior_is_its_closed_form(database: Database) -> None:
    """Rewards given a component are normal, with mean Φ m and covariance Φ C Φᵀ + I."""
    version = Catalog(database).put("shop", Settings(**LINEAR), PRIOR, 1.0)
    rng, gains = np.random.default_rng(0), []
    moments = version.moments
    for task, size in enumerate((1, 3, 5), start=1):
        phi, y = rng.standard_normal((size, 2)), rng.standard_normal(size)
        about = {"id": task, "model": "shop", "name": str(task), "seed": 0, "created": 1e12}
        learned = [
            {"task_id": task, "number": i, "decision_id": f"{task}-{i}", "reward": y[i]}
            | {"features": phi[i].tobytes(), "source": "reward", "learned": 0.0}
            for i in range(size)
        ]
        with database.transaction() as connection:
            connection.execute(tasks.insert(), about | {"num_decisions": size, "num_learned": size})
            with_parents(connection, task, size)
            connection.execute(observations.insert(), learned)

        def log_density(mean: Any, cov: Any, phi: Any = phi, y: Any = y) -> float:
            cov = phi @ np.asarray(cov) @ phi.T + np.eye(len(y))
            return float(multivariate_normal(phi @ np.asarray(mean), cov).logpdf(y))

        parts = [log_density(m, c) for m, c in zip(PRIOR.means, PRIOR.covs, strict=True)]
        gains.append(logsumexp(parts) - np.log(2) - log_density(moments.mean, moments.cov))
    found = prior_gain(database, version)
    gaussian = found.over_gaussian
    np.testing.assert_allclose(gaussian.value, np.mean(gains), atol=1e-10)
    np.testing.assert_allclose(gaussian.error, np.std(gains, ddof=1) / np.sqrt(3), atol=1e-10)
    assert (gaussian.count, found.num_rows) == (3, 9)
    own = sample_tasks(database, version)
    assert own is not None
    table = compare({"prior": PRIOR}, own, version.likelihood)
    values = (found.over_cold.value, found.over_cold.error)
    np.testing.assert_allclose(values, table.difference("prior", "cold start"))
    np.testing.assert_allclose(found.reward.value, table.reward_difference("prior")[0])
    assert f"{found.over_cold:+}" in str(found) and str(found) in found.in_words
    own_gaussian = dp.GaussianPrior(np.asarray(moments.mean), np.asarray(moments.cov))
    version = Catalog(database).put("shop", Settings(**LINEAR), own_gaussian, 1.0)
    again = prior_gain(database, version)
    assert again.over_gaussian.value == 0.0 and "nothing over a Gaussian" in again.in_words
    expected = found.over_cold.value - found.over_gaussian.value
    np.testing.assert_allclose(again.over_cold.value, expected, atol=1e-8)


def with_parents(connection: sa.Connection, task: int, size: int) -> None:
    """Decisions that observations refer to."""
    for i in range(size):
        insert(connection, i, id=f"{task}-{i}", task_id=task)


def test_pages_show_their_numbers_and_escape_names(service: TestClient) -> None:
    identity = decide(service, "a", actions={"red": [1.0, 0.0], "blue": [0.0, 1.0]})["decision_id"]
    page = service.get("/")
    assert page.status_code == 200 and "No rewards yet" in page.text
    for picture in re.findall(r"<svg.*?</svg>", page.text):
        assert 'class="mark' in picture
    reward(service, identity, 0.125)
    task = service.get("/tasks/shop/a").text
    title = "next-decision-if-the-last-actions-were-offered-again"
    actions = service.get("/tasks/shop/a", params={"table": f"{title}.json"}).json()
    assert {row["action"] for row in actions} == {"red", "blue"}
    assert sum(row["propensity"] for row in actions) == pytest.approx(1.0, abs=2e-3)
    assert ">0.125</td>" in task and "1 decisions and 1 rewards" in task
    assert task.count("<svg") == 3 and "θ2" in task
    for i in range(3):
        body = {"actions": {HARMFUL: [1.0, 0.0], "b/c": [0.0, 1.0]}, "task": f"{HARMFUL}/{i}"}
        reply = service.post("/v1/models/shop/decisions", json={"decisions": [body]}).json()
        reward(service, reply["decisions"][0]["decision_id"], 1.0)
    page = service.get("/?range=24h")
    addresses = re.findall(r'href="(/tasks/[^"]*)"', page.text)
    assert len(addresses) == 4 and HARMFUL not in page.text and "<script" not in page.text
    for address in set(addresses) - {"/tasks/shop/a"}:
        found = service.get(address)
        assert found.status_code == 200 and found.text.count("<svg") == 3
        assert HARMFUL not in found.text and "<script" not in found.text
        assert "&lt;script&gt;" in found.text
    assert "script-src" not in page.headers["content-security-policy"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    assert service.get("/tasks/shop/<script>").status_code == 404
    asked = service.get("/tasks", params={"model": "shop", "task": f"{HARMFUL}/1"})
    assert asked.status_code == 200 and "1 decisions" in asked.text


def test_the_page_shows_items_once_there_are_choices(service: TestClient) -> None:
    put(service, "a", HARMFUL)
    assert "<h2>Items</h2>" not in service.get("/").text
    for i in range(20):
        reward(service, choose(service, items=["a"] if i < 16 else None)["decision_id"], 1.0)
    page = service.get("/?range=24h").text
    assert "<h2>Items</h2>" in page and "1 of the 2 newest items have 16 rewards" in page
    assert page.count("Probability of being best") > 0 and "<script" not in page
    assert "No decisions among actions yet" in service.get("/tasks/shop/a").text


def test_probabilities_of_being_best() -> None:
    """Of two arms each decision shows both: a has (0.9 + 0.7 + 0.4 + 0.2) / 4."""
    window = window_of({1: [0.0] * 4})
    window.arm, window.propensity = ["a", "a", "b", "b"], [0.9, 0.7, 0.6, 0.8]
    np.testing.assert_allclose(
        model_page.best_probability(window, ["a", "b", "c"]), [0.55, 0.45, 0.0]
    )
    window.arm = ["a", "a", "b", "c"]
    found = model_page.best_probability(window, ["a", "b", "c"])
    to_a = 0.5 * (0.4 + 0.2) / 0.75
    to_b = 0.25 * ((0.1 + 0.3) / 0.5 + 0.2 / 0.75)
    np.testing.assert_allclose(found[:2], [(1.6 + to_a) / 4, (0.6 + to_b) / 4])
    assert found.sum() == pytest.approx(1.0)


def test_tables_are_sorted_and_saved_as_files(service: TestClient) -> None:
    for i in range(3):
        for _ in range(3 - i):
            found = decide(service, f"=t{i}")
            reward(service, found["decision_id"], float(i))
    assert service.get("/?table=tasks.csv").text.splitlines()[1] == "'=t2,1.0,1.0,2.0"
    assert [row["rewards"] for row in service.get("/?table=tasks.json").json()] == [1, 2, 3]
    page = service.get("/", params={"sort": "tasks.-3"}).text
    places = [page.rindex(f">=t{i}</a>") for i in range(3)]
    assert places == sorted(places) and 'aria-sort="descending"' in page
    versions = service.get("/?table=versions.json").json()
    assert versions[0]["share of tasks"] == 1.0 and "mean reward, standard error" in versions[0]
    names = set(re.findall(r"table=([a-z0-9-]+)\.csv", service.get("/").text))
    assert names > {"versions", "actions", "tasks", "actions-share-of-traffic"}
    for name in names:
        for kind in ("csv", "json"):
            reply = service.get("/", params={"table": f"{name}.{kind}"})
            assert reply.status_code == 200, name
            assert "attachment" in reply.headers["content-disposition"]
    assert service.get("/?table=none.csv").status_code == 404
    assert service.get("/?sort=tasks.99").status_code == 200


def test_columns_link_to_both_orders() -> None:
    table = Table(("name", "mean"), [("b", "none yet"), ("a", "1.5 ± 0.5"), ("c", "12 %")])
    address = Address("/", {"range": "7d"})
    first = sortable(table, "t", address, "")
    assert [title.address for title in first.columns] == [
        "/?range=7d&sort=t.1#t",
        "/?range=7d&sort=t.-2#t",
    ]
    found = sortable(table, "t", address, "t.-2")
    assert [row[0] for row in found.rows] == ["a", "c", "b"]
    assert found.columns[1].address == "/?range=7d&sort=t.2#t"
    found = sortable(table, "t", address, "t.2")
    assert [row[0] for row in found.rows] == ["c", "a", "b"] and found.order == (1, "ascending")
    assert table.records()[1] == {"name": "a", "mean": 1.5, "mean, standard error": 0.5}


def test_ranges_and_reloading(service: TestClient, database: Database) -> None:
    reward(service, decide(service)["decision_id"], 1.0)
    with database.transaction() as connection:
        connection.execute(decisions.update().values(created=decisions.c.created - 5 * 86400))
    reply = service.get("/?refresh=60&range=7d")
    assert reply.headers["refresh"] == "60" and "Based on all 1 decisions" in reply.text
    assert "No decision in this time" in service.get("/?range=24h").text
    assert "refresh" not in service.get("/?range=all").headers
    assert service.get("/?range=1y").status_code == 422
    for i in range(6):
        decide(service, actions={f"a{i}": [1.0, 0.0]})
    page = service.get("/?range=30d&top=5&sort=actions.1").text
    assert ">a4</td>" in page and ">a5</td>" not in page and len(page) > 0
    assert ">a5</td>" in service.get("/?range=30d&top=20&sort=actions.1").text
    assert len(service.get("/?range=30d&table=actions.json").json()) == 7


def test_traffic_changes_only_with_a_token_that_may(
    make_service: MakeService, database: Database
) -> None:
    client = make_service(required=True, **LINEAR)
    catalog = client.engine.catalog
    catalog.put("shop", Settings(**LINEAR, temperature=0.5), PRIOR, 0.5)
    reader = create_token(database, ("read",))
    client.post("/sign-in", data={"token": reader})
    page = client.get("/").text
    assert "/traffic?model=shop&amp;version=2&amp;share=50" in page and "Roll back to" in page
    ask = {"model": "shop", "version": 2, "share": 25}
    page = client.get("/traffic", params=ask).text
    assert "serve 25 % of the tasks" in page and 'type="password"' in page
    assert client.get("/traffic", params=ask | {"share": 101}).status_code == 422
    other = create_token(database, ("admin",), model="other")
    for token in ("", "dp_ü", reader, other):
        reply = client.post("/traffic", data=ask | {"token": token})
        assert reply.status_code == 403 and "<table" not in reply.text
    assert client.post("/traffic", data={"token": reader}).status_code == 422
    assert [v.share for v in catalog.versions_of("shop")] == [0.5, 0.5]
    token = create_token(database, ("admin",))
    reply = client.post("/traffic", data=ask | {"token": token}, follow_redirects=False)
    assert reply.status_code == 303 and reply.headers["location"] == "/?model=shop"
    assert [v.share for v in catalog.versions_of("shop")] == [0.25, 0.75]
    evil = {"Origin": "http://evil.example"}
    assert client.post("/traffic", data=ask | {"token": token}, headers=evil).status_code == 403


def test_readers_see_the_last_snapshot_while_the_next_one_is_made() -> None:
    snapshots: Snapshots[int] = Snapshots()
    begun, go_on, made = threading.Event(), threading.Event(), iter(range(9))

    def slow() -> int:
        begun.set()
        assert go_on.wait(60)
        return next(made)

    assert snapshots.get("a", lambda: next(made)) == 0
    assert snapshots.get("a", slow) == 0  # its time is not over
    time.sleep(CACHE_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(snapshots.get, "a", slow)
        assert begun.wait(60) and snapshots.get("a", slow) == 0
        go_on.set()
        assert future.result(60) == 1 == snapshots.get("a", slow)
    snapshots.clear()
    assert snapshots.get("a", slow) == 2


def test_pages_require_the_right_to_read(make_service: MakeService, database: Database) -> None:
    client = make_service(required=True, **LINEAR)
    header = {"Authorization": f"Bearer {create_token(database)}"}
    other = {"Authorization": f"Bearer {create_token(database, ('read',), model='other')}"}
    assert "/v1/models/shop/tasks/" in client.get("/", headers=header).text
    assert "diffprior serve --model" in client.get("/", headers=other).text
    body, path = {"features": features(0)}, "/v1/models/shop/tasks/a/decisions"
    assert client.post(path, json=body, headers=header).status_code == 200
    for address in ("/", "/tasks/shop/a"):
        assert client.get(address).status_code == 401
        assert client.get(address, headers={"Authorization": "Bearer dp_x"}).status_code == 401
        assert client.get(address, headers=header).status_code == 200
        for rights in ("decide", "admin"):
            token = create_token(database, (rights,))
            client.post("/sign-in", data={"token": token}, follow_redirects=False)
            assert client.get(address).status_code == 403
            client.cookies.clear()
    assert client.get("/tasks/shop/a", headers=other).status_code == 403
    assert client.get("/?model=shop", headers=other).status_code == 403
    assert 'action="/sign-in"' in client.get("/").text
    for wrong in ("", "dp_00000000_x", "dp_ü"):
        assert client.post("/sign-in", data={"token": wrong}).status_code == 401
    token = create_token(database, ("read",))
    reply = client.post("/sign-in", data={"token": token}, follow_redirects=False)
    cookie = reply.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get("/").status_code == 200
    assert client.get("/v1/models").status_code == 401  # the cookie is for pages only
    assert "Sign out" in client.get("/").text
    assert 'action="/sign-in"' in client.post("/sign-out").text
