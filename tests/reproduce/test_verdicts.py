"""What a report says of handmade numbers."""

from typing import Any

import pytest

from diffprior.reproduce.study import paired
from diffprior.reproduce.verdicts import (
    difference_table,
    posterior_table,
    regret_table,
    temperature_table,
    time_table,
    verdict,
)


def agent(final: list[float], coverage: float | None = None, **cooled: list[float]) -> dict:
    mean, error = paired(final, [0.0] * len(final))
    row: dict[str, Any] = {"regret": mean, "standard_error": error, "final": final}
    row |= {"seconds": 1.0, "compile_seconds": 2.0, "failures": 0}
    if coverage is not None:
        row["posterior"] = {
            "ratio": [2.0, 1.04],
            "ratio_error": [0.2, 0.04],
            "coverage": coverage,
            "coverage_error": 0.02,
        }
        row["temperatures"] = {t.removeprefix("at_"): agent(f) for t, f in cooled.items()}
    return row


def study(**agents: dict) -> dict[str, Any]:
    names = {name.replace("_", " "): row for name, row in agents.items()}
    if "Exact" in names:
        names["Exact (9 samples)"] = names.pop("Exact")
    return {"name": "rays", "sizes": [5, 20], "agents": names}


TS = agent([20.0, 22.0, 21.0, 23.0], 0.9)
EXACT = agent([15.0, 17.0, 16.0], 0.9, at_0_5=[14.0, 16.5, 15.5], at_0_1=[19.0, 22.0, 20.0])
NARROW = agent([16.0, 18.1, 17.1, 19.0], 0.7)
MIXTURE = agent([15.0, 17.0, 16.0, 18.2], 0.9)


def test_a_loss_is_said_with_its_winner_and_margin() -> None:
    first, second, *_ = verdict(study(TS=TS, MixTS=MIXTURE, DiffTS=NARROW))
    assert first == (
        "On rays, DiffTS does not win: its regret is 17.6 ± 0.6, and MixTS is lower by 1.00 ± 0.07 "
        "(paired)."
    )
    assert "too narrow: nominal 90 % intervals hold the truth in 70 ± 2 % of tasks" in second


def test_a_tie_is_called_one() -> None:
    close = agent([15.0, 18.0, 16.0, 17.0], 0.88)
    sentences = verdict(study(DiffTS=MIXTURE, MixTS=close, TS=TS))
    assert "MixTS is lower by 0.0 ± 0.4" in sentences[0]
    assert sentences[0].endswith("within two standard errors.")
    assert "too narrow" not in sentences[1]


def test_a_win_names_the_next() -> None:
    sentences = verdict(study(TS=TS, DiffTS=NARROW))
    assert "DiffTS has the lowest regret" in sentences[0]
    assert "the next is TS, higher by 3.95 ± 0.03" in sentences[0]


def test_prior_and_temperature_are_told_apart() -> None:
    (sentence,) = verdict(study(TS=TS, Exact=EXACT))
    assert "true prior saves 5.00 ± 0.00 of the regret of TS" in sentence
    assert "exact posterior to 0_5 saves 0.7 ± 0.2 more." in sentence
    cold = agent([15.0, 17.0, 16.0], 0.9, at_0_5=[15.5, 16.4, 16.0])
    assert "not beyond chance" in verdict(study(TS=TS, Exact=cold))[0]


def test_tables() -> None:
    both = [study(TS=TS, Exact=EXACT), study(TS=TS, MixTS=MIXTURE)]
    regret, difference = regret_table(both), difference_table(both)
    assert [row[0] for row in regret.rows] == ["TS", "Exact", "MixTS"]
    assert regret.rows[1][1:] == ["16.0 ± 0.6", ""] and regret.marked == {(0, 1), (2, 2)}
    assert "Each has played 4 runs; Exact, which is slow, 3." in regret.caption
    assert difference.rows[1][1] == "-5.00 ± 0.00" and difference.rows[2][2] == "lowest"
    assert time_table(both).rows[0] == ["TS", "4", "2.0", "4.0", "0"]
    quality = posterior_table(both[0])
    assert quality.columns == ("agent", "N = 5", "N = 20", "90 % coverage", "regret")
    assert quality.rows[0][1:4] == ["2.0 ± 0.2", "1.04 ± 0.04", "90.0 ± 2.0 %"]
    cooled = temperature_table(study(Exact=EXACT))
    assert cooled.columns == ("agent", "1", "0_5", "0_1")
    assert cooled.rows == [["Exact (9 samples)", "16.0 ± 0.6", "15.3 ± 0.7", "20.3 ± 0.9"]]


@pytest.mark.parametrize("second", [[1.0, 2.0, 4.0], [1.0, 2.0, 4.0, 9.0]])
def test_pairs_are_the_runs_that_both_have_played(second: list[float]) -> None:
    mean, error = paired([2.0, 3.0, 4.0], second)
    assert mean == pytest.approx(2 / 3) and error == pytest.approx(1 / 3)
