"""Histories that grow: what a rejected row leaves behind, room in compiled programs."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from cases import DIM, GLMS, LIKELIHOODS, LOGISTIC, LikelihoodCase, case_name, problem
from diffprior.evidence.base import sum_over_rows

every_likelihood = pytest.mark.parametrize("case", LIKELIHOODS, ids=case_name)
BAD_ROWS = {
    "shape": (np.ones((1, DIM)), 1.0, 1.0),
    "length": (np.ones(DIM + 1), 1.0, 1.0),
    "nan": (np.full(DIM, np.nan), 1.0, 1.0),
    "infinite reward": (np.ones(DIM), np.inf, 1.0),
    "negative weight": (np.ones(DIM), 1.0, -1.0),
    "words": (np.ones(DIM), "one", 1.0),
}


@every_likelihood
@pytest.mark.parametrize("row", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_rejected_row_loses_nothing(case: LikelihoodCase, row: tuple) -> None:
    p = problem(0, DIM, 9, case)
    evidence = p.evidence(case.make())
    before = [np.array(leaf) for leaf in jax.tree.leaves(evidence)]
    with pytest.raises(ValueError, match=r"^`\w+`: expected .+, got .+; .+"):
        evidence.append(*row)
    for leaf, copy in zip(jax.tree.leaves(evidence), before, strict=True):
        assert_array_equal(leaf, copy)
    after = evidence.append(p.features[0], p.rewards[0])
    expected = case.make().observe(p.features, p.rewards, weights=[2.0, *np.ones(8)])
    assert_allclose(
        after.condition(p.gaussian())[0].mean, expected.condition(p.gaussian())[0].mean, rtol=1e-9
    )


@pytest.mark.parametrize("bad", [-1.0, 0.5])
def test_one_bad_row_rejects_the_batch(bad: float) -> None:
    evidence = dp.Poisson().observe(dim=DIM)
    with pytest.raises(ValueError, match=f"`rewards`: expected counts.*, got {bad:g}; "):
        evidence.extend(np.ones((3, DIM)), [1.0, bad, 2.0])


def test_capacity_doubles_and_does_not_matter() -> None:
    p = problem(1, DIM, 300, LOGISTIC)
    evidence, capacities = dp.Logistic().observe(dim=DIM), []
    for phi, y in zip(p.features, p.rewards, strict=True):
        evidence = evidence.append(phi, y)
        capacities.append(evidence.capacity)
    assert evidence.num_rows == 300 and capacities[-1] == 512
    assert all(c & (c - 1) == 0 for c in capacities) and capacities == sorted(capacities)
    roomy = dp.Logistic().empty(DIM, capacity=1_000).extend(p.features, p.rewards)
    assert roomy.capacity == 1_024
    small, large = (e.condition(p.gaussian()) for e in (evidence, roomy))
    for a, b in zip(jax.tree.leaves(small), jax.tree.leaves(large), strict=True):
        assert_allclose(a, b, rtol=1e-10)


@every_likelihood
def test_append_inside_a_compiled_loop(case: LikelihoodCase) -> None:
    p = problem(2, DIM, 100, case)

    @jax.jit
    def fill(features: jax.Array, rewards: jax.Array) -> dp.AbstractEvidence:
        empty = case.make().empty(DIM, capacity=100)
        add = lambda evidence, row: (evidence.append(*row), None)  # noqa: E731
        return jax.lax.scan(add, empty, (features, rewards))[0]

    filled = fill(jnp.asarray(p.features), jnp.asarray(p.rewards))
    got, expected = filled.condition(p.gaussian()), p.evidence(case.make()).condition(p.gaussian())
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert_allclose(a, b, rtol=1e-9)


@pytest.mark.parametrize("case", GLMS, ids=case_name)
def test_a_full_history_raises_inside_a_compiled_program(case: LikelihoodCase) -> None:
    evidence = case.make().empty(DIM, capacity=10)
    room = evidence.capacity
    full = evidence.extend(np.ones((room, DIM)), np.ones(room))
    append = eqx.filter_jit(lambda e, phi: e.append(phi, jnp.asarray(1.0)))
    message = rf"`append`: expected at most {room} rows .*, got more; make room with"
    with pytest.raises(eqx.EquinoxRuntimeError, match=message):
        append(full, jnp.ones(DIM))
    assert append(evidence, jnp.ones(DIM)).num_rows == 1


def test_rows_are_summed_once_each_up_to_the_last_of_a_full_history() -> None:
    columns = jnp.arange(1.0, 193.0), jnp.arange(192)
    program = jax.jit(
        lambda n: sum_over_rows(lambda x, i: jnp.sum(jnp.where(i < n, x, 0.0)), columns, n)
    )
    for n in (0, 1, 63, 64, 65, 128, 191, 192):
        assert float(program(n)) == n * (n + 1) / 2
    whole = jax.jit(lambda n: sum_over_rows(lambda x, _: jnp.sum(x), columns, n))
    assert float(whole(192)) == 192 * 193 / 2  # no block is added again


def test_outside_a_compiled_program_a_full_history_grows() -> None:
    evidence = LOGISTIC.make().empty(DIM)
    rows = np.random.default_rng(0).standard_normal((evidence.capacity, DIM))
    full = evidence.extend(rows, np.ones(evidence.capacity))
    assert full.append(np.ones(DIM), 0.0).capacity == 2 * evidence.capacity


def test_histories_of_different_lengths_are_summed_side_by_side() -> None:
    features = np.random.default_rng(0).standard_normal((200, DIM))
    rewards = np.arange(200) % 2
    short, long = (
        dp.Logistic().observe(features[:n], rewards[:n]).with_capacity(256) for n in (10, 200)
    )
    theta = jnp.asarray(features[0])
    both = jax.tree.map(lambda *leaves: jnp.stack(leaves), short, long)
    found = eqx.filter_vmap(lambda evidence: evidence.log_likelihood(theta))(both)
    assert_allclose(found, [e.log_likelihood(theta) for e in (short, long)], rtol=1e-5)
