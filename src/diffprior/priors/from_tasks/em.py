"""Expectation maximization over blocks of tasks: one map over blocks, one closed-form update."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ...executors import AbstractExecutor, InProcess
from .algebra import lower
from .block import AbstractBlock
from .components import Components, Sums

HERE = InProcess()


def expectations(
    blocks: Sequence[AbstractBlock],
    components: Components,
    round_: int = 0,
    executor: AbstractExecutor = HERE,
) -> Sums:
    """The E-step over all blocks, added in their order: the same wherever they are."""
    return executor.total(Sums, functools.partial(_expect, components, round_), blocks)


def _expect(components: Components, round_: int, block: AbstractBlock) -> Sums:
    return block.expect(components, round_)


@dataclass(frozen=True, eq=False)
class Pull:
    """Pseudo-tasks that keep covariances positive: an inverse-Wishart prior's strength and mode."""

    strength: float
    cov: Float[np.ndarray, "d d"]


def maximize(components: Components, sums: Sums, pull: Pull | None = None) -> Components:
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
    blocks: Sequence[AbstractBlock], components: Components, executor: AbstractExecutor = HERE
) -> Float[np.ndarray, " n"]:
    """log p(h) of every task, in the order of the blocks."""
    parts = list(executor.map(functools.partial(_log_evidence, components), blocks))
    return np.concatenate(parts) if parts else np.zeros(0)


def _log_evidence(components: Components, block: AbstractBlock) -> Float[np.ndarray, " n"]:
    return block.mixed_log_evidence(components)
