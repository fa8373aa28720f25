"""TwistedSMC: exact for Gaussian priors, unbiased in the evidence, and right for mixtures."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import diffprior as dp
import reference
from cases import LINEAR, LOGISTIC, NOISE_STD, problem
from chains import (
    BLOBS,
    Unit,
    affine_prior,
    assert_near,
    blob_features,
    blob_posterior_features,
    blob_prior,
)
from diffprior.samplers.twisted_smc import systematic
from statistic import assert_mean, assert_moments

N = 4096
DIM = 2
KEY = jax.random.key(9)


def test_a_gaussian_prior_gives_exact_bayes() -> None:
    """The moments, and the mean of the estimated evidence over the exact one, which is 1."""
    num_particles, steps, dim = 4, 8, 3
    for num_rows in (0, 5, 100):
        p = problem(num_rows, dim, num_rows)
        prior = dp.GaussianPrior(p.mean, p.cov)
        sampler = dp.TwistedSMC(prior, num_particles=num_particles, steps=steps)
        draws, info = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
        assert not np.any(info.failed)
        assert_moments(draws, *reference.linear_posterior(*p.for_twin(), NOISE_STD))
        exact = reference.linear_log_evidence(*p.for_twin(), NOISE_STD)
        log_ratio = np.asarray(info.log_evidence) - exact
        assert_near(np.exp(log_ratio), 1.0, allowance=1e-9)
        assert np.std(log_ratio) < 0.1 * np.sqrt(dim)
        assert np.all(info.effective_sample_size > 0.9 * num_particles)


def test_generalized_linear_models_give_the_posterior_of_a_grid() -> None:
    """Large features, whose posterior Laplace's approximation misses. Any potential would leave the
    evidence unbiased; only a good one keeps the particles alike."""
    case = LOGISTIC
    p = problem(8, DIM, 6, case)
    p = dataclasses.replace(p, features=4.0 * p.features)
    mode, spread = reference.irls(*p.for_twin(), case.family)
    half = 8.0 * np.sqrt(np.diagonal(spread))

    def log_density(points: np.ndarray) -> np.ndarray:
        eta = points @ p.features.T
        rows = p.rewards * eta - reference.family_cumulant(eta, case.family)
        rows += reference.family_base(p.rewards, case.family, 1.0)
        return rows.sum(axis=1) + reference.gaussian_log_density(points, p.mean, p.cov)

    mean, cov, log_evidence = reference.grid_moments_2d(log_density, mode - half, mode + half, 400)
    sampler = dp.TwistedSMC(dp.GaussianPrior(p.mean, p.cov), num_particles=16, steps=6)
    draws, info = sampler.sample_many(KEY, p.evidence(case.make()), 1024)
    assert not np.any(info.failed)
    assert_near(np.exp(np.asarray(info.log_evidence) - log_evidence), 1.0, allowance=0.002)
    centered = (np.asarray(draws) - mean) / np.sqrt(np.diagonal(cov))
    assert_near(centered, 0.0, allowance=0.01)
    assert_near(centered**2, 1.0, allowance=0.02)
    assert np.median(info.effective_sample_size) > 12


def test_strides_of_a_grid_follow_the_distribution_of_the_chain() -> None:
    """One particle is the moment-matched step, begun at N(0, I) though a fifth of the signal's
    amplitude is left at the last stage of the paper's schedule."""
    p = problem(6, DIM, 6)
    prior = affine_prior(p, dp.Schedule.constant(100))
    sampler = dp.TwistedSMC(prior, num_particles=1, steps=7)
    draws, _ = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
    unit, standard = Unit.of(p.mean, p.cov), (np.zeros(DIM), np.eye(DIM))
    evidence = reference.linear_evidence(*unit.history(p), NOISE_STD)
    mean, cov = reference.moment_matched_chain_law(
        *standard, sampler.schedule.alpha_bar, *evidence, *standard
    )
    assert_moments(draws, unit.back(mean), unit.scale @ cov @ unit.scale.T)


def test_two_blobs_give_the_exact_mixture() -> None:
    """As for EvidenceDPS: with 40 stages the chain of the prior is off by 0.005 at most."""
    sampler = dp.TwistedSMC(blob_prior(), num_particles=16, steps=40)
    p = problem(25, DIM, 5)
    draws, info = sampler.sample_many(KEY, p.evidence(LINEAR.make()), 1024)
    posterior = reference.mixture_posterior(*BLOBS, p.features, p.rewards, NOISE_STD)
    expected = blob_posterior_features(posterior)
    assert_near(blob_features(np.asarray(draws), posterior), expected, allowance=0.005)
    assert_near(np.exp(np.asarray(info.log_evidence) - posterior[3]), 1.0, allowance=0.005)
    assert np.all(info.effective_sample_size <= 16 * (1 + 1e-12))


def test_resampling_corrects_a_poor_belief() -> None:
    """Blobs far apart and a precise reward between them: one particle is over-dispersed, many are
    not. The exact posterior puts nothing in the middle."""
    means, covs = np.array([[-2.0, 0.0], [2.0, 0.0]]), np.stack([0.05 * np.eye(2)] * 2)
    blobs = (np.array([0.5, 0.5]), means, covs)
    evidence = dp.Linear(0.5).observe([[1.0, 0.0]], [0.1])
    exact = reference.mixture_posterior(*blobs, [[1.0, 0.0]], [0.1], 0.5)
    sampler = dp.TwistedSMC(dp.MixturePrior(*blobs), num_particles=32, steps=40)
    draws, info = sampler.sample_many(KEY, evidence, 1024)
    right = np.asarray(draws)[:, 0] > 0
    assert_near(right, exact[0][1], allowance=0.01)
    assert np.min(info.effective_sample_size) < 16
    assert_near(np.exp(np.asarray(info.log_evidence) - exact[3]), 1.0, allowance=0.02)


@pytest.mark.float32
@pytest.mark.parametrize("num_zeros", [0, 10])
@pytest.mark.parametrize("uniform", [0.0, 0.25, 0.875, 0.96875])
def test_systematic_resampling_equals_the_twin(num_zeros: int, uniform: float) -> None:
    """Weights that are exact in either precision, the last of them zero."""
    rng = np.random.default_rng(0)
    counts = rng.multinomial(2**12, np.full(300, 1 / 300)).astype(float)
    counts = np.concatenate([counts, np.zeros(num_zeros)])
    weights = counts / 2**12
    chosen = systematic(jnp.asarray(weights, float), jnp.asarray(uniform, float))
    assert_array_equal(chosen, reference.systematic_resample(weights, uniform))


@pytest.mark.float32
def test_systematic_resampling_never_takes_a_weight_of_zero() -> None:
    """Also where rounding makes the weights sum to less than one."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        weights = np.concatenate([rng.random(2990), np.zeros(10)])
        weights = jnp.asarray(weights / weights.sum(), float)
        last = jnp.asarray(1 - 2.0**-24, float)
        assert np.max(systematic(weights, last)) < 2990


def test_resampled_copies_are_unbiased() -> None:
    weights = np.array([0.5, 0.3, 0.15, 0.05])
    uniforms = jax.random.uniform(KEY, (4096,))
    chosen = np.asarray(jax.vmap(systematic, in_axes=(None, 0))(jnp.asarray(weights), uniforms))
    copies = np.stack([np.sum(chosen == i, axis=1) for i in range(4)], axis=1)
    assert_mean(copies[:, 1:], 4 * weights[1:])
    assert np.all(copies[:, 0] == 2)
