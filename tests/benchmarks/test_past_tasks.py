"""Gains of priors on tasks not seen: against log evidence by NumPy, and by what is known."""

import numpy as np
import pytest
from scipy.special import logsumexp

import diffprior as dp
import reference
from benchmarks import past_tasks
from benchmarks.distributions import clusters
from diffprior.evaluate.calibration import interval_coverage
from diffprior.evaluate.comparison import LogEvidence
from diffprior.evaluate.tasks import Tasks

SOURCE, TRUTH = "clusters-4", clusters(4)
FITS = {"Gaussian": past_tasks.FITS["Gaussian"], "truth": lambda *_: TRUTH}


def test_gains_are_differences_of_log_evidence() -> None:
    source = past_tasks.source(SOURCE, 3000, seed=2)
    gaussian, exact = past_tasks.gains(source, 1000, [5], seed=2, num_scored=60, fits=FITS)
    assert (gaussian.gain, gaussian.gain_error, gaussian.energy) == (0.0, 0.0, 1.0)
    assert exact.gain > 3 * exact.gain_error > 0 == exact.shortfall
    assert exact.energy < 1 - 3 * exact.energy_error
    assert abs(exact.coverage - 0.9) < 4 * exact.coverage_error

    held_out = source.parameters[-past_tasks.HELD_OUT :]
    problem = dp.RowProblem(held_out, source.actions, dp.Linear(1.0))
    tasks = Tasks.simulate(problem, num_tasks=60, num_observations=5, seed=2)
    past = source.parameters[:1000]
    whole = (past.mean(axis=0), np.cov(past.T, bias=True))
    weights, means, covs = (
        np.asarray(a, np.float64) for a in (TRUTH.weights, TRUTH.means, TRUTH.covs)
    )
    gains = []
    for begin, end in zip(tasks.logs.starts[:-1], tasks.logs.starts[1:], strict=True):
        rows = (tasks.logs.features[begin:end], tasks.logs.rewards[begin:end], 1.0)
        parts = [
            reference.linear_log_evidence(m, c, *rows) for m, c in zip(means, covs, strict=True)
        ]
        gains.append(logsumexp(parts, b=weights) - reference.linear_log_evidence(*whole, *rows))
    assert exact.gain == pytest.approx(np.mean(gains), abs=0.02)
    assert exact.gain_error == pytest.approx(np.std(gains, ddof=1) / np.sqrt(60), rel=0.02)


def test_differences_are_paired_and_what_estimating_costs_is_said() -> None:
    """The same noise in both columns leaves no error; one estimate is low by half its variance."""
    noise = np.random.default_rng(0).standard_normal(40)
    covered = interval_coverage(np.zeros((40, 99, 1)), np.zeros((40, 1)))
    energy = 2.0 + np.abs(noise)
    gaussian = past_tasks.Scores(LogEvidence(noise, np.zeros(40)), energy, covered)
    evidence = LogEvidence(noise + 0.5, np.full(40, 0.2), failed=3)
    other = past_tasks.Scores(evidence, 0.9 * energy, covered)
    found = other.beside(gaussian)
    np.testing.assert_allclose(found[:5], (0.5, 0.0, 0.1, 0.9, 0.0), atol=1e-12)
    assert other.failed == 3
    apart = past_tasks.Scores(LogEvidence(0 * noise, np.zeros(40)), energy[::-1], covered)
    error = np.std(noise, ddof=1) / np.sqrt(40)
    assert gaussian.beside(apart)[1] == pytest.approx(error)
    spread = np.std(energy - energy[::-1], ddof=1) / np.sqrt(40) / np.mean(energy)
    assert gaussian.beside(apart)[4] == pytest.approx(spread)


def test_scored_tasks_are_not_learned_from() -> None:
    source = past_tasks.source(SOURCE, past_tasks.HELD_OUT + 10, seed=1)
    with pytest.raises(ValueError, match="`num_past_tasks`: expected at most 10"):
        past_tasks.gains(source, 11, [5])


def test_the_energy_score_of_two_points_about_the_truth() -> None:
    draws = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert past_tasks.energy_score(draws, np.zeros(2)) == 0.0  # 1 - 2 / 2
    assert past_tasks.energy_score(draws, np.array([1.0, 0.0])) == 0.0
    assert past_tasks.energy_score(np.zeros((4, 2)), np.array([3.0, 4.0])) == 5.0


def test_actions_are_uniform_in_the_unit_ball() -> None:
    actions = past_tasks.source("swirl", 20).actions
    radius = np.linalg.norm(actions, axis=1)
    assert np.all(radius <= 1.0)
    share, error = np.mean(radius < 0.5), np.sqrt(0.25 * 0.75 / len(radius))
    assert abs(share - 0.25) < 4 * error
