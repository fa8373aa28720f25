"""A mixture as base and a network on it: against the twin, finite differences and bounds."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_less
from scipy.special import expit

import diffprior as dp
import reference
from cases import tolerance
from diffprior.denoisers.network import (
    MAX_OUTPUT,
    CorrectedDenoiser,
    Correction,
)
from diffprior.linalg import Spectral
from diffprior.mixture import GaussianMixture

DIMS = (3, 9)  # below and above the largest that is factorized in plain array operations
SHAPES = [(dim, mixed) for dim in DIMS for mixed in (True, False)]
FIVE = dp.Schedule.log_snr(5)
both_precisions = pytest.mark.float32
each_dim = pytest.mark.parametrize("dim", DIMS)
each_shape = pytest.mark.parametrize(("dim", "mixed"), SHAPES)


def mixture(dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Components of very different size, so that determinants matter."""
    rng = np.random.default_rng(dim)
    shapes = rng.standard_normal((3, dim, dim))
    sizes = np.array([0.02, 0.3, 1.0])[:, None, None]
    covs = sizes * (np.einsum("kij,klj->kil", shapes, shapes) / dim + 0.1 * np.eye(dim))
    return np.array([0.5, 0.2, 0.3]), 0.7 * rng.standard_normal((3, dim)), covs


def base(dim: int) -> GaussianMixture:
    return GaussianMixture.from_covs(*mixture(dim)).on_device()


def correction(dim: int, k: int = 3, size: float = 0.3) -> Correction:
    start = Correction.initialize(np.random.default_rng(0), dim, k, width=8, depth=3)
    rng = np.random.default_rng(dim)
    return jax.tree.map(
        lambda leaf: jax.device_put(floats(size * rng.standard_normal(leaf.shape))), start
    )


def corrected(dim: int, mixed: bool = True, size: float = 0.3) -> CorrectedDenoiser:
    """A network of random weights, on the mixture or on one Gaussian."""
    if mixed:
        return CorrectedDenoiser(base(dim), correction(dim, 3, size), None, dim)
    return CorrectedDenoiser(None, correction(dim, 1, size), None, dim)


def alone(dim: int) -> CorrectedDenoiser:
    return CorrectedDenoiser(base(dim), None, None, dim)


def floats(array: Any) -> np.ndarray:
    return np.asarray(array, jnp.result_type(float))


def spectral(seed: int, values: Any) -> Spectral:
    size = (len(values), len(values))
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal(size))
    return Spectral(jax.device_put(floats(vectors)), jax.device_put(floats(values)))


def matrix_of(precision: Spectral) -> np.ndarray:
    vectors = np.asarray(precision.vectors, np.float64)
    return vectors * np.asarray(precision.values, np.float64) @ vectors.T


@eqx.filter_jit
def denoise(denoiser: Any, precision: Spectral, shift: Any) -> dp.Gaussian:
    return denoiser.denoise(precision, shift)


@eqx.filter_jit
def given_both(denoiser: Any, evidence: Any, t: Any, s_t: Any) -> tuple[dp.Gaussian, ...]:
    """Given a task's evidence and a noisy sample, the sample alone, and the evidence alone."""
    given = denoiser.condition(*evidence)
    at = lambda one: one.denoise_at(jax.tree.map(lambda leaf: leaf[t], one.stages(FIVE)), s_t)  # noqa: E731
    return at(given), at(denoiser), given.moments()


@eqx.filter_jit
def steps(denoiser: Any, evidence: Any, t: int, s_t: Any, noise: Any, uniform: Any) -> Any:
    """At stage t of five, given evidence and alone: the stage, means, and draws of a step."""
    stage = jax.tree.map(lambda leaf: leaf[t], FIVE.stages(s_t.dtype))
    means, draws = [], []
    for chain in (denoiser.condition(*evidence), denoiser):
        inputs = jax.tree.map(lambda leaf: leaf[t], chain.stages(FIVE))
        means.append(chain.mean_at(inputs, s_t))
        step = lambda *r: chain.step_at(inputs, stage, s_t, *r)  # noqa: B023, E731
        draws.append(jax.vmap(step)(noise, uniform))
    return stage, means, draws


@both_precisions
@each_dim
def test_base_is_the_twins(dim: int) -> None:
    for values in (np.zeros(dim), np.geomspace(1e-3, 3.0, dim), np.geomspace(0.5, 3e3, dim)):
        precision = spectral(1, values)
        matrix = matrix_of(precision)
        shift = matrix @ np.linspace(-1.0, 1.0, dim) + (0.3 if not np.any(values) else 0.0)
        got = denoise(alone(dim), precision, floats(shift))
        mean, cov = reference.mixture_denoise(*mixture(dim), matrix, shift)
        assert_allclose(got.mean, mean, atol=tolerance(1e-9, 2e-2))
        assert_allclose(got.cov, cov, atol=tolerance(1e-9, 2e-2))


@both_precisions
@each_shape
def test_a_tasks_evidence_and_a_stages_add_up(dim: int, mixed: bool) -> None:
    """Also where there is no task, and where the noise leaves nothing to see."""
    matrix = matrix_of(spectral(2, np.geomspace(0.1, 20.0, dim)))
    task = (floats(matrix), floats(matrix @ np.linspace(-1.0, 1.0, dim)))
    nothing = (0.0 * task[0], 0.0 * task[1])
    denoiser, s_t = corrected(dim, mixed), floats(np.linspace(-1.0, 1.5, dim))
    close = {"atol": tolerance(1e-8, 1e-2)}
    for t in (0, 2, 4):
        stage = jax.tree.map(lambda leaf: float(leaf[t]), FIVE.stages(s_t.dtype))  # noqa: B023
        for evidence in (nothing, task):
            values, vectors = np.linalg.eigh(evidence[0] + stage.snr * np.eye(dim))
            total = Spectral(jax.device_put(floats(vectors)), jax.device_put(floats(values)))
            expected = denoise(denoiser, total, evidence[1] + floats(stage.shift_scale * s_t))
            both, sample, own = given_both(denoiser, evidence, jnp.asarray(t), s_t)
            for one in (both, sample) if evidence is nothing else (both,):
                assert_allclose(one.mean, expected.mean, **close)
                assert_allclose(one.cov, expected.cov, **close)
    expected = denoise(denoiser, spectral(2, np.geomspace(0.1, 20.0, dim)), task[1])
    assert_allclose(own.mean, expected.mean, atol=1e-3)
    assert_allclose(own.cov, expected.cov, atol=1e-3)


@each_shape
def test_the_posterior_to_draw_from_has_the_denoised_moments(dim: int, mixed: bool) -> None:
    """Components keep their places to each other, and the covariance is the denoiser's: moved as
    one they are corrected in the mean alone."""
    denoiser = corrected(dim, mixed)
    precision, shift = spectral(4, np.geomspace(0.1, 20.0, dim)), np.linspace(-2.0, 3.0, dim)
    posterior = eqx.filter_jit(denoiser.posterior)(precision, shift)
    moments = denoise(denoiser, precision, shift)
    weights, means, factors = (
        np.asarray(part)
        for part in (posterior.responsibilities, posterior.means, posterior.factors)
    )
    mean = weights @ means
    within = np.einsum("k,kij,klj->il", weights, factors, factors)
    assert denoiser.is_mixture == mixed and weights.shape == (3 if mixed else 1,)
    assert_allclose(mean, moments.mean, atol=1e-9)
    spread = ((means - mean) * weights[:, None]).T @ (means - mean)
    assert_allclose(within + spread, moments.cov, atol=1e-9)


def test_an_untrained_correction_is_the_base_alone() -> None:
    start = Correction.initialize(np.random.default_rng(0), 3, 3, width=8, depth=3)
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), start)
    precision, shift = spectral(4, [0.5, 3.0, 1.0]), np.array([1.0, -2.0, 0.3])
    got = denoise(CorrectedDenoiser(base(3), start, None, 3), precision, shift)
    assert_allclose(got.mean, denoise(alone(3), precision, shift).mean, atol=1e-12)


def test_covariance_under_a_gaussian_base_is_the_symmetrized_derivative() -> None:
    denoiser, precision = corrected(3, mixed=False, size=0.2), spectral(4, [0.5, 3.0, 1.0])
    shift, step = np.array([1.0, -2.0, 0.5]), 1e-5
    mean = lambda q: np.asarray(denoise(denoiser, precision, q).mean)  # noqa: E731
    sides = [mean(shift + e) - mean(shift - e) for e in step * np.eye(3)]
    jacobian = np.stack(sides, axis=1) / (2 * step)
    got = denoise(denoiser, precision, shift).cov
    assert_allclose(got, (jacobian + jacobian.T) / 2, atol=1e-7)


@each_dim
def test_correction_is_bounded_and_covariance_positive_for_wild_weights(dim: int) -> None:
    wild, precision = corrected(dim, size=5.0), spectral(5, np.geomspace(0.01, 10.0, dim))
    for far in (1.0, 1e3):
        shift = far * np.random.default_rng(0).standard_normal(dim)
        got, own = (denoise(one, precision, shift) for one in (wild, alone(dim)))
        rotated = np.asarray(got.mean - own.mean) @ np.asarray(precision.vectors)
        length = np.linalg.norm(np.sqrt(1 + np.asarray(precision.values)) * rotated)
        assert 0.5 * MAX_OUTPUT < length / np.sqrt(dim) < 1.001 * MAX_OUTPUT
        assert_array_less(0.0, np.linalg.eigvalsh(got.cov))
        assert_allclose(got.cov, own.cov)


def test_strong_evidence_decides_alone() -> None:
    denoiser, u = corrected(3), np.array([0.3, -1.0, 0.5])
    for log_precision, error in ((9.0, 3.0 * MAX_OUTPUT), (20.0, 0.05)):
        p = np.exp(log_precision)
        got = denoise(denoiser, spectral(6, np.full(3, p)), p * u)
        assert np.max(np.abs(got.mean - u)) * np.sqrt(p) < error
    assert_allclose(p * got.cov, np.eye(3), atol=1e-3)


EVIDENCE = (np.diag([2.0, 0.1, 0.5]), np.array([1.0, 0.1, -0.3]))
S_T = np.array([0.5, -0.7, 0.2])


def test_steps_draw_from_the_components() -> None:
    """Mean and covariance of s_{t-1} given s_t, over many draws: with evidence, and without."""
    num, rng = 40_000, np.random.default_rng(0)
    random = (rng.standard_normal((num, 3)), rng.random(num))
    stage, _, draws = steps(alone(3), EVIDENCE, 2, S_T, *random)
    stage = jax.tree.map(float, stage)
    for drawn, evidence in zip(draws, (EVIDENCE, (0 * EVIDENCE[0], 0 * EVIDENCE[1])), strict=True):
        precision, shift = evidence[0] + stage.snr * np.eye(3), evidence[1]
        s_0 = reference.mixture_denoise(*mixture(3), precision, shift + stage.shift_scale * S_T)
        mean = stage.weight_clean * s_0[0] + stage.weight_noisy * S_T
        cov = stage.beta_tilde * np.eye(3) + stage.weight_clean**2 * s_0[1]
        drawn = np.asarray(drawn)
        assert_allclose(drawn.mean(axis=0), mean, atol=5 * np.sqrt(np.max(np.diag(cov)) / num))
        assert_allclose(np.cov(drawn.T), cov, atol=5 * np.max(cov) * np.sqrt(2 / num))


def test_steps_move_as_the_mean_is_corrected() -> None:
    """With the same random numbers: by the change of the mean, which the step scales."""
    random = (np.array([[0.3, -1.1, 0.4]]), np.array([0.6]))
    found = [steps(one, EVIDENCE, 2, S_T, *random) for one in (alone(3), corrected(3))]
    weight = float(found[0][0].weight_clean)
    for means, draws in zip(zip(*(f[1] for f in found), strict=True),
                            zip(*(f[2] for f in found), strict=True), strict=True):  # fmt: skip
        moved = np.asarray(means[1]) - np.asarray(means[0])
        assert np.max(np.abs(moved)) > 1e-3
        assert_allclose(np.asarray(draws[1] - draws[0])[0], weight * moved, atol=1e-5)


def test_corrected_denoisers_are_saved() -> None:
    for one in (corrected(3), alone(3), CorrectedDenoiser(None, None, None, 3)):
        same = CorrectedDenoiser.from_bytes(one.to_bytes())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True):
            assert_allclose(a, b, atol=1e-6)
    assert CorrectedDenoiser.upgrade({"mostly_base": True}, 1) == {"negligible_correction": True}


def twin(
    net: Correction, x: np.ndarray, y: np.ndarray, r: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, float]:
    """F in NumPy, and its length before its bound."""

    def short(v: np.ndarray, longest: float) -> np.ndarray:
        return v / np.sqrt(1.0 + v @ v / (longest**2 * len(v)))

    def silu(v: np.ndarray) -> np.ndarray:
        return v * expit(v)

    w = {name: np.asarray(leaf, np.float64) for name, leaf in vars(net).items()}
    h = r @ w["weights_component"] + short(x, 3.0) @ w["weights_mean"]
    h = silu(bias + h + short(y, 2.0) @ w["weights_move"])
    for weights, own in zip(w["weights_hidden"], w["bias_hidden"], strict=True):
        h = h + silu(h @ weights + own)
    out = h @ w["weights_out"] + w["bias_out"]
    length = float(np.linalg.norm(out))
    return out * min(1.0, 3.0 * np.sqrt(len(out)) / length), length


@each_dim
def test_correction_is_the_twins_near_and_far(dim: int) -> None:
    """Small weights let the bounds of the inputs be seen; with large ones the output's holds."""
    apply = eqx.filter_jit(lambda net, *inputs: net(*inputs))
    for size, longer in ((0.1, False), (5.0, True)):
        net, rng = correction(dim, 3, size), np.random.default_rng(1)
        for x_far, y_far in ((0.5, 0.5), (1e3, 0.5), (0.5, 1e3)):
            x, y = x_far * rng.standard_normal(dim), y_far * rng.standard_normal(dim)
            r, bias = np.array([0.2, 0.5, 0.3]), 0.3 * rng.standard_normal(8)
            expected, length = twin(net, x, y, r, bias)
            assert (length > 3.0 * np.sqrt(dim)) == longer
            assert_allclose(apply(net, x, y, r, bias), expected, rtol=1e-9, atol=1e-12)
