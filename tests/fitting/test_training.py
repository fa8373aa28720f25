"""How training steps and stops, and what a short training comes to."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from diffprior.fitting.samples import Rows
from diffprior.fitting.training import AbstractLoss, TrainingResult, as_good, optimize

from .conftest import LEARNED

CONFIG = dataclasses.replace(dp.FitConfig.tiny(), batch_size=1, warm_up_steps=100, averaging=0.995)


class Sum(AbstractLoss):
    """A gradient of one."""

    def draw(self, rng: np.random.Generator, rows: Rows, size: int, num_steps: int) -> None:
        return None

    def __call__(self, params: Any, drawn: None, rows: Rows) -> jax.Array:
        return jnp.sum(params)


class Pull(AbstractLoss):
    """Least where all numbers are those of the first sample."""

    def draw(self, rng: np.random.Generator, rows: Rows, size: int, num_steps: int) -> None:
        return None

    def __call__(self, params: Any, drawn: None, rows: Rows) -> jax.Array:
        return jnp.sum((params - rows.samples[:1]) ** 2)


def descend(loss: AbstractLoss, config: dp.FitConfig, evaluate: Callable[[Any], Any]) -> Any:
    """Descent of one number from 0."""
    rows, start = Rows.of(np.full((4, 1), 1.0), None), jnp.zeros((1, 1), jnp.float32)
    return optimize(start, loss, rows, config.training(1), 0, False, evaluate)


@pytest.mark.parametrize(
    ("num_steps", "warm_up"), [(1, 100), (249, 100), (250, 100), (251, 100), (250, 0)]
)
def test_as_many_steps_are_taken_at_the_rates_of_the_schedule(num_steps: int, warm_up: int) -> None:
    """A gradient of one, and a rate that sums up to what the schedule says."""
    settings = {"num_steps": num_steps, "learning_rate": 1.0, "averaging": 0.0}
    config = dataclasses.replace(CONFIG, **settings, warm_up_steps=warm_up)
    params, result = descend(Sum(), config, lambda p: np.asarray(p)[0])
    assert len(result.losses) == 1 + -(-num_steps // 250)
    step = np.arange(num_steps)
    left = np.clip((step - warm_up) / max(num_steps - warm_up, 1), 0, 1)
    rates = np.minimum(step / warm_up, 1) if warm_up else np.ones(num_steps)
    rates = rates * (0.01 + 0.99 * (1 + np.cos(np.pi * left)) / 2)
    assert_allclose(-params[0, 0], np.sum(rates), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_the_best_evaluation_is_kept_and_patience_ends(optimizer: Any) -> None:
    """Training pulls a number to 1, while the held-out samples like 1/2 best."""
    config = dataclasses.replace(CONFIG, num_steps=5000, evaluate_every=50, optimizer=optimizer)
    params, result = descend(Pull(), config, lambda p: np.asarray((p[0] - 0.5) ** 2))
    assert result.best == int(np.argmin(result.losses))
    assert 0 < result.best == len(result.losses) - 1 - config.patience
    assert_allclose((params[0, 0] - 0.5) ** 2, result.losses[result.best], rtol=1e-4)


def test_a_network_that_never_helps_is_given_up_sooner() -> None:
    config = dataclasses.replace(CONFIG, num_steps=5000, evaluate_every=50, patience=5)
    _, result = descend(Pull(), config, lambda p: np.asarray(p[0] ** 2))
    assert result.best == 0 and len(result.losses) == 1 + 3


def test_weights_that_diverge_are_left_behind() -> None:
    """Held-out losses are finite up to the second evaluation."""
    seen = []

    def evaluate(params: Any) -> np.ndarray:
        seen.append(params)
        return np.full(3, 1.0 / len(seen) if len(seen) < 3 else np.nan)

    config = dataclasses.replace(CONFIG, num_steps=500, evaluate_every=50)
    params, result = descend(Pull(), config, evaluate)
    assert result == TrainingResult((1.0, 0.5), 1) and len(seen) == 3
    assert_allclose(params, seen[1])
    with pytest.raises(ValueError, match="`samples`: expected finite held-out losses before"):
        descend(Pull(), config, evaluate)


def test_losses_are_as_good_as_their_noise_allows() -> None:
    """Held-out samples that agree that weights are worse, and such that do not."""
    best = np.ones(4)
    assert as_good(best + np.array([-0.5, 0.6, -0.5, 0.6]), best, 1.0)
    assert as_good(best + np.array([-0.3, 0.6, -0.3, 0.6]), best, 1.0)  # .15, one error is .22
    assert not as_good(best + np.array([0.1, 0.15, 0.1, 0.15]), best, 1.0)
    assert as_good(best + 0.1, best, 1.0, min_relative_gain=0.2)
    assert not as_good(best + 0.1, best, 1.0, min_relative_gain=0.05)


def test_learned_denoiser_beats_the_linear_one_where_blobs_are_distinct(
    learned: dp.DiffusionPrior,
) -> None:
    """Measured over three seeds: 0.77 to 0.88 of the linear predictor's error at these stages."""
    stages = [stage for stage in learned.report.stages if 1 <= stage.log_snr <= 3]
    assert len(stages) >= 4
    assert all(stage.learned < 0.95 * stage.linear for stage in stages)
    assert learned.denoiser.general and not learned.has_own_grid
    assert isinstance(dp.best_sampler(learned), dp.EvidenceDPS)


def test_learned_denoiser_is_nearer_the_exact_one_than_a_gaussian(
    learned: dp.DiffusionPrior, blobs: Any
) -> None:
    """Evidence of ranks one and two. Measured over three seeds: 0.14 to 0.23 of its error."""
    exact = dp.MixturePrior(blobs.weights, blobs.means, blobs.covs)
    gaussian = dp.GaussianPrior(blobs.samples.mean(axis=0), np.cov(blobs.samples.T))
    rng, gaps = np.random.default_rng(3), []
    for index in range(60):
        rows = rng.standard_normal((1 + index % 2, 2)) * np.exp(rng.uniform(-1, 1))
        shift = rows.T @ (rows @ blobs.samples[index] + rng.standard_normal(len(rows)))
        means = [p.denoise(rows.T @ rows, shift).mean for p in (exact, learned, gaussian)]
        means = [np.asarray(mean) for mean in means]
        gaps.append([np.sum((mean - means[0]) ** 2) for mean in means[1:]])
    ours, theirs = np.mean(gaps, axis=0)
    assert ours < 0.4 * theirs


def test_scaling_by_a_power_of_two_changes_nothing_else(
    learned: dp.DiffusionPrior, blobs: Any
) -> None:
    """The same seed on exactly the same unit samples: training is repeatable to the last bit."""
    scaled = dp.DiffusionPrior.fit(blobs.samples / 128, config=LEARNED, progress=False)
    ours, theirs = (p.denoiser.correction.weights_hidden for p in (scaled, learned))
    assert_array_equal(ours, theirs)
    key = jax.random.key(0)
    draws = (np.asarray(p.sample(key, 100)) for p in (scaled, learned))
    assert_array_equal(128 * next(draws), next(draws))


def test_paper_preset_learns_a_regressor_for_each_stage(blobs: Any) -> None:
    """Measured with the whole recipe: 0.77 to 0.86 of the linear predictor's error."""
    grid = dp.Schedule.constant(5)
    config = dataclasses.replace(dp.FitConfig.paper(), schedule=grid, num_steps=500, width=32)
    prior = dp.DiffusionPrior.fit(blobs.samples, config=config, progress=False)
    assert prior.schedule == grid and len(prior.report.stages) == 5
    assert_allclose([s.log_snr for s in prior.report.stages], np.log(grid.snr[::-1]), rtol=1e-9)
    assert all(stage.learned < 0.95 * stage.linear for stage in prior.report.stages)
    draws = np.asarray(prior.sample(jax.random.key(0), 500))
    assert draws.shape == (500, 2) and np.all(np.isfinite(draws))
    with pytest.raises(ValueError, match="own grid"):
        prior.denoise(np.diag([1.0, 2.0]), np.zeros(2))
