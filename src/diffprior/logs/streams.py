"""Parquet files of rows, read in batches: summed up by task, or sampled to whole tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..encoders import Encoder
from ..tables import arrow, label_column, numeric_column, read_table, require_column
from .statistics import TaskStatistics, from_products, label_hashes, row_products, segment_sums

if TYPE_CHECKING:
    from ..tables import Frame

BATCH_ROWS = 2**16
Rows = dict[str, np.ndarray]  # arrays by the names of the arguments of `Logs`


@dataclass(frozen=True)
class LogColumns:
    """Roles of the columns of a table, and how features are encoded."""

    task: str
    reward: str
    encoder: Encoder
    weight: str | None = None
    time: str | None = None

    @staticmethod
    def fit(
        frame: "Frame",
        task: str,
        reward: str,
        features: str | Sequence[str] | None,
        weight: str | None = None,
        time: str | None = None,
        attributes: Sequence[str] = (),
        *,
        intercept: bool | None = None,
        standardize: bool | None = None,
    ) -> "LogColumns":
        """Choose columns by names and patterns, and fit their encoder to a table."""
        roles = {"task": task, "reward": reward, "weight": weight, "time": time}
        given = {argument: name for argument, name in roles.items() if name is not None}
        for argument, name in given.items():
            require_column(frame.columns, name, argument)
            if argument != "task" and name == task:
                raise ValueError(
                    f"`{argument}`: expected another column than that of tasks, got {name!r} for "
                    "both; name the column of rewards, weights or times"
                )
        if len(frame) == 0:
            raise ValueError("`source`: expected rows, got an empty table; check its filter")
        reserved = [*given.values(), *attributes]
        encoder = Encoder.fit(
            frame, features, reserved=reserved, intercept=intercept, standardize=standardize
        )
        return LogColumns(task, reward, encoder, weight, time)

    def arrays(self, frame: "Frame") -> Rows:
        """Arrays by the names of the arguments of `Logs`; `times` only if there is a column."""
        weight = self.weight
        arrays = {
            "tasks": label_column(frame, self.task),
            "rewards": numeric_column(frame, self.reward, "reward"),
            "features": self.encoder.encode(frame),
            "weights": (
                np.ones(len(frame)) if weight is None else numeric_column(frame, weight, "weight")
            ),
        }
        if self.time is not None:
            arrays["times"] = frame[self.time].to_numpy()
        return arrays

    def batches(self, path: Path, batch_rows: int = BATCH_ROWS) -> Iterator[Rows]:
        """Read a Parquet file as batches of arrays."""
        names = [self.task, self.reward, *(column.name for column in self.encoder.columns)]
        names += [name for name in (self.weight, self.time) if name]
        yield from map(self.arrays, frames(path, list(dict.fromkeys(names)), batch_rows))

    def read(self, path: Path) -> Rows:
        """Read a whole Parquet file."""
        parts = list(self.batches(path))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def frames(
    path: Path, names: Sequence[str] | None = None, batch_rows: int = BATCH_ROWS
) -> Iterator["Frame"]:
    """Read a Parquet file as tables of few rows."""
    for batch in _open(path).iter_batches(batch_rows, columns=names):
        yield read_table(arrow("lib").Table.from_batches([batch]))


def first_frame(path: Path) -> "Frame":
    """The first rows of a Parquet file."""
    found = next(frames(path), None)
    if found is None:
        raise ValueError(f"`source`: expected rows, found none in {path}; check the file")
    return found


def stream_statistics(
    path: Path, columns: LogColumns, batch_rows: int = BATCH_ROWS
) -> TaskStatistics:
    """Sum up a Parquet file by task, with one batch of rows in memory at a time."""
    names = columns.encoder.names
    places: dict[Any, int] = {}
    totals = np.zeros((1024, 2 + len(names) * (len(names) + 3) // 2))
    for batch in columns.batches(path, batch_rows):
        labels, inverse = np.unique(batch["tasks"], return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(inverse, minlength=len(labels)))])
        summands = row_products(batch["features"], batch["rewards"], batch["weights"])
        own = [places.setdefault(label, len(places)) for label in labels.tolist()]
        while len(places) > len(totals):
            totals = np.concatenate([totals, np.zeros_like(totals)])
        totals[own] += segment_sums(summands[order], starts)
    labels = np.array(list(places))
    return from_products(labels, label_hashes(labels), totals[: len(places)], names).checked()


def read_sample(path: Path, task: str, max_rows: int, batch_rows: int = BATCH_ROWS) -> "Frame":
    """Read all rows of as many whole tasks as `max_rows` allow, chosen by their labels."""
    require_column(_open(path).schema_arrow.names, task, "task")
    limit = _hash_limit(path, task, max_rows, batch_rows)
    parts = []
    for frame in frames(path, batch_rows=batch_rows):
        labels, inverse = np.unique(label_column(frame, task), return_inverse=True)
        chosen = arrow("lib").array((label_hashes(labels) <= limit)[inverse])
        parts.append(frame.to_arrow().filter(chosen))
    return read_table(arrow("lib").concat_tables(parts))


def _hash_limit(path: Path, task: str, max_rows: int, batch_rows: int) -> np.uint64:
    counts: dict[int, int] = {}
    for frame in frames(path, [task], batch_rows):
        labels, sizes = np.unique(frame[task].to_numpy(), return_counts=True)
        for hash_, size in zip(label_hashes(labels).tolist(), sizes.tolist(), strict=True):
            counts[hash_] = counts.get(hash_, 0) + size
    ordered = sorted(counts)
    fits = np.cumsum([counts[h] for h in ordered]) <= max_rows
    if not fits[0]:
        raise ValueError(
            f"`max_rows`: expected room for one task, got {max_rows} where one has "
            f"{counts[ordered[0]]} rows; raise it"
        )
    return np.uint64(ordered[int(fits.sum()) - 1])


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"`source`: expected a Parquet file, found none at {path}; check the name")
    return arrow("parquet").ParquetFile(path)
