"""Experiments from end to end, tiny, and again from the cache."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import diffprior as dp
from diffprior.progress import Progress
from experiments import ablation, experiment, movielens, posterior, synthetic
from experiments.ablation import paper_schedule, run_ablation
from experiments.agents import LearnedPriors
from experiments.cache import ResultCache
from experiments.experiment import Effort, Experiment, past_tasks
from experiments.posterior import run_posterior
from experiments.synthetic import run_synthetic
from handmade import problem, regret


def written(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_file()}


def test_synthetic(
    tmp_path: Path,
    effort: Effort,
    cache: ResultCache,
    learned: list,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experiment, "play", lambda *_: regret([2.0, 3.5, 4.0, 2.0]))
    out = tmp_path / "out"
    agents = ("TS", "LinUCB", "EvidenceDPS")

    def run(**options: int) -> tuple[dict, int]:
        before = len(cache.entries)
        result = run_synthetic(out, cache, names=("rays",), agents=agents, effort=effort, **options)
        new = [entry for entry in cache.entries[before:] if not entry.reused]
        return dataclasses.asdict(result), len(new)

    first, computed = run()
    assert computed == 3 + 2 + 2  # regret, other temperatures, posteriors
    assert written(out) == {"synthetic-linear-1.png", "synthetic-linear-1.pdf", "report.html"}
    (rays,) = first["problems"]
    assert tuple(rays["agents"]) == agents and len(rays["agents"]["TS"]["regret"]["final"]) == 4
    assert list(rays["agents"]["TS"]["tempered"]) == ["0.5"]
    assert rays["agents"]["LinUCB"]["posterior"] is None
    assert 0 <= rays["agents"]["EvidenceDPS"]["posterior"]["coverage"] <= 1
    json.dumps(first)
    report = (out / "report.html").read_text(encoding="utf-8")
    for words in ("What it says", "evidence inside the denoiser", "diffprior fit tasks.csv"):
        assert words in report
    assert report.count("upper confidence bounds") == 1 and str(tmp_path) not in report
    assert run() == (first, 0)
    assert {asked[1:3] for asked in learned} == {(300, "default")}


def test_numbers_are_those_of_simulate(effort: Effort, cache: ResultCache) -> None:
    problem = dp.synthetic("cross")
    priors = LearnedPriors("cross", past_tasks(problem, 300, 0), cache)
    options = {"effort": effort, "agents": ("TS",), "score_posteriors": False}
    of_cross, shown = Experiment("cross", problem, priors, **options), Progress("", 1)
    found = of_cross.run(shown).agents["TS"]
    assert shown.done == of_cross.num_steps == 1 + 3  # a prior, two regrets and no posterior
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    for temperature, ours in ((1.0, found.regret), (0.5, found.tempered["0.5"])):
        sampler = dp.Exact(prior, temperature=temperature)
        result = dp.simulate(problem, {"TS": sampler}, 4, 6, progress=False)
        np.testing.assert_allclose(ours.final, result.regret["TS"][:, -1], rtol=1e-5)
    other = Experiment("cross", dp.synthetic("cross", dp.Logistic()), priors, **options)
    assert other.about(other.specs[0]) != Experiment("cross", problem, priors, **options).about(
        other.specs[0]
    )


def test_ablation(
    tmp_path: Path,
    effort: Effort,
    cache: ResultCache,
    learned: list,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ablation, "play", lambda *_: regret([2.0, 3.0]))
    monkeypatch.setattr(ablation, "SAMPLES", (100, 300))
    monkeypatch.setattr(ablation, "STAGES", (1, 3, 200))
    result = run_ablation(tmp_path, cache, effort=effort)
    assert {"ablation.png", "ablation.pdf", "report.html"} <= written(tmp_path)
    assert list(result.by_samples) == [100, 300] and list(result.by_stages) == [1, 3, 200]
    assert list(result.by_stages[1]) == [ablation.PRESET, ablation.FITTED, ablation.OURS]
    assert list(result.by_stages[200]) == [ablation.PRESET]
    assert {n for _, n, _, schedule in learned if schedule is None} == {100, 300}
    assert [s.num_stages for *_, s in learned if s is not None] == [1, 3, 200]
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert re.search(
        r"<td[^>]*>\s*2\.5 ± 0\.5\s*</td>\s*<td[^>]*>\s*26\s*</td>", report
    )  # T = 1 in the paper


def test_stages_end_at_the_papers_noise() -> None:
    for num_stages in (1, 20, 300):
        schedule = paper_schedule(num_stages)
        assert schedule.num_stages == num_stages
        assert schedule.alpha_bar[-1] == pytest.approx(0.97**100)
    np.testing.assert_allclose(paper_schedule(100).alpha_bar, dp.Schedule.constant().alpha_bar)


def test_posterior(
    tmp_path: Path, cache: ResultCache, learned: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posterior, "sampler_names", lambda: ("TunedTS",))
    result = run_posterior(tmp_path, cache, names=("blobs",), quick=True)
    assert {"posterior.png", "posterior.pdf", "report.html"} <= written(tmp_path)
    (blobs,) = result.mixtures
    assert blobs.sizes == (1, 10, 100)
    found = blobs.samplers["TunedTS"]
    assert found.ratio[0] > 1.2  # one Gaussian for two blobs
    np.testing.assert_allclose(found.ratio, np.divide(found.distance, found.floor), rtol=1e-6)


def test_every_sampler_has_its_prior(cache: ResultCache, learned: list) -> None:
    priors = LearnedPriors(
        "some", np.asarray(dp.example_mixture("blobs").sample(jax.random.key(0), 99)), cache
    )
    names = posterior.sampler_names()
    assert {"SMC", "MixTS(K)", "EvidenceDPS"} <= set(names) and "LinUCB" not in names
    for name in names:
        assert posterior.make_sampler(name, priors).prior.dim == 2


def command(main: Any, *options: Any, code: int = 0) -> str:
    """Output of an experiment's command line, line breaks as spaces."""
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, [str(option) for option in options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def run(out: Path, *_: object, **options: Any) -> synthetic.SyntheticResult:
        asked.append(options)
        found = problem("rays", TS=regret([2.0, 3.0]), EvidenceDPS=regret([1.0, 2.1]))
        return synthetic.SyntheticResult("linear", {"seed": "0"}, (found,))

    monkeypatch.setattr(synthetic, "run_synthetic", run)
    out, file = tmp_path / "new" / "out", tmp_path / "numbers.json"
    options = ["--out", out, "--runs", 7, "--problem", "rays", "--agent", "TS"]
    printed = command(synthetic.main, *options, "--json", file)
    assert printed.endswith(f"the report is {out / 'report.html'}") and "EvidenceDPS" in printed
    (given,) = asked
    assert given["names"] == ("rays",) and given["agents"] == ("TS",)
    assert given["effort"].num_runs == 7
    assert json.loads(file.read_text())["problems"][0]["agents"]["TS"]["regret"]["mean"] == 2.5
    missing = tmp_path / "missing" / "a.json"
    printed = command(synthetic.main, *options, "--json", missing, code=2)
    assert "`json`: expected a file in a folder" in printed
    monkeypatch.setattr("experiments.command.find_spec", lambda name: None)
    assert "pip install --group experiments" in command(synthetic.main, *options, code=2)
    assert len(asked) == 1


def test_wrong_options_raise(tmp_path: Path) -> None:
    out = ("--out", tmp_path)
    for main, options, message in [
        (synthetic.main, ("--problem", "star"), "`name`: expected one of 'cross'"),
        (synthetic.main, ("--agent", "UCB"), "`agent`: expected one of 'TS'"),
        (posterior.main, ("--problem", "star"), "`name`: expected one of 'blobs'"),
        (movielens.main, (), "`data`: expected a folder with ml-1m.zip"),
        (movielens.main, ("--noise", "much"), "`noise`: expected a number or estimated"),
        (movielens.main, ("--noise", "0"), "`noise`: expected a positive number, got 0"),
    ]:
        assert message in command(main, *out, *options, code=2)
    assert movielens.noise_of("estimated") is None
