"""Extreme evidence, many parameters, priors on a grid, and failures that must be reported."""

import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
import pytest

import diffprior as dp
import reference
from cases import DIM, random_cov, unusable_evidence
from chains import BLOBS, blob_prior
from diffprior.denoisers.network import StagewiseDenoiser
from statistic import Z, assert_mean, assert_moments

KEY = jax.random.key(13)
Make = Callable[[dp.AbstractPrior], dp.AbstractSampler]
SAMPLERS: dict[str, Make] = {
    "laplace": lambda prior: dp.LaplaceDPS(prior, steps=8),
    "evidence": lambda prior: dp.EvidenceDPS(prior, steps=8),
    "twisted": lambda prior: dp.TwistedSMC(prior, num_particles=4, steps=8),
    "dps": lambda prior: dp.DPS(prior, steps=8),
    "filter": lambda prior: dp.ParticleFilter(prior, num_particles=50, num_rounds=4),
}
EXACT = ("evidence", "twisted")
MEAN, COV = np.array([0.5, -1.0, 0.25]), random_cov(np.random.default_rng(3), DIM)
HISTORIES = {
    "none": (0, 1.0),
    "fewer-than-parameters": (1, 1.0),
    "precise": (6, 1e-3),
    "noisy": (6, 1e3),
    "million": (1_000_000, 1.0),
}


def history(num_rows: int, noise_std: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    features = rng.standard_normal((num_rows, DIM))
    return features, features @ MEAN + noise_std * rng.standard_normal(num_rows)


@pytest.mark.parametrize(
    "name",
    [pytest.param("evidence", marks=pytest.mark.float32), "laplace", "twisted", "dps", "filter"],
)
def test_extreme_linear_evidence(name: str) -> None:
    """Nothing breaks; and in double precision draws that claim to be exact are."""
    sampler = SAMPLERS[name](dp.GaussianPrior(MEAN, COV))
    for num_rows, noise_std in HISTORIES.values():
        features, rewards = history(num_rows, noise_std)
        draws, info = sampler.sample_many(
            KEY, dp.Linear(noise_std).observe(features, rewards), 1024
        )
        assert np.all(np.isfinite(draws)) and not np.any(info.failed)
        if name not in EXACT:
            continue
        precision = features.T @ features / noise_std**2
        mean, cov = reference.condition_gaussian(
            MEAN, COV, precision, features.T @ rewards / noise_std**2
        )
        if jax.config.read("jax_enable_x64"):
            assert_moments(draws, mean, cov)
        else:
            error = np.mean(np.asarray(draws, float), axis=0) - mean
            assert np.max(np.abs(error)) < Z * np.sqrt(np.max(np.diagonal(cov)) / 1024) + 2e-3


@pytest.mark.parametrize("name", ["laplace", "evidence"])
def test_separable_logistic_rows(name: str) -> None:
    """Every reward follows the sign of the first feature: the likelihood has no maximum.

    Where the truth is skew, EvidenceDPS is off by a fraction of the spread; LaplaceDPS uses
    Eq. (6), and is not near.
    """
    features = np.random.default_rng(5).standard_normal((60, 2))
    rewards = (features[:, 0] > 0).astype(float)
    sampler = SAMPLERS[name](blob_prior())
    draws, info = sampler.sample_many(KEY, dp.Logistic().observe(features, rewards), 1024)
    assert np.all(np.isfinite(draws)) and not np.any(info.failed)

    def log_posterior(points: np.ndarray) -> np.ndarray:
        score = points @ features.T
        fit = score @ rewards - np.sum(np.logaddexp(0.0, score), axis=1)
        return fit + reference.mixture_log_density(points, *BLOBS)

    mean, cov, _ = reference.grid_moments_2d(log_posterior, -6.0, 6.0, 200)
    error = (np.mean(draws, axis=0) - mean) / np.sqrt(np.diagonal(cov))
    assert np.max(np.abs(error)) < {"laplace": 2.0, "evidence": 0.2}[name]


@pytest.mark.float32
def test_many_parameters() -> None:
    """EvidenceDPS has the exact distribution, seen in standardized draws."""
    rng, dim = np.random.default_rng(6), 40
    cov = random_cov(rng, dim)
    features = rng.standard_normal((12, dim)) / np.sqrt(dim)
    rewards = features @ rng.standard_normal(dim)
    evidence = dp.Linear(0.5).observe(features, rewards)
    prior = dp.DiffusionPrior.from_prior(dp.GaussianPrior(np.zeros(dim), cov))
    draws, info = SAMPLERS["evidence"](prior).sample_many(KEY, evidence, 128)
    assert np.all(np.isfinite(draws)) and not np.any(info.failed)
    mean, cov = reference.linear_posterior(np.zeros(dim), cov, features, rewards, 0.5)
    z = np.linalg.solve(np.linalg.cholesky(cov), (np.asarray(draws, float) - mean).T).T
    assert_mean(z, np.zeros(dim))
    assert_mean(np.sum(z**2, axis=1), float(dim))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_failed_draw_raises_or_says_so(name: str) -> None:
    sampler = SAMPLERS[name](dp.GaussianPrior(MEAN, COV))
    huge = unusable_evidence(DIM)
    message = rf"`{type(sampler).__name__}`: a draw is not finite .* Likely causes: .* throw=False"
    with pytest.raises(eqx.EquinoxRuntimeError, match=message):
        sampler.sample_many(KEY, huge, 1024)
    draws, info = sampler.sample_many(KEY, huge, 1024, throw=False)
    assert np.all(info.failed) and np.all(np.isnan(draws))


class EverySecond(dp.AbstractSampler):
    """Draws that are finite though they say that they failed, by chance."""

    prior: dp.GaussianPrior
    temperature: float = eqx.field(static=True, default=1.0)

    def draw(self, key: jax.Array, evidence: dp.AbstractEvidence) -> tuple[jax.Array, dp.Info]:
        theta = jax.random.normal(key, (DIM,))
        return theta, dp.Info.of(theta, failed=jax.random.bernoulli(key))


def test_failed_draws_are_nan_and_others_are_not() -> None:
    sampler, none = EverySecond(dp.GaussianPrior(MEAN, COV)), dp.Linear(1.0).observe(dim=DIM)
    draws, info = sampler.sample_many(KEY, none, 64, throw=False)
    assert 0 < np.sum(info.failed) < 64
    assert np.array_equal(np.all(np.isnan(draws), axis=1), info.failed)
    assert np.array_equal(np.any(np.isnan(draws), axis=1), info.failed)
    single = [sampler.sample(key, none, throw=False) for key in jax.random.split(KEY, 64)[:8]]
    assert np.array_equal(np.isnan(single), np.isnan(draws[:8]))


@pytest.mark.parametrize("name", ["laplace", "twisted", "dps"])
def test_a_prior_on_its_own_grid_is_strided(name: str) -> None:
    """Its samplers take part of its stages, by default all of them, and reject more."""
    grid = dp.Schedule.constant(20)
    closed = dp.DiffusionPrior.from_prior(dp.GaussianPrior(MEAN, COV))
    denoiser = StagewiseDenoiser.initialize(KEY, DIM, grid, width=4)
    prior = dataclasses.replace(closed, denoiser=denoiser, schedule=grid)
    sampler = SAMPLERS[name](prior)
    assert sampler.schedule == grid.stride(8)
    assert type(sampler)(prior).schedule == grid
    with pytest.raises(ValueError, match="`steps`: expected at most the 20 stages"):
        type(sampler)(prior, steps=21)


def test_without_evidence_draws_follow_the_prior() -> None:
    """For the samplers whose chain is not compared with the plain one elsewhere."""
    for name in (*EXACT, "laplace"):
        sampler = SAMPLERS[name](dp.GaussianPrior(MEAN, COV))
        draws, _ = sampler.sample_many(KEY, dp.Linear(1.0).observe(dim=DIM), 1024)
        z = np.linalg.solve(np.linalg.cholesky(COV), (np.asarray(draws) - MEAN).T).T
        assert_mean(z, np.zeros(DIM))
        if name in EXACT:
            assert_moments(z, np.zeros(DIM), np.eye(DIM))
