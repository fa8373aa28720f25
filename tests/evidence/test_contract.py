"""What every likelihood and its evidence must do, over all rows of `cases.LIKELIHOODS`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import DIM, LIKELIHOODS, LikelihoodCase, case_name, problem, tolerance

pytestmark = pytest.mark.parametrize("case", LIKELIHOODS, ids=case_name)
both_precisions = pytest.mark.float32
N = 30


def leaves(tree: object) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_same(got: object, expected: object, double: float = 1e-11, single: float = 1e-4) -> None:
    atol = tolerance(double, single)
    for a, b in zip(leaves(got), leaves(expected), strict=True):
        assert_allclose(a, b, rtol=atol, atol=atol)


def test_jit_equals_eager(case: LikelihoodCase) -> None:
    p = problem(0, DIM, N, case)
    evidence = p.evidence(case.make())
    with jax.disable_jit():
        eager = evidence.condition(p.gaussian())
    assert_same(evidence.condition(p.gaussian()), eager)


def test_vmap_equals_a_loop(case: LikelihoodCase) -> None:
    problems = [problem(seed, DIM, N, case) for seed in range(4)]
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
    results = evidence.condition(p.gaussian()), evidence.expand(p.gaussian().mean)
    assert {leaf.dtype for leaf in leaves(results)} == {jnp.result_type(float)}


def test_all_kinds_of_numbers_are_welcome(case: LikelihoodCase) -> None:
    rng, likelihood = np.random.default_rng(2), case.make()
    features, rewards = rng.integers(-2, 3, (N, DIM)), rng.integers(0, 2, N)
    expected = likelihood.observe(features.astype(float), rewards.astype(float))
    for convert in (np.asarray, np.float32, np.int8, jnp.asarray, np.ndarray.tolist):
        assert_same(likelihood.observe(convert(features), convert(rewards)), expected)
    appended = likelihood.observe(dim=DIM)
    for phi, y in zip(features.tolist(), rewards.tolist(), strict=True):
        appended = appended.append(phi, y)
    assert_same(
        appended.condition(dp.Gaussian.standard(DIM)), expected.condition(dp.Gaussian.standard(DIM))
    )


@both_precisions
def test_no_data_gives_back_the_prior(case: LikelihoodCase) -> None:
    p = problem(3, DIM, 0, case)
    for evidence in (case.make().observe(dim=DIM), p.evidence(case.make())):
        posterior, log_evidence = evidence.condition(p.gaussian())
        assert_same(posterior, p.gaussian())
        assert_allclose(log_evidence, 0.0, atol=tolerance(1e-14, 1e-6))
        assert_allclose(evidence.log_likelihood(p.gaussian().mean), 0.0, atol=0)


@pytest.mark.parametrize("order", ["together", "one by one", "in parts", "shuffled"])
def test_the_order_of_arrival_does_not_matter(case: LikelihoodCase, order: str) -> None:
    p = problem(4, DIM, N, case)
    evidence, rows = case.make().observe(dim=DIM), np.arange(N)
    parts = {"together": [rows], "one by one": rows[:, None], "in parts": np.split(rows, [1, 7])}
    for part in parts.get(order, [rows[::-1]]):
        if order == "one by one":
            evidence = evidence.append(p.features[part[0]], p.rewards[part[0]])
        else:
            evidence = evidence.extend(p.features[part], p.rewards[part])
    assert_same(evidence.condition(p.gaussian()), p.evidence(case.make()).condition(p.gaussian()))


@settings(max_examples=15)
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


@both_precisions
def test_temperature_divides_the_log_likelihood(case: LikelihoodCase) -> None:
    p = problem(7, DIM, N, case)
    evidence, theta = p.evidence(case.make()), p.gaussian().mean
    assert_same(evidence.temper(0.5).log_likelihood(theta), 2 * evidence.log_likelihood(theta))
    twice = evidence.extend(p.features, p.rewards)
    assert_same(evidence.temper(0.5).condition(p.gaussian()), twice.condition(p.gaussian()))


@both_precisions
def test_expansion_is_that_of_the_log_likelihood(case: LikelihoodCase) -> None:
    p = problem(8, DIM, N, case)
    evidence, theta = p.evidence(case.make()), p.gaussian().mean
    precision, shift = evidence.expand(theta)
    twin = reference.glm_expansion(p.mean, p.features, p.rewards, case.family, case.dispersion)
    assert_same((precision, shift), twin)
    assert_same(shift - precision @ theta, jax.grad(evidence.log_likelihood)(theta))
    assert_same(precision, -jax.hessian(evidence.log_likelihood)(theta))


@both_precisions
def test_reparameterised_evidence_is_the_same_function(case: LikelihoodCase) -> None:
    p = problem(9, DIM, N, case)
    evidence, rng = p.evidence(case.make()), np.random.default_rng(9)
    offset, z = jnp.asarray(rng.standard_normal(DIM)), jnp.asarray(rng.standard_normal(DIM))
    scale = jnp.asarray(np.tril(rng.standard_normal((DIM, DIM))))
    local = evidence.reparameterise(offset, scale)
    assert_same(local.log_likelihood(z), evidence.log_likelihood(offset + scale @ z))
    again = local.reparameterise(z, scale)
    expected = evidence.reparameterise(offset + scale @ z, scale @ scale)
    assert_same(again.log_likelihood(offset), expected.log_likelihood(offset))
