"""Who is ahead: only beyond chance, by pairs of runs, among agents that one can have."""

import numpy as np
import pytest
from scipy import stats

from experiments.results import paired
from handmade import problem, regret


def test_a_lead_within_chance_wins_nothing() -> None:
    close = problem(A=regret(10.0, noise=1.0), B=regret(10.1, noise=1.0, seed=1))
    assert close.lowest == min("AB", key=lambda n: close.agents[n].regret.mean)
    assert close.winner is None
    assert problem(A=regret(10.0, noise=1.0), B=regret(12.0, noise=1.0, seed=1)).winner == "A"


def test_pairs_see_what_means_do_not() -> None:
    """Runs differ by 5, the two agents in every run by 0.1: that is beyond chance."""
    tasks = list(10 + 5 * np.random.default_rng(2).standard_normal(50))
    wobble = 0.01 * np.random.default_rng(3).standard_normal(50)
    found = problem(
        A=regret(tasks), B=regret([t + 0.1 + w for t, w in zip(tasks, wobble, strict=True)])
    )
    assert found.winner == "A"
    assert found.agents["A"].regret.standard_error > 0.5


def test_a_winner_is_ahead_of_everybody() -> None:
    three = {"B": regret(12.0, noise=1.0, seed=1), "C": regret(10.05, noise=1.0, seed=2)}
    assert problem(A=regret(10.0, noise=1.0), **three).winner is None


def test_the_reference_does_not_compete() -> None:
    agents = {"TS": regret(12.0, 0.1), "MixTS": regret(11.0, 0.1), "Exact": regret(9.0, 0.1)}
    assert problem(**agents).lowest == problem(**agents).winner == "MixTS"
    assert problem(Exact=regret(9.0, 0.1)).lowest == "Exact"


def test_few_runs_do_not_lead() -> None:
    assert problem(A=regret(10.0, 1.0), B=regret([1.0, 1.1])).lowest == "A"
    assert problem(A=regret([10.0]), B=regret([11.0])).winner is None  # one run says nothing
    assert problem(A=regret(10.0, 1.0)).winner is None


@pytest.mark.parametrize("second", [[1.0, 2.0, 4.0], [1.0, 2.0, 4.0, 9.0]])
def test_pairs_are_the_runs_that_both_have_played(second: list[float]) -> None:
    mean, error = paired([2.0, 3.0, 4.0], second)
    test = stats.ttest_rel([2.0, 3.0, 4.0], second[:3])
    assert mean == pytest.approx(2 / 3) and mean / error == pytest.approx(test.statistic)
