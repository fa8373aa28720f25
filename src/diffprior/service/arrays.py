"""Evidence of a task as NumPy arrays, which are small and fast to stack."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..bandits._dispatch import Structure, partition
from ..bandits.updates import Observations, RowPlaces, add_to_sums, faded_leaves, put_rows
from ..checks import on_device
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian


class EvidenceArrays(NamedTuple):
    """Arrays of evidence, its structure, and where its rows are if it has rows."""

    leaves: list[np.ndarray]
    structure: Structure
    places: RowPlaces | None

    @staticmethod
    def of(evidence: AbstractEvidence) -> "EvidenceArrays":
        """The arrays of this evidence."""
        leaves, structure = partition(evidence)
        arrays = [np.asarray(leaf) for leaf in leaves]
        return EvidenceArrays(arrays, structure, RowPlaces.of(evidence))

    @property
    def evidence(self) -> AbstractEvidence:
        """The evidence as one object."""
        return self.structure.combine([on_device(leaf) for leaf in self.leaves])

    def warm_up_cases(self, max_rows: int) -> Iterator["EvidenceArrays"]:
        """This evidence, and if it has rows, evidence that is full, for compiling both."""
        yield self
        if self.places is not None:
            evidence = self.evidence.with_capacity(max_rows)
            features = np.random.default_rng(0).standard_normal((max_rows, evidence.dim))
            rows = (features, np.zeros(max_rows), np.ones(max_rows))
            yield EvidenceArrays.of(evidence.add(*map(on_device, rows)))

    def faded(self, temperature: float) -> "EvidenceArrays":
        """Evidence tempered by a temperature."""
        if temperature == 1.0:
            return self
        leaves = faded_leaves(self.structure, self.leaves, temperature)
        return self._replace(leaves=[np.asarray(leaf) for leaf in leaves])

    def add(self, new: Observations, max_rows: int, moments: Gaussian) -> "EvidenceArrays":
        """Evidence with one more observation, in at most `max_rows` rows."""
        if self.places is None:
            return self._replace(leaves=add_to_sums(self.leaves, new.features, new.rewards))
        num_rows = int(self.leaves[self.places.num_rows])
        if num_rows < min(len(self.leaves[self.places.rewards]), max_rows):
            rows = (new.features, new.rewards)
            return self._replace(leaves=put_rows(self.places, self.leaves, *rows))
        evidence: Any = self.evidence
        if num_rows >= max_rows:
            evidence = evidence.bounded(max_rows - 1, moments)
        roomy = evidence.with_capacity(int(evidence.num_rows) + 1)
        return EvidenceArrays.of(roomy).add(new, max_rows, moments)
