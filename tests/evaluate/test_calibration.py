"""Coverage and ranks: exact samplers pass, wrong ones do not, and quantiles are where they are."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from diffprior.evaluate import coverage, rank_uniformity, simulate_tasks
from diffprior.evaluate.calibration import interval_coverage, rank_uniforms
from statistic import Z, assert_mean

PRIOR = dp.GaussianPrior(np.zeros(2), np.eye(2))
LINEAR = dp.Linear(0.5)


@pytest.fixture(scope="module")
def tasks() -> dp.Logs:
    return simulate_tasks(PRIOR, LINEAR, num_tasks=400, num_observations=12, seed=1)


class Flaky(dp.AbstractSampler):
    """Exact draws, of which a share fails: says so, and is `value`."""

    prior: dp.GaussianPrior
    exact: dp.Exact
    temperature: float = eqx.field(static=True)
    share: jax.Array
    value: jax.Array

    def __init__(self, share: float, value: float) -> None:
        self.prior, self.exact, self.temperature = PRIOR, dp.Exact(PRIOR), 1.0
        self.share, self.value = jnp.asarray(share), jnp.asarray(value)

    def draw(self, key: jax.Array, evidence: dp.AbstractEvidence) -> tuple[jax.Array, dp.Info]:
        own, other = jax.random.split(key)
        theta, _ = self.exact.draw(own, evidence)
        failed = jax.random.uniform(other, ()) < self.share
        theta = jnp.where(failed, self.value, theta)
        return theta, dp.Info.of(theta, failed=failed)


def test_an_exact_sampler_is_calibrated(tasks: dp.Logs) -> None:
    found = coverage(PRIOR, tasks, LINEAR)
    assert abs(found.share - 0.9) < Z * found.standard_error < 0.1
    assert found.num_tasks == 400 and found.failed == 0 and found.by_parameter.shape == (2,)
    ranks = rank_uniformity(PRIOR, tasks, LINEAR)
    assert ranks.p_value > 1e-3 and ranks.histogram.sum() == 800
    assert "90 % intervals" in str(found) and "400 tasks" in str(ranks)


@pytest.mark.parametrize("temperature", [0.2, 9.0], ids=["narrow", "wide"])
def test_a_wrong_width_shows(tasks: dp.Logs, temperature: float) -> None:
    wrong = dp.Exact(PRIOR, temperature=temperature)
    found = coverage(wrong, tasks, LINEAR)
    assert (found.share < 0.9) == (temperature < 1)
    assert abs(found.share - 0.9) > Z * found.standard_error
    assert rank_uniformity(wrong, tasks, LINEAR).p_value < 1e-6


def test_a_wrong_likelihood_shows(tasks: dp.Logs) -> None:
    """Noise taken to be a tenth of what it is."""
    assert coverage(PRIOR, tasks, dp.Linear(0.05)).share < 0.5


def test_exact_draws_cover_the_level_at_any_number() -> None:
    """Ranks q (m + 1): with 19 draws the interval is from the least to the greatest."""
    for num_draws in (19, 39):
        rng = np.random.default_rng(0)
        draws, truths = rng.normal(size=(40_000, num_draws, 1)), rng.normal(size=(40_000, 1))
        found = interval_coverage(draws, truths, 0.9)
        assert abs(found.share - 0.9) < Z * found.standard_error < 0.01


def test_intervals_are_between_numpys_quantiles() -> None:
    rng = np.random.default_rng(0)
    draws, truths = rng.normal(size=(500, 39, 2)), rng.normal(size=(500, 2))
    low, high = (np.quantile(draws, q, axis=1, method="weibull") for q in (0.05, 0.95))
    inside = (truths >= low) & (truths <= high)
    np.testing.assert_array_equal(
        interval_coverage(draws, truths, 0.9).by_parameter, inside.mean(axis=0)
    )


def test_failed_draws_are_left_out_and_counted(tasks: dp.Logs) -> None:
    found = coverage(Flaky(0.3, np.nan), tasks, LINEAR)
    assert abs(found.failed / (400 * 199) - 0.3) < 0.01
    assert abs(found.share - 0.9) < Z * found.standard_error
    ranks = rank_uniformity(Flaky(0.3, 1e6), tasks, LINEAR)
    assert ranks.p_value > 1e-3 and ranks.failed == found.failed


def test_a_task_without_a_draw_is_not_covered(tasks: dp.Logs) -> None:
    few = tasks.select(slice(20))
    assert coverage(Flaky(1.0, np.nan), few, LINEAR).share == 0.0
    draws = np.random.default_rng(0).normal(size=(2, 19, 1))
    draws[1] = np.nan
    assert interval_coverage(draws, np.zeros((2, 1))).share == 0.5


def test_ties_are_broken_at_random() -> None:
    """Draws and truth of zeros and ones: uniform in (0, 1) nevertheless."""
    rng = np.random.default_rng(0)
    draws = (rng.random((4000, 50)) < 0.3).astype(float)
    uniforms = rank_uniforms(draws, (rng.random(4000) < 0.3).astype(float), rng)
    assert_mean(uniforms, 0.5)
    assert_mean((uniforms - 0.5) ** 2, 1 / 12)


def test_too_few_draws_and_another_dimension_are_rejected(tasks: dp.Logs) -> None:
    for level, num_draws in ((0.9, 18), (1.0, 99), (0.99, 99)):
        with pytest.raises(ValueError, match="`level`|`num_draws`: expected at least"):
            coverage(PRIOR, tasks, LINEAR, level, num_draws=num_draws)
    with pytest.raises(ValueError, match="`logs`: expected 1 parameters as in the prior, got 2"):
        coverage(dp.GaussianPrior(np.zeros(1), np.eye(1)), tasks, LINEAR)
