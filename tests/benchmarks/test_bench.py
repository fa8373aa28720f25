"""The benchmark: its peer is right, its counts are right, and its sections run."""

import io
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from benchmarks import foundation, quality, speed
from benchmarks.arithmetic import layer_rate, layers_over, matrix_rate
from benchmarks.peers import library_decision, numpy_thompson_sampling
from benchmarks.section import Bench, Measurement, clusters, table
from benchmarks.sections import SECTIONS, USUAL
from benchmarks.timing import take_turns
from diffprior.bandits.environment import Environment
from diffprior.files.cache import ResultCache


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Priors are the mixtures themselves, with exact denoisers."""
    monkeypatch.setattr(
        Bench,
        "prior",
        lambda self, name, preset="default": dp.DiffusionPrior.from_prior(dp.example_mixture(name)),
    )
    return Bench(ResultCache(tmp_path), quick=True)


def test_the_peer_in_numpy_has_the_regret_of_the_exact_agent() -> None:
    problem, runs, rounds = dp.synthetic("cross"), 400, 40
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    ours = dp.simulate(problem, {"TS": dp.Exact(prior)}, runs, rounds).regret["TS"][:, -1]
    environment = Environment.of(problem, range(runs), 0)
    features = np.asarray(environment.rounds(jnp.arange(1)).features[:, 0])
    noise = np.random.default_rng(0).standard_normal((runs, rounds))
    theirs = numpy_thompson_sampling(np.asarray(environment.theta), features, noise, 0).sum(axis=1)
    difference = ours - theirs
    error = difference.std(ddof=1) / np.sqrt(runs)
    assert error < 0.05 * theirs.mean()
    assert abs(difference.mean()) < 3 * error


def test_turns_are_taken_and_the_first_is_told_apart() -> None:
    calls: list[str] = []
    timings = take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert all(t.low <= t.median <= t.high <= t.p99 for t in timings.values())


def test_the_library_decides() -> None:
    assert library_decision(np.eye(3), seed=0)() in (0, 1, 2)


def test_the_matrix_rate_is_that_of_a_machine() -> None:
    assert 1e8 < matrix_rate(size=256, repeats=3) < 1e16


def test_the_rate_of_layers_is_that_of_a_core() -> None:
    assert 1e7 < layer_rate(rows=16, width=32, depth=4, repeats=3) < 1e14
    exact = dp.DiffusionPrior.from_prior(dp.example_mixture("cross"))
    assert layers_over(dp.EvidenceDPS(exact), 8, 1.0) == "no network"


def test_a_bounded_history_is_measured() -> None:
    """Rows within the bound move nothing, folded ones a little."""
    sampler = dp.Exact(dp.GaussianPrior(np.zeros(2), np.eye(2)))
    errors = {}
    for size in (50, 400):
        bandit = dp.Bandit(sampler, dp.Logistic(), seed=0, max_rows=128)
        bandit.update(*speed._history(2, size))
        errors[size] = speed.bounding_error(sampler, size, bandit)["mean off, deviations"]
    assert errors[50] < 1e-6 < errors[400] < 1.0


def test_the_exact_denoiser_has_no_error(bench: Bench) -> None:
    for row in quality.denoiser(bench):
        assert row.quantities["mean"] < 1e-3 and row.quantities["covariance"] < 1e-3
        assert row.quantities["trace over exact"] == pytest.approx(1.0, abs=1e-3)


def test_exact_draws_are_at_the_floor(bench: Bench) -> None:
    true = dp.example_mixture("blobs")
    wrong = dp.Exact(dp.GaussianPrior(np.zeros(2), 9 * np.eye(2)))
    rows = quality._judged(
        "blobs", true, {"exact": dp.Exact(true), "wrong": wrong}, bench, sizes=(5,)
    )
    exact, other = (row.quantities for row in rows)
    assert rows[0].case == "blobs, exact, N = 5"
    assert abs(exact["over floor"] - 1) < 5 * exact["s.e."] and other["over floor"] > 1.5


def test_both_ways_of_conditioning_agree(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program of the contenders, in this process."""
    results = []
    for kind in ("diffprior", "LAPACK"):
        monkeypatch.setattr("sys.argv", ["worker", kind, "2", "3", "1"])
        monkeypatch.setattr("sys.stdin", io.StringIO("go\n"))
        with jax.numpy_dtype_promotion("standard"):
            exec(foundation.WORKER, {"__name__": "worker"})
        seconds, result = map(float, capsys.readouterr().out.split())
        assert seconds > 0
        results.append(result)
    assert results[0] == pytest.approx(results[1], rel=1e-5)


def test_contenders_take_turns_and_one_that_hangs_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = (
        "import sys, time\n"
        "for _ in sys.stdin:\n"
        "    if sys.argv[1] == 'LAPACK': time.sleep(60)\n"
        "    print(0.25, 1.0, flush=True)\n"
    )
    monkeypatch.setattr(foundation, "WORKER", answers)
    monkeypatch.setattr(foundation, "NAMES", ("diffprior", "LAPACK"))
    ours, hanging = foundation.compete(3, 10, rounds=2, timeout=2.0)
    assert ours.case == "diffprior, d = 3, 20 calls" and hanging.quantities["note"].endswith(
        "hangs"
    )
    assert ours.quantities["median, ms"] == pytest.approx(250 / foundation.NUM_LOOPS)


def test_a_table_has_a_column_for_each_quantity() -> None:
    found = table("title", [Measurement("a", {"x": 0.12345}), Measurement("b", {"y": 12345.6})])
    assert found.columns == ("", "x", "y")
    assert found.rows == [["a", "0.123", ""], ["b", "", "12,346"]]


def test_sections_have_names_and_a_line() -> None:
    assert set(USUAL) <= set(SECTIONS) and all(section.__doc__ for section in SECTIONS.values())
    assert clusters(5).dim == 5
