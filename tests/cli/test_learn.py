"""`diffprior learn` and `diffprior statistics`, from files to a prior."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import diffprior as dp
from diffprior.cli import app
from worlds_of_tasks import blobs, rows

run = CliRunner()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    import pandas as pd

    rng = np.random.default_rng(0)
    tasks, x, y = rows(rng, blobs(rng, 80), 4.0)
    frame = pd.DataFrame({"user": tasks, "x1": x[:, 0], "x2": x[:, 1], "rating": y})
    frame.to_parquet(tmp_path / "logs.parquet")
    return tmp_path / "logs.parquet"


NAMES = ["--task", "user", "--reward", "rating", "--features", "x*"]


def test_a_prior_and_a_report_are_written(table: Path, tmp_path: Path) -> None:
    out = [tmp_path / name for name in ("prior.dprior", "report.html", "report.json")]
    options = ["-o", str(out[0]), "--report", str(out[1]), "--json", str(out[2])]
    result = run.invoke(app, ["learn", str(table), *NAMES, *options, "--up-to", "gaussian"])
    assert result.exit_code == 0, result.output
    assert all(path.exists() for path in out)
    assert json.loads(out[2].read_text())["chosen"] == "Gaussian"
    prior = dp.load(out[0])
    assert isinstance(prior, dp.MixturePrior) and prior.dim == 2  # the Gaussian, hedged


def test_statistics_are_made_by_sql_and_learned_from(table: Path, tmp_path: Path) -> None:
    import duckdb

    options = [*NAMES, "--columns", str(table), "--table", f"'{table}'"]
    made = run.invoke(app, ["statistics", *options])
    assert made.exit_code == 0, made.output
    duckdb.sql(made.stdout).write_parquet(str(tmp_path / "sums.parquet"))
    output = ["-o", str(tmp_path / "prior.dprior")]
    result = run.invoke(
        app, ["learn", str(tmp_path / "sums.parquet"), "--from", "statistics", *output]
    )
    assert result.exit_code == 0, result.output
    direct = run.invoke(
        app,
        ["learn", str(table), *NAMES, "-o", str(tmp_path / "direct.dprior"), "--up-to", "gaussian"],
    )
    assert direct.exit_code == 0, direct.output
    one, two = (dp.load(tmp_path / f"{name}.dprior") for name in ("prior", "direct"))
    np.testing.assert_allclose(one.covs, two.covs, rtol=1e-6)


def test_wrong_options_are_explained(table: Path, tmp_path: Path) -> None:
    missing = run.invoke(
        app,
        ["learn", str(table), "--task", "movie", "--reward", "rating", "--features", "x*",
         "-o", str(tmp_path / "p.dprior")],
    )  # fmt: skip
    assert missing.exit_code == 2 and "it has 'user'" in " ".join(missing.output.split())
    pattern = run.invoke(app, ["statistics", *NAMES])
    assert pattern.exit_code == 2 and "pattern 'x*'" in " ".join(pattern.output.split())


def test_shards_are_written_and_learned_from(table: Path, tmp_path: Path) -> None:
    shards, whole, kept = tmp_path / "shards", tmp_path / "whole.dprior", tmp_path / "kept"
    made = run.invoke(
        app,
        ["shard", str(table), "--task", "user", "--tasks-per-file", "20", "--out", str(shards)],
    )
    assert made.exit_code == 0 and "wrote 4 files" in made.output
    for source, output, options in (
        (table, whole, []),
        (shards, tmp_path / "parts.dprior", ["--keep", str(kept)]),
    ):
        arguments = ["learn", str(source), *NAMES, "-o", str(output), "--no-simulate", *options]
        result = run.invoke(app, arguments)
        assert result.exit_code == 0, result.output
    one, two = (dp.load(tmp_path / f"{name}.dprior") for name in ("whole", "parts"))
    np.testing.assert_allclose(one.covs, two.covs, rtol=1e-6)
    assert list(kept.glob("pass-sums-*.kept"))
    again = ["shard", str(table), "--task", "user", "--out", str(shards)]
    refused = run.invoke(app, again)
    assert refused.exit_code == 2 and "expected an empty folder" in " ".join(refused.output.split())


def test_without_ray_a_cluster_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    arguments = ["learn", "nowhere.parquet", "-o", str(tmp_path / "prior.dprior")]
    result = run.invoke(app, [*arguments, "--ray", "local"])
    said = " ".join(result.output.split())
    assert result.exit_code == 2 and "pip install 'diffprior[cluster]'" in said
    assert list(tmp_path.iterdir()) == []
