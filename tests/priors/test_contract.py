"""The contract of priors, over all rows of `cases.PRIORS`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
import reference
from cases import (
    DIM,
    LINEAR,
    LOGISTIC,
    PRIORS,
    PriorCase,
    case_name,
    problem,
    tolerance,
)
from statistic import assert_moments

pytestmark = pytest.mark.parametrize("case", PRIORS, ids=case_name)
both_precisions = pytest.mark.float32


def natural(seed: int, rank: int = DIM) -> tuple[np.ndarray, np.ndarray]:
    """Natural parameters of Gaussian evidence, of a rank that may be too small to invert."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((rank, DIM))
    return rows.T @ rows, rows.T @ rng.standard_normal(rank)


def assert_gaussian(got: dp.Gaussian, mean: np.ndarray, cov: np.ndarray) -> None:
    atol = tolerance(1e-11, 1e-4)
    assert_allclose(got.mean, mean, atol=atol)
    assert_allclose(got.cov, cov, atol=atol)


@both_precisions
@pytest.mark.parametrize("rank", [0, 1, DIM])
def test_denoise_is_the_twins(case: PriorCase, rank: int) -> None:
    precision, shift = natural(rank, rank)
    assert_gaussian(case.make().denoise(precision, shift), *case.denoise(precision, shift))


@pytest.mark.parametrize("alpha_bar", [0.999, 0.5, 0.01])
def test_a_noisy_sample_is_isotropic_evidence(case: PriorCase, alpha_bar: float) -> None:
    """By Tweedie: the score of the diffused prior gives the same mean as `denoise`."""
    s_t = np.array([0.3, -1.0, 0.7])
    snr, shift = alpha_bar / (1 - alpha_bar), np.sqrt(alpha_bar) / (1 - alpha_bar) * s_t
    denoised = case.make().denoise(snr * np.eye(DIM), shift)
    log_mass = lambda q: case.make().posterior(  # noqa: E731
        dp.LinearEvidence.from_natural(snr * jnp.eye(DIM), q)
    )[1]
    mean = jax.grad(log_mass)(jnp.asarray(shift))
    assert_allclose(denoised.mean, mean, atol=tolerance(1e-10, 1e-3))


def test_covariance_is_the_derivative_of_the_mean(case: PriorCase) -> None:
    prior, (precision, shift) = case.make(), map(jnp.asarray, natural(1))
    jacobian = jax.jacobian(lambda q: prior.denoise(precision, q).mean)(shift)
    assert_allclose(prior.denoise(precision, shift).cov, jacobian, atol=tolerance(1e-10, 1e-4))


def test_no_evidence_leaves_the_moments(case: PriorCase) -> None:
    prior = case.make()
    moments = prior.moments()
    assert_gaussian(prior.denoise(np.zeros((DIM, DIM)), np.zeros(DIM)), moments.mean, moments.cov)


def test_linear_evidence_is_gaussian_evidence(case: PriorCase) -> None:
    prior, p = case.make(), problem(2, DIM, 8)
    posterior, _ = prior.posterior(p.evidence(dp.Linear(0.6)))
    expected = prior.denoise(*reference.linear_evidence(p.features, p.rewards, 0.6))
    assert_gaussian(posterior.moments(), expected.mean, expected.cov)


def test_evidence_arrives_in_any_order(case: PriorCase) -> None:
    """p(h1, h2) = p(h1) p(h2 | h1): the log evidences add up, and the posteriors agree."""
    prior, p = case.make(), problem(3, DIM, 10)
    first, second = (dp.Linear(0.6).observe(p.features[i::2], p.rewards[i::2]) for i in (0, 1))
    between, log_first = prior.posterior(first)
    posterior, log_second = between.posterior(second)
    together, log_evidence = prior.posterior(p.evidence(dp.Linear(0.6)))
    assert_gaussian(posterior.moments(), together.moments().mean, together.moments().cov)
    assert_allclose(log_first + log_second, log_evidence, rtol=tolerance(1e-10, 1e-4))


@both_precisions
def test_samples_have_the_moments(case: PriorCase) -> None:
    prior = case.make()
    draws = prior.sample(jax.random.key(0), 20_000)
    mean, cov = case.denoise(np.zeros((DIM, DIM)), np.zeros(DIM))
    assert_moments(draws, mean, cov)


def test_same_key_same_samples(case: PriorCase) -> None:
    prior = case.make()
    draws = [prior.sample(jax.random.key(seed), 5) for seed in (0, 0, 1)]
    assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])
    assert draws[0].shape == (5, DIM) and draws[0].dtype == jnp.result_type(float)


def test_vmap_equals_a_loop(case: PriorCase) -> None:
    prior, rows = case.make(), [natural(seed) for seed in range(4)]
    precisions, shifts = (jnp.asarray(np.stack(column)) for column in zip(*rows, strict=True))
    batch = jax.vmap(prior.denoise)(precisions, shifts)
    for i, (precision, shift) in enumerate(rows):
        alone = prior.denoise(precision, shift)
        assert_gaussian(dp.Gaussian(batch.mean[i], batch.cov[i]), alone.mean, alone.cov)


@pytest.mark.parametrize("likelihood", [LINEAR, LOGISTIC], ids=case_name)
def test_every_likelihood_gives_a_posterior(case: PriorCase, likelihood: object) -> None:
    p = problem(6, DIM, 12, likelihood)
    posterior, log_evidence = case.make().posterior(p.evidence(likelihood.make()))
    assert type(posterior) is type(case.make())
    dtypes = {leaf.dtype for leaf in jax.tree.leaves((posterior, log_evidence))}
    assert dtypes == {jnp.result_type(float)}
    assert np.isfinite(log_evidence) and np.all(np.isfinite(posterior.moments().cov))
