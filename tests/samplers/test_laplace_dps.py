"""LaplaceDPS against the distribution of its own chain, and stage by stage against the twin."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import IDENTITY, LINEAR, LOGISTIC, NOISE_STD, LikelihoodCase, Problem, problem
from chains import (
    BLOB_UNIT,
    Unit,
    affine_prior,
    blob_prior,
    chain_noise,
    follow,
    reverse_mean,
)
from diffprior.linalg import eigh
from statistic import assert_moments

N = 20_480  # draws; whole batches of the package's, which saves compiling a remainder
DIM = 2
KEY = jax.random.key(5)
PAPER_GRID = dp.Schedule.constant(100)


def closed_form(p: Problem, **options: object) -> dp.LaplaceDPS:
    return dp.LaplaceDPS(dp.GaussianPrior(p.mean, p.cov), **options)


def own_grid(p: Problem, **options: object) -> dp.LaplaceDPS:
    return dp.LaplaceDPS(affine_prior(p, PAPER_GRID), **options)


CHAINS = {
    "cosine-20": (closed_form, {}),
    "cosine-20-paper": (closed_form, {"covariance": "paper"}),
    "constant-100-stride-7-paper": (own_grid, {"steps": 7, "covariance": "paper"}),
}


def chain_law(sampler: dp.LaplaceDPS, p: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of theta for a Gaussian prior, by recursion over the stages."""
    unit, alpha_bar = Unit.of(p.mean, p.cov), sampler.schedule.alpha_bar
    matrices, offsets, _ = reference.gaussian_reverse_chain(np.zeros(DIM), np.eye(DIM), alpha_bar)
    process = sampler.prior.reverse_process(sampler.schedule)
    variances = np.asarray(process.variance(sampler.covariance))[::-1]
    covs = np.concatenate([[np.nan], variances])[:, None, None] * np.eye(DIM)
    evidence = reference.linear_evidence(*unit.history(p), NOISE_STD)
    mean, cov = reference.laplace_dps_chain_law(matrices, offsets, covs, alpha_bar, *evidence)
    return unit.back(mean), unit.scale @ cov @ unit.scale.T


@pytest.mark.parametrize("name", CHAINS)
def test_draws_follow_the_distribution_of_the_chain(name: str) -> None:
    make, options = CHAINS[name]
    for num_rows in (1, 6, 40):
        p = problem(num_rows, DIM, num_rows)
        sampler = make(p, **options)
        draws, info = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
        assert not np.any(info.failed)
        assert_moments(draws, *chain_law(sampler, p))


@pytest.mark.parametrize("name", CHAINS)
def test_the_variances_are_those_of_a_gaussian_prior(name: str) -> None:
    """The table of residuals of a closed form is interpolated: between its points, half a unit of
    log signal-to-noise apart, log(1 + snr) bends by at most 1/4 * 0.5^2 / 8 = 0.8 %."""
    make, options = CHAINS[name]
    sampler = make(problem(0, DIM, 0), **options)
    process = sampler.prior.reverse_process(sampler.schedule)
    _, _, covs = reference.gaussian_reverse_chain(
        np.zeros(1), np.eye(1), sampler.schedule.alpha_bar, fitted=sampler.covariance == "fitted"
    )
    expected = covs[:0:-1, 0, 0]
    rtol = 0.008 if make is closed_form else 1e-9
    assert_allclose(process.variance(sampler.covariance), expected, rtol=rtol, atol=1e-15)


def twin_draw(sampler: dp.LaplaceDPS, stage_draw: Callable) -> np.ndarray:
    """Algorithm 2 for the two blobs, with the sampler's own noise; `stage_draw` takes the mean and
    variance of a reverse step, alpha_bar of the stage it enters, and noise."""
    alpha_bar, num_stages = sampler.schedule.alpha_bar, sampler.schedule.num_stages
    process = sampler.prior.reverse_process(sampler.schedule)
    variance = dict(zip(alpha_bar[-2::-1], process.variance(sampler.covariance), strict=True))
    noise = chain_noise(KEY, num_stages, DIM)

    def step(s: np.ndarray, before: float, present: float, noise: np.ndarray) -> np.ndarray:
        return stage_draw(reverse_mean(s, before, present), float(variance[before]), before, noise)

    start = stage_draw(np.zeros(DIM), 1.0, alpha_bar[-1], noise[0])
    return BLOB_UNIT.back(follow(alpha_bar, start, noise[1:], step))


@pytest.mark.parametrize("covariance", ["fitted", "paper"])
@pytest.mark.parametrize("num_rows", [0, 1, 6])
def test_linear_stages_equal_the_twin(covariance: str, num_rows: int) -> None:
    """Theorem 2; the noise is drawn along the eigenvectors of the evidence."""
    p = problem(3, DIM, num_rows)
    evidence = reference.linear_evidence(*BLOB_UNIT.history(p), NOISE_STD)
    frame = np.asarray(eigh(jnp.asarray(evidence[0])).vectors)

    def draw(mean: np.ndarray, variance: float, before: float, noise: np.ndarray) -> np.ndarray:
        prior = (mean, variance * np.eye(DIM))
        mean, cov = reference.stage_posterior_linear(*prior, *evidence, before)
        return mean + frame @ (np.sqrt(np.diagonal(frame.T @ cov @ frame)) * noise)

    sampler = dp.LaplaceDPS(blob_prior(), covariance=covariance)
    theta = sampler.sample(KEY, p.evidence(LINEAR.make()))
    assert_allclose(theta, twin_draw(sampler, draw), atol=1e-9)


@pytest.mark.parametrize(
    ("case", "covariance"), [(IDENTITY, "fitted"), (LOGISTIC, "fitted"), (LOGISTIC, "paper")]
)
def test_glm_stages_equal_the_twin(case: LikelihoodCase, covariance: str) -> None:
    """Theorem 4; each stage is searched from scratch by the twin and warm-started by us."""
    p = problem(4, DIM, 12, case)
    rows = (*BLOB_UNIT.history(p), case.family, case.dispersion)

    def draw(mean: np.ndarray, variance: float, before: float, noise: np.ndarray) -> np.ndarray:
        prior = (mean, variance * np.eye(DIM))
        mean, cov = reference.stage_posterior_glm(*prior, before, *rows)
        return mean + (np.linalg.cholesky(cov) @ noise if variance > 0 else 0.0)

    sampler = dp.LaplaceDPS(blob_prior(), covariance=covariance)
    theta = sampler.sample(KEY, p.evidence(case.make()))
    assert_allclose(theta, twin_draw(sampler, draw), atol=1e-6)


def test_the_identity_link_is_the_linear_model() -> None:
    """Along the axes of unit coordinates, where eigenvectors and Cholesky factor agree."""
    features = np.array([[1.0, 0.0], [0.0, -0.5], [2.0, 0.0]]) @ np.linalg.inv(BLOB_UNIT.scale)
    linear, glm = (
        dp.LaplaceDPS(blob_prior()).sample(KEY, case.make().observe(features, [0.3, -1.0, 2.0]))
        for case in (LINEAR, IDENTITY)
    )
    assert_allclose(glm, linear, atol=1e-8)


def test_no_evidence_gives_the_plain_reverse_chain() -> None:
    """Eq. (5) with the paper's covariance, to the last digits."""
    sampler = dp.LaplaceDPS(blob_prior(), covariance="paper")
    noise = chain_noise(KEY, sampler.schedule.num_stages, DIM)

    def step(s: np.ndarray, before: float, present: float, noise: np.ndarray) -> np.ndarray:
        _, _, beta_tilde = reference.posterior_weights(before, present)
        return reverse_mean(s, before, present) + np.sqrt(beta_tilde) * noise

    expected = BLOB_UNIT.back(follow(sampler.schedule.alpha_bar, noise[0], noise[1:], step))
    for case in (LINEAR, LOGISTIC):
        theta = sampler.sample(KEY, case.make().observe(dim=DIM))
        assert_allclose(theta, expected, atol=1e-10)
