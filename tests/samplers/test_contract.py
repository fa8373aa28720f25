"""The contract of samplers, over all rows of `cases.SAMPLERS`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from cases import DIM, LINEAR, LOGISTIC, SAMPLERS, SamplerCase, case_name, problem

pytestmark = pytest.mark.parametrize("case", SAMPLERS, ids=case_name)
KEY = jax.random.key(3)


def evidence(seed: int = 0, num_rows: int = 5) -> dp.AbstractEvidence:
    return problem(seed, DIM, num_rows).evidence(LINEAR.make())


def test_same_key_same_draw(case: SamplerCase) -> None:
    sampler = case.make()
    draws = [sampler.sample(jax.random.key(seed), evidence()) for seed in range(20)]
    assert draws[0].shape == (DIM,) and draws[0].dtype == jnp.result_type(float)
    assert_array_equal(draws[0], sampler.sample(jax.random.key(0), evidence()))
    assert len({tuple(np.asarray(draw)) for draw in draws}) > 1


@pytest.mark.float32
def test_many_draws_and_their_info(case: SamplerCase) -> None:
    thetas, info = case.make().sample_many(KEY, evidence(), 50)
    assert thetas.shape == (50, DIM) and thetas.dtype == jnp.result_type(float)
    assert info.failed.shape == info.log_evidence.shape == (50,)
    assert not np.any(info.failed)
    assert len(np.unique(np.asarray(thetas), axis=0)) > 1
    assert_array_equal(thetas, case.make().sample_many(KEY, evidence(), 50)[0])


def test_no_key_is_used_twice(case: SamplerCase) -> None:
    """JAX follows every key through the program, which need not run for that."""
    sampler = case.make()
    for likelihood in (LINEAR, LOGISTIC):
        history = problem(0, DIM, 5, likelihood).evidence(likelihood.make())
        with jax.debug_key_reuse(True):
            jax.eval_shape(lambda key, h=history: sampler.draw(key, h)[0], KEY)


def test_vmap_equals_a_loop(case: SamplerCase) -> None:
    sampler, histories = case.make(), [evidence(seed) for seed in range(4)]
    keys = jax.random.split(KEY, 4)
    batch = jax.tree.map(lambda *rows: jnp.stack(rows), *histories)
    together = jax.vmap(sampler.sample)(keys, batch)
    for i, history in enumerate(histories):
        assert_allclose(together[i], sampler.sample(keys[i], history), atol=1e-12)


def test_temperature_is_tempered_evidence(case: SamplerCase) -> None:
    sampler = case.make()
    warm = case.make(temperature=4.0)
    expected = sampler.sample(KEY, evidence().temper(4.0))
    assert_allclose(warm.sample(KEY, evidence()), expected, atol=1e-12)


def test_no_evidence_is_welcome(case: SamplerCase) -> None:
    theta = case.make().sample(KEY, LINEAR.make().observe(dim=DIM))
    assert np.all(np.isfinite(theta))


def test_other_dimensions_are_rejected(case: SamplerCase) -> None:
    message = rf"^`evidence`: expected {DIM} parameters .*, got 7; use features with {DIM} columns"
    for draw in (case.make().sample, lambda *args: case.make().sample_many(*args, 3)):
        with pytest.raises(ValueError, match=message):
            draw(KEY, dp.Linear(1.0).observe(dim=7))
    with pytest.raises(ValueError, match="^`evidence`: expected evidence, got ndarray; .*observe"):
        case.make().sample(KEY, np.ones((3, DIM)))
