"""Blocks of tasks that are read where they are asked: a file's name travels, its rows do not."""

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ...evidence.base import AbstractLikelihood
from ...logs.labels import Selection
from ...logs.shards import Shard
from .block import AbstractBlock
from .components import Components, Conditioned, Sums
from .data import blocks_of, empty_block

KEPT_BYTES = 2**31  # of blocks that a process keeps for the next round


@dataclass(frozen=True, eq=False)
class ShardBlock(AbstractBlock):
    """The chosen tasks of one file, as one block; a process that has read it keeps it if it can."""

    shard: Shard
    selection: Selection
    likelihood: AbstractLikelihood
    likelihood_digest: str
    exact_: bool
    num_draws: int = 0

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return sum(block.num_tasks for block in self.blocks())

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return len(self.shard.columns.features) + self.shard.intercept

    @property
    def task_rows(self) -> Float[np.ndarray, " n"]:
        """Rows of every task."""
        return np.concatenate([block.task_rows for block in self.blocks()])

    @property
    def num_rows(self) -> float:
        """Rows of all tasks, or their summed weights."""
        return sum(block.num_rows for block in self.blocks())

    @property
    def exact(self) -> bool:
        """Whether conditioning is exact."""
        return self.exact_

    def corrected(self, num_draws: int) -> "ShardBlock":
        """The same tasks, with so many points each for the correction."""
        return dataclasses.replace(self, num_draws=num_draws)

    def blocks(self) -> Sequence[AbstractBlock]:
        """The blocks of the file, read now or kept from an earlier round."""
        about = (self.shard.columns, self.selection, self.likelihood_digest)
        found = KEPT.get(about, self.shard, self._read)
        return [block.corrected(self.num_draws) for block in found]

    def _read(self) -> list[AbstractBlock]:
        logs = self.shard.read()
        chosen = logs.select(self.selection.mask(logs.hashes))
        return blocks_of(chosen, self.likelihood) or [empty_block(self.dim, self.likelihood)]

    def pooled(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " d"], float]:
        """Precision, shift and sum of squares of all rows as one task."""
        parts = [block.pooled() for block in self.blocks()]
        return (
            np.sum([p for p, _, _ in parts], axis=0),
            np.sum([s for _, s, _ in parts], axis=0),
            sum(squares for _, _, squares in parts),
        )

    def condition(self, components: Components) -> Conditioned:
        """Every component given each task."""
        parts = [block.condition(components) for block in self.blocks()]
        return Conditioned(
            np.concatenate([part.log_evidence for part in parts], axis=-1),
            np.concatenate([part.mean_z for part in parts], axis=-1),
            np.concatenate([part.cov_z for part in parts], axis=-1),
            np.concatenate([part.squared_error for part in parts], axis=-1),
        )

    def expect(self, components: Components, round_: int = 0) -> Sums:
        """One E-step, summed over the tasks."""
        return Sums.total(block.expect(components, round_) for block in self.blocks())

    def draw(self, components: Components, *numbers: int) -> Float[np.ndarray, "n d"]:
        """One draw of theta given each task."""
        return np.concatenate([block.draw(components, *numbers) for block in self.blocks()])

    def mixed_log_evidence(self, components: Components) -> Float[np.ndarray, " n"]:
        """log p(h) of every task under the mixture."""
        return np.concatenate([block.mixed_log_evidence(components) for block in self.blocks()])

    def kernel_log_evidence(
        self, atoms: Float[np.ndarray, "m d"], cov: Float[np.ndarray, "d d"]
    ) -> Float[np.ndarray, "n m"]:
        """log p(h) of every task under N(atom, cov), for every atom."""
        return np.concatenate([block.kernel_log_evidence(atoms, cov) for block in self.blocks()])

    def __str__(self) -> str:
        return str(self.shard)

    def __repr__(self) -> str:
        return f"{self.shard!r} {self.selection!r} {self.likelihood_digest} {self.num_draws}"


class _Kept:
    """Blocks of shards, as many as fit; what does not is read again every time.

    They are all about the same: other columns, tasks or likelihoods put an end to those before.
    """

    def __init__(self) -> None:
        self.about: Any = None
        self.found: dict[Shard, list[AbstractBlock]] = {}
        self.num_bytes, self.lock = 0, threading.Lock()

    def get(
        self, about: Any, shard: Shard, read: Callable[[], list[AbstractBlock]]
    ) -> list[AbstractBlock]:
        """The blocks of a shard, kept or read."""
        with self.lock:
            if about != self.about:
                self.about, self.found, self.num_bytes = about, {}, 0
            if shard in self.found:
                return self.found[shard]
        blocks = read()
        size = sum(_num_bytes(block) for block in blocks)
        with self.lock:
            if about == self.about and self.num_bytes + size <= KEPT_BYTES:
                self.found[shard] = blocks
                self.num_bytes += size
        return blocks

    def clear(self) -> None:
        """Let go of all."""
        with self.lock:
            self.about, self.found, self.num_bytes = None, {}, 0


def _num_bytes(block: AbstractBlock) -> int:
    values = (getattr(block, field.name) for field in dataclasses.fields(block))  # type: ignore[arg-type]
    return sum(value.nbytes for value in values if isinstance(value, np.ndarray))


KEPT = _Kept()
