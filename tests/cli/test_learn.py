"""`diffprior learn`, `shard` and `statistics`, from files to a prior."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import diffprior as dp
from cli.helpers import run
from worlds_of_tasks import blobs, rows

NAMES = ("--task", "user", "--reward", "rating", "--features", "x*", "--no-intercept")
LINEAR = ("--likelihood", "linear")
GAUSSIAN = ("--families", "gaussian", "--quick")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    tasks, x, y = rows(rng, blobs(rng, 80), 20.0)
    frame = pd.DataFrame({"user": tasks, "x1": x[:, 0], "x2": x[:, 1], "rating": y})
    path = tmp_path_factory.mktemp("logs") / "logs.parquet"
    frame.to_parquet(path)
    return path


@pytest.fixture(scope="module")
def direct(table: Path) -> dp.Model:
    """The Gaussian learned from the rows, hedged, whose report is written too."""
    out = [table.parent / name for name in ("prior.dprior", "report.html", "report.json")]
    options = ("-o", out[0], "--report", out[1], "--json", out[2])
    printed = run("learn", table, *NAMES, *LINEAR, *options, *GAUSSIAN)
    assert "80 tasks" in printed and "wrote" in printed and all(path.exists() for path in out)
    assert json.loads(out[2].read_text())["chosen"] == "Gaussian"
    assert f"serve --model prior={out[0]}" in out[1].read_text(encoding="utf-8")
    return dp.Model.load(out[0])


def same_prior(path: Path, direct: dp.Model) -> None:
    ours = dp.Model.load(path).prior
    assert isinstance(ours, dp.MixturePrior) and isinstance(direct.prior, dp.MixturePrior)
    np.testing.assert_allclose(ours.covs, direct.prior.covs, rtol=1e-6)


def test_statistics_are_made_by_sql_and_learned_from(
    table: Path, direct: dp.Model, tmp_path: Path
) -> None:
    import duckdb

    assert isinstance(direct.prior, dp.MixturePrior) and direct.feature_names == ("x1", "x2")
    query = run("statistics", *NAMES, "--columns", table, "--table", f"'{table}'")
    duckdb.sql(query).write_parquet(str(tmp_path / "sums.parquet"))
    output = tmp_path / "prior.dprior"
    run("learn", tmp_path / "sums.parquet", "--from", "statistics", "-o", output, *GAUSSIAN)
    same_prior(output, direct)
    assert "pattern 'x*'" in run("statistics", *NAMES, code=2)


def test_shards_are_written_and_learned_from(table: Path, direct: dp.Model, tmp_path: Path) -> None:
    shards, output, passes = (tmp_path / name for name in ("shards", "prior.dprior", "passes"))
    write = ("shard", table, "--task", "user", "--tasks-per-file", 20, "-o", shards)
    assert "wrote 4 files" in run(*write)
    assert "expected an empty folder" in run(*write, code=2)
    run("learn", shards, *NAMES, *LINEAR, "-o", output, *GAUSSIAN, "--checkpoint-dir", passes)
    same_prior(output, direct)
    assert list(passes.glob("pass-*"))


def test_wrong_options_are_explained_before_any_work(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = ("-o", tmp_path / "prior.dprior")
    for options, message in (
        (("--task", "movie", *NAMES[2:]), "it has 'user'"),
        (NAMES, "rewards are numbers of any size, so pass --likelihood linear"),
        ((*NAMES, *LINEAR, "--families", "network"), "`families`: expected one of 'gaussian'"),
        ((*NAMES, "--likelihood", "negative-binomial"), "`rewards`: expected counts"),
        ((*NAMES, "--likelihood", "zero-inflated"), "`rewards`: expected 0 or positive"),
    ):
        assert message in run("learn", table, *output, *options, code=2)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "ray" else find(n))
    printed = run("learn", "nowhere.parquet", *output, "--ray", "local", code=2)
    assert "pip install 'diffprior[cluster]'" in printed
    assert list(tmp_path.iterdir()) == []
