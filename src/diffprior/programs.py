"""Modules taken apart into arrays and structure, so that one compiled program serves all modules
that differ in their numbers only, and is found again without a walk through the module."""

from typing import Any, NamedTuple

import equinox as eqx
import jax


class Structure:
    """What makes a module of its arrays; its hash, which takes long to compute, is kept."""

    def __init__(self, arrays: Any, others: list[Any], rest: Any) -> None:
        self._key = (arrays, tuple(others), rest)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        same = self is other
        return same or (isinstance(other, Structure) and self._key == other._key)

    def put_together(self, leaves: list[Any]) -> Any:
        """The module with these arrays."""
        arrays, others, rest = self._key
        return eqx.combine(jax.tree.unflatten(arrays, leaves), jax.tree.unflatten(rest, others))


class Parts(NamedTuple):
    """The arrays of a module, and what makes a module of them."""

    leaves: list[Any]
    structure: Structure


def take_apart(module: Any) -> Parts:
    """A module, or any tree of them, as arrays and structure."""
    arrays, others = eqx.partition(module, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    return Parts(leaves, Structure(structure, *jax.tree.flatten(others)))
