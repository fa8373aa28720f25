"""Models: learned from raw columns, saved with all they know, and used by bandits and commands."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from cli.helpers import run
from diffprior.learning.likelihoods import likelihood_advice, missing_intercept


def raw(num_tasks: int = 40, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of tasks whose reward depends on an age, sometimes missing, and a device."""
    rng, rows = np.random.default_rng(seed), []
    for task in range(num_tasks):
        level, slope, web = rng.normal(size=3) + np.array([3.0, 0.5, -1.0])
        for _ in range(12):
            age, device = float(rng.normal(40, 10)), str(rng.choice(["ios", "web"]))
            reward = level + slope * (age - 40) / 10 + web * (device == "web") + rng.normal() / 3
            row = {"user": f"u{task}", "age": age if rng.random() < 0.9 else None}
            rows.append(row | {"device": device, "paid": reward})
    return rows


@pytest.fixture(scope="module")
def model() -> dp.Model:
    logs = dp.Logs.read(raw(), task="user", reward="paid")
    return dp.learn(logs, dp.Linear(), families=("gaussian",), simulate=False, progress=False)


def test_a_model_holds_all_that_is_needed(model: dp.Model, tmp_path: Path) -> None:
    assert model.feature_names == ("intercept", "age", "age is missing", "device=web")
    model.save(tmp_path / "shop.model")
    again = dp.load(tmp_path / "shop.model")
    assert isinstance(again, dp.Model) and again.digest == model.digest
    assert str(again.report) == str(model.report) and again.likelihood == model.likelihood
    assert "the likelihood to choose is linear, because" in str(again.report)
    rows = [{"age": 31.0, "device": "ios"}, {"age": None, "device": "fridge"}]
    bandit, plain = again.bandit(seed=1), dp.Bandit(model.prior, model.likelihood, seed=1)
    features = model.encode(rows)
    assert bandit.decide(rows).action == plain.decide(features).action
    bandit.update(rows[0], 2.0)
    plain.update(features[0], 2.0)
    restored = dp.Bandit.from_bytes(bandit.to_bytes(), keep_seed=True)
    assert restored.decide(rows).action == plain.decide(features).action
    np.testing.assert_array_equal(
        restored.posterior(9, seed=0).mean, plain.posterior(9, seed=0).mean
    )


def test_items_of_a_model_take_raw_rows_and_attributes(model: dp.Model, tmp_path: Path) -> None:
    kinds = dp.Encoder.fit([{"kind": kind} for kind in 20 * "abc"], intercept=False)
    moved = np.zeros((kinds.dim, model.prior.dim))
    moved[:, 0] = 100.0  # of the intercept
    prior = dp.ConditionalPrior(model.prior, moved, np.zeros(kinds.dim))
    shop = dp.Model(prior, model.likelihood, model.encoder, kinds)
    items = shop.items(seed=0)
    rows = [{"kind": "a"}, {"kind": "b"}, {"kind": "c"}]
    items.add(["one", "two", "three"], rows)
    items.save(tmp_path / "items")
    again = dp.load(tmp_path / "items")
    for catalog in (items, again):
        assert isinstance(catalog, dp.Items)
        visitor = {"age": 31.0, "device": "ios"}
        best = {catalog.choose(visitor).item for _ in range(20)}
        assert best <= {["one", "two", "three"][i] for i in kinds.encode(rows).any(1).nonzero()[0]}
        assert catalog.choose([visitor] * 2, among=["one", "two"]).item in ("one", "two")
        catalog.update("one", visitor, 2.0)
        catalog.update(["one", "two"], [visitor, visitor], [2.0, 1.0])
    unpaid = dp.Model(model.prior, model.likelihood, model.encoder, kinds).items(seed=0)
    unpaid.add("one", {"kind": "a"})  # attributes that do not pay are ignored
    mean = unpaid.posterior("one", 4000, seed=1).mean
    cov = np.asarray(model.prior.moments().cov)
    assert np.all(np.abs(mean - model.prior.moments().mean) < 5 * np.sqrt(np.diag(cov) / 4000))
    with pytest.raises(ValueError, match="`attributes`: expected arrays"):
        dp.Items(prior, model.likelihood).add("one", {"kind": "a"})


def test_what_a_model_does_not_know_is_named(model: dp.Model) -> None:
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    bare = dp.Model(prior, dp.Logistic())
    for call, message in (
        (lambda: dp.Model(prior, dp.Linear()), "`likelihood`: expected the noise of linear"),
        (lambda: dp.Model(prior, dp.Logistic(), model.encoder), "`feature_names`: expected 2"),
        (lambda: bare.encode({"age": 1}), "`rows`: expected a model with an encoder"),
        (lambda: bare.bandit().decide([{"age": 1}]), "`features`: expected arrays"),
        (lambda: bare.bandit({"kind": "a"}), "`attributes`: expected none"),
        (
            lambda: model.bandit().decide([{"age": "1", "device": "ios"}]),
            "`age`: expected a number, got str",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_commands_ask_for_nothing_that_a_model_knows(tmp_path: Path) -> None:
    import pandas as pd

    path, old, new = tmp_path / "shop.model", tmp_path / "old.csv", tmp_path / "new.csv"
    pd.DataFrame(raw()).to_csv(old, index=False, sep=";")
    pd.DataFrame(raw(30, seed=1)).drop(columns="user").assign(user=np.arange(360) // 12).to_csv(new)
    columns = ("--task", "user", "--reward", "paid")
    learn = ("learn", old, *columns, "-o", path, "--families", "gaussian", "--no-simulate")
    assert "rewards are numbers of any size, so pass --likelihood linear" in run(*learn, code=2)
    printed = run(*learn, "--likelihood", "linear")
    assert "4 features" in printed and "wrote" in printed
    printed = run("evaluate", path, new, *columns)
    assert "30 tasks, 360 rows, 4 features" in printed
    assert "leave out --likelihood" in run(
        "evaluate", path, new, *columns, "--likelihood", "linear", code=2
    )
    dp.Model.load(path).prior.save(tmp_path / "bare.dprior")
    for command in (("evaluate", "prior"), ("evaluate", "off-policy")):
        options = columns if command[1] == "prior" else ()
        message = run(*command, tmp_path / "bare.dprior", new, *options, code=2)
        assert "`likelihood`: expected a likelihood" in message


def logs_of(rewards: np.ndarray, features: np.ndarray | None = None) -> dp.Logs:
    n = len(rewards)
    x = np.random.default_rng(0).normal(size=(n, 1)) if features is None else features
    return dp.Logs(np.arange(n) // 20, x, rewards)


def test_rewards_suggest_a_likelihood() -> None:
    rng = np.random.default_rng(0)
    rates = np.exp(rng.normal(size=100)).repeat(20)
    for rewards, name, why in (
        (rng.integers(2, size=2000), "logistic", "0 or 1"),
        (rng.poisson(rates), "poisson", "about their mean"),
        (
            rng.poisson(rates * rng.gamma(0.5, 2.0, 2000)),
            "negative-binomial",
            "dispersion of 0.[456]",
        ),
        (rng.integers(1, 6, size=2000), "linear", "from 1 to 5"),
        (
            np.where(rng.random(2000) < 0.8, 0, rng.exponential(size=2000)),
            "zero-inflated",
            "0 in [78]",
        ),
        (rng.normal(size=2000), "linear", "any size"),
    ):
        found = likelihood_advice(logs_of(rewards.astype(float)))
        assert found[0] == name and re.search(why, found[1])


def test_a_missing_intercept_is_noticed() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 1))
    shifted = 3.0 + x[:, 0] + rng.normal(size=2000)
    assert "no intercept" in missing_intercept(logs_of(shifted, x), dp.Linear())
    with_one = dp.Logs(np.arange(2000) // 20, x, shifted, intercept=True)
    assert missing_intercept(with_one, dp.Linear()) == ""
    assert missing_intercept(logs_of(shifted - 3.0, x), dp.Linear()) == ""
    clicks = (rng.random(2000) < 0.02).astype(float)
    assert "no intercept" in missing_intercept(logs_of(clicks, x), dp.Logistic())
