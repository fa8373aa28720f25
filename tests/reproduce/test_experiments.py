"""Experiments from end to end on the command line, tiny, and again from their finished parts."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import diffprior as dp
from diffprior import cli
from diffprior.reproduce import ablation, agents, posterior, study
from diffprior.reproduce.ablation import paper_schedule
from diffprior.reproduce.parts import Parts
from diffprior.reproduce.study import Effort, Study

TINY = Effort(
    num_runs=4,
    num_rounds=6,
    temperatures=(0.5,),
    temperature_runs=4,
    num_samples=300,
    sizes=(5,),
    num_tasks=3,
    num_draws=9,
    coverage_tasks=4,
    coverage_draws=9,
)


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Effort, "of", lambda num_runs, quick: TINY)
    monkeypatch.setattr(agents, "NUM_ATOMS", 50)
    monkeypatch.setattr(agents, "NUM_ATOMS_GLM", 20)


def run(*arguments: Any, code: int = 0) -> str:
    """What the command printed, having ended with this exit code."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def written(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_file()}


def test_synthetic(tmp_path: Path, closed_form: list[dict]) -> None:
    out, file = tmp_path / "out", tmp_path / "numbers.json"
    options = ["--problem", "rays", "--out", out, "--json", file]
    for name in ("TS", "LinUCB", "DiffTS fitted", "Exact"):
        options += ["--agent", name]
    printed = run("reproduce", "synthetic", *options)
    assert "regret, rays, DiffTS fitted: " in printed and "kept from before" not in printed
    assert printed.endswith(f"the report is {out / 'report.html'}")
    assert written(out) == {"synthetic-linear-1.png", "synthetic-linear-1.pdf", "report.html"}
    numbers = json.loads(file.read_text())
    (rays,) = (p["agents"] for p in numbers["problems"])
    assert list(rays) == ["TS", "LinUCB", "DiffTS fitted", "Exact (50 samples)"]
    assert list(rays["TS"]["temperatures"]) == ["0.5"] and "temperatures" not in rays["LinUCB"]
    assert len(rays["TS"]["final"]) == 4 and len(rays["TS"]["regret_curve"]) == 6
    assert 0 <= rays["DiffTS fitted"]["posterior"]["coverage"] <= 1
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64" in report and "Knowing the true prior saves" in report
    assert str(tmp_path) not in report
    again = run("reproduce", "synthetic", *options)
    assert again.count("kept from before") == 4 + 3 + 1
    assert json.loads(file.read_text()) == numbers
    assert {(asked["samples"], asked["preset"]) for asked in closed_form} == {(300, "default")}


def test_other_settings_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ("regret", "standard_error", "seconds", "compile_seconds", "failures")
    curves = dict.fromkeys(("regret_curve", "standard_error_curve", "final"), [1.0] * 4)
    monkeypatch.setattr(study, "play", lambda *_: {**dict.fromkeys(numbers, 2.5), **curves})
    quality = {"ratio": [1.0], "ratio_error": [0.1], "coverage": 0.9, "coverage_error": 0.1}
    monkeypatch.setattr(Study, "_quality", lambda _: {"TS": quality})
    options = ["--problem", "cross", "--agent", "TS", "--out", tmp_path]
    run("reproduce", "synthetic", *options)
    assert "kept" not in run("reproduce", "synthetic", *options, "--seed", 1)
    assert "kept" not in run("reproduce", "synthetic", *options, "--logistic")
    assert "kept" not in run("reproduce", "synthetic", *options, "--fresh")
    assert "synthetic-logistic-1.png" in written(tmp_path)


def test_numbers_are_those_of_simulate(tmp_path: Path) -> None:
    problem = dp.synthetic("cross")
    one = Study("cross", problem, Parts(tmp_path), effort=TINY, names=("TS",))
    found = one.run()["agents"]
    plain = {"TS": dp.Exact(dp.GaussianPrior(np.zeros(2), np.eye(2)))}
    result = dp.simulate(problem, plain, 4, 6)
    np.testing.assert_allclose(found["TS"]["final"], result.regret["TS"][:, -1], rtol=1e-5)
    cooled = {"TS": dp.Exact(plain["TS"].prior, temperature=0.5)}
    result = dp.simulate(problem, cooled, 4, 6)
    at_half = found["TS"]["temperatures"]["0.5"]["final"]
    np.testing.assert_allclose(at_half, result.regret["TS"][:, -1], rtol=1e-5)
    assert len(one.parts.done) == one.num_parts()


def test_ablation(tmp_path: Path, closed_form: list[dict], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("regret", "standard_error", "seconds", "compile_seconds", "failures")
    monkeypatch.setattr(ablation, "play", lambda *_: dict.fromkeys(kept, 2.5))
    monkeypatch.setattr(ablation, "SAMPLES", (100, 300))
    monkeypatch.setattr(ablation, "STAGES", (1, 3, 200))
    out, file = tmp_path / "out", tmp_path / "numbers.json"
    run("reproduce", "ablation", "--out", out, "--json", file)
    assert written(out) == {"ablation.png", "ablation.pdf", "report.html"}
    numbers = json.loads(file.read_text())
    assert [row["samples"] for row in numbers["samples"]] == [100, 300]
    assert [row["stages"] for row in numbers["stages"]] == [1, 3, 200]
    by_stages = [list(row["agents"]) for row in numbers["stages"]]
    assert by_stages[0] == [ablation.PRESET, ablation.FITTED, ablation.OURS]
    assert by_stages[2] == [ablation.PRESET]
    learned = [(asked["samples"], asked.get("schedule")) for asked in closed_form]
    assert learned[:4] == [(100, None)] * 2 + [(300, None)] * 2
    assert [s.num_stages for _, s in learned[4:] if s] == [1, 3, 200]
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "<td>2.5 ± 2.5</td><td>26</td>" in report  # T = 1 in the paper


def test_stages_end_at_the_papers_noise() -> None:
    for num_stages in (1, 20, 300):
        schedule = paper_schedule(num_stages)
        assert schedule.num_stages == num_stages
        assert schedule.alpha_bar[-1] == pytest.approx(0.97**100)
    np.testing.assert_allclose(paper_schedule(100).alpha_bar, dp.Schedule.constant().alpha_bar)


def test_posterior(
    tmp_path: Path, closed_form: list[dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = lambda samples, paper, ours, seed: {"TS": dp.Exact(dp.GaussianPrior.fit(samples))}  # noqa: E731
    monkeypatch.setattr(posterior, "samplers_of", exact)
    out, file = tmp_path / "out", tmp_path / "numbers.json"
    options = ["--problem", "blobs", "--quick", "--out", out, "--json", file]
    run("reproduce", "posterior", *options)
    assert written(out) == {"posterior.png", "posterior.pdf", "report.html"}
    (panel,) = json.loads(file.read_text())["panels"]
    assert panel["sizes"] == [1, 10, 100] and panel["curves"]["TS"]["ratio"][0] > 1
    assert "kept from before" in run("reproduce", "posterior", *options)


def test_refusals(tmp_path: Path) -> None:
    for arguments, message in [
        (("synthetic", "--problem", "star"), "`name`: expected one of 'cross'"),
        (("synthetic", "--agent", "UCB"), "`agent`: expected one of 'TS'"),
        (("posterior", "--problem", "star"), "`name`: expected one of 'blobs'"),
    ]:
        assert message in run("reproduce", *arguments, "--out", tmp_path, code=2)


def test_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert Effort.of(None, quick=False) == Effort()
    assert Effort.of(None, quick=True).num_runs == 64
    few = Effort.of(16, quick=False)
    assert (few.num_runs, few.temperature_runs) == (16, 16)
    assert Effort.of(1000, quick=False).temperature_runs == 128


def test_the_demo_asks_for_agents_that_exist() -> None:
    text = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    asked = re.findall(r"--agent (?:'([^']+)'|(\w+))", text)
    names = {quoted or plain for quoted, plain in asked}
    assert {"TS", "DiffTS fitted", "EvidenceDPS"} <= names <= set(agents.NAMES)
