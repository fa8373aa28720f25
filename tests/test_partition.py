"""Modules as arrays and structure, and combined again."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diffprior.partition import MOST_NUMBERS, packed_partition, partition

pytestmark = pytest.mark.float32


class Part(eqx.Module):
    small: jax.Array
    scalar: jax.Array
    whole: jax.Array
    single: jax.Array
    large: jax.Array
    name: str


def part(seed: int, name: str = "a") -> Part:
    rng = np.random.default_rng(seed)
    return Part(
        jnp.asarray(rng.standard_normal((3, 4, 2))),
        jnp.asarray(rng.standard_normal()),
        jnp.asarray(rng.integers(0, 9, 5)),
        jnp.asarray(rng.standard_normal(7), jnp.float32),
        jnp.asarray(rng.standard_normal(MOST_NUMBERS + 1)),
        name,
    )


@pytest.mark.parametrize("apart", [partition, packed_partition])
def test_a_module_is_combined_again(apart: Callable[..., Any]) -> None:
    module = part(0)
    arrays, structure = apart(module)
    assert eqx.tree_equal(structure.combine(arrays), module)
    traced = jax.jit(lambda arrays: structure.combine(arrays).small)
    np.testing.assert_array_equal(traced(arrays), module.small)


def test_small_numbers_of_a_kind_are_one_array() -> None:
    """All but whole numbers and what is large: an array for each precision."""
    arrays, _ = packed_partition(part(0))
    kinds = 1 + len({part(0).small.dtype, part(0).single.dtype}) + 1
    assert len(arrays) == kinds
    assert sum(array.size for array in arrays) == sum(a.size for a in partition(part(0))[0])


def test_structures_are_equal_if_only_numbers_differ() -> None:
    same, other = packed_partition(part(1))[1], packed_partition(part(1, "b"))[1]
    first = packed_partition(part(0))[1]
    assert first == same and hash(first) == hash(same) and first != other
