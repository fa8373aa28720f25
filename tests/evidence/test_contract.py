"""The contract of likelihoods and evidence, over all rows of `cases.LIKELIHOODS`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import (
    DIM,
    LIKELIHOODS,
    NOISE_STD,
    RESPONSES,
    LikelihoodCase,
    Problem,
    case_name,
    problem,
    tolerance,
)
from statistic import assert_mean

pytestmark = pytest.mark.parametrize("case", [*LIKELIHOODS, *RESPONSES], ids=case_name)
both_precisions = pytest.mark.float32
N = 30


def leaves(tree: object) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(got: object, expected: object, double: float = 1e-11, single: float = 1e-4) -> None:
    atol = tolerance(double, single)
    for a, b in zip(leaves(got), leaves(expected), strict=True):
        assert_allclose(a, b, rtol=atol, atol=atol)


def test_vmap_equals_a_loop(case: LikelihoodCase) -> None:
    problems = [problem(seed, DIM, N, case) for seed in range(2)]
    pairs = [(p.evidence(case.make()), p.gaussian()) for p in problems]
    batch = jax.tree.map(lambda *rows: jnp.stack(rows), *pairs)
    together = jax.vmap(lambda e, g: e.condition(g))(*batch)
    for i, (evidence, gaussian) in enumerate(pairs):
        alone = evidence.condition(gaussian)
        assert_same(jax.tree.map(lambda leaf, i=i: leaf[i], together), alone)


@both_precisions
def test_dtype_is_the_working_precision(case: LikelihoodCase) -> None:
    p = problem(1, DIM, N, case)
    evidence = p.evidence(case.make())
    results = evidence.condition(p.gaussian()), evidence.expand(p.gaussian())
    assert {leaf.dtype for leaf in leaves(results)} == {jnp.result_type(float)}


def test_all_kinds_of_numbers_are_welcome(case: LikelihoodCase) -> None:
    rng, likelihood = np.random.default_rng(2), case.make()
    features, rewards = rng.integers(-2, 3, (N, DIM)), rng.integers(0, 2, N)
    expected = likelihood.observe(features.astype(float), rewards.astype(float))
    for convert in (np.asarray, np.float32, np.int8, jnp.asarray, np.ndarray.tolist):
        assert_same(likelihood.observe(convert(features), convert(rewards)), expected)
    assert_same(
        likelihood.observe(dim=DIM).append([1, 0, 2], 1).append(np.int8([1, 0, 2]), True),
        likelihood.observe([[1.0, 0.0, 2.0]] * 2, [1.0, 1.0]),
    )


def test_no_data_gives_back_the_prior(case: LikelihoodCase) -> None:
    p = problem(3, DIM, 0, case)
    for evidence in (case.make().observe(dim=DIM), p.evidence(case.make())):
        posterior, log_evidence = evidence.condition(p.gaussian())
        assert_same(posterior, p.gaussian())
        assert_allclose(log_evidence, 0.0, atol=tolerance(1e-14, 1e-6))
        assert_allclose(evidence.log_likelihood(p.gaussian().mean), 0.0, atol=0)


def test_the_order_of_arrival_does_not_matter(case: LikelihoodCase) -> None:
    p = problem(4, DIM, N, case)
    expected = p.evidence(case.make()).condition(p.gaussian())
    single = case.make().observe(dim=DIM)
    for phi, y in zip(p.features, p.rewards, strict=True):
        single = single.append(phi, y)
    parts = case.make().observe(dim=DIM)
    for rows in np.split(np.arange(N)[::-1], [1, 7]):
        parts = parts.extend(p.features[rows], p.rewards[rows])
    for evidence in (single, parts):
        assert_same(evidence.condition(p.gaussian()), expected)


@settings(max_examples=6)
@given(st.lists(st.integers(0, 3), min_size=8, max_size=8))
def test_a_weight_counts_repetitions(case: LikelihoodCase, counts: list[int]) -> None:
    p = problem(5, DIM, 8, case)
    rows = np.repeat(np.arange(8), counts)
    repeated = case.make().observe(dim=DIM).extend(p.features[rows], p.rewards[rows])
    weighted = case.make().observe(p.features, p.rewards, weights=counts)
    assert_same(weighted.condition(p.gaussian()), repeated.condition(p.gaussian()))


@both_precisions
def test_fractional_weights_are_the_twins(case: LikelihoodCase) -> None:
    p, weights = problem(6, DIM, N, case), np.linspace(0, 2, N)
    evidence = case.make().observe(p.features, p.rewards, weights=weights)
    got = evidence.condition(p.gaussian())
    twin = (*p.for_twin(), case.family, case.dispersion, weights)
    mean, cov = reference.irls(*twin)
    assert_same(got, (mean, cov, reference.laplace_log_evidence(*twin)), double=1e-10)


def test_temperature_divides_the_log_likelihood(case: LikelihoodCase) -> None:
    p = problem(7, DIM, N, case)
    evidence, theta = p.evidence(case.make()), p.gaussian().mean
    assert_same(evidence.temper(0.5).log_likelihood(theta), 2 * evidence.log_likelihood(theta))
    twice = evidence.extend(p.features, p.rewards)
    assert_same(evidence.temper(0.5).condition(p.gaussian()), twice.condition(p.gaussian()))


def test_expansion_at_a_point_is_that_of_the_log_likelihood(case: LikelihoodCase) -> None:
    p = problem(8, DIM, N, case)
    evidence, theta = p.evidence(case.make()), p.gaussian().mean
    precision, shift = evidence.expand(dp.Gaussian.point(theta))
    twin = reference.glm_expansion(p.mean, p.features, p.rewards, case.family, case.dispersion)
    assert_same((precision, shift), twin)
    assert_same(shift - precision @ theta, jax.jacfwd(evidence.log_likelihood)(theta))
    hessian = jax.jacfwd(jax.jacfwd(evidence.log_likelihood))(theta)
    assert_same(precision, -hessian)


@both_precisions
def test_expansion_under_a_belief_is_an_average(case: LikelihoodCase) -> None:
    """Of score and curvature over each row's own normal predictor, by the trapezoidal rule; rows
    with weights, and a belief narrow enough for three nodes."""
    p, weights = problem(10, DIM, N, case), np.linspace(0, 2, N)
    belief = dp.Gaussian(p.gaussian().mean, 0.02 * p.gaussian().cov)
    evidence = case.make().observe(p.features, p.rewards, weights=weights)
    rows = (p.features, p.rewards, case.family, case.dispersion, weights)
    *twin, fit = reference.expected_expansion(p.mean, 0.02 * p.cov, *rows)
    assert_same(evidence.expand(belief), tuple(twin), double=3e-4, single=1e-3)
    assert_allclose(evidence.expected_log_likelihood(belief), fit, rtol=1e-5)


def test_expansion_under_a_belief_differs_from_that_at_its_mean(case: LikelihoodCase) -> None:
    p = problem(11, DIM, N, case)
    evidence = p.evidence(case.make())
    wide = evidence.expand(p.gaussian())
    narrow = evidence.expand(dp.Gaussian.point(p.gaussian().mean))
    same = case.family == "gaussian"
    assert np.allclose(wide[0], narrow[0], rtol=1e-3) == same


def test_squared_error_and_its_gradient(case: LikelihoodCase) -> None:
    p = problem(12, DIM, N, case)
    evidence, theta = p.evidence(case.make()), p.gaussian().mean
    residuals = p.rewards - reference.family_mean(p.features @ p.mean, case.family)
    value, gradient = evidence.squared_error(theta)
    assert_same(value, np.sum(residuals**2), double=1e-10)
    assert_same(gradient, jax.jacfwd(lambda t: evidence.squared_error(t)[0])(theta), double=1e-9)
    twice = evidence.temper(0.5)  # every row counted twice, in the gradient too
    for found, once in zip(twice.squared_error(theta), (value, gradient), strict=True):
        assert_same(found, 2.0 * np.asarray(once), double=1e-9)


def test_rewards_are_drawn_from_the_log_density(case: LikelihoodCase) -> None:
    """Independent ones; of counts and outcomes how often each comes, of the others the moments."""
    likelihood, eta = case.make(), np.array([-1.0, 0.3, 1.2])
    draws = np.asarray(
        likelihood.sample(jax.random.key(3), jnp.tile(jnp.asarray(eta), (20_000, 1)))
    )
    likelihood.check_rewards(draws.reshape(-1))
    assert_mean(draws, reference.family_mean(eta, case.family))
    correlations = np.corrcoef(draws.T)[np.triu_indices(3, 1)]
    assert np.max(np.abs(correlations)) < 5 / np.sqrt(20_000)
    if case.family == "gaussian":
        assert_mean((draws - eta) ** 2, np.full(3, NOISE_STD**2))
        return
    for y in range({"logistic": 2, "zero-inflated": 1}.get(case.family, 4)):
        chances = np.exp(likelihood.log_density(jnp.full(3, float(y)), jnp.asarray(eta)))
        assert_mean(draws == y, chances)


def test_no_key_draws_two_numbers(case: LikelihoodCase) -> None:
    likelihood = case.make()
    with jax.debug_key_reuse(True):
        jax.eval_shape(lambda key: likelihood.sample(key, jnp.zeros(3)), jax.random.key(0))


def test_log_density_is_the_twins(case: LikelihoodCase) -> None:
    y, eta = np.meshgrid(
        np.arange(2.0 if case.family == "logistic" else 30.0), np.linspace(-9, 9, 19)
    )
    got = case.make().log_density(jnp.asarray(y), jnp.asarray(eta))
    expected = reference.family_log_density(y, eta, case.family, case.dispersion)
    assert_allclose(got, expected, rtol=tolerance(1e-10, 1e-5), atol=tolerance(1e-10, 1e-4))


def test_every_row_of_every_block_counts_once(case: LikelihoodCase) -> None:
    for num_rows in (0, 1, 63, 64, 65, 129, 200):
        p = problem(13, DIM, num_rows, case)
        evidence, mean = case.make().empty(DIM, capacity=256), p.gaussian().mean
        evidence = evidence.extend(p.features, p.rewards)
        expected = reference.log_likelihood(*p_rows(p, case))
        assert_allclose(evidence.log_likelihood(mean), expected, rtol=1e-10, atol=1e-10)
        twin = reference.glm_expansion(p.mean, p.features, p.rewards, case.family, case.dispersion)
        assert_same(evidence.expand(dp.Gaussian.point(mean)), twin, double=1e-10)


def p_rows(p: Problem, case: LikelihoodCase) -> tuple:
    return p.mean, p.features, p.rewards, case.family, case.dispersion


def test_temperature_may_be_traced(case: LikelihoodCase) -> None:
    p = problem(14, DIM, N, case)
    evidence, theta = p.evidence(case.make()), p.gaussian().mean
    traced = jax.jit(lambda t: evidence.temper(t).log_likelihood(theta))
    assert_same(traced(jnp.asarray(0.5)), 2 * evidence.log_likelihood(theta))


def test_reparameterized_evidence_is_the_same_function(case: LikelihoodCase) -> None:
    p = problem(9, DIM, N, case)
    evidence, rng = p.evidence(case.make()), np.random.default_rng(9)
    offset, z = jnp.asarray(rng.standard_normal(DIM)), jnp.asarray(rng.standard_normal(DIM))
    scale = jnp.asarray(np.tril(rng.standard_normal((DIM, DIM))))
    local = evidence.reparameterize(offset, scale)
    assert_same(local.log_likelihood(z), evidence.log_likelihood(offset + scale @ z))
    again = local.reparameterize(z, scale)
    expected = evidence.reparameterize(offset + scale @ z, scale @ scale)
    assert_same(again.log_likelihood(offset), expected.log_likelihood(offset))
