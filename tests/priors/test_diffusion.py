"""The diffusion prior: its reverse process in closed form, units, odd samples and refusals."""

from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import COV, COVS, MEAN, MEANS, WEIGHTS
from diffprior.priors import residuals
from diffprior.priors.screening import screen_samples
from statistic import Z, assert_moments

OWN_GRID = dp.Schedule.log_snr(33)  # where the residual is tabulated, so nothing is interpolated


def gaussian_samples(num: int, dim: int = 2) -> np.ndarray:
    return np.random.default_rng(4).standard_normal((num, dim))


@pytest.fixture(scope="module")
def gaussian() -> dp.DiffusionPrior:
    """A Gaussian with its exact denoiser; few stages, which do it no harm."""
    return dp.DiffusionPrior.from_prior(dp.GaussianPrior(MEAN, COV), dp.Schedule.log_snr(6))


def test_gaussian_prior_is_sampled_exactly(gaussian: dp.DiffusionPrior) -> None:
    assert_moments(gaussian.sample(jax.random.key(0), 20_000), MEAN, COV)


@pytest.fixture(scope="module")
def mixture() -> dp.DiffusionPrior:
    """A mixture with its exact denoiser."""
    return dp.DiffusionPrior.from_prior(dp.MixturePrior(WEIGHTS, MEANS, COVS))


def test_mixture_prior_is_sampled_as_it_is(mixture: dp.DiffusionPrior) -> None:
    """Five standard errors, and 0.015 of a deviation for the 64 stages being finitely many."""
    draws = np.asarray(mixture.sample(jax.random.key(1), 20_000))
    mean, cov = reference.mixture_moments(WEIGHTS, MEANS, COVS)
    stds = np.sqrt(np.diag(cov))
    standard = (draws - mean) / stds
    products = np.einsum("ni,nj->nij", standard, standard)
    near = lambda got, expected: np.max(  # noqa: E731
        np.abs(got.mean(axis=0) - expected) - Z * got.std(axis=0) / np.sqrt(len(got))
    )
    assert near(standard, 0.0) < 0.015
    assert near(products, cov / np.outer(stds, stds)) < 0.03
    densities = np.stack(
        [
            np.log(w) + reference.gaussian_log_density(draws, m, c)
            for w, m, c in zip(WEIGHTS, MEANS, COVS, strict=True)
        ]
    )
    shares = np.exp(densities - np.logaddexp.reduce(densities))
    assert near(shares.T, WEIGHTS) < 0.01


@pytest.mark.parametrize("schedule", [OWN_GRID, dp.Schedule.constant(20), dp.Schedule.cosine(7)])
def test_reverse_variance(gaussian: dp.DiffusionPrior, schedule: dp.Schedule) -> None:
    """beta_tilde by the twin, and with the posterior variance 1 / (1 + snr) of a unit Gaussian."""
    process = gaussian.reverse_process(schedule)
    pairs = list(zip(schedule.alpha_bar[:-1], schedule.alpha_bar[1:], strict=True))[::-1]
    weights = np.array([reference.posterior_weights(*pair) for pair in pairs])
    assert_allclose(process.variance("paper"), weights[:, 2], rtol=1e-9, atol=1e-14)
    variance = np.array([1 - alpha_bar for _, alpha_bar in pairs])
    fitted = weights[:, 2] + weights[:, 0] ** 2 * variance
    interpolation = 1e-9 if schedule is OWN_GRID else 0.5**2 / 32  # of a log whose f'' <= 1 / 4
    assert_allclose(process.variance("fitted"), fitted, rtol=interpolation)


def test_residual_is_the_mean_posterior_variance_of_a_mixture(mixture: dp.DiffusionPrior) -> None:
    closed, prior = dp.MixturePrior(WEIGHTS, MEANS, COVS), mixture
    inverse = np.linalg.inv(np.asarray(prior.scale))
    means = (MEANS - np.asarray(prior.offset)) @ inverse.T
    covs = inverse @ COVS @ inverse.T
    clean = (
        np.asarray(closed.sample(jax.random.key(5), 500)) - np.asarray(prior.offset)
    ) @ inverse.T
    noise = np.random.default_rng(5).standard_normal(clean.shape)
    for index in (12, 16, 20):
        snr = np.exp(float(prior.residual_log_snr[index]))
        shifts = snr * clean + np.sqrt(snr) * noise
        evidence = ((snr * np.eye(3), shift) for shift in shifts)
        variances = [
            np.trace(reference.mixture_denoise(WEIGHTS, means, covs, *e)[1]) / 3 for e in evidence
        ]
        extra = np.sqrt(1 + len(clean) / residuals.RESIDUAL_DRAWS)  # the package's own draws
        gaps = np.asarray(variances) - float(prior.residual[index])
        assert abs(gaps.mean()) < Z * extra * gaps.std() / np.sqrt(len(gaps))


@pytest.mark.parametrize(
    ("scale", "offset"),
    [
        ([1e-4, 1e-4], 0.0),
        ([1e4, 1e4], 0.0),
        ([1e-3, 1.0], 5.0),
        ([1e-2, 1e-2], 1e2),
        ([1.0, 1.0], 1e4),
    ],
)
def test_units_do_not_matter(unlearned: list, scale: list[float], offset: float) -> None:
    """Unit samples are those of any other units, and an unlearned prior is Gaussian in its own."""
    samples = gaussian_samples(400)
    moved = samples * np.asarray(scale) + offset
    dp.DiffusionPrior.fit(samples)
    prior = dp.DiffusionPrior.fit(moved)
    for ours, expected in zip(unlearned[1], unlearned[0], strict=True):
        assert_allclose(ours, expected, atol=1e-7)
    precision = np.diag(1 / np.square(scale))
    shift = precision @ (offset + np.asarray(scale))
    got = prior.denoise(precision, shift)
    cov = np.cov(moved.T, bias=True)
    mean, cov = reference.condition_gaussian(moved.mean(axis=0), cov, precision, shift)
    assert_allclose((got.mean - mean) / np.asarray(scale), np.zeros(2), atol=1e-5)
    assert_allclose(got.cov / np.outer(scale, scale), cov / np.outer(scale, scale), atol=1e-5)


@pytest.mark.parametrize("rank", [0, 1])
def test_evidence_may_be_singular(unlearned: list, rank: int) -> None:
    samples = gaussian_samples(400) @ np.array([[1.0, 0.3], [0.0, 2.0]]) + 3.0
    prior, row = dp.DiffusionPrior.fit(samples), rank * np.array([[0.7, -0.3]])
    got = prior.denoise(row.T @ row, row[0])
    twin = reference.condition_gaussian(
        samples.mean(axis=0), np.cov(samples.T, bias=True), row.T @ row, row[0]
    )
    assert_allclose(got.mean, twin[0], atol=1e-5)
    assert_allclose(got.cov, twin[1], atol=1e-4)


def test_report_of_an_unlearned_prior_is_that_of_the_linear_predictor(unlearned: list) -> None:
    """Where noise decides, within five standard errors of a mean of squared normal numbers."""
    report = dp.DiffusionPrior.fit(gaussian_samples(400)).report
    ratios = [stage.learned / stage.linear for stage in report.stages if stage.log_snr >= 3]
    assert_allclose(ratios, 1.0, atol=Z * np.sqrt(2 / (2 * residuals.RESIDUAL_DRAWS)))


def test_seeds_differ_and_the_split_leaves_nothing_out(unlearned: list) -> None:
    samples = gaussian_samples(400)
    first, second = (dp.DiffusionPrior.fit(samples, seed=seed) for seed in (0, 1))
    assert np.any(unlearned[0][1] != unlearned[1][1])
    back = np.concatenate(unlearned[0]) @ np.asarray(first.scale).T + np.asarray(first.offset)
    assert_allclose(back[np.argsort(back[:, 0])], samples[np.argsort(samples[:, 0])], atol=1e-5)
    assert first.report.num_held_out == len(unlearned[0][1]) == 80


def test_odd_samples_are_taken_with_warnings(unlearned: list) -> None:
    """Few, repeated, with a constant and a dependent column, all of it at once."""
    rng = np.random.default_rng(6)
    column = np.repeat(rng.standard_normal(12), 2)
    samples = np.stack([column, np.full(24, 0.3), 2 * column - 1], axis=1)
    with pytest.warns(dp.FitWarning) as caught:
        prior = dp.DiffusionPrior.fit(samples)
    text = " ".join(str(warning.message) for warning in caught)
    for part in ("24 samples are few", "12 of 24", r"[1] are constant", "rank 1 of 2"):
        assert part in text and part in str(prior.report)
    draws = np.asarray(prior.sample(jax.random.key(0), 200))
    assert_allclose(draws[:, 1], 0.3, atol=1e-4)
    assert_allclose(draws[:, 2], 2 * draws[:, 0] - 1, atol=0.02)
    assert np.all(np.isfinite(np.concatenate(unlearned[0])))


def test_twenty_samples_are_enough(unlearned: list) -> None:
    with pytest.warns(dp.FitWarning, match="20 samples are few"):
        prior = dp.DiffusionPrior.fit(gaussian_samples(20))
    assert prior.report.num_held_out == 4 and np.all(np.isfinite(prior.residual))


def test_checks_of_many_samples_fit_in_memory() -> None:
    assert screen_samples(gaussian_samples(300_000)) == ()


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        (gaussian_samples(19), {}, "`samples`: expected at least 20 rows, got 19; collect"),
        (np.full((30, 2), np.nan), {}, "`samples`: expected finite numbers, got 60 NaN.*drop"),
        (np.zeros(30), {}, r"`samples`: expected shape \(n, d\), got \(30,\); pass one row"),
        (np.zeros((30, 0)), {}, r"`samples`: expected .* column, got shape \(30, 0\)"),
        ([["a", "b"]] * 30, {}, "`samples`: expected real numbers, got dtype <U1; convert"),
        (gaussian_samples(30), {"preset": "best"}, "`preset`: .*'default', 'paper', got 'best'"),
    ],
)
def test_refusals(samples: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dp.DiffusionPrior.fit(samples, **options)


def test_many_parameters_take_any_evidence_too(unlearned: list) -> None:
    prior = dp.DiffusionPrior.fit(np.random.default_rng(0).standard_normal((400, 12)))
    assert prior.denoiser.general


def test_general_evidence_is_the_default(learned: dp.DiffusionPrior) -> None:
    assert learned.denoiser.general and not learned.has_own_grid
    assert isinstance(dp.best_sampler(learned), dp.EvidenceDPS)
