"""Draws of parameters for many tasks at once, in one of two compiled programs."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, UInt32

from ..bandits.streams import Streams, decision_key
from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from ..samplers.base import AbstractSampler
from .arrays import EvidenceArrays

SIZES = (1, 4, 16, 64)  # numbers of tasks that there is a program for
MAX_PROGRAMS = 64  # kept at once


class Draws(NamedTuple):
    """For each request the draw that decides, draws for its propensity, and what failed."""

    theta: Float[np.ndarray, "b d"]
    failed: Bool[np.ndarray, " b"]
    others: Float[np.ndarray, "b m d"]


class DrawRequest(NamedTuple):
    """The evidence of a task, its seed, and the number of the decision."""

    arrays: EvidenceArrays
    seed: int
    number: int


class DrawProgram:
    """Draws of one sampler; `num_others` draws a request are for its propensity."""

    def __init__(self, sampler: AbstractSampler, num_others: int) -> None:
        self._leaves, self._structure = partition(sampler)
        self._num_others = num_others

    def __call__(self, requests: list[DrawRequest]) -> Draws:
        """Draws for requests whose evidence is of one shape."""
        parts = [
            self._some(requests[i : i + SIZES[-1]]) for i in range(0, len(requests), SIZES[-1])
        ]
        return Draws(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _some(self, requests: list[DrawRequest]) -> Draws:
        count = len(requests)
        size = next(size for size in SIZES if size >= count)
        padded = requests + [requests[0]] * (size - count)
        columns = zip(*(request.arrays.leaves for request in padded), strict=True)
        evidence = [np.stack(column) for column in columns]
        seeds = [divmod(request.seed, 2**32) for request in padded]
        numbers = np.asarray([request.number % 2**32 for request in padded], np.uint32)
        program = _draw_program(self._structure, padded[0].arrays.structure, self._num_others)
        drawn = program(self._leaves, evidence, np.asarray(seeds, np.uint32), numbers)
        return Draws(*(np.asarray(part)[:count] for part in drawn))


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def _draw_program(sampler_structure: Structure, structure: Structure, num_others: int) -> Any:
    """The program for all samplers and evidence of these structures."""

    def one(leaves: Any, evidence: Any, seed: Array, number: Array) -> tuple[Array, Array, Array]:
        sampler: AbstractSampler = sampler_structure.combine(leaves)
        history: AbstractEvidence = structure.combine(evidence)
        streams = _streams(seed)
        first = decision_key(streams.decisions, number)
        others = jax.random.split(decision_key(streams.propensities, number), num_others)
        keys = jnp.concatenate([first[None], others])
        draws, info = jax.vmap(lambda key: sampler.tempered_draw(key, history))(keys)
        return draws[0], info.failed[0], draws[1:]

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))


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
