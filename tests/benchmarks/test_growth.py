"""How costs grow: what is measured, and the lines that a figure draws."""

import numpy as np
import pytest

from benchmarks import growth
from benchmarks.section import Measurement


def along(grows: str, sampler: str, power: float) -> list[Measurement]:
    quantities = {"sampler": sampler, "grows": grows}
    return [
        Measurement(f"{at}", {**quantities, "at": at, growth.COST: 3.0 * at**power})
        for at in (1, 10, 100)
    ]


def test_a_panel_for_each_thing_that_grows_shows_costs_and_slopes() -> None:
    measured = [m for grows in growth.TITLES for m in along(grows, "EvidenceDPS", 0.5)]
    measured += along("rows", "Exact", 0.0)
    figure = growth.growth_figure(measured)
    shown = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    assert shown == [["0.5"]] * 5 + [["0.5", "0.0"]]
    assert [axis.get_xlabel() for axis in figure.axes] == list(growth.TITLES.values())
    curve, _, line = figure.axes[0].lines
    np.testing.assert_allclose(curve.get_ydata(), 3.0 * np.array([1, 10, 100]) ** 0.5)
    np.testing.assert_allclose(line.get_ydata(), [3.0, 30.0])


def test_line_of_growth_is_that_of_a_power() -> None:
    sizes = np.array([2.0, 8.0, 50.0])
    found = growth.line_of_growth(np.stack([sizes, 7.0 * sizes**1.5], axis=1))
    assert found == pytest.approx((1.5, 7.0))


def test_everything_that_grows_is_measured_at_two_sizes_at_least() -> None:
    for quick in (False, True):
        sizes: dict[tuple[str, str], set[int]] = {}
        for case in growth.cases(quick):
            assert case.name in growth.COLORS
            sizes.setdefault((case.grows, case.name), set()).add(case.at)
        assert {grows for grows, _ in sizes} == set(growth.TITLES)
        assert all(len(found) >= 2 for found in sizes.values())


def test_a_case_is_timed() -> None:
    case = next(case for case in growth.cases(True) if case.name == "Exact")
    measured = growth._measured(case, 1)
    assert measured.quantities["at"] == case.at and float(measured.quantities[growth.COST]) > 0
