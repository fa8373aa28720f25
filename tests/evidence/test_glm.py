"""Families, and Laplace's approximation against the twin and SciPy's optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy import stats

import diffprior as dp
import reference
from cases import (
    GLMS,
    LOGISTIC,
    NEGATIVE_BINOMIAL,
    POISSON,
    LikelihoodCase,
    case_name,
    problem,
    tolerance,
)
from diffprior.evidence.glm import irls, terms_on_host

both_precisions = pytest.mark.float32
every_family = pytest.mark.parametrize("case", GLMS, ids=case_name)
LINKS = (LOGISTIC, POISSON, NEGATIVE_BINOMIAL)
every_link = pytest.mark.parametrize("case", LINKS, ids=case_name)
SIZES = [
    *(pytest.param(3, n, marks=both_precisions) for n in (0, 2, 30)),
    *((9, n) for n in (8, 90)),
]
ETA = np.linspace(-30, 30, 61)


@both_precisions
@every_family
def test_family_is_the_twins(case: LikelihoodCase) -> None:
    family, rtol = case.make(), tolerance(1e-12, 1e-4)
    both = jax.jit(lambda y, eta: (family.mean(eta), *family.slopes(y, eta)))
    for y in (0.0, 1.0):
        mean, *derivatives = both(np.full_like(ETA, y), ETA)
        assert_allclose(mean, reference.family_mean(ETA, case.family), rtol=rtol)
        twins = reference.family_derivatives(y, ETA, case.family, case.dispersion)
        for ours, twin in zip(derivatives, twins, strict=True):
            assert_allclose(ours, twin, rtol=rtol, atol=tolerance(1e-12, 1e-5))


@both_precisions
@pytest.mark.parametrize("case", GLMS[1:], ids=case_name)
def test_numpy_arrays_give_the_same_numpy_arrays(case: LikelihoodCase) -> None:
    family = case.make()
    terms = terms_on_host(family)
    compiled = jax.jit(lambda y, eta: (family.log_density(y, eta), *family.slopes(y, eta)))
    for y in (0.0, 1.0):
        rewards = np.full_like(ETA, y)
        ours = (terms.log_density(rewards, ETA), *terms.slopes(rewards, ETA))
        for found, expected in zip(ours, compiled(rewards, ETA), strict=True):
            assert isinstance(found, np.ndarray)
            rtol = tolerance(1e-12, 1e-4)
            assert_allclose(found, expected, rtol=rtol, atol=tolerance(1e-12, 1e-4))


@every_family
def test_score_and_curvature_are_derivatives(case: LikelihoodCase) -> None:
    """Also where they are overridden, and beyond where Poisson is continued."""
    family, eta = case.make(), jnp.linspace(-40.0, 40.0, 81)
    for y in (0.0, 1.0):
        density = lambda eta, y=y: family.log_density(jnp.asarray(y), eta)  # noqa: E731
        score, curvature = jax.vmap(jax.grad(density)), jax.vmap(jax.grad(jax.grad(density)))
        rewards = jnp.full_like(eta, y)
        both = jax.jit(lambda y, x, s=score, c=curvature: (
            family.slopes(y, x), (s(x), -c(x))
        ))  # fmt: skip
        for ours, theirs in zip(*both(rewards, eta), strict=True):
            assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)


def test_curvature_may_depend_on_the_reward() -> None:
    family, eta = dp.NegativeBinomial(2.5), jnp.zeros(2)
    curvature = np.asarray(family.slopes(jnp.array([0.0, 10.0]), eta)[1])
    assert curvature[1] > 4 * curvature[0]


@pytest.mark.parametrize("dispersion", [0.3, 2.5, 1e4])
def test_negative_binomial_is_that_of_scipy(dispersion: float) -> None:
    for eta in (-3.0, 0.4, 2.5):
        theirs = stats.nbinom(dispersion, dispersion / (dispersion + np.exp(eta)))
        assert_allclose(theirs.var(), np.exp(eta) + np.exp(2 * eta) / dispersion)
        for y in (0.0, 1.0, 4.0, 60.0):
            got = dp.NegativeBinomial(dispersion).observe([[1.0]], [y])
            assert_allclose(got.log_likelihood(jnp.asarray([eta])), theirs.logpmf(y), rtol=1e-9)


@pytest.mark.parametrize("eta", [-3.0, 0.4, 2.5])
def test_log_likelihood_is_a_log_probability(eta: float) -> None:
    theta, rtol = jnp.asarray([eta]), 1e-12
    for y in (0.0, 1.0, 4.0):
        got = dp.Poisson().observe([[1.0]], [y]).log_likelihood(theta)
        assert_allclose(got, stats.poisson(np.exp(eta)).logpmf(y), rtol=rtol)
        got = dp.Identity(0.3).observe([[1.0]], [y]).log_likelihood(theta)
        assert_allclose(got, stats.norm(eta, 0.3).logpdf(y), rtol=rtol)
    for y in (0.0, 1.0):
        got = dp.Logistic().observe([[1.0]], [y]).log_likelihood(theta)
        assert_allclose(got, stats.bernoulli(1 / (1 + np.exp(-eta))).logpmf(y), rtol=rtol)


@every_link
@pytest.mark.parametrize(("dim", "num_rows"), SIZES)
def test_condition_is_algorithm_1(case: LikelihoodCase, dim: int, num_rows: int) -> None:
    p = problem(dim + num_rows, dim, num_rows, case)
    posterior, log_evidence = p.evidence(case.make()).condition(p.gaussian())
    mean, cov = reference.irls(*p.for_twin(), case.family, case.dispersion)
    atol = tolerance(1e-10, 1e-4) * np.max(np.abs(mean))
    assert_allclose(posterior.mean, mean, atol=atol)
    assert_allclose(posterior.cov, cov, atol=tolerance(1e-10, 1e-4) * np.max(cov))
    expected = reference.laplace_log_evidence(*p.for_twin(), case.family, case.dispersion)
    assert_allclose(
        log_evidence, expected, rtol=tolerance(1e-10, 1e-4), atol=tolerance(1e-12, 1e-4)
    )


@both_precisions
@pytest.mark.parametrize(
    ("case", "dim", "num_rows"),
    [(LOGISTIC, 3, 10_000), (POISSON, 64, 640)],
    ids=["logistic", "poisson"],
)
def test_large_histories_end_where_the_gradient_is_zero(
    case: LikelihoodCase, dim: int, num_rows: int
) -> None:
    """The posterior is strictly concave, so this is the mode; the twin would take minutes."""
    p = problem(dim, dim, num_rows, case)
    posterior, _ = p.evidence(case.make()).condition(p.gaussian())
    mean = np.asarray(posterior.mean, dtype=np.float64)
    eta, prior_precision = p.features @ mean, np.linalg.inv(p.cov)
    residual = p.rewards - reference.family_mean(eta, case.family)
    gradient = p.features.T @ residual - prior_precision @ (mean - p.mean)
    weighted = p.features * reference.family_slope(eta, case.family)[:, None]
    cov = np.linalg.inv(prior_precision + p.features.T @ weighted)
    assert np.max(np.abs(cov @ gradient)) < tolerance(1e-10, 1e-4)
    assert_allclose(posterior.cov, cov, atol=tolerance(1e-10, 1e-4) * np.max(cov))


@every_link
@pytest.mark.parametrize(("dim", "num_rows"), [(3, 50)])
def test_mode_is_that_of_scipys_optimizer(case: LikelihoodCase, dim: int, num_rows: int) -> None:
    p = problem(7, dim, num_rows, case)
    mode = reference.map_by_optimizer(*p.for_twin(), case.family, case.dispersion)
    posterior, _ = p.evidence(case.make()).condition(p.gaussian())
    assert_allclose(posterior.mean, mode, rtol=0, atol=1e-6)


@pytest.mark.parametrize("noise_std", [1e-2, 0.3, 1.0, 20.0])
@pytest.mark.parametrize("num_rows", [0, 3, 60])
def test_identity_link_is_the_linear_model(noise_std: float, num_rows: int) -> None:
    p = problem(3, 3, num_rows)
    expected, expected_log = p.evidence(dp.Linear(noise_std)).condition(p.gaussian())
    posterior, log_evidence = p.evidence(dp.Identity(noise_std)).condition(p.gaussian())
    ratio = 1 + np.sum((p.features @ np.linalg.cholesky(p.cov)) ** 2) / noise_std**2
    atol = 20 * ratio * np.finfo(posterior.mean.dtype).eps
    assert_allclose(posterior.mean, expected.mean, atol=atol)
    assert_allclose(posterior.cov, expected.cov, atol=atol)
    assert_allclose(log_evidence, expected_log, rtol=tolerance(1e-9, 1e-4), atol=atol)


@every_link
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), num_rows=st.integers(0, 60))
def test_mode_over_random_problems(case: LikelihoodCase, seed: int, num_rows: int) -> None:
    p = problem(seed, 3, num_rows, case)
    mean, cov = reference.irls(*p.for_twin(), case.family, case.dispersion)
    posterior, log_evidence = p.evidence(case.make()).condition(p.gaussian())
    assert_allclose(posterior.mean, mean, atol=1e-9)
    assert_allclose(posterior.cov, cov, atol=1e-9)
    assert np.isfinite(log_evidence)


def test_mode_does_not_depend_on_the_start() -> None:
    p = problem(5, 3, 30, LOGISTIC)
    evidence = p.evidence(LOGISTIC.make())
    expected, expected_log = evidence.condition(p.gaussian())
    for start in (jnp.full(3, 4.0), jnp.asarray([-6.0, 6.0, 0.0])):
        posterior, log_evidence = evidence.condition(p.gaussian(), start)
        assert_allclose(posterior.mean, expected.mean, atol=1e-10)
        assert_allclose(log_evidence, expected_log, atol=1e-10)


def test_a_benign_problem_takes_few_steps() -> None:
    p = problem(6, 3, 30, LOGISTIC)
    result = irls(p.gaussian(), p.evidence(dp.Logistic()))
    assert result.converged and result.num_iterations <= 8
