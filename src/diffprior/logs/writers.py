"""Writers of logged decisions, few of them in memory: Parquet, DSJSON, Open Bandit arrays."""

import contextlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO

import numpy as np

from ..tables import arrow
from .decisions import LoggedDecision

BUFFER_SIZE = 2**21  # numbers in memory before they are written


def write_parquet(
    file: BinaryIO,
    dim: int,
    decisions: Iterable[LoggedDecision],
    raw: Mapping[str, str] | None = None,
    metadata: Callable[[], Mapping[str, bytes]] = dict,
    buffer_size: int = BUFFER_SIZE,
) -> None:
    """Write a table with one row per decision.

    Columns are `task`, `reward`, `propensity`, `x1`, `x2`, ... of the action taken, and `actions`
    and `mask`, all that was offered; and those of `raw`, a type by name. The metadata of the file
    are asked for in the end.
    """
    types = arrow("lib")
    number, text, integer = types.float64(), types.string(), types.int32()
    names = [f"x{i + 1}" for i in range(dim)]
    columns = {"task": text, "decision_id": text, "version": integer, "action": text}
    columns |= {"taken": integer, **dict.fromkeys(names, number)}
    columns |= dict.fromkeys(("reward", "propensity", "predicted"), number)
    columns |= {"source": text, "created": number, "learned": number}
    columns |= {"actions": types.list_(types.list_(number)), "mask": types.list_(types.bool_())}
    columns |= {"candidates": text, "excluded": types.list_(types.int64())}
    kinds = {"number": number, "boolean": types.bool_()}
    columns |= {name: kinds.get(kind, text) for name, kind in (raw or {}).items()}
    schema = types.schema(list(columns.items()))
    rows: list[dict[str, Any]] = []
    size = 0
    with arrow("parquet").ParquetWriter(file, schema) as writer:

        def flush() -> None:
            if rows:
                writer.write_batch(types.RecordBatch.from_pylist(rows, schema=schema))
            rows.clear()

        for decision in decisions:
            fields = decision._asdict()
            features, mask = fields.pop("features"), fields.pop("mask")
            fields |= fields.pop("raw") or {}
            del fields["items"]
            fields |= zip(names, features[decision.taken].tolist(), strict=True)
            rows.append(fields | {"actions": features.tolist(), "mask": mask.tolist()})
            size += features.size + len(schema)
            if size > buffer_size:
                flush()
                size = 0
        flush()
        writer.add_key_value_metadata(dict(metadata()))


def write_dsjson(file: BinaryIO, dim: int, decisions: Iterable[LoggedDecision]) -> None:
    """Write Vowpal Wabbit's format, one JSON object per line.

    The cost is minus the reward, the probability the propensity; actions that were not allowed are
    left out. Of a choice among items, the features are shared, and an action is an item's name.
    """
    for decision in decisions:
        rows = [
            {"x": {f"x{i + 1}": x for i, x in enumerate(row)}}
            for row in decision.features[decision.mask].tolist()
        ]
        actions = [{"i": {name: 1}} for name in decision.items] or rows
        shared = rows[0] if decision.items else {"task": decision.task}
        if decision.items:
            place = decision.items.index(decision.action)
        else:
            place = int(np.sum(decision.mask[: decision.taken]))
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
            "c": {**shared, "_multi": actions},
            "p": [decision.propensity],
        }
        file.write(json.dumps(event, allow_nan=False).encode() + b"\n")


def write_open_bandit(file: BinaryIO, dim: int, decisions: Iterable[LoggedDecision]) -> None:
    """Write arrays of Open Bandit Pipeline in one .npz file.

    They are `action`, `reward`, `pscore`, `position`, `context` (features of all actions, side by
    side) and `action_context` (which action it is); and `mask`, `version`, `task_number` and `task`
    (a name per number), which the pipeline does not need. Decisions must have the same number of
    actions, which is all that its arrays can hold.
    """
    columns: dict[str, tuple[Any, np.dtype[Any], tuple[int, ...]]] = {}  # on disk until the end
    tasks: dict[str, int] = {}
    count = num_actions = 0
    with contextlib.ExitStack() as stack:
        for decision in decisions:
            num_actions = num_actions or len(decision.mask)
            if len(decision.mask) != num_actions:
                raise ValueError(
                    "`format`: expected as many actions in every decision, which Open Bandit "
                    f"needs, got {num_actions} and {len(decision.mask)}; export parquet or dsjson"
                )
            count += 1
            numbers = {
                "action": decision.taken,
                "position": 0,
                "task_number": tasks.setdefault(decision.task, len(tasks)),
                "version": decision.version,
            }
            row = {name: np.asarray(value, np.int64) for name, value in numbers.items()}
            row |= {
                "reward": np.asarray(decision.reward),
                "pscore": np.asarray(decision.propensity),
            }
            row |= {"context": decision.features.ravel(), "mask": decision.mask}
            for name, value in row.items():
                if name not in columns:
                    spool = stack.enter_context(tempfile.TemporaryFile())
                    columns[name] = (spool, value.dtype, value.shape)
                columns[name][0].write(value.tobytes())
        archive = stack.enter_context(zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED))
        for name, (column, dtype, shape) in columns.items():
            column.seek(0)
            header = {
                "descr": np.lib.format.dtype_to_descr(dtype),
                "fortran_order": False,
                "shape": (count, *shape),
            }
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_2_0(entry, header)
                while piece := column.read(2**20):
                    entry.write(piece)
        whole = {"task": np.array(list(tasks), dtype=str), "action_context": np.eye(num_actions)}
        whole |= {"n_rounds": np.asarray(count), "n_actions": np.asarray(num_actions)}
        for name, value in whole.items():
            with archive.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)


FORMATS: dict[str, Callable[[BinaryIO, int, Iterable[LoggedDecision]], None]] = {
    "parquet": write_parquet,
    "dsjson": write_dsjson,
    "obd": write_open_bandit,
}
