"""The linear model against Eq. (3) by the twin, and its log evidence in the space of rewards."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

import diffprior as dp
import reference
from cases import NOISE_STD, Problem, problem, random_cov, representable, tolerance
from rational import linear_posterior_error

both_precisions = pytest.mark.float32
DIMS = (1, 3, 9, 128)
Posterior = tuple[dp.Gaussian, jax.Array, tuple[np.ndarray, np.ndarray], np.ndarray]
SIZES = [(d, n) for d in DIMS for n in sorted({0, d - 1, 10 * d})]


def log_evidence_row_by_row(
    mean: np.ndarray, cov: np.ndarray, features: np.ndarray, rewards: np.ndarray
) -> float:
    """log p(h) as the sum of log predictive densities, where a matrix N x N would be too large."""
    total, mean, cov = 0.0, mean.copy(), cov.copy()
    for phi, y in zip(features, rewards, strict=True):
        direction = cov @ phi
        variance = phi @ direction + NOISE_STD**2
        error = y - phi @ mean
        total += -0.5 * (np.log(2 * np.pi * variance) + error**2 / variance)
        mean, cov = (
            mean + direction * error / variance,
            cov - np.outer(direction, direction) / variance,
        )
    return float(total)


def relative_error(got: jax.Array, expected: np.ndarray) -> float:
    return float(np.max(np.abs(got - expected)) / np.max(np.abs(expected)))


@both_precisions
@pytest.mark.parametrize(("dim", "num_rows"), SIZES)
def test_condition_is_equation_3(dim: int, num_rows: int) -> None:
    p = problem(dim + num_rows, dim, num_rows)
    posterior, log_evidence = p.evidence(dp.Linear(NOISE_STD)).condition(p.gaussian())
    mean, cov = reference.linear_posterior(*p.for_twin(), NOISE_STD)
    assert relative_error(posterior.mean, mean) < tolerance(1e-10, 1e-4)
    assert relative_error(posterior.cov, cov) < tolerance(1e-10, 1e-4)
    if num_rows <= 2000:
        expected = reference.linear_log_evidence(*p.for_twin(), NOISE_STD)
    else:
        expected = log_evidence_row_by_row(*p.for_twin())
    assert_allclose(log_evidence, expected, rtol=tolerance(1e-10, 1e-4), atol=1e-12)


def test_log_evidence_by_both_routes() -> None:
    p = problem(0, 3, 50)
    expected = reference.linear_log_evidence(*p.for_twin(), NOISE_STD)
    assert_allclose(log_evidence_row_by_row(*p.for_twin()), expected, rtol=1e-11)


@pytest.mark.parametrize("noise_std", [1e-3, 0.1, 1.0, 30.0])
def test_every_noise_level(noise_std: float) -> None:
    p = problem(1, 4, 25)
    posterior, log_evidence = p.evidence(dp.Linear(noise_std)).condition(p.gaussian())
    mean, cov = reference.linear_posterior(*p.for_twin(), noise_std)
    assert_allclose(posterior.mean, mean, rtol=tolerance(1e-9, 1e-3))
    assert relative_error(posterior.cov, cov) < tolerance(1e-9, 1e-4)
    expected = reference.linear_log_evidence(*p.for_twin(), noise_std)
    assert_allclose(log_evidence, expected, rtol=tolerance(1e-10, 1e-4))


def test_log_likelihood_is_that_of_scipy() -> None:
    p = problem(2, 4, 25)
    expected = stats.norm(p.features @ p.mean, NOISE_STD).logpdf(p.rewards).sum()
    got = p.evidence(dp.Linear(NOISE_STD)).log_likelihood(jnp.asarray(p.mean))
    assert_allclose(got, expected, rtol=tolerance(1e-12, 1e-5))


def test_statistics_are_the_twins_and_do_not_grow() -> None:
    shapes = []
    for num_rows in (0, 7, 4_000):
        p = problem(3, 5, num_rows)
        evidence = p.evidence(dp.Linear(NOISE_STD))
        precision, shift = reference.linear_evidence(p.features, p.rewards, NOISE_STD)
        atol = tolerance(1e-14, 1e-6) * (1 + num_rows)
        assert_allclose(evidence.precision, precision, atol=atol)
        assert_allclose(evidence.shift, shift, atol=atol)
        shapes.append([leaf.shape for leaf in jax.tree.leaves(evidence)])
    assert shapes[0] == shapes[1] == shapes[2]


def test_natural_parameters_are_evidence() -> None:
    p = problem(4, 3, 6)
    precision, shift = reference.linear_evidence(p.features, p.rewards, NOISE_STD)
    natural = dp.LinearEvidence.from_natural(jnp.asarray(precision), jnp.asarray(shift))
    expected, _ = p.evidence(dp.Linear(NOISE_STD)).condition(p.gaussian())
    posterior, _ = natural.condition(p.gaussian())
    assert_allclose(posterior.mean, expected.mean, atol=tolerance(1e-12, 1e-5))
    at_zero = natural.log_likelihood(jnp.zeros(3))
    assert_allclose(at_zero, 0.0)


scales = st.integers(-6, 6).map(lambda exponent: 10.0**exponent)
sizes = st.sampled_from([(1, 3), (2, 1), (5, 1), (5, 3), (5, 20)])


def posterior_at_scales(p: Problem, feature_scale: float, prior_variance: float) -> Posterior:
    features = representable(feature_scale * p.features)
    mean = representable(np.sqrt(prior_variance) * p.mean)
    cov = representable(prior_variance * p.cov)
    prior = dp.Gaussian(jnp.asarray(mean), jnp.asarray(cov))
    return *dp.Linear(0.5).observe(features, p.rewards).condition(prior), (mean, cov), features


@both_precisions
@settings(max_examples=40)
@given(st.integers(0, 10**6), sizes, scales, scales)
def test_every_scale_is_accurate_up_to_its_conditioning(
    seed: int, size: tuple[int, int], feature_scale: float, prior_variance: float
) -> None:
    """The statistics are rounded, and with them the posterior: by eps times their ratio."""
    p = problem(seed, *size)
    posterior, _, prior, features = posterior_at_scales(p, feature_scale, prior_variance)
    ratio = 1 + np.sum((features @ np.linalg.cholesky(prior[1])) ** 2) / 0.5**2
    rounding = np.finfo(posterior.mean.dtype).eps * ratio
    assume(rounding < 1e-2)
    error = linear_posterior_error(np.asarray(posterior.mean), prior, (features, p.rewards), 0.5**2)
    assert error < 20 * rounding * (1 + np.linalg.norm(p.rewards))


@both_precisions
@example(0, (5, 1), 1e6, 1e6)
@settings(max_examples=60)
@given(st.integers(0, 10**6), sizes, scales, scales)
def test_every_scale_is_finite(
    seed: int, size: tuple[int, int], feature_scale: float, prior_variance: float
) -> None:
    p = problem(seed, *size)
    posterior, log_evidence, *_ = posterior_at_scales(p, feature_scale, prior_variance)
    assert np.isfinite(log_evidence) and np.all(np.isfinite(posterior.mean))
    assert np.all(np.linalg.eigvalsh(posterior.cov / prior_variance) > -1e-6)


@both_precisions
@pytest.mark.parametrize("which", ["features", "rewards"])
def test_rows_whose_squares_overflow_are_rejected(which: str) -> None:
    """In units of the noise: a small noise makes smaller numbers extreme."""
    largest = np.sqrt(jnp.finfo(jnp.result_type(float)).max)
    features, rewards = np.ones((3, 2)), np.ones(3)
    (features if which == "features" else rewards)[1] = largest / 100
    for noise_std in (1.0, 1e-3):
        with pytest.raises(ValueError, match=f"`{which}`: expected numbers below"):
            dp.Linear(noise_std).observe(noise_std * features, noise_std * rewards)
    spread = dp.Linear(1.0).observe(features / 1e6, rewards / 1e6)
    assert np.all(np.isfinite(spread.precision)) and np.isfinite(spread.sum_squares)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5]), st.sampled_from([0, 1, 20]))
def test_conditioning_commutes_with_a_change_of_units(seed: int, dim: int, num_rows: int) -> None:
    p = problem(seed, dim, num_rows)
    change = representable(np.linalg.cholesky(random_cov(np.random.default_rng(seed), dim)))
    before, log_before = p.evidence(dp.Linear(NOISE_STD)).condition(p.gaussian())
    changed = dp.Gaussian(jnp.asarray(change @ p.mean), jnp.asarray(change @ p.cov @ change.T))
    features = np.linalg.solve(change.T, p.features.T).T
    after, log_after = dp.Linear(NOISE_STD).observe(features, p.rewards).condition(changed)
    assert_allclose(after.mean, change @ before.mean, atol=tolerance(1e-9, 1e-2))
    assert_allclose(after.cov, change @ before.cov @ change.T, atol=tolerance(1e-9, 1e-2))
    assert_allclose(log_after, log_before, rtol=tolerance(1e-9, 1e-3), atol=tolerance(1e-9, 1e-2))
