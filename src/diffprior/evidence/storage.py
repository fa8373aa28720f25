"""Evidence of rows in files, which hold the rows in use and how much room there was."""

from typing import Any

import numpy as np

from ..checks import on_device
from ..files.kinds import field_hints
from .base import AbstractEvidence
from .blocks import room_for
from .history import padded, small_room

COLUMNS = ("features", "rewards", "weights", "offsets")


class AbstractStoredRows(AbstractEvidence):
    """Columns of rows, the first `num_rows` of which are in use, and how they are kept."""

    @classmethod
    def file_hints(cls) -> dict[str, Any]:
        """The fields that are kept, and what each may hold."""
        return field_hints(cls) | {"num_rows": int, "capacity": int}

    def file_fields(self) -> dict[str, Any]:
        """The rows in use; all of them where files may not ask for so much room."""
        held = {name: getattr(self, name) for name in self.file_hints()}
        num_rows, capacity = int(held["num_rows"]), held["capacity"]
        kept = num_rows if small_room(capacity, self.dim) else capacity
        rows = {name: on_device(np.asarray(held[name])[:kept]) for name in COLUMNS}
        return held | rows | {"num_rows": num_rows}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Any:
        """The rows in as much room as there was."""
        fields = dict(fields)
        columns: Any = tuple(np.asarray(fields[name]) for name in COLUMNS)
        capacity, num_rows = fields.pop("capacity"), fields["num_rows"]
        kept, dim = columns[0].shape
        if not 0 <= num_rows <= kept <= capacity or room_for(capacity) != capacity:
            raise ValueError(f"`num_rows`: expected 0 to {capacity}, got {num_rows} of {kept}")
        if not small_room(capacity, dim) and kept < capacity:
            raise ValueError(f"`capacity`: expected room for {kept} rows, got {capacity}")
        rows = zip(COLUMNS, map(on_device, padded(columns, capacity)), strict=True)
        used = {"num_rows": on_device(np.asarray(num_rows, np.int32))}
        return super().from_fields(fields | dict(rows) | used)

    @classmethod
    def upgrade(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        """Version 0.1.0 kept the rows not in use, too."""
        rows = {"num_rows": int(fields["num_rows"]), "capacity": fields["features"].shape[0]}
        return fields | rows

    def validate(self) -> None:
        """Refuse weights and rewards that cannot be."""
        super().validate()
        held: Any = self
        num_rows, weights = int(held.num_rows), np.asarray(held.weights)
        if np.any(weights < 0) or np.any(weights[num_rows:] > 0) or held.folded.dim != self.dim:
            raise ValueError("`weights`: expected none below 0, and none beyond `num_rows`")
        self.check_rewards(np.asarray(held.rewards)[weights > 0])
