"""Choices among items in exported logs, and what policies would have earned with them."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import vowpalwabbit

import diffprior as dp
from diffprior.evaluate import LoggedChoices, LoggedDecisions, off_policy
from diffprior.service.export import export
from diffprior.service.store import Database
from service.conftest import LINEAR, PRIOR, MakeService, decide, reward
from service.test_choices import ITEMS, choose, put
from service.test_raw import DIM, MODEL, OPTIONS

NUM_CHOICES = 200


def test_a_log_of_choices_says_what_a_policy_would_have_earned(
    make_service: MakeService, database: Database, tmp_path: Path
) -> None:
    """Weights of the policy that chose average one; a bad one is seen to earn less."""
    client = make_service(**(LINEAR | {"propensity_draws": 64}), panel_draws=64)
    put(client, *ITEMS)
    rng, truth = np.random.default_rng(0), {"a": [2.0, 1.0], "b": [-2.0, 0.0], "c": [1.0, 1.0]}
    replies = {}
    for i in range(NUM_CHOICES):
        x = rng.uniform(-1, 1, 2).round(3).tolist()
        exclude = ["b"] if i % 5 == 0 else []
        found = choose(client, context=x, exclude=exclude)
        value = float(np.dot(x, truth[found["item"]]) + 0.5 * rng.standard_normal())
        reward(client, found["decision_id"], value)
        replies[found["decision_id"]] = found | {"context": x, "reward": value, "exclude": exclude}
    reward(client, decide(client, "a")["decision_id"], 1.0)  # evidence alone
    path = tmp_path / "log.parquet"
    assert export(database, "shop", "parquet", path).num_written == NUM_CHOICES + 1
    with pytest.raises(ValueError, match="LoggedChoices"):
        LoggedDecisions.read(path)
    log = LoggedChoices.read(path)
    ids = pq.read_table(path).sort_by("created")["decision_id"].to_pylist()
    for i, name in enumerate(ids[:-1]):
        reply = replies[name]
        assert log.names[log.taken[i]] == reply["item"] and log.rewards[i] == reply["reward"]
        assert log.contexts[i].tolist() == reply["context"]
        assert log.propensities[i] == reply["propensity"]
        allowed = {log.names[item] for item in log.candidates[i]}
        assert allowed == set(ITEMS) - set(reply["exclude"])
    assert np.isnan(log.propensities[-1]) and len({id(c) for c in log.candidates[1:5]}) == 1
    same = off_policy(PRIOR, log, dp.Linear(1.0), num_draws=64)
    gap = abs(same.mean_weight.value - 1.0)
    assert gap < 5 * same.mean_weight.standard_error and same.num_decisions == NUM_CHOICES
    for estimate in (same.ips, same.snips, same.dr):
        error = estimate.standard_error + same.logged.standard_error
        assert abs(estimate.value - same.logged.value) < 5 * error
    sure_of_b = dp.GaussianPrior([0.0, 3.0], 1e-6 * np.eye(2))
    other = off_policy(sure_of_b, log, dp.Linear(1.0), num_draws=64)
    assert other.dr.value < same.dr.value
    with pytest.raises(ValueError, match="prior or a sampler"):
        off_policy(dp.LinUCB(dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Linear(1.0)), log)
    lines = tmp_path / "log.json"
    exported = export(database, "shop", "dsjson", lines)
    workspace = vowpalwabbit.Workspace("--cb_explore_adf --dsjson --quiet -q xi")
    for line in lines.read_text().splitlines():
        examples = workspace.parse(line)
        event = json.loads(line)
        if event["EventId"] in replies:
            reply = replies[event["EventId"]]
            assert len(examples) == 1 + len(ITEMS) - len(reply["exclude"])
            assert event["c"]["_multi"][event["_labelIndex"]]["i"] == {reply["item"]: 1}
            assert list(event["c"]["x"].values()) == reply["context"]
        workspace.learn(examples)
        workspace.finish_example(examples)
    assert workspace.get_weighted_examples() == exported.num_written == NUM_CHOICES + 1
    workspace.finish()
    left = export(database, "shop", "obd", tmp_path / "log.npz").left_out
    assert left == {"choices among items, which this format cannot hold": NUM_CHOICES}


def test_raw_columns_and_attributes_can_be_learned_from_again(
    make_service: MakeService, database: Database, tmp_path: Path
) -> None:
    shop, rng = make_service(**OPTIONS), np.random.default_rng(0)
    visitors = []
    for i in range(60):
        item = f"item {i % 30}"
        if i < 30:
            about = {"kind": ("toys", "food")[i % 2], "size": float(i % 7)}
            reply = shop.put(f"/v1/models/shop/tasks/{item}", json={"attributes": about})
            assert reply.status_code == 200
        device = ("ios", "web", "tv")[i % 3]
        visitors.append({"age": 20 + i % 30, "device": device, "member": i % 4 == 0})
        found = choose(shop, context=visitors[-1], items=[item])
        reward(shop, found["decision_id"], float(rng.standard_normal()))
    path = tmp_path / "log.parquet"
    export(database, "shop", "parquet", path)
    rows = pq.read_table(path).sort_by("created").to_pylist()
    assert [{k: row[k] for k in visitors[0]} for row in rows] == visitors
    columns = {"features": list(visitors[0]), "attributes": ["kind", "size"]}
    logs = dp.Logs.read(path, task="task", reward="reward", **columns)
    assert logs.num_tasks == 30 and logs.encoder.names[0] == "intercept"
    encoded = MODEL.encode(visitors)
    np.testing.assert_allclose([[row[f"x{i + 1}"] for i in range(DIM)] for row in rows], encoded)
    numbers = [int(label.split()[1]) for label in logs.labels]
    kinds = [{"kind": ("toys", "food")[i % 2], "size": float(i % 7)} for i in numbers]
    np.testing.assert_allclose(logs.attributes, logs.attribute_encoder.encode(kinds))
