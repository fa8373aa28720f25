"""A mixture as base and a network on it: against the twin, finite differences and bounds."""

import operator
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
from diffprior.denoisers.corrected import (
    LONGEST_OUTPUT,
    CorrectedDenoiser,
    Correction,
    Prepared,
    planned_mean,
)
from diffprior.linalg import Spectral
from diffprior.mixture import GaussianMixture
from diffprior.schedule import Schedule

both_precisions = pytest.mark.float32


def mixture(dim: int, k: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Components of very different size, so that determinants matter."""
    rng = np.random.default_rng(dim)
    shapes = rng.standard_normal((k, dim, dim))
    sizes = np.array([0.02, 0.3, 1.0])[:k, None, None]
    covs = sizes * (np.einsum("kij,klj->kil", shapes, shapes) / dim + 0.1 * np.eye(dim))
    return np.array([0.5, 0.2, 0.3])[:k], 0.7 * rng.standard_normal((k, dim)), covs


def base(dim: int) -> GaussianMixture:
    weights, means, covs = mixture(dim)
    values, vectors = np.linalg.eigh(covs)
    parts = (np.log(weights), means, vectors, values)
    return GaussianMixture(*(jnp.asarray(part, jnp.result_type(float)) for part in parts))


def correction(dim: int, k: int, size: float = 0.3) -> Correction:
    start = Correction.initialize(jax.random.key(0), dim, k, width=8, depth=3)
    rng = np.random.default_rng(dim)
    return jax.tree.map(lambda leaf: jnp.asarray(size * rng.standard_normal(leaf.shape)), start)


def spectral(seed: int, values: Any) -> Spectral:
    size = (len(values), len(values))
    vectors, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal(size))
    return Spectral(jnp.asarray(vectors), jnp.asarray(values, jnp.result_type(float)))


@eqx.filter_jit
def denoise(denoiser: Any, precision: Spectral, shift: jax.Array) -> dp.Gaussian:
    return denoiser.denoise(precision, shift)


@eqx.filter_jit
def denoise_with(denoiser: Any, precision: Any, shift: Any, snr: Any, noisy: Any) -> dp.Gaussian:
    return denoiser.denoise_with(denoiser.prepare(precision, shift), snr, noisy)


EVIDENCE = [np.zeros, lambda d: np.geomspace(1e-3, 3.0, d), lambda d: np.geomspace(0.5, 3e3, d)]


@both_precisions
@pytest.mark.parametrize("dim", [2, 9])
@pytest.mark.parametrize("values", EVIDENCE)
def test_base_is_the_twins(dim: int, values: Any) -> None:
    denoiser, precision = CorrectedDenoiser(base(dim), None, None, dim), spectral(1, values(dim))
    matrix = np.asarray(precision.matrix(), np.float64)
    shift = matrix @ np.linspace(-1.0, 1.0, dim) + (0.3 if not np.any(values(dim)) else 0.0)
    got = denoise(denoiser, precision, jnp.asarray(shift, jnp.result_type(float)))
    mean, cov = reference.mixture_denoise(*mixture(dim), matrix, shift)
    assert_allclose(got.mean, mean, atol=tolerance(1e-9, 2e-2))
    assert_allclose(got.cov, cov, atol=tolerance(1e-9, 2e-2))


@both_precisions
@pytest.mark.parametrize("dim", [2, 9])
@pytest.mark.parametrize("snr", [1e-3, 1.0, 500.0])
def test_prepared_evidence_and_a_noisy_sample_add_up(dim: int, snr: float) -> None:
    denoiser = CorrectedDenoiser(base(dim), None, None, dim)
    matrix = np.asarray(spectral(2, np.geomspace(0.1, 20.0, dim)).matrix(), np.float64)
    shift, noisy = matrix @ np.linspace(-1.0, 1.0, dim), snr * np.linspace(0.5, -1.0, dim)
    got = denoise_with(denoiser, *(jnp.asarray(a, jnp.result_type(float)) for a in
                                   (matrix, shift, snr, noisy)))  # fmt: skip
    whole = (matrix + snr * np.eye(dim), shift + noisy)
    mean, cov = reference.mixture_denoise(*mixture(dim), *whole)
    assert_allclose(got.mean, mean, atol=tolerance(1e-8, 1e-2))
    assert_allclose(got.cov, cov, atol=tolerance(1e-8, 1e-2))


@pytest.mark.parametrize(("dim", "mixed"), [(2, True), (2, False), (9, True), (9, False)])
def test_a_stage_and_prepared_evidence_are_evidence(dim: int, mixed: bool) -> None:
    k = 3 if mixed else 1
    denoiser = CorrectedDenoiser(base(dim) if mixed else None, correction(dim, k), None, dim)
    schedule, s_t = dp.Schedule.log_snr(3), jnp.linspace(-1.0, 1.5, dim)
    stages = denoiser.stages(schedule)
    at = jax.lax.map(lambda stage: denoiser.denoise_at(stage, s_t), stages)
    means = jax.lax.map(lambda stage: denoiser.mean_at(stage, s_t), stages)
    nothing = (jnp.zeros((dim, dim)), jnp.zeros(dim))
    for i, (snr, scale, _) in enumerate(zip(*stages, strict=True)):
        expected = denoise(denoiser, spectral(3, np.full(dim, float(snr))), scale * s_t)
        prepared = denoise_with(denoiser, *nothing, snr, scale * s_t)
        assert_allclose(means[i], expected.mean, atol=1e-9)
        for got in (jax.tree.map(lambda leaf, i=i: leaf[i], at), prepared):
            assert_allclose(got.mean, expected.mean, atol=1e-9)
            assert_allclose(got.cov, expected.cov, atol=1e-9)


@pytest.mark.parametrize(("dim", "mixed"), [(2, True), (9, True), (2, False), (9, False)])
def test_the_law_to_draw_from_has_the_denoised_mean(dim: int, mixed: bool) -> None:
    """Components keep their places to each other, and the covariance is the denoiser's: moved as
    one they are corrected in the mean alone."""
    k = 3 if mixed else 1
    denoiser = CorrectedDenoiser(base(dim) if mixed else None, correction(dim, k), None, dim)
    precision, shift = spectral(4, np.geomspace(0.1, 20.0, dim)), jnp.linspace(-2.0, 3.0, dim)
    law, moments = denoiser.posterior(precision, shift), denoise(denoiser, precision, shift)
    mean = law.responsibilities @ law.means
    away = law.means - mean[None]
    within = jnp.einsum("k,kij,klj->il", law.responsibilities, law.factors, law.factors)
    assert denoiser.is_mixture == mixed and law.responsibilities.shape == (k,)
    assert_allclose(mean, moments.mean, atol=1e-9)
    spread = (away * law.responsibilities[:, None]).T @ away
    assert_allclose(within + spread, moments.cov, atol=1e-9)


def test_an_untrained_correction_is_the_base_alone() -> None:
    start = Correction.initialize(jax.random.key(0), 2, 3, width=8, depth=3)
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), start)
    precision, shift = spectral(4, [0.5, 3.0]), jnp.array([1.0, -2.0])
    got = denoise(CorrectedDenoiser(base(2), start, None, 2), precision, shift)
    alone = denoise(CorrectedDenoiser(base(2), None, None, 2), precision, shift)
    assert_allclose(got.mean, alone.mean, atol=1e-12)


def test_covariance_under_a_gaussian_base_is_the_symmetrized_derivative() -> None:
    denoiser, precision = (
        CorrectedDenoiser(None, correction(2, 1, 0.2), None, 2),
        spectral(4, [0.5, 3.0]),
    )
    shift, step = np.array([1.0, -2.0]), 1e-5
    sides = [
        [denoise(denoiser, precision, jnp.asarray(shift + sign * e)).mean for sign in (1, -1)]
        for e in step * np.eye(2)
    ]
    jacobian = np.stack([np.asarray(up - down) for up, down in sides], axis=1) / (2 * step)
    got = denoise(denoiser, precision, jnp.asarray(shift)).cov
    assert_allclose(got, (jacobian + jacobian.T) / 2, atol=1e-7)


@pytest.mark.parametrize("dim", [2, 9])
@pytest.mark.parametrize("far", [1.0, 1e3])
def test_correction_is_bounded_and_covariance_positive_for_wild_weights(
    dim: int, far: float
) -> None:
    wild, precision = correction(dim, 3, 5.0), spectral(5, np.geomspace(0.01, 10.0, dim))
    shift = jnp.asarray(far * np.random.default_rng(0).standard_normal(dim))
    got = denoise(CorrectedDenoiser(base(dim), wild, None, dim), precision, shift)
    alone = denoise(CorrectedDenoiser(base(dim), None, None, dim), precision, shift)
    move = np.sqrt(1 + np.asarray(precision.values)) * precision.rotate(got.mean - alone.mean)
    assert 0.5 * LONGEST_OUTPUT < np.linalg.norm(move) / np.sqrt(dim) < 1.001 * LONGEST_OUTPUT
    assert_array_less(0.0, np.linalg.eigvalsh(got.cov))
    assert_allclose(got.cov, alone.cov)


def planned(denoiser: CorrectedDenoiser, prepared: Any, stage: Any) -> Any:
    """What a stage knows in advance."""
    found = denoiser.plan(prepared, jax.tree.map(lambda leaf: leaf[None], stage))
    return jax.tree.map(lambda leaf: leaf[0], found)


@both_precisions
@pytest.mark.parametrize("dim", [2, 5])
@pytest.mark.parametrize("corrected", [False, True])
def test_a_planned_mean_is_the_mean_at_its_stage(dim: int, corrected: bool) -> None:
    """With nothing known but a noisy sample, at the noisiest stage, in between and at the last."""
    denoiser = CorrectedDenoiser(base(dim), correction(dim, 3) if corrected else None, None, dim)
    schedule, dtype = Schedule.log_snr(7), jnp.result_type(float)
    zero, s_t = jnp.zeros(dim, dtype), jnp.linspace(-1.2, 0.8, dim, dtype=dtype)
    prepared = Prepared(Spectral(jnp.eye(dim, dtype=dtype), zero), zero, denoiser.base)
    every = (schedule.stages(dtype), denoiser.stages(schedule))
    for t in (0, 3, 6):
        stage, inputs = jax.tree.map(operator.itemgetter(t), every)
        plan = planned(denoiser, prepared, stage)
        got = planned_mean(prepared.components, denoiser.correction, plan, stage, s_t)
        assert_allclose(got, denoiser.mean_at(inputs, s_t), atol=tolerance(1e-10, 1e-4))


def test_strong_evidence_decides_alone() -> None:
    denoiser, u = CorrectedDenoiser(base(2), correction(2, 3), None, 2), jnp.array([0.3, -1.0])
    for log_precision, error in ((9.0, 3.0 * LONGEST_OUTPUT), (20.0, 0.05)):
        p = np.exp(log_precision)
        got = denoise(denoiser, spectral(6, np.full(2, p)), p * u)
        assert np.max(np.abs(got.mean - u)) * np.sqrt(p) < error
    assert_allclose(p * got.cov, np.eye(2), atol=1e-3)


def test_a_step_draws_what_the_components_hold() -> None:
    """Mean and covariance of s_{t-1} given s_t, over many draws."""
    num = 40_000
    denoiser = CorrectedDenoiser(base(2), None, None, 2)
    stage = jax.tree.map(
        lambda leaf: leaf[2], dp.Schedule.log_snr(5).stages(jnp.result_type(float))
    )
    matrix, shift = jnp.diag(jnp.array([2.0, 0.1])), jnp.array([1.0, 0.1])
    s_t = jnp.array([0.5, -0.7])
    prepared = denoiser.prepare(matrix, shift)
    keys = jax.random.split(jax.random.key(0))
    random = (jax.random.normal(keys[0], (num, 2)), jax.random.uniform(keys[1], (num,)))
    plan = planned(denoiser, prepared, stage)
    draws = np.asarray(jax.vmap(lambda *r: denoiser.step(prepared, plan, stage, s_t, *r))(*random))
    s_0 = reference.mixture_denoise(
        *mixture(2),
        np.asarray(matrix) + float(stage.snr) * np.eye(2),
        shift + stage.shift_scale * s_t,
    )
    mean = stage.weight_clean * s_0[0] + stage.weight_noisy * s_t
    cov = stage.beta_tilde * np.eye(2) + stage.weight_clean**2 * s_0[1]
    assert_allclose(draws.mean(axis=0), mean, atol=5 * np.sqrt(np.max(np.diag(cov)) / num))
    assert_allclose(np.cov(draws.T), cov, atol=5 * np.max(cov) * np.sqrt(2 / num))


def test_a_step_moves_as_the_mean_is_corrected() -> None:
    """With the same random numbers: by the change of the mean, which the step scales."""
    alone = CorrectedDenoiser(base(2), None, None, 2)
    corrected = CorrectedDenoiser(base(2), correction(2, 3), None, 2)
    schedule = dp.Schedule.log_snr(5)
    stage = jax.tree.map(lambda leaf: leaf[2], schedule.stages(jnp.result_type(float)))
    s_t, random = jnp.array([0.5, -0.7]), (jnp.array([0.3, -1.1]), jnp.asarray(0.6))
    evidence = (jnp.diag(jnp.array([2.0, 0.1])), jnp.array([1.0, 0.1]))
    found = []
    for denoiser in (alone, corrected):
        prepared = denoiser.prepare(*evidence)
        inputs = jax.tree.map(lambda leaf: leaf[2], denoiser.stages(schedule))
        given = denoiser.denoise_with(prepared, stage.snr, stage.shift_scale * s_t)
        means = (given.mean, denoiser.mean_at(inputs, s_t))
        steps = (
            denoiser.step(prepared, planned(denoiser, prepared, stage), stage, s_t, *random),
            denoiser.step_at(inputs, stage, s_t, *random),
        )
        found.append((jnp.stack(means), jnp.stack(steps)))
    means, steps = (after - before for before, after in zip(*found, strict=True))
    assert np.all(np.max(np.abs(means), axis=1) > 1e-3)
    assert_allclose(steps, stage.weight_clean * means, atol=1e-5)


def test_components_of_em_become_a_base() -> None:
    weights, means, covs = mixture(2)
    found = GaussianMixture.from_covs(weights, means, covs)
    assert_allclose(jax.vmap(jnp.diag)(found.variances).shape, (3, 2, 2))
    rebuilt = jnp.einsum("kij,kj,klj->kil", found.vectors, found.variances, found.vectors)
    assert_allclose(rebuilt, covs, atol=1e-5)
    assert_allclose(found.means, means, atol=1e-6)


def test_corrected_denoisers_are_kept() -> None:
    denoiser = CorrectedDenoiser(base(2), correction(2, 3), None, 2)
    for one in (
        denoiser,
        CorrectedDenoiser(base(2), None, None, 2),
        CorrectedDenoiser(None, None, None, 2),
    ):
        same = CorrectedDenoiser.from_bytes(one.to_bytes())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(same), strict=True):
            assert_allclose(a, b, atol=1e-6)


def twin(
    net: Correction, x: np.ndarray, y: np.ndarray, r: np.ndarray, bias: np.ndarray
) -> tuple[np.ndarray, float]:
    """F in NumPy, and how long it is before its bound."""

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


@pytest.mark.parametrize("dim", [2, 9])
@pytest.mark.parametrize(("x_far", "y_far"), [(0.5, 0.5), (1e3, 0.5), (0.5, 1e3)])
@pytest.mark.parametrize(("size", "longer"), [(0.1, False), (5.0, True)])
def test_correction_is_the_twins_near_and_far(
    dim: int, x_far: float, y_far: float, size: float, longer: bool
) -> None:
    """Small weights let the bounds of the inputs be seen; with large ones the output's holds."""
    net, rng = correction(dim, 3, size), np.random.default_rng(1)
    x, y = x_far * rng.standard_normal(dim), y_far * rng.standard_normal(dim)
    r, bias = np.array([0.2, 0.5, 0.3]), 0.3 * rng.standard_normal(8)
    expected, length = twin(net, x, y, r, bias)
    assert (length > 3.0 * np.sqrt(dim)) == longer
    assert_allclose(net(*map(jnp.asarray, (x, y, r, bias))), expected, rtol=1e-9, atol=1e-12)


def test_a_step_from_a_noisy_sample_alone_draws_what_the_components_hold() -> None:
    """Mean and covariance of s_{t-1} given s_t, over many draws, where no evidence is known."""
    num, schedule = 40_000, dp.Schedule.log_snr(5)
    denoiser, s_t = CorrectedDenoiser(base(2), None, None, 2), jnp.array([0.5, -0.7])
    every = (schedule.stages(jnp.result_type(float)), denoiser.stages(schedule))
    stage, inputs = jax.tree.map(lambda leaf: leaf[2], every)
    keys = jax.random.split(jax.random.key(0))
    random = (jax.random.normal(keys[0], (num, 2)), jax.random.uniform(keys[1], (num,)))
    draws = np.asarray(jax.vmap(lambda *r: denoiser.step_at(inputs, stage, s_t, *r))(*random))
    noisy = (float(stage.snr) * np.eye(2), np.asarray(stage.shift_scale * s_t))
    s_0 = reference.mixture_denoise(*mixture(2), *noisy)
    mean = stage.weight_clean * s_0[0] + stage.weight_noisy * s_t
    cov = stage.beta_tilde * np.eye(2) + stage.weight_clean**2 * s_0[1]
    assert_allclose(draws.mean(axis=0), mean, atol=5 * np.sqrt(np.max(np.diag(cov)) / num))
    assert_allclose(np.cov(draws.T), cov, atol=5 * np.max(cov) * np.sqrt(2 / num))
