"""Denoisers in unit coordinates, against the twin, finite differences and limits."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_less

import diffprior as dp
import reference
from cases import network_denoiser, tolerance
from diffprior.denoisers.base import MAX_VARIANCE
from diffprior.denoisers.network import StagewiseDenoiser
from diffprior.linalg import Spectral

DIMS = [3, 9]  # below and above the largest that is factorized in plain array operations
both_precisions = pytest.mark.float32


def spectral(seed: int, values: Any) -> Spectral:
    """A symmetric matrix of these eigenvalues and random eigenvectors."""
    size = (len(values), len(values))
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal(size))
    return Spectral(jnp.asarray(vectors), jnp.asarray(values, jnp.result_type(float)))


def random_weights(denoiser: Any, seed: int, size: float) -> Any:
    """The same denoiser in the default precision with every number drawn anew."""
    rng = np.random.default_rng(seed)
    draw = lambda leaf: jnp.asarray(size * rng.standard_normal(leaf.shape))  # noqa: E731
    return jax.tree.map(draw, denoiser)


@eqx.filter_jit
def denoise(denoiser: Any, precision: Spectral, shift: jax.Array) -> dp.Gaussian:
    """Compiled, so that each shape is traced once."""
    return denoiser.denoise(precision, shift)


def at_stage(denoiser: Any, schedule: dp.Schedule, s_t: jax.Array) -> tuple[Any, Any]:
    """`denoise_at` and `mean_at` of every stage, T first."""
    return _at_stage(denoiser, schedule, s_t)


@eqx.filter_jit
def _at_stage(denoiser: Any, schedule: dp.Schedule, s_t: jax.Array) -> tuple[Any, Any]:
    at = lambda stage: (denoiser.denoise_at(stage, s_t), denoiser.mean_at(stage, s_t))  # noqa: E731
    return jax.lax.map(at, denoiser.stages(schedule))


def symmetrized_derivative(function: Any, x: np.ndarray, step: float = 1e-5) -> np.ndarray:
    """The symmetric part of the derivative, by central differences."""
    sides = [(function(x + step * e), function(x - step * e)) for e in np.eye(len(x))]
    jacobian = np.stack([np.asarray(up) - np.asarray(down) for up, down in sides], 1) / (2 * step)
    return (jacobian + jacobian.T) / 2


@both_precisions
@pytest.mark.parametrize("dim", DIMS)
@pytest.mark.parametrize("log_precision", [(-np.inf, -np.inf), (-40, 2), (-3, 3), (9, 14)])
def test_untrained_network_is_exact_for_the_unit_gaussian(dim: int, log_precision: tuple) -> None:
    low, high = log_precision
    precision = spectral(2, np.exp(np.linspace(low, high, dim)) if low > -np.inf else np.zeros(dim))
    shift = precision.matrix() @ jnp.linspace(-1.0, 2.0, dim)
    got = denoise(network_denoiser(dim, 0.0), precision, shift)
    matrix = np.asarray(precision.matrix(), dtype=np.float64)
    mean, cov = reference.condition_gaussian(np.zeros(dim), np.eye(dim), matrix, shift)
    assert_allclose(got.mean, mean, atol=tolerance(1e-9, 1e-3))
    assert_allclose(got.cov, cov, atol=tolerance(1e-9, 1e-3))


@pytest.mark.parametrize("dim", DIMS)
def test_a_stage_is_isotropic_evidence(dim: int) -> None:
    denoiser, schedule = network_denoiser(dim), dp.Schedule.log_snr(4)
    s_t = jnp.linspace(-1.0, 1.5, dim)
    got, means = at_stage(denoiser, schedule, s_t)
    for index, alpha_bar in enumerate(schedule.alpha_bar[:0:-1]):
        precision = spectral(3, np.full(dim, alpha_bar / (1 - alpha_bar)))
        expected = denoise(denoiser, precision, np.sqrt(alpha_bar) / (1 - alpha_bar) * s_t)
        assert_allclose(means[index], expected.mean, atol=1e-9)
        assert_allclose(got.mean[index], expected.mean, atol=1e-9)
        assert_allclose(got.cov[index], expected.cov, atol=1e-9)


@pytest.mark.parametrize("dim", DIMS)
def test_covariance_is_the_symmetrized_derivative_of_the_mean(dim: int) -> None:
    denoiser, precision = network_denoiser(dim), spectral(4, np.geomspace(0.5, 20.0, dim))
    shift = np.linspace(-1.0, 2.0, dim)
    mean = lambda q: denoise(denoiser, precision, jnp.asarray(q)).mean  # noqa: E731
    got = denoise(denoiser, precision, jnp.asarray(shift)).cov
    assert_allclose(got, symmetrized_derivative(mean, shift), atol=1e-7)
    assert np.max(np.abs(got - np.linalg.inv(np.eye(dim) + precision.matrix()))) > 1e-3


@pytest.mark.parametrize("dim", DIMS)
def test_covariance_is_positive_and_bounded_for_wild_weights(dim: int) -> None:
    for seed in range(4):
        denoiser = random_weights(network_denoiser(dim), seed, 5.0)
        precision = spectral(seed, np.geomspace(0.01, 10.0, dim))
        shift = jnp.asarray(3 * np.random.default_rng(seed).standard_normal(dim))
        cov = np.asarray(denoise(denoiser, precision, shift).cov)
        assert_allclose(cov, cov.T, atol=1e-12 * np.max(cov))
        assert_array_less(0.0, np.linalg.eigvalsh(cov))
        assert np.trace(cov) <= 1.01 * MAX_VARIANCE * dim


def test_strong_evidence_decides_alone() -> None:
    """The correction, in units of the likelihood's own deviation, fades as its precision grows."""
    denoiser, u = network_denoiser(3), jnp.array([0.3, -1.0, 0.5])

    def error(log_precision: float) -> float:
        p = np.exp(log_precision)
        got = denoise(denoiser, spectral(5, np.full(3, p)), p * u)
        assert_allclose(p * got.cov, np.eye(3), atol=0.2 * np.exp((9 - log_precision) / 2))
        return float(np.max(np.abs(got.mean - u)) * np.sqrt(p))

    assert error(9.0) > 0.1
    assert error(20.0) < 0.01 * error(9.0)


def test_evidence_may_be_strong_in_one_direction_and_absent_in_another() -> None:
    denoiser, precision = network_denoiser(3), spectral(6, [0.0, np.exp(20.0), 1.0])
    strong = precision.vectors[:, 1]
    got = denoise(denoiser, precision, np.exp(20.0) * 0.7 * strong)
    assert_allclose(strong @ got.mean, 0.7, atol=1e-5)
    assert_allclose(np.exp(20.0) * strong @ got.cov @ strong, 1.0, rtol=0.05)
    assert np.all(np.isfinite(got.cov))


def stagewise(grid: dp.Schedule, size: float = 0.3) -> StagewiseDenoiser:
    start = StagewiseDenoiser.initialize(jax.random.key(0), 2, grid, width=7)
    return random_weights(start, 1, size)


def noise_by_hand(denoiser: StagewiseDenoiser, t: int, s_t: np.ndarray) -> np.ndarray:
    """Eq. (15): two layers of ReLU, those of stage t."""
    layer = lambda n: (getattr(denoiser, f"{kind}_{n}")[t - 1] for kind in ("weights", "bias"))  # noqa: E731
    (w1, b1), (w2, b2), (w3, b3) = layer(1), layer(2), layer(3)
    hidden = np.maximum(0, s_t @ w1 + b1)
    return np.maximum(0, hidden @ w2 + b2) @ w3 + b3


@pytest.mark.parametrize("num_kept", [6, 3, 1])
def test_stagewise_mean_inverts_the_forward_process(num_kept: int) -> None:
    grid, s_t = dp.Schedule.constant(6, 0.7), jnp.array([0.4, -1.1])
    denoiser, kept = stagewise(grid), grid.stride(num_kept)
    got, means = at_stage(denoiser, kept, s_t)
    for index, alpha_bar in enumerate(kept.alpha_bar[:0:-1]):
        noise = noise_by_hand(denoiser, grid.alpha_bar.index(alpha_bar), np.asarray(s_t))
        expected = reference.clean_from_noise(s_t, noise, alpha_bar)
        assert_allclose(means[index], expected, atol=1e-9)
        assert_allclose(got.mean[index], expected, atol=1e-9)


def test_stagewise_covariance_is_second_order_tweedie() -> None:
    grid, s_t = dp.Schedule.constant(3, 0.6), np.array([0.4, -1.1])
    denoiser = stagewise(grid, 0.1)
    got, _ = at_stage(denoiser, grid, jnp.asarray(s_t))
    for t, alpha_bar in enumerate(grid.alpha_bar[1:], start=1):
        derivative = symmetrized_derivative(lambda s, t=t: noise_by_hand(denoiser, t, s), s_t)
        cov = (1 - alpha_bar) / alpha_bar * (np.eye(2) - np.sqrt(1 - alpha_bar) * derivative)
        assert_allclose(got.cov[3 - t], cov, atol=1e-7)


def test_stagewise_rejects_what_it_was_not_trained_on() -> None:
    denoiser = stagewise(dp.Schedule.constant(3))
    assert not denoiser.general
    with pytest.raises(ValueError, match="`precision`.*own grid.*general evidence.*Fit without"):
        denoise(denoiser, spectral(0, [1.0, 2.0]), jnp.zeros(2))
    with pytest.raises(ValueError, match="own grid"):
        denoiser.stages(dp.Schedule.constant(4, 0.9))


def test_isotropic_network_rejects_general_evidence() -> None:
    denoiser = network_denoiser(3, isotropic=True)
    assert not denoiser.general and network_denoiser(3).general
    with pytest.raises(ValueError, match="isotropic"):
        denoise(denoiser, spectral(0, [1.0, 5.0, 2.0]), jnp.zeros(3))
    s_t = jnp.array([0.5, -1.0, 0.3])
    got, means = at_stage(denoiser, dp.Schedule.log_snr(4), s_t)
    assert_allclose(got.mean, means, atol=1e-9)
