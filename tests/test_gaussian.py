"""Gaussians against the twin, SciPy and identities that must hold."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

import diffprior as dp
import reference
from cases import random_cov, representable, tolerance
from diffprior.gaussian import tilted
from statistic import assert_mean

DIMS = (1, 3, 9)
both_precisions = pytest.mark.float32

tilt = jax.jit(lambda gaussian, precision, shift: gaussian.tilt(precision, shift))


def pair(seed: int, dim: int) -> tuple[list[np.ndarray], list[dp.Gaussian]]:
    rng = np.random.default_rng(seed)
    numbers = []
    for _ in range(2):
        numbers += [representable(rng.standard_normal(dim)), random_cov(rng, dim)]
    jaxed = [jnp.asarray(a) for a in numbers]
    return numbers, [dp.Gaussian(*jaxed[:2]), dp.Gaussian(*jaxed[2:])]


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
def test_product_is_lemma_6(dim: int) -> None:
    numbers, (first, second) = pair(dim, dim)
    mean, cov = reference.gaussian_product(*numbers)
    product = first.product(second)
    assert_allclose(product.mean, mean, atol=tolerance(1e-12, 2e-5))
    assert_allclose(product.cov, cov, atol=tolerance(1e-12, 2e-5))


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
def test_kl_is_lemma_5(dim: int) -> None:
    numbers, (first, second) = pair(dim, dim)
    assert_allclose(first.kl(second), reference.gaussian_kl(*numbers), rtol=tolerance(1e-11, 1e-4))


@given(st.integers(0, 10**6), st.sampled_from(DIMS[:2]))
def test_kl_is_positive_and_zero_only_for_itself(seed: int, dim: int) -> None:
    _, (first, second) = pair(seed, dim)
    assert first.kl(second) > 0
    assert_allclose(first.kl(first), 0.0, atol=tolerance(1e-12, 1e-5))


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
def test_log_density_is_that_of_scipy(dim: int) -> None:
    (mean, cov, x, _), (first, _) = pair(dim, dim)
    expected = stats.multivariate_normal(mean, cov).logpdf(x)
    assert_allclose(first.log_density(jnp.asarray(x)), expected, rtol=tolerance(1e-11, 1e-4))


def test_log_density_integrates_to_one() -> None:
    _, (gaussian, _) = pair(3, 2)
    points, area = reference._grid_2d(-9.0, 9.0, 200)
    log_density = jax.vmap(gaussian.log_density)(jnp.asarray(points))
    assert_allclose(np.sum(np.exp(log_density)) * area, 1.0, rtol=tolerance(1e-8, 1e-5))


def test_rescale_is_the_distribution_of_a_multiple() -> None:
    (mean, cov, *_), (gaussian, _) = pair(4, 3)
    assert_allclose(gaussian.rescale(-2.0).mean, -2 * mean)
    assert_allclose(gaussian.rescale(-2.0).cov, 4 * cov)


def test_standard() -> None:
    standard = dp.Gaussian.standard(4)
    assert_allclose(standard.mean, np.zeros(4))
    assert_allclose(standard.cov, np.eye(4))


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("rank", [0, 1, None], ids=["rank-0", "rank-1", "full"])
def test_tilt_by_a_precision_of_any_rank(dim: int, rank: int | None) -> None:
    (mean, cov, shift, _), (gaussian, _) = pair(dim, dim)
    rows = np.random.default_rng(dim).standard_normal((dim if rank is None else rank, dim))
    precision = representable(rows.T @ rows)
    posterior, log_mass = tilt(gaussian, jnp.asarray(precision), jnp.asarray(shift))
    expected_mean, expected_cov = reference.condition_gaussian(mean, cov, precision, shift)
    assert_allclose(posterior.mean, expected_mean, atol=tolerance(1e-11, 2e-4))
    assert_allclose(posterior.cov, expected_cov, atol=tolerance(1e-11, 1e-4))
    residual = shift - precision @ mean
    log_det = np.linalg.slogdet(np.eye(dim) + cov @ precision)[1]
    expected = shift @ mean - mean @ precision @ mean / 2 - log_det / 2
    expected += residual @ expected_cov @ residual / 2
    assert_allclose(log_mass, expected, rtol=tolerance(1e-10, 1e-4), atol=tolerance(1e-10, 1e-4))


@pytest.mark.parametrize("dim", [1, 3])
def test_tilt_of_a_point_mass_stays_there(dim: int) -> None:
    (mean, _, shift, precision), _ = pair(dim, dim)
    point = dp.Gaussian(jnp.asarray(mean), jnp.zeros((dim, dim)))
    posterior, log_mass = tilt(point, jnp.asarray(precision), jnp.asarray(shift))
    assert_allclose(posterior.mean, mean)
    assert_allclose(posterior.cov, 0.0, atol=1e-30)
    expected = shift @ mean - mean @ precision @ mean / 2
    assert_allclose(log_mass, expected, rtol=tolerance(1e-12, 1e-4), atol=tolerance(1e-12, 1e-5))


@both_precisions
@pytest.mark.parametrize("dim", [8, 32])
@pytest.mark.parametrize("rank", [1, 3])
def test_tilt_of_a_degenerate_gaussian(dim: int, rank: int) -> None:
    rng = np.random.default_rng(dim)
    mean, shift = representable(rng.standard_normal(dim)), representable(rng.standard_normal(dim))
    root = representable(rng.standard_normal((dim, rank)))
    cov, precision = root @ root.T, random_cov(rng, dim)
    gaussian = dp.Gaussian(jnp.asarray(mean), jnp.asarray(cov))
    posterior, _ = tilt(gaussian, jnp.asarray(precision), jnp.asarray(shift))
    expected_mean, expected_cov = reference.condition_gaussian(mean, cov, precision, shift)
    assert_allclose(posterior.mean, expected_mean, atol=tolerance(1e-9, 1e-3))
    assert_allclose(posterior.cov, expected_cov, atol=tolerance(1e-9, 1e-3))


@given(st.integers(0, 10**6), st.sampled_from(DIMS[:2]))
def test_tilting_twice_is_tilting_by_the_sum(seed: int, dim: int) -> None:
    (_, first_precision, first_shift, second_precision), (gaussian, other) = pair(seed, dim)
    first = jnp.asarray(first_precision), jnp.asarray(first_shift)
    second = jnp.asarray(second_precision), other.mean
    once, first_mass = tilt(gaussian, *first)
    twice, second_mass = tilt(once, *second)
    together, mass = tilt(gaussian, first[0] + second[0], first[1] + second[1])
    assert_allclose(twice.mean, together.mean, atol=tolerance(1e-11, 1e-4))
    assert_allclose(twice.cov, together.cov, atol=tolerance(1e-11, 1e-4))
    assert_allclose(first_mass + second_mass, mass, atol=tolerance(1e-10, 1e-3))


def test_tilting_is_the_same_in_numpy_of_many_at_once() -> None:
    rng = np.random.default_rng(0)
    means, covs = rng.normal(size=(4, 3)), np.stack([random_cov(rng, 3) for _ in range(4)])
    precision, shift = random_cov(rng, 3), rng.normal(size=3)
    factors = np.linalg.cholesky(covs)
    found = tilted(means, factors, precision, shift, with_factor=True)
    moved = means + np.einsum("kji,kj->ki", found.half_factor, found.half_step)
    for i in range(4):
        posterior, log_mass = tilt(dp.Gaussian(means[i], covs[i]), precision, shift)
        assert_allclose(moved[i], posterior.mean, rtol=1e-9)
        assert_allclose(found.half_factor[i].T @ found.half_factor[i], posterior.cov, rtol=1e-9)
        assert_allclose(found.log_mass()[i], log_mass, rtol=1e-9)


def test_draws_have_the_moments() -> None:
    (mean, cov, *_), (gaussian, _) = pair(6, 3)
    draws = jax.vmap(gaussian.sample)(jax.random.split(jax.random.key(0), 20_000))
    centered = np.asarray(draws) - mean
    assert_mean(centered, np.zeros(3))
    assert_mean(np.einsum("ni,nj->nij", centered, centered), cov)


@pytest.mark.parametrize(
    ("mean", "cov", "message"),
    [
        ([0.0, np.nan], np.eye(2), "`mean`: expected finite numbers, got 1 NaN"),
        (np.zeros(2), np.diag([1.0, np.inf]), "`cov`: expected finite numbers, got 1 NaN"),
        (np.zeros(2), np.eye(3), r"`cov`: expected shape \(2, 2\), got \(3, 3\)"),
        (np.zeros(2), np.diag([1.0, -1.0]), "`cov`: expected no negative eigenvalue, got -1"),
        (np.zeros(2), np.diag([1e6, -5.0]), "`cov`: expected no negative eigenvalue, got -5"),
        (np.zeros(2), [[1.0, 0.9], [0.0, 1.0]], "`cov`: expected a symmetric matrix"),
        (np.zeros(2), [[1.0, 2.0], [2.0, 1.0]], "`cov`: expected no negative eigenvalue"),
        (np.zeros(0), np.zeros((0, 0)), "`mean`: expected a positive integer, got 0; pass one"),
        ("ab", np.eye(2), "`mean`: expected real numbers"),
    ],
)
def test_what_is_no_gaussian_is_rejected(mean: object, cov: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dp.Gaussian(mean, cov)


@pytest.mark.parametrize(
    ("precision", "shift", "message"),
    [
        ([[1.0, np.nan], [0.0, 1.0]], np.zeros(2), "`precision`: expected finite numbers"),
        (-np.eye(2), np.zeros(2), "`precision`: expected no negative eigenvalue, got -1"),
        (np.eye(2), [0.0, np.inf], "`shift`: expected finite numbers"),
        (np.eye(3), np.zeros(2), r"`precision`: expected shape \(2, 2\)"),
    ],
)
def test_what_is_no_evidence_is_rejected(precision: object, shift: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dp.LinearEvidence.from_natural(precision, shift)


def test_points_and_singular_precisions_are_welcome() -> None:
    assert_allclose(dp.Gaussian([1.0, 2.0], np.zeros((2, 2))).mean, [1.0, 2.0])
    row = np.array([[1.0, -2.0]])
    assert dp.LinearEvidence.from_natural(row.T @ row, row[0]).dim == 2
