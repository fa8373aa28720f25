"""The suite: its rival is right, its counts are right, and it runs."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import diffprior as dp
from diffprior.bandits.environment import Environment
from diffprior.bench import suite
from diffprior.bench.arithmetic import matrix_rate, multiply_adds
from diffprior.bench.rivals import library_decision, numpy_thompson_sampling
from diffprior.bench.suite import Suite, untrained
from diffprior.bench.timing import take_turns
from diffprior.cli import app


def test_the_rival_in_numpy_has_the_regret_of_the_exact_agent() -> None:
    problem, runs, rounds = dp.synthetic("cross"), 400, 40
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    ours = dp.simulate(problem, {"TS": dp.Exact(prior)}, runs, rounds).regret["TS"][:, -1]
    world = Environment.of(problem, runs, 0)
    features = np.asarray(world.rounds(jnp.arange(1)).features[:, 0])
    noise = np.random.default_rng(0).standard_normal((runs, rounds))
    theirs = numpy_thompson_sampling(np.asarray(world.theta), features, noise, 0).sum(axis=1)
    difference = ours - theirs
    error = difference.std(ddof=1) / np.sqrt(runs)
    assert error < 0.05 * theirs.mean()
    assert abs(difference.mean()) < 3 * error


def test_multiply_adds_are_those_that_the_compiler_counts() -> None:
    prior = untrained(2)
    network = prior.denoiser
    bias, x = jnp.zeros_like(network.bias_in), jnp.zeros_like(network.bias_out)
    counted = (
        jax.jit(lambda x, b: network.correction(x, b))
        .lower(x, bias)
        .compile()
        .cost_analysis()["flops"]
    )
    sampler = dp.EvidenceDPS(prior, steps=7)
    ours = multiply_adds(sampler) / (7 * 3)
    assert 2 * ours <= counted < 2.2 * ours
    assert multiply_adds(dp.TwistedSMC(prior, num_particles=5, steps=7)) == 5 * 7 * 3 * ours
    assert multiply_adds(dp.LaplaceDPS(prior, steps=7)) == 7 * ours


def test_turns_are_taken_and_the_first_is_told_apart() -> None:
    calls: list[str] = []
    timings = take_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert calls == ["a", "b"] * 4
    assert all(t.low <= t.median <= t.high <= t.p99 for t in timings.values())


def test_the_library_decides() -> None:
    decide = library_decision(np.eye(3), seed=0)
    assert decide is not None and decide() in (0, 1, 2)


def test_the_matrix_rate_is_that_of_a_machine() -> None:
    assert 1e8 < matrix_rate(size=256, repeats=3) < 1e16


def test_the_command_measures_and_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "RUNS", 4)
    monkeypatch.setattr(suite, "ROUNDS", 6)
    prior = untrained(2)
    monkeypatch.setattr(Suite, "prior", lambda self, name, preset="default": prior)
    two = {"EvidenceDPS": dp.EvidenceDPS(prior, steps=3), "LaplaceDPS": dp.LaplaceDPS(prior)}
    monkeypatch.setattr(Suite, "samplers", lambda self: two)
    numbers = tmp_path / "bench.json"
    arguments = ["bench", "--quick", "--out", str(tmp_path), "--json", str(numbers)]
    result = CliRunner().invoke(app, [*arguments, "--section", "runs", "--section", "logistic"])
    assert result.exit_code == 0, result.output
    found = json.loads(numbers.read_text())
    rows = found["runs"]["rows"]
    assert set(rows) == set(two)
    for row in rows.values():
        assert row["ratio"] == row["seconds"]["median"] / row["NumPy"]["median"]
    errors = found["logistic"]["errors"]
    assert errors["1000"]["mean_in_deviations"] < 1e-6 < errors["10000"]["mean_in_deviations"]
    assert (tmp_path / "report.html").read_text().count("<table") >= 2


def test_an_unknown_section_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "--out", str(tmp_path), "--section", "luck"])
    assert result.exit_code == 2
