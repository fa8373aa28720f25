"""Evidence of a task as arrays on the host, small in memory and quick to put side by side."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ..bandits.forgetting import fade_program
from ..bandits.updates import Observations, update_program
from ..checks import on_device
from ..evidence.base import AbstractEvidence
from ..evidence.glm import GLMEvidence
from ..gaussian import Gaussian
from ..partition import Structure, partition


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


class EvidenceArrays(NamedTuple):
    """The arrays of evidence, what makes evidence of them, and where rows are, if it has rows."""

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

    def rehearsals(self, max_rows: int) -> Iterator["EvidenceArrays"]:
        """Such evidence, and if it has rows, such with so many that there is room for no more."""
        yield self
        if self.places is not None:
            evidence = self.evidence.with_capacity(max_rows)
            features = np.random.default_rng(0).standard_normal((max_rows, evidence.dim))
            rows = (features, np.zeros(max_rows), np.ones(max_rows))
            yield EvidenceArrays.of(evidence.add(*map(on_device, rows)))

    def faded(self, temperature: float) -> "EvidenceArrays":
        """Counted 1 / temperature times."""
        if temperature == 1.0:
            return self
        leaves = fade_program(self.structure)(self.leaves, temperature)
        return self._replace(leaves=[np.asarray(leaf) for leaf in leaves])

    def add(self, new: Observations, max_rows: int, moments: Gaussian) -> "EvidenceArrays":
        """With one observation more, in at most `max_rows` rows: a function of these alone."""
        if self.places is None:
            leaves = update_program(self.structure, 1)(self.leaves, new.features, new.rewards)
            return self._replace(leaves=[np.asarray(leaf) for leaf in leaves])
        num_rows = int(self.leaves[self.places.num_rows])
        if num_rows < min(len(self.leaves[self.places.rewards]), max_rows):
            return self._with_row(num_rows, new, self.places)
        evidence: Any = self.evidence
        if num_rows >= max_rows:
            evidence = evidence.bounded(max_rows - 1, moments)
        roomy = evidence.with_capacity(int(evidence.num_rows) + 1)
        return EvidenceArrays.of(roomy).add(new, max_rows, moments)

    def _with_row(self, number: int, new: Observations, places: RowPlaces) -> "EvidenceArrays":
        """With a row put where there is room for it, as `AbstractEvidence.put` does."""
        leaves = list(self.leaves)
        row = (new.features[0], new.rewards[0], 1.0)
        for place, value in zip(places[:3], row, strict=True):
            leaves[place] = leaves[place].copy()
            leaves[place][number] = value
        leaves[places.num_rows] = np.asarray(number + 1, leaves[places.num_rows].dtype)
        return self._replace(leaves=leaves)
