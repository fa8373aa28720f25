"""Samples: whitening in any units, what is held out, and warnings about what is odd."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from diffprior.fitting.report import screen_samples
from diffprior.fitting.samples import Rows, constant_columns, split, whitened, whitening
from statistic import assert_mean

RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((300, 3)) @ np.array([[1.0, 0.4, 0], [0, 2.0, -1], [0, 0, 0.5]])
WEIGHTS = RNG.integers(0, 4, 300).astype(float)


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (1.0, 1e8), (1e-18, 0.0), (1e15, 1e17)])
def test_unit_coordinates_do_not_depend_on_units(factor: float, shift: float) -> None:
    moved = factor * SAMPLES + shift
    offset, scale = whitening(moved)
    unit = whitened(moved, offset, scale)
    assert not np.any(constant_columns(moved))
    precision = 1e-16 * (1 + shift / factor)  # of the numbers themselves
    assert_allclose(unit.mean(axis=0), 0, atol=1e-12 + 10 * precision)
    assert_allclose(np.cov(unit.T, bias=True), np.eye(3), atol=1e-5)
    expected = whitened(SAMPLES, *whitening(SAMPLES))
    assert_allclose(unit, expected, atol=1e-10 + 1e4 * precision)


def test_weights_count_rows_again() -> None:
    repeated = whitening(np.repeat(SAMPLES, WEIGHTS.astype(int), axis=0))
    for ours, expected in zip(whitening(SAMPLES, WEIGHTS), repeated, strict=True):
        assert_allclose(ours, expected, atol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.3, -7.1e8, 1e-30])
def test_constant_columns_are_found_and_kept(value: float) -> None:
    samples = np.concatenate([SAMPLES, np.full((300, 1), value)], axis=1)
    assert_array_equal(constant_columns(samples), [False, False, False, True])
    offset, scale = whitening(samples)
    unit = whitened(samples, offset, scale)
    assert np.all(np.isfinite(unit)) and np.all(np.diagonal(scale) > 0)
    assert_allclose(offset[3] + unit[:, 3] * scale[3, 3], value, rtol=1e-12, atol=1e-12)
    assert scale[3, 3] <= 1e-5 * max(abs(value), 1.0)


def test_a_split_leaves_nothing_out() -> None:
    for num_rows, held in ((20, 4), (999, 199), (1000, 100), (80_000, 5000)):
        train, held_out = split(num_rows, 1)
        assert len(held_out) == held
        assert_array_equal(np.sort(np.concatenate([train, held_out])), np.arange(num_rows))


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_together(seed: int) -> None:
    groups = np.random.default_rng(seed).integers(0, 40, 600)
    groups = np.unique(groups, return_inverse=True)[1]
    train, held_out = split(600, seed, groups)
    assert_array_equal(np.sort(np.concatenate([train, held_out])), np.arange(600))
    assert not set(groups[train]) & set(groups[held_out])
    assert 120 <= len(held_out) < 120 + np.bincount(groups).max()


def test_one_group_is_left_to_train_on() -> None:
    groups = np.array([0] * 2 + [1] * 98)
    for seed in range(4):
        train, held_out = split(100, seed, groups)
        assert len(train) and len(held_out) and not set(groups[train]) & set(groups[held_out])


def test_rows_are_drawn_by_their_weights() -> None:
    rows = Rows.of(np.eye(4), np.array([1.0, 0.0, 2.0, 5.0]))
    drawn = np.eye(4)[np.asarray(rows.indices(np.random.default_rng(0), (20_000,)))]
    assert_mean(drawn[:, [0, 2, 3]], np.array([1.0, 2.0, 5.0]) / 8)
    assert not np.any(drawn[:, 1])
    plain = Rows.of(np.eye(4), None).indices(np.random.default_rng(0), (20_000,))
    assert_mean(np.eye(4)[np.asarray(plain)], np.full(4, 0.25))


PLAIN = RNG.standard_normal((300, 2))


def warnings_of(samples: np.ndarray) -> str:
    """All warnings in one text; each is raised as such."""
    with pytest.warns(dp.FitWarning, match="^`samples`: "):
        found = screen_samples(samples)
    return "; ".join(found)


@pytest.mark.parametrize("rows", [[17], [3, 250, 299]])
def test_rows_far_from_the_others_are_named(rows: list[int]) -> None:
    samples = PLAIN.copy()
    samples[rows, 1] = 1e6
    text = warnings_of(samples)
    assert f"rows {rows} (counted from 0)" in text and "parameters [1]" in text
    assert "drop or repair" in text and "1e+06 standard deviations" in text


def test_many_rows_are_not_all_listed() -> None:
    samples = np.random.default_rng(1).standard_normal((1000, 1))
    samples[100:112] = 1e9
    assert "rows [100, 101, 102, 103, 104] and 7 more" in warnings_of(samples)


@pytest.mark.parametrize(
    "samples",
    [
        PLAIN,
        PLAIN * 1e-18,
        np.where(RNG.random((300, 1)) < 0.1, 50.0, 0.0) + PLAIN,  # a small far mode
        RNG.standard_t(3, (300, 2)),
        np.where(RNG.random((300, 2)) < 0.1, 1.0, 0.0) + 1e-3 * PLAIN,  # rare events
        PLAIN * np.array([1.0, 1e-9]),
    ],
    ids=["normal", "tiny", "modes", "heavy-tails", "rare", "units"],
)
def test_ordinary_samples_pass_without_a_word(samples: np.ndarray) -> None:
    assert screen_samples(samples) == ()


@pytest.mark.float32
def test_a_spread_that_the_precision_cannot_hold_is_said() -> None:
    double = jax.config.read("jax_enable_x64")
    about = 1e8 if not double else 1e17
    samples = np.concatenate([PLAIN, about + 64 * PLAIN[:, :1] ** 2 * (8 if double else 1)], 1)
    text = warnings_of(samples)
    assert "parameters [2] vary too little about a large value" in text
    assert ("double" if double else "single") + " precision" in text
    assert "subtract a constant" in text and ("jax_enable_x64" in text) != double
    if double:
        assert screen_samples(PLAIN + 1e8) == ()


@pytest.mark.float32
def test_variances_beyond_the_precision_are_said() -> None:
    tiny = 1e-25 if not jax.config.read("jax_enable_x64") else 1e-160
    assert "variances of parameters [0, 1] are beyond" in warnings_of(PLAIN * tiny)


def test_checks_of_many_samples_fit_in_memory() -> None:
    assert screen_samples(np.random.default_rng(4).standard_normal((300_000, 2))) == ()
