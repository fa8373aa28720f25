"""Priors given attributes: recovered where they are true, harmless where they say nothing."""

from pathlib import Path

import jax
import numpy as np
import pytest

import diffprior as dp
import reference
from cases import random_cov
from diffprior.fitting.attributes import regress_samples
from statistic import Z, assert_mean

DIM, NUM_ATTRIBUTES = 3, 4


def world(num_tasks: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Parameters and attributes of tasks, the coefficients, and the residuals' covariance."""
    rng = np.random.default_rng(seed)
    coefficients = rng.standard_normal((NUM_ATTRIBUTES, DIM))
    cov = random_cov(rng, DIM)
    z = rng.standard_normal((num_tasks, NUM_ATTRIBUTES)) + 1.0
    noise = rng.standard_normal((num_tasks, DIM)) @ np.linalg.cholesky(cov).T
    return z @ coefficients + noise, z, coefficients, cov


def test_coefficients_are_those_of_least_squares_where_tasks_are_many() -> None:
    samples, z, truth, cov = world(4000)
    found = regress_samples(samples, z)
    error = np.sqrt(np.outer(np.diag(np.linalg.inv(np.cov(z.T))), np.diag(cov)) / 4000)
    assert np.all(np.abs(found.coefficients - truth) < Z * error)
    residual = samples - found.mean - found.offsets(z)
    np.testing.assert_allclose(found.cov, residual.T @ residual / 4000, rtol=0.02, atol=0.01)


def test_coefficients_of_noise_vanish_and_sparse_indicators_shrink() -> None:
    rng = np.random.default_rng(1)
    samples, _, _, cov = world(200)
    samples = rng.standard_normal((200, DIM)) @ np.linalg.cholesky(cov).T
    noise = rng.standard_normal((200, 20))
    found = regress_samples(samples, noise)
    least_squares = np.linalg.lstsq(noise - noise.mean(axis=0), samples, rcond=None)[0]
    assert np.abs(found.coefficients).mean() < 0.1 * np.abs(least_squares).mean()


def test_given_attributes_a_gaussian_is_the_least_squares_prediction() -> None:
    samples, z, truth, cov = world(4000)
    prior = dp.GaussianPrior.fit(samples, attributes=z)
    for attributes in (z[0], np.zeros(NUM_ATTRIBUTES)):
        given = prior.given(attributes)
        assert isinstance(given, dp.GaussianPrior)
        np.testing.assert_allclose(given.mean, attributes @ truth, atol=0.2)
        np.testing.assert_allclose(given.cov, cov, atol=0.15)
    average = prior.given(None)
    np.testing.assert_allclose(average.moments().mean, samples.mean(axis=0), atol=1e-5)
    missing = prior.given(np.full(NUM_ATTRIBUTES, np.nan))
    np.testing.assert_allclose(missing.moments().mean, average.moments().mean, atol=1e-6)
    assert repr(prior).startswith("ConditionalPrior(GaussianPrior")


def test_every_kind_of_prior_moves_with_its_attributes() -> None:
    weights, means = np.array([0.3, 0.7]), np.array([[-1.0, 0.0, 1.0], [1.0, 0.5, 0.0]])
    mixture = dp.MixturePrior(weights, means, np.tile(0.2 * np.eye(3), (2, 1, 1)))
    kinds = {
        "gaussian": dp.GaussianPrior(np.ones(3), 0.5 * np.eye(3)),
        "mixture": mixture,
        "diffusion": dp.DiffusionPrior.from_prior(mixture),
        "empirical": dp.EmpiricalPrior(means),
    }
    coefficients, center = np.arange(6.0).reshape(2, 3), np.array([1.0, -1.0])
    precision, shift = 2.0 * np.eye(3), np.array([1.0, -2.0, 0.5])
    for name, residual in kinds.items():
        prior = dp.ConditionalPrior(residual, coefficients, center)
        offset = (np.array([2.0, 0.0]) - center) @ coefficients
        given = prior.given([2.0, 0.0])
        np.testing.assert_allclose(
            given.moments().mean, residual.moments().mean + offset, rtol=1e-5, err_msg=name
        )
        found = given.denoise(precision, shift)
        local = residual.denoise(precision, shift - precision @ offset)
        np.testing.assert_allclose(found.mean, local.mean + offset, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(found.cov, local.cov, atol=1e-5, err_msg=name)
        draws = given.sample(jax.random.key(0), 2000)
        if name != "empirical":
            assert_mean(draws, given.moments().mean)


def test_a_bandit_given_attributes_decides_by_the_conditional_posterior() -> None:
    samples, z, _, cov = world(3000)
    prior = dp.MixturePrior.fit(samples, 1, attributes=z)
    given = prior.given(z[0])
    features, rewards = np.eye(3)[:2], np.array([0.5, -1.0])
    bandit = dp.Bandit(given, dp.Linear(0.7), seed=0)
    bandit.update(features, rewards)
    mean, cov = reference.linear_posterior(
        given.moments().mean, given.moments().cov, features, rewards, 0.7
    )
    found = bandit.posterior(4000, seed=1)
    assert np.all(np.abs(found.mean - mean) < Z * np.sqrt(np.diag(cov) / 4000) + 1e-3)
    assert dp.Bandit(prior, dp.Linear(0.7), seed=0).decide(features).action in (0, 1)


def test_files_and_messages(tmp_path: Path) -> None:
    samples, z, _, _ = world(300)
    prior = dp.GaussianPrior.fit(samples, attributes=z)
    prior.save(tmp_path / "prior.dprior")
    loaded = dp.load(tmp_path / "prior.dprior")
    assert isinstance(loaded, dp.ConditionalPrior)
    np.testing.assert_array_equal(
        loaded.given(z[0]).moments().mean, prior.given(z[0]).moments().mean
    )
    with pytest.raises(ValueError, match=r"`attributes`: expected .*4"):
        prior.given([1.0])
    with pytest.raises(ValueError, match="`attributes`: expected .*300"):
        dp.GaussianPrior.fit(samples, attributes=z[:10])
    with pytest.raises(ValueError, match="`residual`: expected a prior, got str"):
        dp.ConditionalPrior("no", np.zeros((1, 3)), np.zeros(1))


def test_a_mixture_of_residuals_makes_coefficients_sharper() -> None:
    """Least squares know B by the spread of residuals; their narrow components know more."""
    rng = np.random.default_rng(5)
    z, truth = rng.standard_normal((1000, 2)), np.array([[1.0, -0.5], [0.0, 2.0]])
    corners = np.array([[3.0, 3.0], [3.0, -3.0], [-3.0, 0.0]])[rng.integers(0, 3, 1000)]
    samples = z @ truth + corners + 0.1 * rng.standard_normal((1000, 2))
    least_squares, mixed = (regress_samples(samples, z, seed).coefficients for seed in (None, 0))
    assert np.abs(mixed - truth).max() < Z * 0.1 / np.sqrt(1000)
    assert np.abs(least_squares - truth).max() > 10 * np.abs(mixed - truth).max()
    found = dp.MixturePrior.fit(samples, 3, attributes=z)
    np.testing.assert_allclose(found.coefficients, truth, atol=Z * 0.1 / np.sqrt(1000))
