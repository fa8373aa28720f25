"""Who is ahead, and tables of handmade numbers."""

import numpy as np
import pytest
from scipy import stats

from experiments.experiment import paired
from experiments.report import (
    claims_table,
    cost_table,
    equal_temperature_table,
    findings_table,
    posterior_table,
    regret_table,
    temperature_table,
    verdict,
)
from handmade import problem, regret

TS = regret([20.0, 22.0, 21.0, 23.5])
OURS = regret([15.0, 17.0, 16.0, 18.2])
MIXED = regret([15.1, 16.9, 16.1, 18.1])
RAYS = problem(TS=TS, MixTS=regret([18.0, 20.0, 19.1, 21.0]), EvidenceDPS=OURS)
SWIRL = problem("swirl", TS=TS, MixTSK=MIXED, EvidenceDPS=OURS)


def test_findings_are_bold_beyond_chance_only() -> None:
    table = findings_table([RAYS, SWIRL])
    assert table.columns[3:] == ("saved over TS", "saved over MixTS", "saved over MixTS(K)")
    assert table.rows[0][:2] == ["rays", "EvidenceDPS 16.6 ± 0.7"]
    assert table.rows[0][2] == "MixTS +2.98 ± 0.06" and table.rows[0][5] == ""
    assert table.rows[1][5] == "+0.00 ± 0.06"
    assert table.marked == {(0, 1), (0, 3), (0, 4), (1, 3)}


def test_the_verdict_counts_problems_on_which_it_is_behind() -> None:
    behind = problem("cross", TS=regret([10.0, 12.0, 11.0, 13.1]), EvidenceDPS=OURS)
    assert "TS on 1 of 2 (behind on 1)" in verdict([RAYS, behind]).text


def test_regret_marks_winners_only() -> None:
    table = regret_table([RAYS, SWIRL])
    assert [row[0] for row in table.rows] == ["TS", "MixTS", "EvidenceDPS", "MixTS(K)"]
    assert table.rows[3][1] == "" and table.marked == {(2, 1)}
    few = problem(TS=TS, TwistedSMC=regret([9.0, 9.1]))
    assert "4 runs each, but TwistedSMC 2." in regret_table([few]).caption


def test_other_tables() -> None:
    quality = posterior_table(RAYS)
    assert quality.columns == ("agent", "N = 5", "N = 20", "90 % coverage", "regret")
    assert quality.rows[0][1:4] == ["2.0 ± 0.2", "1.04 ± 0.04", "90 ± 2 %"]
    assert temperature_table(RAYS).rows[0] == ["TS", "21.6 ± 0.7", "10.8 ± 0.4"]
    assert cost_table([RAYS, SWIRL]).rows[0] == ["TS", "4", "2.0", "4.0", "0"]
    equal = equal_temperature_table([RAYS, SWIRL])
    assert equal.columns == ("rewards", "saves", "1", "0.5")
    assert equal.rows[0][:2] == ["rays", "over TS"] and equal.rows[0][2].startswith("+5.08 ± ")
    assert {(0, 2), (0, 3)} <= equal.marked and (3, 2) not in equal.marked


def test_the_papers_claim() -> None:
    holds = problem(TS=TS, TunedTS=MIXED, DiffTS=regret([10.0, 12.0, 11.0, 13.1]))
    fails = problem("swirl", TS=TS, TunedTS=MIXED, DiffTS=OURS)
    table = claims_table([holds, fails, problem(TS=TS)])
    assert len(table.rows) == 2 and table.marked == {(0, 3)}
    assert table.rows[0][2] == "16.6 ± 0.6 (TunedTS)"


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
