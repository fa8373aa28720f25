"""Any prior as a denoiser in unit coordinates, against the twin; and what may pass for a prior."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import COVS, DIM, MEANS, PRIORS, WEIGHTS, PriorCase, case_name, tolerance
from diffprior.linalg import Spectral
from diffprior.priors.base import PriorDenoiser, as_prior, unit_coordinates
from foreign import Stranger, TwelveLines

both_precisions = pytest.mark.float32
OFFSET = np.array([3.0, -1.0, 0.5])
SCALE = np.array([[2.0, 0.0, 0.0], [-0.7, 0.5, 0.0], [0.3, 1.1, 1.5]])  # not that of the prior
SHIFT = np.array([0.5, -1.0, 2.0])


def rotated(values: list[float]) -> Spectral:
    vectors, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((DIM, DIM)))
    return Spectral(jnp.asarray(vectors), jnp.asarray(values, jnp.result_type(float)))


def unit_denoise(precision: Any, shift: Any) -> tuple[np.ndarray, np.ndarray]:
    """By the twin, for the mixture moved to z = scale^-1 (theta - offset)."""
    inverse = np.linalg.inv(SCALE)
    means, covs = (MEANS - OFFSET) @ inverse.T, inverse @ COVS @ inverse.T
    return reference.mixture_denoise(WEIGHTS, means, covs, precision, shift)


@pytest.fixture(scope="module")
def denoiser() -> PriorDenoiser:
    prior = dp.MixturePrior(WEIGHTS, MEANS, COVS)
    return PriorDenoiser.of(prior, jnp.asarray(OFFSET), jnp.asarray(SCALE))


@eqx.filter_jit
def unit_denoised(denoiser: PriorDenoiser, precision: Spectral, shift: jax.Array) -> dp.Gaussian:
    return denoiser.denoise(precision, shift)


@eqx.filter_jit
def at_stages(denoiser: PriorDenoiser, schedule: dp.Schedule, s_t: jax.Array) -> tuple[Any, Any]:
    """`denoise_at` and `mean_at` of every stage, T first."""
    at = lambda stage: (denoiser.denoise_at(stage, s_t), denoiser.mean_at(stage, s_t))  # noqa: E731
    return jax.lax.map(at, denoiser.stages(schedule))


@pytest.mark.parametrize("values", [[0.0, 0, 0], [0.0, 0, 3], [0.2, 1, 40]])
def test_denoised_in_unit_coordinates_as_by_the_twin(
    denoiser: PriorDenoiser, values: list[float]
) -> None:
    precision = rotated(values)
    got = unit_denoised(denoiser, precision, jnp.asarray(SHIFT))
    mean, cov = unit_denoise(precision.matrix(), SHIFT)
    assert_allclose(got.mean, mean, atol=tolerance(1e-9, 2e-4))
    assert_allclose(got.cov, cov, atol=tolerance(1e-9, 2e-4))


def test_a_stage_is_isotropic_evidence(denoiser: PriorDenoiser) -> None:
    schedule, s_t = dp.Schedule.cosine(3), jnp.array([0.5, -1.0, 0.3])
    got, means = at_stages(denoiser, schedule, s_t)
    for index, alpha_bar in enumerate(schedule.alpha_bar[:0:-1]):
        snr, scale = alpha_bar / (1 - alpha_bar), np.sqrt(alpha_bar) / (1 - alpha_bar)
        mean, cov = unit_denoise(snr * np.eye(DIM), scale * np.asarray(s_t))
        assert_allclose(got.mean[index], mean, atol=tolerance(1e-9, 2e-3))
        assert_allclose(means[index], mean, atol=tolerance(1e-9, 2e-3))
        assert_allclose(got.cov[index], cov, atol=tolerance(1e-9, 2e-3))


@both_precisions
@pytest.mark.parametrize("kind", ["gaussian", "mixture", "empirical"])
def test_parameters_far_from_zero(kind: str) -> None:
    """Mean 100 and deviation 0.01: single precision is at its limit of 1e-3 deviations, and nothing
    else is lost to rounding. Numbers are those of single precision, as the twin sees them."""
    rng = np.random.default_rng(2)
    single = lambda x: np.asarray(x, np.float32).astype(np.float64)  # noqa: E731
    means = single(100 + 0.01 * rng.standard_normal((3, DIM)))
    covs = single(1e-5 * np.stack([np.eye(DIM), np.eye(DIM) + 0.5, 2 * np.eye(DIM) - 0.3]))
    atoms, weights = single(100 + 0.01 * rng.standard_normal((40, DIM))), np.array([0.2, 0.3, 0.5])
    prior, twin = {
        "gaussian": (
            dp.GaussianPrior(means[0], covs[1]),
            lambda *e: reference.condition_gaussian(means[0], covs[1], *e),
        ),
        "mixture": (
            dp.MixturePrior(weights, means, covs),
            lambda *e: reference.mixture_denoise(weights, means, covs, *e),
        ),
        "empirical": (
            dp.EmpiricalPrior(atoms),
            lambda *e: reference.empirical_denoise(atoms, *e, np.ones(40)),
        ),
    }[kind]
    diffusion = dp.DiffusionPrior.from_prior(prior)
    scale = np.asarray(diffusion.scale, np.float64)
    offset, inverse = np.asarray(diffusion.offset, np.float64), np.linalg.inv(scale)
    stages = dp.Schedule.log_snr(3)
    s_t = np.array([0.4, -0.3, 0.1])
    got, _ = at_stages(diffusion.denoiser, stages, jnp.asarray(s_t))
    for index, alpha_bar in enumerate(stages.alpha_bar[:0:-1]):
        precision = alpha_bar / (1 - alpha_bar) * inverse.T @ inverse
        shift = np.sqrt(alpha_bar) / (1 - alpha_bar) * inverse.T @ s_t + precision @ offset
        mean, cov = twin(precision, shift)
        assert_allclose(got.mean[index], inverse @ (mean - offset), atol=tolerance(1e-6, 1e-2))
        assert_allclose(got.cov[index], inverse @ cov @ inverse.T, atol=tolerance(1e-6, 2e-2))


def test_unit_coordinates_whiten() -> None:
    offset, scale = unit_coordinates(dp.Gaussian(jnp.asarray(OFFSET), jnp.asarray(COVS[0])))
    assert_allclose(offset, OFFSET)
    assert_allclose(scale @ scale.T, COVS[0], rtol=1e-12)
    assert_allclose(scale, np.tril(scale))


def test_unit_coordinates_of_parameters_that_do_not_vary() -> None:
    """One is constant, one is twice another: finite, and of about the right size."""
    row = np.array([1.0, 0.0, 2.0])
    cov = np.outer(row, row)
    _, scale = unit_coordinates(dp.Gaussian(jnp.asarray(OFFSET), jnp.asarray(cov)))
    assert np.linalg.cond(scale / np.sqrt(np.sum(np.square(scale), axis=1))[:, None]) < 1e5
    assert_allclose(scale @ scale.T, cov, atol=1e-6)


@pytest.mark.parametrize("case", PRIORS, ids=case_name)
def test_from_prior_keeps_the_moments(case: PriorCase) -> None:
    prior = dp.DiffusionPrior.from_prior(case.make())
    mean, cov = case.denoise(np.zeros((DIM, DIM)), np.zeros(DIM))
    assert_allclose(prior.moments().mean, mean, atol=1e-10)
    assert_allclose(prior.moments().cov, cov, atol=1e-10)
    again = dp.DiffusionPrior.from_prior(prior, dp.Schedule.cosine(4))
    assert again.denoiser is prior.denoiser and again.schedule == dp.Schedule.cosine(4)
    assert dp.DiffusionPrior.from_prior(prior) is prior


class Tree(NamedTuple):
    """A prior that is a pytree, though no module."""

    inner: TwelveLines

    @property
    def dim(self) -> int:
        return self.inner.dim

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        return self.inner.sample(key, num_samples)

    def denoise(self, precision: jax.Array, shift: jax.Array) -> dp.Gaussian:
        return self.inner.denoise(precision, shift)

    def moments(self) -> dp.Gaussian:
        return self.inner.moments()


def test_an_object_with_four_members_is_a_prior() -> None:
    mean, cov = np.zeros(2), np.diag([1.0, 4.0])
    inner = TwelveLines(jnp.asarray(mean), jnp.asarray(cov))
    assert as_prior(inner) is inner
    for stranger in (Stranger(mean, cov), Tree(inner)):
        prior = as_prior(stranger)
        assert prior.dim == 2 and prior.sample(jax.random.key(0), 3).shape == (3, 2)
        got = prior.denoise(jnp.eye(2), jnp.ones(2))
        assert_allclose(got.mean, [0.5, 0.8], atol=1e-12)
        assert_allclose(prior.moments().cov, cov)
    assert len(jax.tree.leaves(as_prior(Tree(inner)))) == 2  # numbers may change


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (3, "got int without `dim`, `sample`, `denoise`, `moments`; pass a prior such as"),
        (Stranger, r"got the class Stranger without `dim`; pass"),
        (np.zeros(2), "got ndarray without `dim`, `sample`"),
    ],
)
def test_what_is_no_prior_is_rejected(prior: Any, message: str) -> None:
    expected = "^`prior`: expected an object with `dim`, `sample`, `denoise` and `moments`, "
    for use in (as_prior, dp.best_sampler, dp.EvidenceDPS, dp.DiffusionPrior.from_prior):
        with pytest.raises(ValueError, match=expected + message):
            use(prior)


def test_a_missing_member_is_named() -> None:
    class Half:
        dim = 2

        def sample(self) -> None: ...

        def denoise(self) -> None: ...

    with pytest.raises(ValueError, match="got Half without `moments`; "):
        dp.Bandit(Half(), dp.Linear(1.0))
