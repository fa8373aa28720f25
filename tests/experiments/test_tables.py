"""Tables of handmade numbers: what stands out, and what is left empty."""

from experiments.tables import (
    claims_table,
    cost_table,
    equal_temperature_table,
    findings_table,
    posterior_table,
    regret_table,
    temperature_table,
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


def test_regret_marks_winners_only() -> None:
    table = regret_table([RAYS, SWIRL])
    assert [row[0] for row in table.rows] == ["TS", "MixTS", "EvidenceDPS", "MixTS(K)"]
    assert table.rows[3][1] == "" and table.marked == {(2, 1)}
    few = problem(TS=TS, TwistedSMC=regret([9.0, 9.1]))
    assert "4 runs each, but TwistedSMC 2." in regret_table([few]).caption


def test_other_tables() -> None:
    quality = posterior_table(RAYS)
    assert quality.columns == ("agent", "N = 5", "N = 20", "90 % coverage", "regret")
    assert quality.rows[0][1:4] == ["2.0 ± 0.2", "1.04 ± 0.04", "90.0 ± 2.0 %"]
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
