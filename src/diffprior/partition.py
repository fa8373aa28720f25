"""Modules partitioned into arrays and structure, so that one compiled program serves all modules
that differ in their numbers only, and is found again without a walk through the module."""

from typing import Any

import equinox as eqx
import jax


class Structure:
    """What combines arrays into a module; its hash, which takes long to compute, is kept."""

    def __init__(self, arrays: Any, others: list[Any], rest: Any) -> None:
        self._key = (arrays, tuple(others), rest)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        same = self is other
        return same or (isinstance(other, Structure) and self._key == other._key)

    def combine(self, leaves: list[Any]) -> Any:
        """The module with these arrays."""
        arrays, others, rest = self._key
        return eqx.combine(jax.tree.unflatten(arrays, leaves), jax.tree.unflatten(rest, others))


def partition(module: Any) -> tuple[list[Any], Structure]:
    """A module, or any tree of them, as its arrays and the structure that combines them again."""
    arrays, others = eqx.partition(module, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    return leaves, Structure(structure, *jax.tree.flatten(others))
