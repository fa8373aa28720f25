"""Experiments from end to end, tiny, and again from the cache."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from diffprior.progress import Progress
from experiments import ablation, experiment, posterior
from experiments.ablation import paper_schedule, run_ablation
from experiments.agents import LearnedPriors
from experiments.experiment import Effort, Experiment, past_tasks
from experiments.posterior import run_posterior
from experiments.results import Results
from experiments.synthetic import run_synthetic
from handmade import regret


def written(out: Path) -> set[str]:
    return {path.name for path in out.iterdir() if path.is_file()}


def test_synthetic(
    effort: Effort, results: Results, learned: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regret is that of `simulate`, and is computed once."""
    agents = ["TS", "LinUCB", "EvidenceDPS"]
    options = {"problem": ["rays"], "agent": agents, "effort": effort}
    first = run_synthetic(results, **options)
    assert written(results.out) == {
        "synthetic-linear-1.png",
        "synthetic-linear-1.pdf",
        "report.html",
    }
    (rays,) = first["problems"]
    assert list(rays.agents) == agents and list(rays.agents["TS"].tempered) == ["0.5"]
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    for temperature, ours in (
        (1.0, rays.agents["TS"].regret),
        (0.5, rays.agents["TS"].tempered["0.5"]),
    ):
        sampler = dp.Exact(prior, temperature=temperature)
        found = dp.simulate(dp.synthetic("rays"), {"TS": sampler}, 4, 6, progress=False)
        np.testing.assert_allclose(ours.final, found.regret["TS"][:, -1], rtol=1e-5)
    assert rays.agents["LinUCB"].posterior is None
    assert 0 <= rays.agents["EvidenceDPS"].posterior.coverage <= 1
    report = (results.out / "report.html").read_text(encoding="utf-8")
    for words in ("What it says", "evidence inside the denoiser", "diffprior fit tasks.csv"):
        assert words in report
    assert report.count("upper confidence bounds") == 1 and str(results.out) not in report
    monkeypatch.setattr(experiment, "play", None)
    monkeypatch.setattr(experiment, "draw_posteriors", None)
    assert run_synthetic(Results(results.out), **options) == first
    json.dumps(first, default=dataclasses.asdict)
    assert {asked[1:3] for asked in learned} == {(300, "default")}


def test_steps_are_counted_and_settings_differ(
    effort: Effort, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "play", lambda *_: regret([2.0, 3.5]))
    problem = dp.synthetic("cross")
    priors = LearnedPriors("cross", past_tasks(problem, 300, 0), results)
    options = {"effort": effort, "agents": ("TS", "LinUCB"), "score_posteriors": False}
    of_cross, shown = Experiment("cross", problem, priors, **options), Progress("", 1)
    of_cross.run(shown)
    assert shown.done == of_cross.num_steps == 1 + 3 + 1  # a prior, and of each agent
    logistic = Experiment("cross", dp.synthetic("cross", dp.Logistic()), priors, **options)
    assert logistic.about(logistic.specs[0]) != of_cross.about(of_cross.specs[0])


def test_ablation(
    effort: Effort, results: Results, learned: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ablation, "play", lambda *_: regret([2.0, 3.0]))
    found = run_ablation(results, effort=effort, samples=(100, 300), stages=(1, 3, 200))
    assert {"ablation.png", "ablation.pdf", "report.html"} <= written(results.out)
    assert list(found["by_samples"]) == [100, 300] and list(found["by_stages"]) == [1, 3, 200]
    assert list(found["by_stages"][1]) == [ablation.PRESET, ablation.FITTED, ablation.OURS]
    assert list(found["by_stages"][200]) == [ablation.PRESET]
    assert {n for _, n, _, schedule in learned if schedule is None} == {100, 300}
    assert [s.num_stages for *_, s in learned if s is not None] == [1, 3, 200]
    by_stages = results.summary[1]
    assert by_stages.columns[-1] == "the paper"
    assert (by_stages.rows[0][1], by_stages.rows[0][-1]) == ("2.5 ± 0.5", "26")


def test_stages_end_at_the_papers_noise() -> None:
    for num_stages in (1, 20, 300):
        schedule = paper_schedule(num_stages)
        assert schedule.num_stages == num_stages
        assert schedule.alpha_bar[-1] == pytest.approx(0.97**100)
    np.testing.assert_allclose(paper_schedule(100).alpha_bar, dp.Schedule.constant().alpha_bar)


def test_posterior(results: Results, learned: list) -> None:
    found = run_posterior(results, problem=["blobs"], quick=True, samplers=("TunedTS",))
    assert {"posterior.png", "posterior.pdf", "report.html"} <= written(results.out)
    assert found["sizes"] == (1, 10, 100)
    of = found["mixtures"]["blobs"]["TunedTS"]
    assert of.ratio[0] > 1.2  # one Gaussian for two blobs
    np.testing.assert_allclose(of.ratio, np.divide(of.distance, of.floor), rtol=1e-6)


def test_every_sampler_has_its_prior(results: Results, learned: list) -> None:
    priors = LearnedPriors("some", np.random.default_rng(0).standard_normal((99, 2)), results)
    names = posterior.SAMPLERS
    assert {"SMC", "MixTS(K)", "EvidenceDPS"} <= set(names) and "LinUCB" not in names
    for name in names:
        assert posterior.make_sampler(name, priors).prior.dim == 2
