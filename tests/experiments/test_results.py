"""What all experiments share: cached results, command lines, and the page of a report."""

import getpass
import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import diffprior as dp
from diffprior.files import cache as module
from diffprior.files.cache import array_digest, source_digest
from diffprior.reporting.figures import new_figure
from diffprior.reporting.page import Callout, Text
from diffprior.reporting.tables import Table
from experiments import movielens, posterior, real_data, synthetic
from experiments.results import Results, command


@dataclass(frozen=True)
class Numbers:
    regret: list[float]
    count: int


class Counted:
    """Something to compute that counts how often it was."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Numbers:
        self.count += 1
        return Numbers([1.5, float("nan")], self.count)


def test_a_result_is_computed_once_for_its_settings(results: Results) -> None:
    compute = Counted()
    for sizes in ((1, 2), [1, 2]):
        found = results.numbers(Numbers, "a, b", {"sizes": sizes}, compute)
        assert found.count == 1 and found.regret[0] == 1.5 and np.isnan(found.regret[1])
    for count, (name, runs) in enumerate([("a", 8), ("a", 9), ("b", 8), ("a", 8)], 2):
        assert (
            results.numbers(Numbers, name, {"runs": runs}, compute).count == (2, 3, 4, 2)[count - 2]
        )


def test_changed_code_computes_again(results: Results, tmp_path: Path, monkeypatch: Any) -> None:
    package, compute = tmp_path / "package", Counted()
    (package / "inner").mkdir(parents=True)
    monkeypatch.setattr(module, "PACKAGE", package)

    def count() -> int:
        source_digest.cache_clear()
        return results.numbers(Numbers, "a", {}, compute).count

    (package / "inner" / "a.py").write_text("x = 1")
    assert count() == count() == 1
    (package / "inner" / "a.py").write_text("x = 2")
    assert count() == 2
    (package / "inner" / "b.py").write_text("x = 2")
    assert count() == 3
    (package / "inner" / "b.py").rename(package / "b.py")
    assert count() == 4
    (package / "notes.txt").write_text("no code")
    assert count() == 4
    source_digest.cache_clear()


def test_what_fails_leaves_nothing(results: Results) -> None:
    def fail() -> Numbers:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        results.numbers(Numbers, "a", {}, fail)
    assert not results.out.exists()


def test_arrays_and_objects_are_kept_exactly(results: Results) -> None:
    rows = np.random.default_rng(0).standard_normal((9, 2)).T  # not contiguous
    for change in (0.0, 1.0):
        parts = {"rows": rows + change, "number": np.array(0.1)}
        found = results.arrays("factors", {"seed": 0}, lambda parts=parts: parts)
        np.testing.assert_array_equal(found["rows"], rows)
        assert float(found["number"]) == 0.1
        made = dp.GaussianPrior([1.0 + change], [[1.0]])
        prior = results.saved("a", {}, lambda made=made: made)
        assert isinstance(prior, dp.GaussianPrior) and float(prior.mean[0]) == 1.0
    assert array_digest(rows) == array_digest(rows.copy()) != array_digest(rows.T)
    assert array_digest(rows) != array_digest(rows + 1e-12)


def test_a_report_tells_the_machine_and_not_whose(results: Results, tmp_path: Path) -> None:
    made = results.picture("a", "caption", lambda: new_figure(1, 1, width=2.0, height=2.0)[0])
    assert made.light.startswith(b"\x89PNG") and made.dark.startswith(b"\x89PNG")
    assert made.light != made.dark
    results.report("Title", Callout("b"), [Text("a"), made], {"seed": "7"}, [])
    assert {p.name for p in results.out.iterdir()} == {"a.png", "a.pdf", "report.html"}
    page = (results.out / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"<style>.*</style>|base64,[^\"]*", "", page, flags=re.S)
    assert "<td>seed</td><td>7</td>" in text and "diffprior fit tasks.csv" in text
    assert platform.python_version() in text and "cores" in text
    for secret in (platform.node(), getpass.getuser(), str(Path.home()), str(tmp_path)):
        assert not re.search(rf"\b{re.escape(secret)}\b", text)


def run(experiment: Any, *options: Any, code: int = 0) -> str:
    """Output of an experiment's command line, line breaks as spaces."""
    app = typer.Typer()
    app.command()(command(experiment))
    result = CliRunner().invoke(app, [str(option) for option in options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    compute = Counted()

    def experiment(
        results: Results,
        *,
        problem: Annotated[list[str] | None, typer.Option("--problem")] = None,
        other: tuple[int, ...] = (3,),
    ) -> dict[str, Any]:
        """Of what."""
        asked.append((problem, other))
        found = results.numbers(Numbers, "a", {}, compute)
        table = Table(("counted",), [[str(found.count)]])
        results.report("Title", Callout("b"), [table], {}, [table])
        return {"problems": [found]}

    out, file = tmp_path / "new" / "out", tmp_path / "numbers.json"
    options = ["--out", out, "--problem", "rays"]
    printed = run(experiment, *options, "--json", file)
    assert printed.endswith(f"the report is {out / 'report.html'}") and "counted" in printed
    assert asked == [(["rays"], (3,))]
    assert json.loads(file.read_text())["problems"][0]["count"] == 1
    run(experiment, *options)
    assert compute.count == 1
    run(experiment, *options, "--fresh")
    assert compute.count == 2
    printed = run(experiment, "--json", tmp_path / "missing" / "a.json", code=2)
    assert "`json`: expected a file in a folder" in printed
    monkeypatch.setattr("experiments.results.find_spec", lambda name: None)
    assert "pip install --group experiments" in run(experiment, *options, code=2)
    assert len(asked) == 3


def test_wrong_options_raise(tmp_path: Path) -> None:
    out = ("--out", tmp_path)
    for experiment, options, message in [
        (synthetic.run_synthetic, ("--problem", "star"), "`name`: expected one of 'cross'"),
        (synthetic.run_synthetic, ("--agent", "UCB"), "`agent`: expected one of 'TS'"),
        (posterior.run_posterior, ("--problem", "star"), "`name`: expected one of 'blobs'"),
        (movielens.run_movielens, (), "`data`: expected a folder with ml-1m.zip"),
        (movielens.run_movielens, ("--noise", "much"), "`noise`: expected a number or estimated"),
        (movielens.run_movielens, ("--noise", "0"), "`noise`: expected a positive number, got 0"),
        (real_data.run_real_data, (), "`data`: expected a folder, got none"),
        (real_data.run_real_data, ("--data", tmp_path), "with some of InstEval.csv"),
        (real_data.run_real_data, ("--data", tmp_path, "--only", "hsb"), "`only`: expected"),
        (
            real_data.run_real_data,
            ("--data", tmp_path, "--only", "Hsb82"),
            "`data`: expected Hsb82.csv.gz or Hsb82.csv, found none",
        ),
    ]:
        assert message in run(experiment, *out, *options, code=2)
    assert movielens.noise_of("estimated") is None
