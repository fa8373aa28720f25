"""Expectation maximisation over blocks of tasks: one map over blocks, one closed-form update."""

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from .algebra import lower
from .block import AbstractBlock
from .components import Components, Sums

Result = TypeVar("Result")
Mapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]


def in_threads(function: Callable[[Any], Result], blocks: Sequence[Any]) -> Iterator[Result]:
    """`map` with a thread for each core; NumPy works outside the interpreter's lock."""
    workers = min(_num_cores(), len(blocks))
    if workers <= 1:
        yield from map(function, blocks)
        return
    with ThreadPoolExecutor(workers) as pool:
        yield from pool.map(function, blocks)


def _num_cores() -> int:
    """Cores that this process may use, which is fewer than there are where it is confined."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def expectations(
    blocks: Sequence[AbstractBlock],
    components: Components,
    round_: int = 0,
    mapper: Mapper = in_threads,
) -> Sums:
    """The E-step over all blocks, added in their order: the same from any number of shards."""
    return Sums.total(mapper(functools.partial(_expect, components, round_), blocks))


def _expect(components: Components, round_: int, block: AbstractBlock) -> Sums:
    return block.expect(components, round_)


@dataclass(frozen=True, eq=False)
class Pull:
    """Pseudo-tasks that keep covariances positive: an inverse-Wishart prior's strength and mode."""

    strength: float
    cov: Float[np.ndarray, "d d"]


def maximise(components: Components, sums: Sums, pull: Pull | None = None) -> Components:
    """The M-step. Components that no task belongs to stay where they are, with weight zero."""
    means, covs = components.means.copy(), components.covs.copy()
    for k in range(len(components)):
        mass = sums.mass[k]
        if mass < 1e-8:
            continue
        tril = lower(components.covs[k])
        move = sums.first[k] / mass
        spread = sums.second[k] / mass - np.outer(move, move)
        means[k] = components.means[k] + tril @ move
        cov = tril @ (0.5 * (spread + spread.T)) @ tril.T
        if pull is not None:
            cov = (mass * cov + pull.strength * pull.cov) / (mass + pull.strength)
        covs[k] = cov
    return Components(sums.mass / sums.mass.sum(), means, covs)


def log_evidences(
    blocks: Sequence[AbstractBlock], components: Components, mapper: Mapper = in_threads
) -> Float[np.ndarray, " n"]:
    """log p(h) of every task, in the order of the blocks."""
    parts = list(mapper(functools.partial(_log_evidence, components), blocks))
    return np.concatenate(parts) if parts else np.zeros(0)


def _log_evidence(components: Components, block: AbstractBlock) -> Float[np.ndarray, " n"]:
    return block.mixed_log_evidence(components)
