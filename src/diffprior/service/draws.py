"""Draws of parameters for many tasks at once: one compiled program for each of a few sizes."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float

from ..bandits.streams import decision_key, stream_keys
from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from ..samplers.base import AbstractSampler

SIZES = (1, 4, 16, 64)  # numbers of tasks that there is a program for
MAX_PROGRAMS = 64  # kept at once


class Draws(NamedTuple):
    """For each request the draw that decides, draws for its propensity, and what failed."""

    theta: Float[np.ndarray, "b d"]
    failed: Bool[np.ndarray, " b"]
    others: Float[np.ndarray, "b m d"]


class DrawRequest(NamedTuple):
    """The evidence of a task, its streams of randomness, and the number of the decision."""

    evidence: AbstractEvidence
    streams: np.ndarray  # key data: of decisions, of propensities
    number: int


def streams_of(seed: int) -> np.ndarray:
    """Key data of a task's two streams, those of a `Bandit` with this seed."""
    streams = stream_keys(seed, 0)
    keys = (streams.decisions, streams.propensities)
    return np.stack([np.asarray(jax.random.key_data(key)) for key in keys])


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
        taken = [partition(request.evidence) for request in padded]
        evidence = [
            np.stack(leaves) for leaves in zip(*(leaves for leaves, _ in taken), strict=True)
        ]
        streams = np.stack([request.streams for request in padded])
        numbers = np.asarray([request.number % 2**32 for request in padded], np.uint32)
        program = _draw_program(self._structure, taken[0][1], self._num_others)
        drawn = program(self._leaves, evidence, streams, numbers)
        return Draws(*(np.asarray(part)[:count] for part in drawn))


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def _draw_program(sampler_structure: Structure, structure: Structure, num_others: int) -> Any:
    """The program for all samplers and evidence of these structures."""

    def one(leaves: Any, evidence: Any, streams: Any, number: Any) -> tuple[Any, ...]:
        sampler: AbstractSampler = sampler_structure.combine(leaves)
        history: AbstractEvidence = structure.combine(evidence)
        decisions, propensities = (
            decision_key(jax.random.wrap_key_data(stream), number) for stream in streams
        )
        theta, info = sampler.tempered_draw(decisions, history)
        keys = jax.random.split(propensities, num_others)
        others, _ = jax.vmap(lambda key: sampler.tempered_draw(key, history))(keys)
        return theta, info.failed, others

    return jax.jit(jax.vmap(one, in_axes=(None, 0, 0, 0)))


class NoDraws:
    """In place of draws, for a model that chooses at random."""

    def __init__(self, dim: int, num_others: int) -> None:
        self._shape = (num_others, dim)

    def __call__(self, requests: list[DrawRequest]) -> Draws:
        """Draws that count as failed, so that actions are random."""
        count = len(requests)
        zeros = np.zeros((count, *self._shape), np.float32)
        return Draws(zeros[:, :1].sum(axis=1), np.ones(count, bool), zeros)
