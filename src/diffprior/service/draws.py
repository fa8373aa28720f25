"""Draws of parameters for many tasks, by one compiled program."""

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from ..bandits.streams import Streams, decision_key
from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from ..samplers.base import AbstractSampler
from .arrays import EvidenceArrays

AT_ONCE = 16  # requests of one call of the program
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
MAX_PROGRAMS = 64  # kept at once


class Draws(NamedTuple):
    """For each request the draw that decides, draws for its propensity, and what failed."""

    theta: Float[np.ndarray, "b d"]
    failed: Bool[np.ndarray, " b"]
    others: Float[np.ndarray, "b m d"]


class DrawRequest(NamedTuple):
    """The evidence of a task, its seed, the number of the decision, and what the evidence is
    tempered by because it has faded."""

    arrays: EvidenceArrays
    seed: int
    number: int
    temperature: float = 1.0


class DrawProgram:
    """Draws of one sampler; `num_others` draws a request are for its propensity.

    One program serves every request: evidence is padded to room for `max_rows` rows, and a loop
    goes over the requests, whose own draws are side by side.
    """

    def __init__(
        self, sampler: AbstractSampler, empty: AbstractEvidence, max_rows: int, num_others: int
    ) -> None:
        self._leaves, self._structure = partition(sampler)
        self._shapes = [leaf.shape for leaf in partition(empty.with_capacity(max_rows))[0]]
        self._num_others = num_others

    def __call__(self, requests: list[DrawRequest]) -> Draws:
        """Draws for requests of one likelihood, shared out among the processor's cores."""
        size = min(AT_ONCE, -(-len(requests) // CORES))
        shares = [requests[start : start + size] for start in range(0, len(requests), size)]
        parts = map(self._some, shares) if len(shares) == 1 else _threads().map(self._some, shares)
        return Draws(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _some(self, requests: list[DrawRequest]) -> Draws:
        count, arrays = len(requests), requests[0].arrays
        columns = zip(*(request.arrays.leaves for request in requests), strict=True)
        evidence = [_side_by_side(*each) for each in zip(columns, self._shapes, strict=True)]
        seeds, numbers = np.zeros((AT_ONCE, 2), np.uint32), np.zeros(AT_ONCE, np.uint32)
        seeds[:count] = [divmod(request.seed, 2**32) for request in requests]
        numbers[:count] = [request.number % 2**32 for request in requests]
        temperatures = np.ones(AT_ONCE)
        temperatures[:count] = [request.temperature for request in requests]
        program = _draw_program(self._structure, arrays.structure, self._num_others)
        own = (evidence, temperatures, seeds, numbers)
        drawn = program(self._leaves, own, np.int32(count))
        return Draws(*(np.asarray(part)[:count] for part in drawn))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """One for each core; compiled programs run in them side by side."""
    return ThreadPoolExecutor(CORES, "draws")


def _side_by_side(column: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The same array of every request, with zeros for rows and requests that there are not."""
    whole = np.zeros((AT_ONCE, *shape), column[0].dtype)
    for place, array in enumerate(column):
        part: Any = (place, *map(slice, array.shape))
        whole[part] = array
    return whole


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def _draw_program(sampler_structure: Structure, structure: Structure, num_others: int) -> Any:
    """The program for all samplers and evidence of these structures."""

    @jax.jit  # so that it is traced once, though its shapes are asked for before
    def one(leaves: Any, own: Any) -> tuple[Array, Array]:
        evidence, temperature, seed, number = own
        sampler: AbstractSampler = sampler_structure.combine(leaves)
        history = cast(AbstractEvidence, structure.combine(evidence)).temper(temperature)
        streams = _streams(seed)
        first = decision_key(streams.decisions, number)
        others = jax.random.split(decision_key(streams.propensities, number), num_others)
        keys = jnp.concatenate([first[None], others])
        draws, info = jax.vmap(lambda key: sampler.tempered_draw(key, history))(keys)
        return draws, info.failed[0]

    def many(leaves: Any, columns: Any, count: Array) -> Any:
        def step(place: Array, found: Any) -> Any:
            new = one(leaves, jax.tree.map(lambda column: column[place], columns))
            return jax.tree.map(lambda column, value: column.at[place].set(value), found, new)

        shapes = jax.eval_shape(one, leaves, jax.tree.map(lambda column: column[0], columns))
        nothing = jax.tree.map(lambda leaf: jnp.zeros((AT_ONCE, *leaf.shape), leaf.dtype), shapes)
        draws, failed = jax.lax.fori_loop(jnp.int32(0), count, step, nothing)
        return draws[:, 0], failed, draws[:, 1:]

    return jax.jit(many)


def _streams(seed: UInt32[Array, " 2"]) -> Streams:
    """As `stream_keys`, from the upper and lower 32 bits of a seed, inside a compiled program."""
    high, low = seed
    key = jax.random.key(low)
    folded = jnp.where(high > 0, jax.random.fold_in(key, high), key)
    return Streams(*jax.random.split(jax.random.fold_in(folded, 0), 3))


class NoDraws:
    """In place of draws, for a model that chooses at random."""

    def __init__(self, dim: int, num_others: int) -> None:
        self._shape = (num_others, dim)

    def __call__(self, requests: list[DrawRequest]) -> Draws:
        """Draws that count as failed, so that actions are random."""
        count = len(requests)
        zeros = np.zeros((count, *self._shape), np.float32)
        return Draws(zeros[:, :1].sum(axis=1), np.ones(count, bool), zeros)
