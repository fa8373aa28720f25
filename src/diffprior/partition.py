"""Modules partitioned into arrays and structure, so that one compiled program serves all modules
that differ in their numbers only, and is found again without a walk through the module."""

import math
from typing import Any

import equinox as eqx
import jax
import numpy as np

MOST_NUMBERS = 2**14  # of an array that goes into one with others


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


class PackedStructure:
    """What combines arrays into a module, where the small arrays of a kind are one."""

    def __init__(self, structure: Structure, groups: list[list[int]], leaves: list[Any]) -> None:
        places = tuple((tuple(group), tuple(leaves[i].shape for i in group)) for group in groups)
        self._key = (structure, places)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedStructure) and self._key == other._key

    def combine(self, packed: list[Any]) -> Any:
        """The module with these arrays."""
        structure, places = self._key
        leaves: dict[int, Any] = {}
        for array, (group, shapes) in zip(packed, places, strict=True):
            start = 0
            for index, shape in zip(group, shapes, strict=True):
                size = math.prod(shape)
                alone = len(group) == 1
                leaves[index] = array if alone else array[start : start + size].reshape(shape)
                start += size
        return structure.combine([leaves[index] for index in range(len(leaves))])


def packed_partition(module: Any) -> tuple[list[Any], PackedStructure]:
    """As `partition`, with fewer arrays: a program takes longer to be called the more it is handed,
    and to slice them is next to nothing."""
    leaves, structure = partition(module)
    groups: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        small = leaf.size <= MOST_NUMBERS and leaf.dtype in (np.float32, np.float64)
        groups.setdefault(leaf.dtype if small else index, []).append(index)
    packed = [_joined([leaves[i] for i in group]) for group in groups.values()]
    return packed, PackedStructure(structure, list(groups.values()), leaves)


def _joined(arrays: list[Any]) -> Any:
    if len(arrays) == 1:
        return arrays[0]
    return jax.device_put(np.concatenate([np.asarray(array).ravel() for array in arrays]))
