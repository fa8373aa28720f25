"""Small evidence kept on the host, where learning a reward is a few additions and calls no program.

Evidence of other kinds, or large, stays on the device and learns there.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..evidence.base import AbstractEvidence
from ..evidence.glm import GLMEvidence
from ..evidence.linear import LinearEvidence
from ..partition import partition

MOST_NUMBERS = 2**15  # of evidence on the host, which is copied with every reward
Leaves = list[np.ndarray]
Learn = Callable[[Sequence[Any], np.ndarray, np.ndarray], Leaves]


class Layout(NamedTuple):
    """Shape and dtype of each of several arrays, and how many numbers they have in all."""

    arrays: tuple[tuple[tuple[int, ...], str], ...]
    size: int


class RowPlaces(NamedTuple):
    """Where among the arrays of evidence with rows these are."""

    features: int
    rewards: int
    weights: int
    num_rows: int

    @staticmethod
    def of(evidence: AbstractEvidence) -> "RowPlaces | None":
        """The places of an evidence's rows; None for evidence without rows."""
        if not isinstance(evidence, GLMEvidence):
            return None
        first, *names = [field.name for field in dataclasses.fields(GLMEvidence)]
        before = len(partition(getattr(evidence, first))[0])  # of the family; then one array each
        return RowPlaces(*(before + names.index(name) for name in RowPlaces._fields))


def learning_on_host(evidence: AbstractEvidence) -> Learn | None:
    """What adds rows to the arrays of such evidence on the host; None if it belongs elsewhere."""
    if sum(leaf.size for leaf in partition(evidence)[0]) > MOST_NUMBERS:
        return None
    if isinstance(evidence, LinearEvidence):
        return add_to_sums
    places = RowPlaces.of(evidence)
    return None if places is None else functools.partial(put_rows, places)


def add_to_sums(leaves: Sequence[Any], features: np.ndarray, rewards: np.ndarray) -> Leaves:
    """The arrays of `LinearEvidence` with rows added, as `AbstractEvidence.put` does."""
    precision, shift, sum_squares, count, noise_std = leaves
    with np.errstate(over="ignore", invalid="ignore"):  # extreme ones are looked at afterwards
        scaled, standard = features / noise_std**2, rewards / noise_std
        return [
            precision + scaled.T @ features,
            shift + rewards @ scaled,
            np.asarray(sum_squares + standard @ standard),
            np.asarray(count + len(rewards), count.dtype),
            noise_std,
        ]


def put_rows(
    places: RowPlaces, leaves: Sequence[Any], features: np.ndarray, rewards: np.ndarray
) -> Leaves:
    """The arrays of `GLMEvidence` with rows put where there is room for them, likewise."""
    new, first = list(leaves), int(leaves[places.num_rows])
    last = first + len(rewards)
    for place, rows in zip(places[:3], (features, rewards, 1.0), strict=True):
        new[place] = new[place].copy()
        new[place][first:last] = rows
    new[places.num_rows] = np.asarray(last, leaves[places.num_rows].dtype)
    return new


def layout_of(leaves: Sequence[Any]) -> Layout:
    """What `unpacked` needs to know of arrays."""
    arrays = tuple((leaf.shape, leaf.dtype.str) for leaf in leaves)
    return Layout(arrays, sum(leaf.size for leaf in leaves))


def pack(arrays: Sequence[np.ndarray], out: Float[np.ndarray, " n"]) -> None:
    """All numbers of these arrays into one. Whole numbers among them must be below 2^24."""
    np.concatenate([array.ravel() for array in arrays], out=out, casting="unsafe")


def unpacked(numbers: Float[Array, " n"], layout: Layout) -> list[Array]:
    """The arrays again, inside a program."""
    ends = np.cumsum([int(np.prod(shape)) for shape, _ in layout.arrays])
    parts = zip(jnp.split(numbers, ends[:-1]), layout.arrays, strict=True)
    return [part.reshape(shape).astype(dtype) for part, (shape, dtype) in parts]
