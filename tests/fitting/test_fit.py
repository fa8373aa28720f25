"""Arguments of `fit`: weights, groups, warm starts, settings; and its programs."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from cases import diffusion
from diffprior.denoisers.network import CorrectedDenoiser
from diffprior.mixture import GaussianMixture

from .conftest import GAUSSIAN, LEARNED, Blobs

RNG = np.random.default_rng(4)
SAMPLES = RNG.standard_normal((400, 2)) @ np.array([[1.0, 0.3], [0.0, 2.0]]) + 3.0


def unlearned(samples: Any = SAMPLES, **options: Any) -> dp.DiffusionPrior:
    """One Gaussian; nothing is trained."""
    return dp.DiffusionPrior.fit(samples, config=GAUSSIAN, progress=False, **options)


def test_a_second_fit_compiles_nothing(
    learned: dp.DiffusionPrior, blobs: Blobs, compilations: list[str]
) -> None:
    """Other samples, another seed, rate and number of steps, of the same shapes."""
    config = dataclasses.replace(LEARNED, num_steps=300, learning_rate=1e-2)
    second = dp.DiffusionPrior.fit(blobs.samples[::-1] * 2, config=config, seed=1, progress=False)
    assert not compilations
    assert learned.report.losses != second.report.losses
    unlearned(SAMPLES[:390])
    assert any("scores" in name for name in compilations)  # the count sees what it should


def test_the_network_has_the_size_asked_for(learned: dp.DiffusionPrior) -> None:
    assert learned.report.base.corrected
    assert learned.denoiser.correction.weights_hidden.shape == (1, 32, 32)
    assert len(learned.report.losses) == 4  # before, and after each 250 of 750 steps


def test_a_warm_start_begins_with_the_loss_that_the_other_ended_with(
    learned: dp.DiffusionPrior, blobs: Blobs
) -> None:
    config = dataclasses.replace(LEARNED, width=None, depth=None, num_steps=1)
    second = dp.DiffusionPrior.fit(blobs.samples, initial=learned, config=config, progress=False)
    assert_allclose(second.report.losses[0], learned.report.base.loss, rtol=1e-4)


def test_a_warm_start_keeps_coordinates_base_and_schedule() -> None:
    first = unlearned(seed=3)
    base = GaussianMixture.from_covs(
        np.array([0.5, 0.5]), np.array([[0.2, 0.1], [-0.2, 0.3]]), 0.9 * np.stack([np.eye(2)] * 2)
    )
    denoiser = CorrectedDenoiser(base.on_device(), None, None, 2)
    first = dataclasses.replace(first, denoiser=denoiser, schedule=dp.Schedule.cosine(7))
    moved = SAMPLES * 1.5 + 1.0
    config = dataclasses.replace(GAUSSIAN, width=None, depth=None)
    second = dp.DiffusionPrior.fit(moved, initial=first, seed=5, config=config)
    leaves = map(jax.tree.leaves, (second.denoiser, first.denoiser))
    for ours, theirs in zip(*leaves, strict=True):
        assert_allclose(ours, theirs, rtol=1e-6)
    assert_array_equal(second.offset, first.offset)
    assert_array_equal(second.scale, first.scale)
    assert second.schedule == dp.Schedule.cosine(7)


def test_rows_beyond_single_precision_are_rejected_by_a_warm_start() -> None:
    """Squares of them would be infinite, and no loss finite."""
    config = dataclasses.replace(GAUSSIAN, width=None, depth=None, num_steps=1)
    first, samples = unlearned(), np.concatenate([SAMPLES, 1e30 * SAMPLES[:20]])
    with pytest.raises(ValueError, match=r"`samples`: expected rows within 1e\+15 standard dev"):
        dp.DiffusionPrior.fit(samples, initial=first, config=config, progress=False)


def test_samples_count_by_their_weights() -> None:
    weights = np.where(SAMPLES[:, 0] > 2.5, 3.0, 0.0)
    weights[0] = 1.0
    prior = unlearned(sample_weights=weights)
    mean = weights @ SAMPLES / weights.sum()
    cov = np.cov(SAMPLES.T, aweights=weights, bias=True)
    assert_allclose(prior.moments().mean, mean, rtol=1e-9)
    assert_allclose(prior.moments().cov, cov, rtol=1e-5)
    assert prior.report.num_samples == np.sum(weights > 0)


def test_residuals_count_held_out_rows_by_their_weights() -> None:
    """An unlearned network is the best linear one: rows far out have larger errors when noise
    hides them, so that a prior that counts them alone has larger residuals there."""
    far = np.sum((SAMPLES - 3.0) ** 2, axis=1) > 4
    first, weights = unlearned(), np.where(far, 1.0, 1e-9)
    config = dataclasses.replace(GAUSSIAN, width=None, depth=None)
    second = dp.DiffusionPrior.fit(SAMPLES, initial=first, sample_weights=weights, config=config)
    assert float(second.residual[0]) > 1.3 * float(first.residual[0])


def test_groups_are_held_out_together() -> None:
    """Every task is there four times; labels may be anything."""
    tasks = np.repeat(np.arange(100), 4)
    with pytest.warns(dp.FitWarning, match="100 of 400 samples are distinct"):
        prior = unlearned(SAMPLES[tasks], groups=[f"task {t}" for t in tasks])
    assert prior.report.num_held_out == 80


def test_a_hedge_widens_the_prior() -> None:
    plain, hedged = unlearned(), unlearned(hedge=0.2)
    assert hedged.report.num_samples == 500
    assert np.all(np.diagonal(hedged.moments().cov) > 1.5 * np.diagonal(plain.moments().cov))
    with pytest.raises(ValueError, match="`hedge`: expected samples without weights"):
        unlearned(hedge=0.1, groups=np.arange(400))


def test_invalid_arguments() -> None:
    """Before anything is learned; each is named."""
    few, one = np.r_[np.ones(4), np.zeros(396)], np.repeat([1.0, 0.0], 200)
    for options, message in (
        ({"preset": "best"}, "`preset`: .*'default', 'paper', got 'best'"),
        ({"preset": "paper", "config": GAUSSIAN}, "`preset`: expected none beside `config`"),
        ({"seed": -1}, r"`seed`: expected a whole number from 0 to 2\^32 - 1, got -1"),
        ({"sample_weights": np.ones(3)}, r"`sample_weights`: expected shape \(400,\)"),
        ({"sample_weights": -np.ones(400)}, "`sample_weights`: expected non-negative"),
        ({"sample_weights": few}, "`sample_weights`: expected at least 20 .*, got 4"),
        ({"groups": np.zeros(400)}, "`groups`: expected at least two different labels, got one"),
        ({"groups": np.zeros(3)}, r"`groups`: expected shape \(400,\), got \(3,\)"),
        (
            {"sample_weights": one, "groups": np.repeat([0, 1], 200)},
            "`groups`: .*two different labels among rows",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            dp.DiffusionPrior.fit(SAMPLES, **options)
    for samples, message in (
        (SAMPLES[:19], "`samples`: expected at least 20 rows, got 19; collect"),
        (np.full((30, 2), np.nan), "`samples`: expected finite numbers, got 60 NaN.*drop"),
        (np.zeros(30), r"`samples`: expected shape \(n, d\), got \(30,\); pass one row"),
        (np.zeros((30, 0)), r"`samples`: expected .* column, got shape \(30, 0\)"),
        ([["a", "b"]] * 30, "`samples`: expected real numbers, got text such as 'a'; convert"),
    ):
        with pytest.raises(ValueError, match=message):
            dp.DiffusionPrior.fit(samples)


def test_what_cannot_be_started_from_is_rejected(learned: dp.DiffusionPrior) -> None:
    closed, three = diffusion(), RNG.standard_normal((300, 3))
    for samples, options, message in (
        (three, {"initial": closed}, "`initial`: .*got PriorDenoiser of 3 parameters"),
        (three, {"initial": learned}, "`initial`: expected a prior of 3 parameters"),
        (SAMPLES, {"initial": learned, "preset": "paper"}, "`initial`: .*the same preset"),
        (SAMPLES, {"initial": learned, "config": LEARNED}, "`width`: expected None with `initial`"),
    ):
        with pytest.raises(ValueError, match=message):
            dp.DiffusionPrior.fit(samples, **options)


def test_units_do_not_matter() -> None:
    """The same unit samples, so that residuals are the same to rounding."""
    first = unlearned()
    for scale, offset in (([1e-4, 1e-4], 0.0), ([1e4, 1e-3], 5.0), ([1.0, 1.0], 1e4)):
        moved = unlearned((SAMPLES - 3.0) * np.asarray(scale) + offset)
        assert_allclose(moved.residual, first.residual, rtol=1e-4)
        cov = np.cov(SAMPLES.T, bias=True) * np.outer(scale, scale)
        assert_allclose(moved.moments().cov, cov, rtol=1e-4)


@pytest.mark.float32
def test_parameters_of_extreme_size_are_drawn_with_their_spread() -> None:
    """Far from zero by 1e8 in double precision; in single precision, that is warned of instead."""
    far = 1e8
    if not jax.config.read("jax_enable_x64"):
        with pytest.warns(dp.FitWarning, match=r"parameters \[0, 1\] vary too little"):
            unlearned(SAMPLES + 1e8)
        far = 1e3
    for scale, offset in ((1.0, far), (1e-18, 0.0)):
        prior = unlearned(scale * SAMPLES + offset)
        draws = np.asarray(prior.sample(jax.random.key(0), 2000), np.float64)
        draws = (draws - offset) / scale
        assert_allclose(draws.std(axis=0), SAMPLES.std(axis=0), rtol=0.1)
        assert_allclose(draws.mean(axis=0), SAMPLES.mean(axis=0), rtol=0.1)


def test_odd_samples_are_taken_with_warnings() -> None:
    """Few, repeated, with a constant and a dependent column, all of it at once."""
    column = np.repeat(np.random.default_rng(6).standard_normal(10), 2)
    samples = np.stack([column, np.full(20, 0.3), 2 * column - 1], axis=1)
    with pytest.warns(dp.FitWarning) as caught:
        prior = unlearned(samples)
    text = " ".join(str(warning.message) for warning in caught)
    for part in ("20 samples are few", "10 of 20", r"[1] are constant", "rank 1 of 2"):
        assert part in text and part in str(prior.report)
    draws = np.asarray(prior.sample(jax.random.key(0), 200))
    assert_allclose(draws[:, 1], 0.3, atol=1e-4)
    assert_allclose(draws[:, 2], 2 * draws[:, 0] - 1, atol=0.02)
    assert prior.report.num_held_out == 4 and np.all(np.isfinite(prior.residual))
