"""Rows merged and folded: what stays the same, and how far the rest may move."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
from diffprior.bandits.updates import Observations, State

DIM = 3
PRIOR = dp.Gaussian(jnp.zeros(DIM), jnp.eye(DIM))


def history(num_rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    features, theta = rng.standard_normal((num_rows, DIM)), rng.standard_normal(DIM)
    rewards = rng.random(num_rows) < 1 / (1 + np.exp(-features @ theta))
    return features, rewards.astype(float)


def in_posterior_deviations(evidence: dp.AbstractEvidence, exact: dp.AbstractEvidence) -> tuple:
    """Distance of the means, and the ratio of variances along every direction."""
    (ours, _), (truth, _) = evidence.condition(PRIOR), exact.condition(PRIOR)
    whiten = np.linalg.inv(np.linalg.cholesky(np.asarray(truth.cov)))
    ratios = np.linalg.eigvalsh(whiten @ np.asarray(ours.cov) @ whiten.T)
    return np.linalg.norm(whiten @ np.asarray(ours.mean - truth.mean)), ratios


def test_a_quadratic_log_likelihood_loses_nothing() -> None:
    features, _ = history(300)
    evidence = dp.Identity(noise_std=0.7).observe(features, features[:, 0])
    folded = evidence.fold(jnp.full(DIM, 0.3), keep=20).fold(jnp.full(DIM, -1.0), keep=5)
    assert int(folded.num_rows) == 5
    for ours, exact in zip(folded.condition(PRIOR), evidence.condition(PRIOR), strict=True):
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-9), ours, exact)
    belief = dp.Gaussian(jnp.full(DIM, 0.5), 0.1 * jnp.eye(DIM))
    for one, other in zip(folded.expand(belief), evidence.expand(belief), strict=True):
        assert_allclose(one, other, rtol=1e-9)


def test_value_gradient_and_curvature_stay_where_rows_are_folded() -> None:
    features, rewards = history(200)
    evidence = dp.Logistic().observe(features, rewards)
    theta = jnp.array([0.4, -0.2, 0.1])
    folded = evidence.fold(theta, keep=50).temper(0.5).reparameterize(theta, 2 * jnp.eye(DIM))
    whole = evidence.temper(0.5).reparameterize(theta, 2 * jnp.eye(DIM))
    zero = jnp.zeros(DIM)
    there = dp.Gaussian.point(zero)
    assert_allclose(folded.log_likelihood(zero), whole.log_likelihood(zero), rtol=1e-10)
    for ours, exact in zip(folded.expand(there), whole.expand(there), strict=True):
        assert_allclose(ours, exact, rtol=1e-10, atol=1e-10)
    assert abs(folded.log_likelihood(zero + 1) - whole.log_likelihood(zero + 1)) > 1e-3


def test_equal_rows_are_merged_and_count_as_often() -> None:
    rng = np.random.default_rng(1)
    menu = rng.standard_normal((10, DIM))
    features, rewards = menu[rng.integers(0, 10, 500)], rng.integers(0, 2, 500).astype(float)
    whole = dp.Logistic().observe(features, rewards)
    one_by_one = dp.Logistic().observe(dim=DIM)
    for phi, y in zip(features, rewards, strict=True):
        one_by_one = one_by_one.append(phi, y)
    assert whole.capacity == 512 and one_by_one.capacity == 128
    assert_allclose(float(np.sum(one_by_one.weights)), 500.0)
    for ours, exact in zip(one_by_one.condition(PRIOR), whole.condition(PRIOR), strict=True):
        jax.tree.map(lambda a, b: assert_allclose(a, b, rtol=1e-8, atol=1e-10), ours, exact)


def test_a_bounded_bandit_keeps_few_rows_and_stays_near_the_full_history() -> None:
    features, rewards = history(4000)
    bandit = dp.Bandit(dp.GaussianPrior(PRIOR.mean, PRIOR.cov), dp.Logistic(), max_rows=256)
    for start in (*range(100), *range(100, 4000, 100)):  # one by one, then in batches
        stop = start + (1 if start < 100 else 100)
        bandit.update(features[start:stop], rewards[start:stop])
    assert bandit.evidence.capacity == 256
    distance, ratios = in_posterior_deviations(
        bandit.evidence, dp.Logistic().observe(features, rewards)
    )
    assert distance < 0.3 and np.all((ratios > 0.9) & (ratios < 1.1))


def test_rows_are_folded_from_the_one_beyond_the_bound() -> None:
    features, rewards = history(129)
    bandit = dp.Bandit(dp.GaussianPrior(PRIOR.mean, PRIOR.cov), dp.Logistic(), max_rows=128)
    bandit.update(features[:127], rewards[:127])
    bandit.update(features[127], rewards[127])
    assert_allclose(bandit.evidence.features[:128], features[:128])
    bandit.update(features[128], rewards[128])
    assert 0 < int(bandit.evidence.num_rows) < 128 and bandit.evidence.capacity == 128
    growing, (features, rewards) = State.of(dp.Logistic().empty(DIM), 256), history(256)
    for half in (slice(128), slice(128, None)):
        new = Observations(features[half], rewards[half], DIM, features.dtype)
        growing = growing.add(new, 256, PRIOR)
    assert_allclose(growing.evidence.features, features)
    assert not np.allclose(bandit.evidence.features[:64], features[:64])


def test_none_keeps_every_row() -> None:
    features, rewards = history(600)
    bandit = dp.Bandit(dp.GaussianPrior(PRIOR.mean, PRIOR.cov), dp.Logistic(), max_rows=None)
    bandit.update(features, rewards)
    assert int(bandit.evidence.num_rows) == 600


def test_linear_evidence_is_as_it_is() -> None:
    evidence = dp.Linear(1.0).observe(*history(50))
    assert evidence.bounded(1, PRIOR) is evidence


def test_too_small_a_bound_is_rejected() -> None:
    prior = dp.GaussianPrior(PRIOR.mean, PRIOR.cov)
    with pytest.raises(ValueError, match="`max_rows`: expected at least 128, got 5; .*None keeps"):
        dp.Bandit(prior, dp.Logistic(), max_rows=5)
