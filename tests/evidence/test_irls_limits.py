"""IRLS where it is hardest: separable data, extreme features, extreme prior variances."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import LOGISTIC, POISSON, LikelihoodCase, case_name, problem
from diffprior.evidence.glm import Laplace, irls

every_link = pytest.mark.parametrize("case", [LOGISTIC, POISSON], ids=case_name)
SIZES = [(2, 2), (5, 50)]
SCALES = list(itertools.product(10.0 ** np.arange(-6, 7, 3), repeat=2))


def history(case: LikelihoodCase, seed: int, dim: int, num_rows: int) -> list[np.ndarray]:
    """Features of order one with two sets of rewards: one likely, one at the edge of the model."""
    rng = np.random.default_rng(seed)
    features, theta = rng.standard_normal((num_rows, dim)), rng.standard_normal(dim)
    likely = case.draw(rng, features @ theta)
    separable = (features @ theta > 0).astype(float)
    return [features, likely, separable if case is LOGISTIC else 50 * separable]


@eqx.filter_jit
def solve(
    likelihood: dp.AbstractLikelihood, features: jax.Array, rewards: jax.Array, means: jax.Array
) -> Laplace:
    """All scales at once, in one compiled program."""
    dim = features.shape[1]

    def at(scales: jax.Array, mean: jax.Array) -> Laplace:
        evidence = likelihood.empty(dim).extend(scales[0] * features, rewards)
        return irls(dp.Gaussian(mean, scales[1] * jnp.eye(dim)), evidence)

    return jax.vmap(at)(jnp.asarray(SCALES), means)


def newton_step(
    case: LikelihoodCase, features: np.ndarray, rewards: np.ndarray, prior: tuple, mode: np.ndarray
) -> float:
    """Length in posterior standard deviations of the step that Newton's method would still take."""
    mean, root = prior[0], np.sqrt(prior[1])
    eta = features @ mode
    residual = rewards - reference.family_mean(eta, case.family)
    gradient = (mode - mean) / root - root * features.T @ residual
    slope = reference.family_slope(eta, case.family)
    _, singular, rows = np.linalg.svd(root * np.sqrt(slope)[:, None] * features)
    hessian = 1 + np.pad(singular, (0, len(mode) - len(singular))) ** 2
    return float(np.sqrt(np.sum((rows @ gradient) ** 2 / hessian)))


def assert_solved(case: LikelihoodCase, size: tuple[int, int], mean_scale: float) -> None:
    features, *all_rewards = history(case, sum(size), *size)
    direction = np.random.default_rng(0).standard_normal(size[0])
    means = mean_scale * np.outer([np.sqrt(variance) for _, variance in SCALES], direction)
    for rewards in all_rewards:
        result = solve(case.make(), *map(jnp.asarray, (features, rewards, means)))
        for i, (feature_scale, variance) in enumerate(SCALES):
            if mean_scale * feature_scale * np.sqrt(variance) > 1e6:
                continue  # rounding of the linear predictor at the prior mean is all there is
            mode, prior = np.asarray(result.posterior.mean[i]), (means[i], variance)
            step = newton_step(case, feature_scale * features, rewards, prior, mode)
            assert step < 1e-5, (feature_scale, variance)
            assert result.converged[i], (feature_scale, variance)
            assert np.isfinite(result.log_evidence[i]), (feature_scale, variance)
            assert np.all(np.isfinite(result.posterior.cov[i])), (feature_scale, variance)


@every_link
@pytest.mark.parametrize("size", SIZES)
def test_every_scale_is_solved(case: LikelihoodCase, size: tuple[int, int]) -> None:
    assert_solved(case, size, mean_scale=0.0)


@every_link
@pytest.mark.parametrize("size", SIZES)
def test_prior_means_far_from_the_data_are_left(case: LikelihoodCase, size: tuple) -> None:
    """Linear predictors up to a thousand at the prior mean, of the wrong sign for many rows."""
    assert_solved(case, size, mean_scale=1.0)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_separable_data_leave_the_prior_in_charge(sign: float) -> None:
    """Every reward alike: the likelihood has no maximum, the posterior has, found by the twin."""
    features = np.ones((20, 1))
    rewards = np.full(20, float(sign > 0))
    for variance in (1.0, 1e3, 1e6):
        prior = dp.Gaussian(jnp.zeros(1), variance * jnp.eye(1))
        posterior, log_evidence = dp.Logistic().observe(features, rewards).condition(prior)
        twin = ([0.0], [[variance]], features, rewards, "logistic")
        mode, cov = reference.irls(*twin)
        assert_allclose(posterior.mean, mode, rtol=1e-7)
        assert_allclose(posterior.cov, cov, rtol=1e-6)
        assert_allclose(log_evidence, reference.laplace_log_evidence(*twin), rtol=1e-6)


@pytest.mark.parametrize("count", [0.0, 1.0, 1e3, 1e6])
def test_poisson_counts_of_every_size(count: float) -> None:
    """phi = 1, prior N(0, v): the mode solves theta / v = count - exp(theta)."""
    for variance in (1e-2, 1.0, 1e4):
        prior = dp.Gaussian(jnp.zeros(1), variance * jnp.eye(1))
        posterior, log_evidence = dp.Poisson().observe([[1.0]], [count]).condition(prior)
        mode = float(posterior.mean[0])
        curvature = np.exp(mode) + 1 / variance
        assert abs(mode / variance - count + np.exp(mode)) / np.sqrt(curvature) < 1e-6
        assert_allclose(posterior.cov[0, 0], 1 / curvature, rtol=1e-6)
        assert np.isfinite(log_evidence)


def test_failure_to_converge_is_a_value() -> None:
    p = problem(0, 2, 30, LOGISTIC)
    evidence = dp.Logistic().observe(p.features, p.rewards)
    assert not irls(p.gaussian(), evidence, max_steps=1).converged
    lost = eqx.tree_at(lambda e: e.weights, evidence, jnp.inf * evidence.weights)
    assert np.isnan(lost.condition(p.gaussian())[1])
