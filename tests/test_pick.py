"""Indices drawn by weight, against NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffprior.mixture import ADD_UP_TO, COMPARE_UP_TO, pick

pytestmark = pytest.mark.float32

SIZES = (1, 2, 7, ADD_UP_TO, ADD_UP_TO + 1, COMPARE_UP_TO + 1)


@pytest.mark.parametrize("count", SIZES)
def test_the_distribution_function_is_inverted(count: int) -> None:
    rng = np.random.default_rng(count)
    weights = rng.random(count) * (rng.random(count) < 0.7)
    weights[rng.integers(count)] = 1.0
    cumulative = np.cumsum(weights) / np.sum(weights)
    uniforms = rng.random(2000)
    clear = np.min(np.abs(uniforms[:, None] - cumulative[None]), axis=1) > 1e-4  # of rounding
    expected = np.searchsorted(cumulative, uniforms, side="right")
    got = jax.jit(pick)(jnp.asarray(weights), jnp.asarray(uniforms))
    np.testing.assert_array_equal(got[clear], expected[clear])


@pytest.mark.parametrize("count", SIZES[1:])
def test_a_weight_of_zero_is_never_picked(count: int) -> None:
    """Not by numbers next to one either, which rounding may take beyond all weights."""
    weights = np.zeros(count)
    weights[count // 2] = 0.3
    uniforms = np.array([0.0, 0.5, np.nextafter(np.float32(1), np.float32(0))])
    got = jax.jit(pick)(jnp.asarray(weights), jnp.asarray(uniforms))
    np.testing.assert_array_equal(got, np.full(3, count // 2))
