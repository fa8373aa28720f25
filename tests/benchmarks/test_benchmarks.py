"""The benchmarks end to end in tiny form, and the peers that they compare with."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import diffprior as dp
from benchmarks import drift, growth, harness, judging, learning, past_tasks, shift, speed
from benchmarks.harness import Bench, Measurement


def test_sections_are_measured_and_compared_with_the_last_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of logs whose truth is known, which explains new tasks best."""
    case = (60, 5.0, 2, 1.0, "linear")
    bench, sections = (
        Bench(tmp_path, quick=True),
        {"tiny": functools.partial(learning.measure, case)},
    )
    first = harness.run(bench, sections)["tiny"]
    assert "A first run" in (bench.folder / "report.html").read_text(encoding="utf-8")
    values = {row.case: row.quantities.get("nats per new task") for row in first[1:]}
    assert values["truth"] > values["Gaussian"] > values["cold start"]
    assert harness.read_last_run(bench.folder) == {"tiny": first}
    capsys.readouterr()
    again = {"tiny": lambda bench: first}
    harness.run(bench, again)
    shown = capsys.readouterr().err
    assert "since last run" in shown and "same" in shown
    assert json.loads((bench.folder / "last.json").read_text())["tiny"]
    report = (bench.folder / "report.html").read_text(encoding="utf-8")
    assert f"0 of {len(first)} cases changed" in report


def test_table_has_a_column_per_quantity_and_the_change_of_the_first() -> None:
    rows = [Measurement("a", {"x": 0.12345}), Measurement("b", {"y": 12345.6})]
    found = harness.table("title", rows, [Measurement("a", {"x": 0.1}), rows[1]])
    assert tuple(found.columns) == ("", "x", "y", "since last run")
    assert [list(row) for row in found.rows] == [
        ["a", "0.123", "", "+23%"], ["b", "", "12,346", "same"]
    ]  # fmt: skip


def test_candidates_take_turns() -> None:
    calls: list[str] = []
    timings = harness.take_turns(
        {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3
    )
    assert calls == ["a", "b"] * 4
    assert all(t.low <= t.median <= t.p99 for t in timings.values())


def test_numpy_peer_has_the_regret_of_the_exact_agent() -> None:
    problem, runs, rounds = dp.synthetic("cross"), 400, 40
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    ours = dp.simulate(problem, {"TS": dp.Exact(prior)}, runs, rounds).regret["TS"][:, -1]
    rng = np.random.default_rng(0)
    theta = np.asarray(problem.true_prior.sample(jax.random.key(1), runs))
    features = np.stack([np.asarray(problem.features(jax.random.key(i))) for i in range(runs)])
    noise = rng.standard_normal((runs, rounds))
    theirs = speed.numpy_thompson_sampling(theta, features, noise, 0).sum(axis=1)
    error = np.hypot(ours.std(), theirs.std()) / np.sqrt(runs)
    assert error < 0.1 * theirs.mean()
    assert abs(ours.mean() - theirs.mean()) < 5 * error
    assert speed.library_decision(np.eye(3))() in (0, 1, 2)


def test_bounded_history_moves_the_posterior_a_little() -> None:
    sampler = dp.Exact(dp.GaussianPrior(np.zeros(2), np.eye(2)))
    errors = {}
    for size in (50, 400):
        bandit = dp.Bandit(sampler, dp.Logistic(), seed=0, max_rows=128)
        bandit.update(*speed.history(2, size))
        errors[size] = speed.bounding_error(sampler, size, bandit)["mean off, deviations"]
    assert errors[50] < 1e-6 < errors[400] < 1.0


def test_judging_separates_exact_draws_from_a_gaussian_prior() -> None:
    size = judging.Size(num_tasks=8, num_draws=100, num_distances=8)
    rows, fits = judging.judge(
        "clusters-2", [5], past_tasks=500, methods=("exact denoiser", "Gaussian"), size=size
    )
    exact, gaussian = rows
    assert abs(exact.emd - 1) < 0.2 and gaussian.emd > 1.5
    assert exact.excess < 1 < gaussian.excess
    assert abs(exact.coverage - 0.9) < 5 * exact.coverage_error
    assert [fit["method"] for fit in fits] == ["exact denoiser", "Gaussian"]


def test_growth_is_measured_and_drawn() -> None:
    for quick in (False, True):
        sizes: dict[tuple[str, str], set[int]] = {}
        for case in growth.cases(quick):
            sizes.setdefault((case.grows, case.name), set()).add(case.at)
        assert {grows for grows, _ in sizes} == set(growth.TITLES)
        assert {name for _, name in sizes} == set(growth.COLORS)
        assert all(len(found) >= 2 for found in sizes.values())
    measured = [
        Measurement("", {growth.COST: 3.0 * at**0.5, "sampler": "Exact", "grows": grows, "at": at})
        for grows in growth.TITLES
        for at in (1, 10, 100)
    ]
    figure = growth.growth_figure(measured)
    assert [[text.get_text() for text in axis.texts] for axis in figure.axes] == [["0.5"]] * 6
    case = next(case for case in growth.cases(True) if case.name == "Exact")
    assert float(growth.measure(case, 1).quantities[growth.COST]) > 0


def test_a_hedge_helps_in_tasks_unlike_those_learned_from() -> None:
    logs = learning.logs_of(np.random.default_rng(1), 120, 10.0, 2, 1.0, "linear")
    halves = (logs.select(np.arange(60)), logs.select(np.arange(60, 120)))
    found = shift.shifts("tiny", *halves, num_rounds=20)
    assert [one.kind for one in found] == list(shift.KINDS)
    assert found[0].nats[0] > 0 and found[0].hedge[0] > np.log(0.98)  # at most what it weighs
    assert found[3].hedge[0] > 5 * found[3].hedge[1] and found[3].ratio[0] < 1.5
    assert str(shift.table(found)).count("std") == 3


def test_a_task_that_changes() -> None:
    assert drift.regret("linear", 20.0, True, seed=0, rounds=20).shape == (20,)


def test_priors_are_compared_on_tasks_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = dp.FitConfig.tiny()
    fit = dp.DiffusionPrior.fit
    monkeypatch.setattr(dp.DiffusionPrior, "fit", lambda *a, **k: fit(*a, **k, config=tiny))
    source = past_tasks.Source.of("swirl", 2300)
    assert np.all(np.linalg.norm(source.actions, axis=1) <= 1)
    (found,) = past_tasks.gains(source, 300, [5], num_scored=16)
    assert found["num_tasks"] == 16 and found["chosen"]
    assert list(found["priors"]) == ["cold start", "Gaussian", "mixture, K chosen", "diffusion"]
