"""Evidence of a task as arrays on the host, small in memory and quick to put side by side."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..bandits.updates import Observations, update_program
from ..checks import on_device
from ..evidence.base import AbstractEvidence
from ..evidence.glm import GLMEvidence
from ..gaussian import Gaussian
from ..partition import Structure, partition


class EvidenceArrays(NamedTuple):
    """The arrays of evidence, what makes evidence of them, and rows in use: None if it has none."""

    leaves: list[np.ndarray]
    structure: Structure
    num_rows: int | None

    @staticmethod
    def of(evidence: AbstractEvidence) -> "EvidenceArrays":
        """The arrays of this evidence."""
        leaves, structure = partition(evidence)
        num_rows = int(evidence.num_rows) if isinstance(evidence, GLMEvidence) else None
        return EvidenceArrays([np.asarray(leaf) for leaf in leaves], structure, num_rows)

    @property
    def evidence(self) -> AbstractEvidence:
        """The evidence as one object."""
        return self.structure.combine([on_device(leaf) for leaf in self.leaves])

    @property
    def capacity(self) -> int:
        """Rows that there is room for, 0 where evidence has no rows."""
        return 0 if self.num_rows is None else len(self.leaves[0])

    def rehearsals(self, max_rows: int) -> Iterator["EvidenceArrays"]:
        """Such evidence in every capacity up to `max_rows`, and last with so many made-up rows."""
        evidence: Any = self.evidence
        yield self
        while 0 < self.capacity and evidence.capacity < max_rows:
            evidence = evidence.with_capacity(2 * evidence.capacity)
            yield EvidenceArrays.of(evidence)
        if self.capacity:
            features = np.random.default_rng(0).standard_normal((max_rows, evidence.dim))
            rows = (features, np.zeros(max_rows), np.ones(max_rows))
            yield EvidenceArrays.of(evidence.add(*map(on_device, rows)))

    def add(self, new: Observations, max_rows: int, moments: Gaussian) -> "EvidenceArrays":
        """With one observation more, in at most `max_rows` rows: a function of these alone."""
        held = self._with_room(max_rows, moments)
        leaves = update_program(held.structure, 1)(held.leaves, new.features, new.rewards)
        num_rows = None if held.num_rows is None else held.num_rows + 1
        return EvidenceArrays([np.asarray(leaf) for leaf in leaves], held.structure, num_rows)

    def _with_room(self, max_rows: int, moments: Gaussian) -> "EvidenceArrays":
        if self.num_rows is None or self.num_rows < min(self.capacity, max_rows):
            return self
        evidence: Any = self.evidence
        if self.num_rows >= max_rows:
            evidence = evidence.bounded(max_rows - 1, moments)
        return EvidenceArrays.of(evidence.with_capacity(int(evidence.num_rows) + 1))
