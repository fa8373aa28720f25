"""Writers of logged decisions: Parquet, Vowpal Wabbit's DSJSON, Open Bandit arrays."""

import abc
import contextlib
import json
import tempfile
import zipfile
from datetime import UTC, datetime
from typing import Any, BinaryIO

import numpy as np

from .decisions import LoggedDecision
from .tables import arrow

BUFFER_SIZE = 2**21  # numbers in memory before they are written


class AbstractWriter(abc.ABC):
    """Writes decisions one by one, with few of them in memory.

    Call `write` for each, then `finish`, and `close` in any case.
    """

    @abc.abstractmethod
    def __init__(self, file: BinaryIO, dim: int) -> None:
        """Begin a file of decisions with `dim` features."""

    @abc.abstractmethod
    def write(self, decision: LoggedDecision) -> None:
        """Add a decision."""

    @abc.abstractmethod
    def finish(self) -> None:
        """Write the rest."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources."""


class ParquetWriter(AbstractWriter):
    """A table with one row per decision.

    Columns are `task`, `reward`, `propensity`, `x1`, `x2`, ... of the action taken, and `actions`
    and `mask`, all that was offered.
    """

    def __init__(self, file: BinaryIO, dim: int, buffer_size: int = BUFFER_SIZE) -> None:
        types = arrow("lib")
        number, text = types.float64(), types.string()
        self._names = [f"x{i + 1}" for i in range(dim)]
        self._schema = types.schema(
            [
                ("task", text),
                ("decision_id", text),
                ("version", types.int32()),
                ("action", text),
                ("taken", types.int32()),
                *((name, number) for name in self._names),
                ("reward", number),
                ("propensity", number),
                ("predicted", number),
                ("source", text),
                ("created", number),
                ("learned", number),
                ("actions", types.list_(types.list_(number))),
                ("mask", types.list_(types.bool_())),
            ]
        )
        self._writer = arrow("parquet").ParquetWriter(file, self._schema)
        self._rows: list[LoggedDecision] = []
        self._size, self._buffer_size = 0, buffer_size

    def write(self, decision: LoggedDecision) -> None:
        self._rows.append(decision)
        self._size += decision.features.size + len(self._schema)
        if self._size > self._buffer_size:
            self._flush()

    def finish(self) -> None:
        self._flush()

    def close(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        rows = [self._row(decision) for decision in self._rows]
        if rows:
            table = arrow("lib").RecordBatch.from_pylist(rows, schema=self._schema)
            self._writer.write_batch(table)
        self._rows, self._size = [], 0

    def _row(self, decision: LoggedDecision) -> dict[str, Any]:
        fields = decision._asdict()
        features, mask = fields.pop("features"), fields.pop("mask")
        phi = dict(zip(self._names, decision.phi.tolist(), strict=True))
        return fields | phi | {"actions": features.tolist(), "mask": mask.tolist()}


class DsjsonWriter(AbstractWriter):
    """One JSON object per line: the cost is minus the reward, the probability the propensity.

    Actions that were not allowed are left out.
    """

    def __init__(self, file: BinaryIO, dim: int) -> None:
        self._file = file

    def write(self, decision: LoggedDecision) -> None:
        offered = np.flatnonzero(decision.mask)
        place = int(np.flatnonzero(offered == decision.taken)[0])
        actions = [
            {"x": {f"x{i + 1}": x for i, x in enumerate(decision.features[row].tolist())}}
            for row in offered
        ]
        when = datetime.fromtimestamp(decision.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = {
            "_label_cost": -decision.reward,
            "_label_probability": decision.propensity,
            "_label_Action": place + 1,
            "_labelIndex": place,
            "Timestamp": when,
            "Version": "1",
            "EventId": decision.decision_id,
            "a": [place + 1],
            "c": {"task": decision.task, "_multi": actions},
            "p": [decision.propensity],
        }
        self._file.write(json.dumps(event, allow_nan=False).encode() + b"\n")

    def finish(self) -> None:
        pass

    def close(self) -> None:
        pass


class OpenBanditWriter(AbstractWriter):
    """Arrays of Open Bandit Pipeline in one .npz file.

    They are `action`, `reward`, `pscore`, `position`, `context` (features of all actions, side by
    side) and `action_context` (which action it is); and `mask`, `version`, `task_number` and `task`
    (a name per number), which the pipeline does not need.

    Raises:
        ValueError: Decisions have different numbers of actions, which its arrays cannot hold.
    """

    def __init__(self, file: BinaryIO, dim: int) -> None:
        self._file = file
        self._stack = contextlib.ExitStack()
        self._columns: dict[str, tuple[Any, np.dtype, tuple[int, ...]]] = {}
        self._count = self._num_actions = 0
        self._tasks: dict[str, int] = {}

    def write(self, decision: LoggedDecision) -> None:
        self._num_actions = self._num_actions or len(decision.mask)
        if len(decision.mask) != self._num_actions:
            raise ValueError(
                f"`format`: expected as many actions in every decision, which Open Bandit needs, "
                f"got {self._num_actions} and {len(decision.mask)}; export parquet or dsjson"
            )
        self._count += 1
        self._add("action", np.asarray(decision.taken, np.int64))
        self._add("reward", np.asarray(decision.reward))
        self._add("pscore", np.asarray(decision.propensity))
        self._add("position", np.asarray(0, np.int64))
        self._add("context", decision.features.ravel())
        self._add("mask", decision.mask)
        number = self._tasks.setdefault(decision.task, len(self._tasks))
        self._add("task_number", np.asarray(number, np.int64))
        self._add("version", np.asarray(decision.version, np.int64))

    def close(self) -> None:
        self._stack.close()

    def finish(self) -> None:
        with zipfile.ZipFile(self._file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, (column, dtype, shape) in self._columns.items():
                column.seek(0)
                header = {
                    "descr": np.lib.format.dtype_to_descr(dtype),
                    "fortran_order": False,
                    "shape": (self._count, *shape),
                }
                with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array_header_2_0(entry, header)
                    while piece := column.read(2**20):
                        entry.write(piece)
            self._whole(archive, "task", np.array(list(self._tasks), dtype=str))
            self._whole(archive, "action_context", np.eye(self._num_actions))
            self._whole(archive, "n_rounds", np.asarray(self._count))
            self._whole(archive, "n_actions", np.asarray(self._num_actions))

    def _add(self, name: str, value: np.ndarray) -> None:
        if name not in self._columns:
            spool = self._stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            self._columns[name] = (spool, value.dtype, value.shape)
        self._columns[name][0].write(value.tobytes())

    def _whole(self, archive: zipfile.ZipFile, name: str, value: np.ndarray) -> None:
        with archive.open(f"{name}.npy", "w") as entry:
            np.lib.format.write_array(entry, value, allow_pickle=False)


FORMATS: dict[str, type[AbstractWriter]] = {
    "parquet": ParquetWriter,
    "dsjson": DsjsonWriter,
    "obd": OpenBanditWriter,
}
