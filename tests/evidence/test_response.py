"""Responses: derivatives by finite differences, expansions in closed form, posteriors on grids."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import DIM, LOGISTIC, case_name, problem, tolerance
from chains import assert_near
from responses import CASES, ResponseCase, history

KEY = jax.random.key(5)
both_precisions = pytest.mark.float32
each_function = pytest.mark.parametrize("case", CASES, ids=case_name)
MEAN, COV = np.array([0.7, 1.2]), np.array([[0.3, 0.1], [0.1, 0.4]])


def gradient(function, theta: np.ndarray) -> np.ndarray:
    """Central differences of a function of float64."""
    steps = 1e-5 * np.eye(len(theta))
    return np.stack([(function(theta + s) - function(theta - s)) / 2e-5 for s in steps], axis=-1)


@each_function
def test_gradient_and_curvature_are_those_of_finite_differences(case: ResponseCase) -> None:
    """The Gauss-Newton curvature: of the family, along the slope of eta."""
    for family in ("gaussian", "logistic"):
        h = history(case, 7, family)
        theta = np.resize([0.4, 1.1, -0.6], case.dim)
        found = h.evidence().expand_at(jnp.asarray(theta))
        assert_allclose(found.value, h.log_likelihood(theta), rtol=1e-9)
        expected = gradient(h.log_likelihood, theta)
        assert_allclose(found.score, expected, rtol=1e-6, atol=1e-6)
        slopes = gradient(h.eta, theta)
        etas = h.eta(theta)
        _, curvatures = reference.family_derivatives(h.rewards, etas, family, h.dispersion)
        expected = slopes.T @ (curvatures[:, None] * slopes)
        assert_allclose(found.precision, expected, rtol=1e-6, atol=1e-6)


@each_function
def test_a_narrow_belief_gives_the_expansion_at_a_point(case: ResponseCase) -> None:
    evidence, theta = history(case, 7, "logistic").evidence(), jnp.full(case.dim, 0.8)
    at = evidence.expand_at(theta)
    for width in (0.0, 1e-6):
        belief = dp.Gaussian(theta, width**2 * jnp.eye(case.dim))
        precision, shift = evidence.expand(belief)
        assert_allclose(precision, at.precision, rtol=1e-6, atol=1e-8)
        assert_allclose(shift - precision @ theta, at.score, rtol=1e-6, atol=1e-8)
        assert_allclose(evidence.expected_log_likelihood(belief), at.value, rtol=1e-6)


def squared(theta: jax.Array, x: jax.Array) -> jax.Array:
    return (x[0] * theta[0]) ** 2


@both_precisions
def test_expansion_of_a_square_in_closed_form() -> None:
    """Of (x theta)^2 under N(m, v): slope 2 x^2 m, and a residual of variance 2 (x^2 v)^2."""
    x, y, (m, v, noise) = np.array([0.5, 1.0, -1.3]), np.array([0.2, 1.5, 3.0]), (0.9, 0.3, 0.7)
    evidence = dp.Response(squared, dp.Linear(noise)).observe(x[:, None], y)
    precision, shift = evidence.expand(dp.Gaussian([m], [[v]]))
    slope, total = 2 * x**2 * m, noise**2 + 2 * (x**2 * v) ** 2
    score = np.sum(slope * (y - x**2 * (m**2 + v)) / total)
    expected = np.sum(slope**2 / total)
    rtol = tolerance(1e-10, 1e-4)
    assert_allclose(precision[0, 0], expected, rtol=rtol)
    assert_allclose(shift[0], expected * m + score, rtol=rtol)


@pytest.mark.parametrize("dim", [2, DIM, 6])
def test_masses_of_sigma_points_give_the_moments(dim: int) -> None:
    from diffprior.evidence.response import sigma_points

    tril = np.tril(np.random.default_rng(dim).standard_normal((dim, dim)))
    points, masses = map(np.asarray, sigma_points(jnp.ones(dim), jnp.asarray(tril)))
    assert np.all(masses >= 0)
    assert_allclose(masses @ points, np.ones(dim))
    assert_allclose((points - 1).T @ (masses[:, None] * (points - 1)), tril @ tril.T, atol=1e-12)


@each_function
def test_mode_is_stationary(case: ResponseCase) -> None:
    h = history(case, 20, "gaussian")
    prior = dp.Gaussian(jnp.asarray(case.mean), jnp.asarray(case.cov))
    evidence = h.evidence()
    posterior, log_evidence = evidence.condition(prior)
    assert np.isfinite(log_evidence)
    pull = np.linalg.solve(case.cov, case.mean - np.asarray(posterior.mean))
    left = gradient(h.log_likelihood, np.asarray(posterior.mean)) + pull
    assert np.max(np.abs(np.linalg.cholesky(posterior.cov).T @ left)) < 1e-5
    expected = np.linalg.inv(np.linalg.inv(case.cov) + evidence.expand_at(posterior.mean).precision)
    assert_allclose(posterior.cov, expected, rtol=1e-8, atol=1e-10)


@both_precisions
def test_rows_that_do_not_count_may_have_no_response() -> None:
    """Log prices of rows that are not used are minus infinity."""
    case = next(case for case in CASES if case.name == "power-law")
    h = history(case, 3, "gaussian")
    evidence, belief = h.evidence().with_capacity(200), dp.Gaussian(MEAN, COV)
    full = evidence.rows.capacity
    assert full >= 200
    results = (
        evidence.expand(belief),
        evidence.condition(belief),
        evidence.log_likelihood(belief.mean),
        evidence.expected_log_likelihood(belief),
        evidence.squared_error(belief.mean),
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(results))


@pytest.mark.parametrize(
    ("name", "family"),
    [("emax", "gaussian"), ("cosine", "logistic"), ("emax", "logistic"), ("power-law", "logistic")],
)
def test_exact_draws_have_the_moments_of_a_grid(name: str, family: str) -> None:
    """The estimates of p(h) are unbiased, however poor the expansion."""
    case = next(case for case in CASES if case.name == name)
    h = history(case, 5, family)
    prior = dp.GaussianPrior(case.mean, case.cov)
    mean, cov, log_evidence = h.on_a_grid()
    draws, info = dp.Exact(prior).sample_many(KEY, h.evidence(), 8192)
    assert_near(np.exp(np.asarray(info.log_evidence) - log_evidence), 1.0, allowance=1e-4)
    centered = (np.asarray(draws) - mean) / np.sqrt(np.diagonal(cov))
    assert_near(centered, 0.0, allowance=0.03)
    assert_near(centered**2, 1.0, allowance=0.06)


def test_particles_have_the_moments_of_a_grid() -> None:
    case = next(case for case in CASES if case.name == "emax")
    h = history(case, 5, "logistic")
    prior = dp.DiffusionPrior.from_prior(dp.GaussianPrior(case.mean, case.cov))
    mean, cov, log_evidence = h.on_a_grid()
    sampler = dp.TwistedSMC(prior, num_particles=16, steps=8)
    draws, info = sampler.sample_many(KEY, h.evidence(), 1024)
    assert_near(np.exp(np.asarray(info.log_evidence) - log_evidence), 1.0, allowance=0.01)
    centered = (np.asarray(draws) - mean) / np.sqrt(np.diagonal(cov))
    assert_near(centered, 0.0, allowance=0.05)
    assert_near(centered**2, 1.0, allowance=0.06)


def test_a_poor_expansion_draws_a_warning() -> None:
    """A wave of many periods under the prior, and no weights at all."""
    wave = dp.Response(lambda theta, x: jnp.cos(9.0 * x @ theta), dp.Linear(0.1))
    evidence = wave.observe(np.random.default_rng(0).standard_normal((8, 2)), np.full(8, 0.5))
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    with pytest.warns(dp.ExpansionWarning, match="TwistedSMC with more"):
        dp.Exact(prior).sample_many(KEY, evidence, 8)
    with pytest.warns(dp.ExpansionWarning, match="no weights correct"):
        dp.EvidenceDPS(prior, steps=2).sample_many(KEY, evidence, 8)


def inner(theta: jax.Array, x: jax.Array) -> jax.Array:
    return x @ theta


def test_other_functions_and_families_are_rejected() -> None:
    with pytest.raises(ValueError, match=r"`family`: .*got NoneType"):
        dp.Response(inner, None)
    with pytest.raises(ValueError, match=r"`family`: expected known noise"):
        dp.Response(inner, dp.Linear())
    likelihood = dp.Response(inner, dp.Logistic(), dim=2, num_features=2)
    with pytest.raises(ValueError, match=r"`dim`, `num_features`: expected both"):
        dp.Response(inner, dp.Logistic(), num_features=2)
    with pytest.raises(ValueError, match=r"`dim`: expected 2 parameters"):
        likelihood.observe(dim=3)
    with pytest.raises(ValueError, match=r"`features`: expected shape \(n, 2\)"):
        likelihood.observe(np.ones((4, 3)), np.ones(4))
    with pytest.raises(ValueError, match=r"`rewards`: expected 0 or 1"):
        likelihood.observe(np.ones((4, 2)), np.full(4, 0.5))


def test_a_file_holds_a_name_and_no_code() -> None:
    p = problem(3, DIM, 6, LOGISTIC)
    unnamed = dp.Response(inner, dp.Logistic()).observe(p.features, p.rewards)
    with pytest.raises(ValueError, match="pass Response"):
        unnamed.to_bytes()
    named = dp.Response(inner, dp.Logistic(), name="tests.inner")
    assert dp.load_bytes(named.to_bytes()).function == named.function
    blob = named.observe(p.features, p.rewards).to_bytes()
    theta = jnp.asarray(p.mean)
    found = dp.load_bytes(blob)
    assert_allclose(found.log_likelihood(theta), unnamed.log_likelihood(theta))
    program = "import sys, diffprior; diffprior.load_bytes(sys.stdin.buffer.read())"
    elsewhere = subprocess.run([sys.executable, "-c", program], input=blob, capture_output=True)
    message = elsewhere.stderr.decode()
    assert "response function 'tests.inner' that is not defined here" in message, message
    assert "save it again" not in message
