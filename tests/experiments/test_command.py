"""`reproduce` and `bench` on the command line: what they ask for, check and say."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from experiments import synthetic
from experiments.__main__ import app, noise_of
from handmade import problem, regret


def run(*arguments: Any, code: int = 0) -> str:
    """What a command printed, having ended with this exit code; line breaks are spaces."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments[1:]])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Nothing is run; the list is of what should have been."""
    calls: list[dict[str, Any]] = []

    def experiment(out: Path, cache: object, **options: Any) -> synthetic.SyntheticResult:
        calls.append(options)
        found = problem("rays", TS=regret([2.0, 3.0]), EvidenceDPS=regret([1.0, 2.1]))
        return synthetic.SyntheticResult("linear", {"seed": "0"}, (found,))

    monkeypatch.setattr(synthetic, "run_synthetic", experiment)
    return calls


def test_numbers_and_where_they_are(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    out, file = tmp_path / "new" / "out", tmp_path / "numbers.json"
    options = ["--out", out, "--json", file, "--runs", 7, "--problem", "rays", "--agent", "TS"]
    printed = run("reproduce", "synthetic", *options)
    assert printed.endswith(f"the report is {out / 'report.html'}") and "EvidenceDPS" in printed
    (options_given,) = asked
    assert options_given["names"] == ("rays",) and options_given["agents"] == ("TS",)
    assert options_given["effort"].num_runs == 7
    assert json.loads(file.read_text())["problems"][0]["agents"]["TS"]["regret"]["mean"] == 2.5


def test_checks_come_first(
    tmp_path: Path, asked: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing" / "a.json"
    out = ["--out", tmp_path / "out"]
    assert "`json`: expected a file in a folder" in run(
        "reproduce", "synthetic", *out, "--json", missing, code=2
    )
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == "ot" else find(n))
    assert "pip install 'diffprior[experiments]'" in run("reproduce", "synthetic", *out, code=2)
    assert not asked and not (tmp_path / "out").exists()


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIFFPRIOR_DATA", raising=False)
    for arguments, message in [
        (("synthetic", "--problem", "star"), "`name`: expected one of 'cross'"),
        (("synthetic", "--agent", "UCB"), "`agent`: expected one of 'TS'"),
        (("posterior", "--problem", "star"), "`name`: expected one of 'blobs'"),
        (("movielens",), "`folder`: expected a folder with ml-1m.zip"),
        (("mnist", "--data", tmp_path), "`folder`: expected train-images-idx3-ubyte.gz"),
        (("movielens", "--noise", "much"), "`noise`: expected a number or estimated, got 'much'"),
        (("movielens", "--noise", "0"), "`noise`: expected a positive number, got 0"),
    ]:
        assert message in run("reproduce", *arguments, "--out", tmp_path / "out", code=2)
    assert noise_of("estimated") is None and noise_of("0.5") == 0.5
