"""The diffusion prior: its reverse process in closed form, units, odd samples and errors."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import COV, COVS, DIM, MEAN, MEANS, WEIGHTS
from diffprior.priors.diffusion import EXACT_DRAWS
from statistic import Z, assert_moments

OWN_GRID = dp.Schedule.log_snr(33)  # where the residual is tabulated, so nothing is interpolated


SAMPLES = np.random.default_rng(4).standard_normal((400, DIM)) @ np.tri(DIM) + 3.0


@pytest.fixture(scope="module")
def unlearned() -> dp.DiffusionPrior:
    """A fit in which nothing is trained: a Gaussian."""
    config = dataclasses.replace(dp.FitConfig.tiny(), max_components=1, num_steps=0)
    return dp.DiffusionPrior.fit(SAMPLES, config=config)


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
        extra = np.sqrt(1 + len(clean) / EXACT_DRAWS)  # the package's own draws
        gaps = np.asarray(variances) - float(prior.residual[index])
        assert abs(gaps.mean()) < Z * extra * gaps.std() / np.sqrt(len(gaps))


@pytest.mark.parametrize("rank", [0, 1])
def test_evidence_may_be_singular(unlearned: dp.DiffusionPrior, rank: int) -> None:
    row, mean = rank * np.array([[0.7, -0.3, 0.1]]), SAMPLES.mean(axis=0)
    got = unlearned.denoise(row.T @ row, row[0])
    twin = reference.condition_gaussian(mean, np.cov(SAMPLES.T, bias=True), row.T @ row, row[0])
    assert_allclose(got.mean, twin[0], atol=1e-5)
    assert_allclose(got.cov, twin[1], atol=1e-4)


def test_report_of_an_unlearned_prior_is_that_of_the_linear_predictor(
    unlearned: dp.DiffusionPrior,
) -> None:
    """Where noise decides, within five standard errors of a mean of squared normal numbers."""
    report = unlearned.report
    ratios = [stage.learned / stage.linear for stage in report.stages if stage.log_snr >= 3]
    assert_allclose(ratios, 1.0, atol=Z * np.sqrt(2 / (DIM * 256)))
    assert unlearned.denoiser.general and report.num_held_out == 80
