"""Random numbers without loops are JAX's own, bit for bit."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffprior.threefry import fold_in, unrolled

both_precisions = pytest.mark.float32

DRAWS: dict[str, Callable[[Any], Any]] = {
    "normal": lambda key: jax.random.normal(key, (7, 3)),
    "normal of single precision": lambda key: jax.random.normal(key, (5,), jnp.float32),
    "uniform": lambda key: jax.random.uniform(key, (4, 0, 2)),
    "integers": lambda key: jax.random.randint(key, (9,), 0, 1000),
    "bytes": lambda key: jax.random.bits(key, (5,), jnp.uint8),
    "short": lambda key: jax.random.bits(key, (5,), jnp.uint16),
    "choice": lambda key: jax.random.permutation(key, 11),
    "split": lambda key: jax.random.key_data(jax.random.split(key, (2, 3))),
    "fold_in": lambda key: jax.random.key_data(jax.random.fold_in(key, 2**32 - 1)),
    "many": lambda key: jax.vmap(lambda k: jax.random.normal(k, (2,)))(jax.random.split(key, 5)),
    "numbered": lambda key: jax.random.key_data(
        jax.vmap(lambda n: jax.random.fold_in(key, n))(jnp.arange(4))
    ),
}


@both_precisions
def test_numbers_are_those_of_jax() -> None:
    every = jax.jit(lambda key: {name: draw(key) for name, draw in DRAWS.items()})
    ours = jax.jit(lambda key: every(unrolled(key)))
    for seed in (0, 2**31 + 5):
        key = jax.random.key(seed)
        found, expected = ours(key), every(key)
        for name in DRAWS:
            np.testing.assert_array_equal(found[name], expected[name], name)


def test_it_is_one_kernel() -> None:
    """No loops, which is the point of it."""
    program = jax.jit(lambda key: jax.random.uniform(jax.random.fold_in(unrolled(key), 1), (9,)))
    assert "while" not in program.lower(jax.random.key(0)).compile().as_text()


def test_keys_of_other_generators_stay() -> None:
    def dtypes(key: Any) -> tuple[Any, Any, Any]:
        seen = []
        jax.eval_shape(lambda k: seen.extend([k, unrolled(k), unrolled(unrolled(k))]), key)
        return tuple(k.dtype for k in seen)

    plain, once, twice = dtypes(jax.random.key(0))
    assert plain != once == twice
    assert len(set(dtypes(jax.random.key(0, impl="rbg")))) == 1
    with jax.threefry_partitionable(False):
        assert len(set(dtypes(jax.random.key(0)))) == 1
    key = jax.random.key(0)  # outside programs
    assert unrolled(key) is key


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_key_with_a_number_folded_in_is_of_the_same_generator(impl: str) -> None:
    key = jax.random.key(3, impl=impl)
    ours, theirs = jax.jit(fold_in)(key, 5), jax.random.fold_in(key, 5)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))
