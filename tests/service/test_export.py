"""The log as files: everything that was learned from, once, as other tools and ours read it."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
import vowpalwabbit
from starlette.testclient import TestClient

import diffprior as dp
from cli.helpers import run
from diffprior.service.export import export
from diffprior.service.store import Database, decisions, schema_version
from service.conftest import LINEAR, PRIOR, MakeService, decide, features, reward, running_service

NUM_TASKS, NUM_ROUNDS = 4, 8


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, dict[str, dict]]]:
    """A database, and the replies to its decisions that were learned from, with their rewards."""
    database = Database(str(tmp_path_factory.mktemp("export") / "log.sqlite"))
    replies: dict[str, dict] = {}
    rng = np.random.default_rng(0)
    with running_service(database, **LINEAR) as client:
        for i in range(NUM_TASKS * NUM_ROUNDS):
            table, mask, task = features(i), [True, i % 4 > 0, True], f"task {i % NUM_TASKS}"
            reply = decide(client, task, features=table, mask=mask)
            value = float(rng.standard_normal())
            reward(client, reply["decision_id"], value)
            more = {"reward": value, "features": table, "mask": mask, "task": task}
            replies[reply["decision_id"]] = reply | more
        _leave_out(client)
    yield database, replies
    database.close()


def _leave_out(client: TestClient) -> None:
    """Decisions that no estimate can use, one of each kind."""
    decide(client, "task 0")  # nothing is known of it yet
    cancelled = decide(client, "task 0")["decision_id"]
    assert client.post(f"/v1/decisions/{cancelled}/cancel").status_code == 200
    ranked = decide(client, "task 1", top_k=2)["decision_id"]
    reward(client, ranked, 0.5)
    for action in range(3):  # the one that we would have taken among them
        theirs = decide(client, "task 2", action_taken=action)["decision_id"]
        reward(client, theirs, 0.5)


def test_a_table_has_every_decision_that_was_learned_from(
    logged: tuple[Database, dict[str, dict]], tmp_path: Path
) -> None:
    database, log = logged
    path = tmp_path / "log.parquet"
    exported = export(database, "shop", "parquet", path)
    rows = {row["decision_id"]: row for row in pq.read_table(path).to_pylist()}
    assert exported.num_written == len(rows) == exported.num_decisions - 2
    assert exported.left_out == {"not yet settled": 1, "cancelled": 1}
    for name, reply in log.items():
        row, action = rows[name], reply["action"]
        assert (row["task"], row["reward"]) == (reply["task"], reply["reward"])
        assert (row["taken"], row["action"]) == (action, str(action))
        assert row["propensity"] == pytest.approx(reply["propensity"], abs=1e-12)
        assert row["actions"] == reply["features"] and row["mask"] == reply["mask"]
        assert [row["x1"], row["x2"]] == reply["features"][action]
        assert row["created"] <= row["learned"]
    unknown = [row for row in rows.values() if row["propensity"] is None]
    assert len(unknown) == len(rows) - exported.num_propensities > 0
    logs = dp.Logs.read(path, task="task", reward="reward", features="x*", time="learned")
    assert logs.num_tasks == NUM_TASKS and logs.num_rows == len(rows)


def test_decision_service_lines_are_read_by_vowpal_wabbit_and_by_us(
    logged: tuple[Database, dict[str, dict]], tmp_path: Path
) -> None:
    database, log = logged
    path = tmp_path / "log.json"
    exported = export(database, "shop", "dsjson", path)
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(events) == exported.num_written == exported.num_propensities
    assert sum(exported.left_out.values()) == exported.num_decisions - len(events)
    assert exported.left_out["ranked, whose propensity is of the whole ranking"] == 1
    assert exported.left_out["taken by the caller in shadow mode"] == 3
    seen = 0
    workspace = vowpalwabbit.Workspace("--cb_explore_adf --dsjson --quiet")
    for event in events:
        examples = workspace.parse(json.dumps(event))
        labels = [e.get_label(vowpalwabbit.LabelType.CONTEXTUAL_BANDIT).costs for e in examples]
        ((place, (label,)),) = [(i, found) for i, found in enumerate(labels[1:]) if found]
        if event["EventId"] in log:
            reply, seen = log[event["EventId"]], seen + 1
            assert len(examples) == 1 + sum(reply["mask"])
            assert np.flatnonzero(reply["mask"])[place] == reply["action"]
            assert label.cost == pytest.approx(-reply["reward"], rel=1e-6)  # they keep floats
            assert label.probability == pytest.approx(reply["propensity"], rel=1e-6)
        workspace.learn(examples)
        workspace.finish_example(examples)
    assert seen == len(log) and workspace.get_weighted_examples() == len(events)
    workspace.finish()


def test_open_bandit_arrays_hold_the_log(
    logged: tuple[Database, dict[str, dict]], tmp_path: Path
) -> None:
    database, log = logged
    path = tmp_path / "log.npz"
    exported = export(database, "shop", "obd", path)
    with np.load(path, allow_pickle=False) as arrays:
        found = dict(arrays)
    n = exported.num_written
    assert found["n_rounds"] == n and found["n_actions"] == 3
    assert found["context"].shape == (n, 6) and found["action_context"].shape == (3, 3)
    for name in ("action", "reward", "pscore", "position"):
        assert found[name].shape == (n,)
    rewards = np.array([reply["reward"] for reply in log.values()])
    ours = np.isin(found["reward"], rewards)
    assert ours.sum() == len(log)
    by_reward = {reply["reward"]: reply for reply in log.values()}
    for i in np.flatnonzero(ours):
        reply = by_reward[found["reward"][i]]
        assert found["action"][i] == reply["action"]
        assert found["pscore"][i] == pytest.approx(reply["propensity"])
        assert found["task"][found["task_number"][i]] == reply["task"]
        np.testing.assert_array_equal(found["context"][i].reshape(3, 2), reply["features"])
        np.testing.assert_array_equal(found["mask"][i], reply["mask"])


def test_choices_at_random_keep_their_propensity(
    make_service: MakeService, database: Database, tmp_path: Path
) -> None:
    client = make_service(**LINEAR, sampler="random")
    for i in range(3):
        reward(client, decide(client, features=features(i))["decision_id"], 1.0)
    export(database, "shop", "parquet", tmp_path / "log.parquet")
    table = pq.read_table(tmp_path / "log.parquet")
    assert table["propensity"].to_pylist() == pytest.approx([1 / 3] * 3)


def test_the_command_checks_before_it_works_and_says_what_was_left_out(
    logged: tuple[Database, dict[str, dict]], tmp_path: Path
) -> None:
    database, log = logged
    url = str(database.url.database)
    path = tmp_path / "out.parquet"
    said = run("export", "--database", url, "--model", "shop", "-o", path)
    assert "left out 1 not yet settled, 1 cancelled" in said and path.exists()
    PRIOR.save(tmp_path / "prior.dprior")
    options = ("--likelihood", "linear", "--noise-std", 1.0, "--json", tmp_path / "found.json")
    said = run("evaluate", "off-policy", tmp_path / "prior.dprior", path, *options)
    assert "this log cannot tell" in said and "more without a propensity" in said
    _check_estimates(json.loads((tmp_path / "found.json").read_text()), log)
    given = ("export", "--database", url, "-o", tmp_path / "new", "--model")
    assert "`model`: expected a model of the database (shop)" in run(*given, "x", code=2)
    assert "`format`: expected" in run(*given, "shop", "--format", "csv", code=2)
    nowhere = run("export", "--database", tmp_path / "no", "--model", "s", "-o", path, code=2)
    assert "found none at" in nowhere and not (tmp_path / "no").exists()
    assert "make the folder" in run(
        *given[:3], "--model", "shop", "-o", tmp_path / "no" / "x", code=2
    )
    assert sorted(p.name for p in tmp_path.glob("new*")) == []


def _check_estimates(found: dict, log: dict[str, dict]) -> None:
    """The policy that took the decisions is evaluated; nearly all of its weights are about 1."""
    assert found["num_decisions"] >= len(log) and found["failed"] == 0
    assert found["effective_sample_size"] > 0.5 * found["num_decisions"]
    for name in ("ips", "snips", "dr"):
        error = found[name]["standard_error"] + found["logged"]["standard_error"]
        assert abs(found[name]["value"] - found["logged"]["value"]) < 5 * error


def test_open_bandit_arrays_are_of_decisions_with_equally_many_actions(
    make_service: MakeService, database: Database, tmp_path: Path
) -> None:
    client = make_service(**LINEAR)
    for k in (2, 3, 3):
        reward(client, decide(client, features=features(0, k))["decision_id"], 1.0)
    exported = export(database, "shop", "obd", tmp_path / "log.npz")
    assert exported.num_written == 2 and exported.left_out == {"with other than 3 actions": 1}
    assert export(database, "shop", "dsjson", tmp_path / "log.json").num_written == 3


def test_propensities_of_before_count_the_draw_that_decided(
    make_service: MakeService, database: Database, tmp_path: Path
) -> None:
    """They were shares of a fixed number of draws, which might be zero."""
    client = make_service(**LINEAR)
    reply = decide(client)
    reward(client, reply["decision_id"], 1.0)
    with database.transaction() as connection:
        connection.execute(sa.text("ALTER TABLE decisions DROP COLUMN num_draws"))
        connection.execute(decisions.update().values(propensity=0.25))
        connection.execute(schema_version.update().values(version=4))
    again = Database(str(database.url.database))
    export(again, "shop", "parquet", tmp_path / "log.parquet")
    again.close()
    (share,) = pq.read_table(tmp_path / "log.parquet")["propensity"].to_pylist()
    assert share == pytest.approx((1 + 1) / (4 + 1))
