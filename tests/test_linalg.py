"""Small symmetric matrices against NumPy, and batches that must return."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from cases import random_cov, representable, tolerance
from diffprior import linalg

DIMS = (1, 3, 8, 9)  # written out up to 8, by LAPACK beyond
both_precisions = pytest.mark.float32

cholesky = jax.jit(linalg.cholesky)
solve_lower = jax.jit(linalg.solve_lower)
solve_half = jax.jit(linalg.solve_half)
eigh = jax.jit(linalg.eigh)
bounded_factor = jax.jit(linalg.bounded_factor)
matrix_of = jax.jit(linalg.Spectral.matrix)


def matrix(seed: int, dim: int) -> np.ndarray:
    return random_cov(np.random.default_rng(seed), dim)


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
def test_cholesky(dim: int) -> None:
    cov = matrix(dim, dim)
    expected = np.linalg.cholesky(cov)
    assert_allclose(cholesky(jnp.asarray(cov)), expected, atol=tolerance(1e-13, 1e-5))


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
def test_solves_and_determinant(dim: int) -> None:
    cov = matrix(dim, dim)
    tril = representable(np.linalg.cholesky(cov))
    rhs = representable(np.random.default_rng(dim).standard_normal((dim, 4)))
    solved = solve_lower(jnp.asarray(tril), jnp.asarray(rhs))
    assert_allclose(solved, np.linalg.solve(tril, rhs), atol=tolerance(1e-12, 1e-4))
    log_det = linalg.log_det_from_tril(jnp.asarray(tril))
    expected = np.linalg.slogdet(tril @ tril.T)[1]
    assert_allclose(log_det, expected, rtol=tolerance(1e-12, 1e-5), atol=tolerance(1e-12, 1e-5))


@both_precisions
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("dim", DIMS)
def test_half_of_a_solve(dim: int, scale: float) -> None:
    cov = representable(np.eye(dim) + scale * matrix(dim, dim))
    rhs = representable(np.random.default_rng(dim).standard_normal((dim, 4)))
    solved, log_det = solve_half(jnp.asarray(cov), jnp.asarray(rhs))
    expected = np.linalg.solve(np.linalg.cholesky(cov), rhs)
    assert_allclose(solved, expected, atol=tolerance(1e-12, 1e-4))
    expected = np.linalg.slogdet(cov)[1]
    assert_allclose(log_det, expected, rtol=tolerance(1e-12, 1e-5), atol=tolerance(1e-12, 1e-5))


@pytest.mark.parametrize("dim", DIMS)
def test_upper_triangle_is_not_read(dim: int) -> None:
    tril = representable(np.linalg.cholesky(matrix(dim, dim)))
    rhs, noise = np.eye(dim), np.triu(np.full((dim, dim), 3.0), 1)
    solved = solve_lower(jnp.asarray(tril + noise), jnp.asarray(rhs))
    assert_allclose(solved, np.linalg.inv(tril), atol=tolerance(1e-12, 1e-4))


def spectra(dim: int) -> list[np.ndarray]:
    wide = 10.0 ** np.linspace(-4, 4, dim)
    return [np.linspace(1, 2, dim), np.ones(dim), np.eye(dim)[0], wide, -wide, np.zeros(dim)]


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
def test_eigh(dim: int) -> None:
    rotation = np.linalg.qr(np.random.default_rng(dim).standard_normal((dim, dim)))[0]
    for values in spectra(dim):
        symmetric = representable((rotation * values) @ rotation.T)
        symmetric = (symmetric + symmetric.T) / 2
        spectral = eigh(jnp.asarray(symmetric))
        atol = tolerance(1e-13, 1e-5) * max(1e-20, np.max(np.abs(values)))
        assert_allclose(np.sort(spectral.values), np.linalg.eigvalsh(symmetric), atol=atol)
        assert_allclose(matrix_of(spectral), symmetric, atol=atol)
        vectors = np.asarray(spectral.vectors)
        orthonormal = vectors.T @ vectors
        assert_allclose(orthonormal, np.eye(dim), atol=tolerance(1e-13, 1e-5))


@pytest.mark.parametrize("dim", [3, 9])
def test_products_and_the_diagonal(dim: int) -> None:
    rng = np.random.default_rng(dim)
    wide, x = rng.standard_normal((dim + 2, dim)), rng.standard_normal(dim)
    square, atol = wide[:dim], tolerance(1e-14, 1e-5)
    assert_allclose(linalg.times(jnp.asarray(wide), jnp.asarray(x)), wide @ x, atol=atol)
    assert_allclose(linalg.diagonal(jnp.asarray(square)), np.diagonal(square), atol=atol)


@pytest.mark.parametrize("dim", [3, 9])
def test_spectral_functions(dim: int) -> None:
    cov, x = matrix(dim, dim), np.random.default_rng(dim).standard_normal(dim)
    spectral, atol = eigh(jnp.asarray(cov)), tolerance(1e-12, 1e-4)
    root = spectral.apply(jnp.sqrt)
    assert_allclose(root @ root, cov, atol=atol)
    assert_allclose(spectral.apply(lambda v: 1 / v) @ cov, np.eye(dim), atol=atol)
    assert_allclose(spectral.unrotate(spectral.rotate(jnp.asarray(x))), x, atol=atol)
    assert_allclose(spectral.shifted(jnp.asarray(2.0)).matrix(), cov + 2 * np.eye(dim), atol=atol)
    applied = spectral.unrotate(spectral.values * spectral.rotate(jnp.asarray(x)))
    assert_allclose(applied, cov @ x, atol=atol)


@both_precisions
@pytest.mark.parametrize("dim", [3, 9, 32])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_cholesky_of_a_semi_definite_matrix(dim: int, rank: int) -> None:
    for seed in range(5):
        root = representable(np.random.default_rng(seed).standard_normal((dim, rank)))
        cov = root @ root.T
        tril = np.asarray(cholesky(jnp.asarray(cov)))
        assert np.all(np.diagonal(tril) > 0)
        rounding = 10 * dim * np.finfo(tril.dtype).eps * np.max(cov, initial=1e-20)
        assert_allclose(tril @ tril.T, cov, atol=rounding)


@both_precisions
@pytest.mark.parametrize("dim", [1, 3, 8, 9])
def test_bounded_factor(dim: int) -> None:
    """Within its bounds a matrix is factorized as it is, beyond them something within them is."""
    lowest, highest = 10.0 ** np.linspace(-1, -3, dim), 10.0 ** np.linspace(1, 3, dim)
    cov, bounds = matrix(dim, dim), (jnp.asarray(lowest), jnp.asarray(highest))
    factor = np.asarray(bounded_factor(jnp.asarray(cov), *bounds), np.float64)
    assert_allclose(factor @ factor.T, cov, atol=tolerance(1e-12, 1e-4))
    wild = np.random.default_rng(dim).standard_normal((dim, dim)) * 1000
    for values in (wild + wild.T, np.diag(2 * highest), -np.eye(dim)):
        factor = np.asarray(bounded_factor(jnp.asarray(values), *bounds), np.float64)
        product = factor @ factor.T
        diagonal = np.diagonal(product)
        assert np.all(np.linalg.eigvalsh(product / np.sqrt(np.outer(highest, highest))) > 0)
        assert np.all(diagonal < 1.001 * (highest + dim * lowest))
        assert np.all(diagonal > 0.999 * (lowest if dim <= 8 else np.min(lowest / highest)))
    if dim <= 8:
        assert_allclose(product, np.diag(lowest), rtol=1e-4, atol=1e-9)


@both_precisions
@given(
    st.integers(0, 10**6),
    st.sampled_from(DIMS),
    st.floats(-8, 8),
    st.floats(0, 3),
)
def test_factors_hold_at_every_scale(seed: int, dim: int, log_scale: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    units = 10.0 ** (log_scale + spread * rng.uniform(-1, 1, dim))
    cov = representable(units[:, None] * random_cov(rng, dim) * units)
    tril = np.asarray(cholesky(jnp.asarray(cov)), dtype=np.float64)
    error = np.abs(tril @ tril.T - cov) / np.outer(units, units)
    assert np.max(error) < tolerance(1e-13, 1e-4) * dim
    inverse_tril = np.asarray(solve_lower(jnp.asarray(tril), jnp.eye(dim)), dtype=np.float64)
    inverse = inverse_tril.T @ inverse_tril
    identity = (units[:, None] * inverse * units) @ (cov / np.outer(units, units))
    assert_allclose(identity, np.eye(dim), atol=tolerance(1e-11, 1e-2))


@pytest.mark.parametrize("dim", [3, 9])
def test_batches_equal_a_loop(dim: int) -> None:
    covs = jnp.asarray(np.stack([matrix(seed, dim) for seed in range(6)]))

    def everything(cov: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        tril = linalg.cholesky(cov)
        return tril, linalg.solve_lower(tril, cov), linalg.eigh(cov).matrix()

    batch = jax.jit(jax.vmap(everything))(covs)
    for i, cov in enumerate(covs):
        for together, alone in zip(batch, jax.jit(everything)(cov), strict=True):
            assert_allclose(together[i], alone, atol=tolerance(1e-13, 1e-5))


@both_precisions
@pytest.mark.parametrize("dim", [8, 9])
def test_a_semi_definite_matrix_among_others(dim: int) -> None:
    root = representable(np.random.default_rng(0).standard_normal((dim, 1)))
    covs = representable(np.stack([matrix(dim, dim), root @ root.T]))
    trils = np.asarray(jax.jit(jax.vmap(linalg.cholesky))(jnp.asarray(covs)))
    rounding = 10 * dim * np.finfo(trils.dtype).eps * np.max(covs)
    assert_allclose(trils @ trils.swapaxes(1, 2), covs, atol=rounding)


@pytest.mark.parametrize("dim", [8, 33])
def test_nested_batches_equal_a_loop(dim: int) -> None:
    """Of a number that no block divides, with a matrix, then a right side, that all share; one of
    the matrices is singular to rounding."""
    rng = np.random.default_rng(dim)
    covs = representable(np.stack([[matrix(dim + i, dim)] * 37 for i in range(3)]))
    covs[1, 5] = 1.0
    rhs = representable(rng.standard_normal((37, dim, 2)))
    factors = jax.jit(jax.vmap(jax.vmap(linalg.cholesky)))(jnp.asarray(covs))
    assert_allclose(factors[1, 5] @ factors[1, 5].T, covs[1, 5], atol=tolerance(1e-12, 1e-4))
    assert_allclose(factors[0], np.linalg.cholesky(covs[0]), atol=tolerance(1e-12, 1e-5))
    own_rhs = jax.vmap(linalg.solve_lower, in_axes=(None, 0))
    own_tril = jax.jit(jax.vmap(own_rhs, in_axes=(0, None)))
    trils = representable(np.linalg.cholesky(covs[::2, 0]))
    expected = np.linalg.solve(trils[:, None], rhs[None])
    found = own_tril(jnp.asarray(trils), jnp.asarray(rhs))
    assert_allclose(found, expected, atol=tolerance(1e-11, 1e-3))
