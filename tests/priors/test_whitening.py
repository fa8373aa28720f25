"""Whitening in double precision, in any units, and what is held out."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from diffprior.priors.whitening import constant_columns, split, to_unit, whitening

RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((300, 3)) @ np.array([[1.0, 0.4, 0], [0, 2.0, -1], [0, 0, 0.5]])
WEIGHTS = RNG.integers(0, 4, 300).astype(float)


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 0.0), (1.0, 1e8), (1e-18, 0.0), (1e15, 1e17)])
def test_unit_coordinates_do_not_depend_on_units(factor: float, shift: float) -> None:
    moved = factor * SAMPLES + shift
    offset, scale = whitening(moved)
    unit = to_unit(moved, offset, scale)
    assert not np.any(constant_columns(moved))
    precision = 1e-16 * (1 + shift / factor)  # of the numbers themselves
    assert_allclose(unit.mean(axis=0), 0, atol=1e-12 + 10 * precision)
    assert_allclose(np.cov(unit.T, bias=True), np.eye(3), atol=1e-5)
    expected = to_unit(SAMPLES, *whitening(SAMPLES))
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
    unit = to_unit(samples, offset, scale)
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
