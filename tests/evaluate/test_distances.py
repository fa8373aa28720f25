"""Earth mover's distance and its floor."""

import sys

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

from diffprior.evaluate import Distance, distance_over_floor, earth_movers_distance

RNG = np.random.default_rng(0)


def test_distance_is_that_of_the_best_assignment() -> None:
    """Of as many points, moving mass is matching points: SciPy's assignment is the twin."""
    first, second = RNG.normal(size=(40, 3)), RNG.normal(size=(40, 3)) + 1
    costs = np.linalg.norm(first[:, None] - second[None], axis=-1)
    expected = costs[linear_sum_assignment(costs)].mean()
    assert earth_movers_distance(first, second) == pytest.approx(expected, rel=1e-9)


def test_a_shift_is_its_length() -> None:
    draws = RNG.normal(size=(50, 2))
    assert earth_movers_distance(draws, draws + [3.0, 4.0]) == pytest.approx(5.0)


def test_exact_draws_are_at_the_floor_and_others_above() -> None:
    exact, other, good = RNG.normal(size=(3, 40, 60, 2))
    found = distance_over_floor(good, exact, other)
    assert abs(found.ratio - 1) < 5 * found.standard_error < 0.5
    narrow = distance_over_floor(0.3 * good, exact, other)
    assert narrow.ratio - 1 > 5 * narrow.standard_error
    assert "over the floor" in str(found)


def test_failed_draws_are_left_out_and_counted() -> None:
    exact, other, draws = RNG.normal(size=(3, 4, 50, 2))
    broken = draws.copy()
    broken[0, :10, 1] = np.nan  # one parameter is enough
    broken[1, 3] = np.inf
    found = distance_over_floor(broken, exact, other)
    assert found.failed == 11
    expected = earth_movers_distance(np.delete(draws[0], np.s_[:10], axis=0), exact[0])
    assert found.distances[0] == pytest.approx(expected)
    broken[2] = np.nan
    assert distance_over_floor(broken, exact, other).ratio == np.inf
    with pytest.raises(ValueError, match="`first`: expected finite numbers"):
        earth_movers_distance(broken[0], exact[0])


def test_a_missing_library_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ot", None)
    with pytest.raises(ImportError, match="expected ot to be installed.*pip install"):
        earth_movers_distance(np.zeros((2, 1)), np.ones((2, 1)))


def test_the_error_of_a_ratio_is_the_spread_of_ratios() -> None:
    rng = np.random.default_rng(0)
    floors = 1.0 + rng.exponential(1.0, (3000, 40))
    distances = 2.0 * floors + 0.1 * rng.standard_normal(floors.shape)
    found = [Distance(d, f) for d, f in zip(distances, floors, strict=True)]
    spread = np.std([one.ratio for one in found])
    mean = np.mean([one.standard_error for one in found])
    assert abs(mean / spread - 1) < 5 / np.sqrt(2 * 3000) + 0.03
