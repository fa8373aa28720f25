"""What past tasks are worth: rewards saved and learning curves, against what is known of worlds."""

import dataclasses

import numpy as np

import diffprior as dp
from diffprior.fitting.rows import blocks_of
from diffprior.fitting.search import gaussian_of
from diffprior.learning.payoff import (
    FIRST_ROWS,
    catching_up,
    curve_sizes,
    learning_curve,
    rows_saved,
)
from diffprior.learning.scoring import Family, HeldOut, cold_start, family_of
from diffprior.learning.search import first_tasks
from diffprior.mixture import GaussianMixture
from worlds_of_tasks import rows

LIKELIHOOD = dp.Linear(1.0)


def same_mean(num_tasks: int, std: float, seed: int = 0) -> dp.Logs:
    """Tasks of 14 rows whose reward has a mean about 3."""
    rng = np.random.default_rng(seed)
    tasks = np.repeat(np.arange(num_tasks), 14)
    rewards = (3 + std * rng.standard_normal(num_tasks))[tasks] + rng.standard_normal(len(tasks))
    return dp.Logs(tasks, np.ones((len(tasks), 1)), rewards)


def test_rows_saved_are_those_that_leave_a_cold_start_as_certain_as_the_prior() -> None:
    """With variances t^2 of the prior and s of the cold start, 1 / (n + 1 / s) = t^2."""
    logs = same_mean(1000, 0.5)
    truth = family_of("Gaussian", GaussianMixture.single(np.full(1, 3.0), np.full((1, 1), 0.25)))
    cold = cold_start(logs, LIKELIHOOD)
    assert cold.components is not None
    found = rows_saved([HeldOut(logs, [cold, truth])], "Gaussian", LIKELIHOOD)
    assert found is not None and found.num_tasks == 1000 and found.most == 8
    error = (found.high - found.low) / 3.29  # of a normal 90 % interval
    expected = 4 - 1 / float(cold.components.covs[0, 0, 0])
    assert error < 0.4 and abs(found.count - expected) < 5 * error
    again = rows_saved([HeldOut(logs, [cold])], cold.name, LIKELIHOOD)
    assert again is not None and again.count == 0.0


def test_crossings_are_interpolated_and_stop_at_the_longest_history() -> None:
    rising = np.tile(np.array(FIRST_ROWS, float) - 2.5, (20, 1))
    found = catching_up(rising)
    assert found is not None and (found.count, found.low, found.high) == (2.5, 2.5, 2.5)
    assert str(found) == "2.5" and found.most == FIRST_ROWS[-1]
    short = np.where(np.array(FIRST_ROWS) > 2, np.nan, rising)
    found = catching_up(short)
    assert found is not None and str(found) == "more than 2" and "to more than 2" in found.interval
    assert catching_up(np.where(np.array(FIRST_ROWS) > 0, np.nan, rising)) is None


def nested(logs: dp.Logs, held_out: dp.Logs) -> tuple[list[HeldOut], list[int]]:
    sizes = curve_sizes(logs.num_tasks)
    fewer: list[Family] = []
    for size in sizes:
        blocks = blocks_of(first_tasks(logs, size), LIKELIHOOD)
        fewer.append(family_of("Gaussian", gaussian_of(blocks)))
    return [HeldOut(held_out, [cold_start(logs, LIKELIHOOD), fewer[-1]], fewer)], sizes


def test_a_learning_curve_finds_what_more_tasks_would_add() -> None:
    """Two parameters: a Gaussian from n long tasks misses about 5 / 2n nats."""
    rng = np.random.default_rng(0)

    def world(num_tasks: int) -> dp.Logs:
        thetas = np.array([2.0, -1.0]) + 0.3 * rng.standard_normal((num_tasks, 2))
        return dp.Logs(*rows(rng, thetas, 30.0))

    turns, sizes = nested(world(40), world(1000))
    curve = learning_curve(turns, sizes, LIKELIHOOD)
    assert curve.num_tasks == (10, 20, 40)
    means = [gain.mean for gain in curve.gains]
    assert means == sorted(means) and curve.limit.mean > means[-1] > 5 * curve.gains[-1].error
    assert curve.enough is not None and 0 < curve.enough < 200
    nothing = dp.Logs(*rows(rng, np.zeros((60, 2)), 10.0))
    turns, sizes = nested(nothing.select(np.arange(40)), nothing.select(np.arange(40, 60)))
    assert learning_curve(turns, sizes, LIKELIHOOD).enough is None
    assert curve_sizes(11) == [] and curve_sizes(10**6) == [1000, 2000, 4000]


def test_verdicts_are_sentences() -> None:
    report = dp.learn(same_mean(60, 0.5), dp.Linear(), quick=True, progress=False).report
    assert report is not None and report.rows_saved is not None and report.curve is not None
    assert report.verdict.startswith("Use this prior: a new task starts as if ")
    assert "rewards were already known (90 % interval" in report.verdict
    assert report.verdict.endswith("a Gaussian is enough.")
    unclear = dataclasses.replace(report.result, over_cold=dataclasses.replace(
        report.result.over_cold, mean=0.1, error=0.2
    ))  # fmt: skip
    other = dataclasses.replace(report, families=(report.families[0], unclear))
    assert other.verdict == "Past tasks say too little here: starting cold is as good."
    more = dataclasses.replace(report.curve, enough=341)
    assert dataclasses.replace(other, curve=more).verdict == "Not enough tasks: collect about 300."
    assert "; collect about 300 to learn" in dataclasses.replace(report, curve=more).verdict
