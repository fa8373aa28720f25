"""Parquet files of rows, read in batches: summed up by task, or sampled to whole tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .labels import label_hashes
from .statistics import TaskStatistics, from_products, products, segment_sums
from .tables import (
    arrow,
    choose_columns,
    label_column,
    numeric_column,
    read_table,
    require_column,
)

if TYPE_CHECKING:
    from .tables import Frame

INTERCEPT = "intercept"
BATCH_ROWS = 2**16
Rows = dict[str, np.ndarray]  # arrays by the names of the arguments of `Logs`


@dataclass(frozen=True)
class LogColumns:
    """Roles of the columns of a file."""

    task: str
    reward: str
    features: tuple[str, ...]
    weight: str | None = None
    time: str | None = None

    @staticmethod
    def of(
        available: Sequence[str],
        task: str,
        reward: str,
        features: str | Sequence[str],
        weight: str | None = None,
        time: str | None = None,
    ) -> "LogColumns":
        """Choose columns by names and patterns."""
        roles = {"task": task, "reward": reward, "weight": weight, "time": time}
        given = {argument: name for argument, name in roles.items() if name is not None}
        for argument, name in given.items():
            require_column(available, name, argument)
        names = choose_columns(available, features, list(given.values()))
        return LogColumns(task, reward, tuple(names), weight, time)

    def arrays(self, frame: "Frame") -> Rows:
        """Arrays by the names of the arguments of `Logs`; `times` only if there is a column."""
        weight = self.weight
        arrays = {
            "tasks": label_column(frame, self.task),
            "rewards": numeric_column(frame, self.reward, "reward"),
            "features": np.stack(
                [numeric_column(frame, name, "features") for name in self.features], axis=1
            ),
            "weights": (
                np.ones(len(frame)) if weight is None else numeric_column(frame, weight, "weight")
            ),
        }
        if self.time is not None:
            arrays["times"] = frame[self.time].to_numpy()
        return arrays

    def batches(self, path: Path, batch_rows: int = BATCH_ROWS) -> Iterator[Rows]:
        """Read a Parquet file as batches of arrays."""
        names = [self.task, self.reward, *self.features]
        names += [name for name in (self.weight, self.time) if name]
        table = arrow("lib").Table
        for batch in _open(path).iter_batches(batch_rows, columns=list(dict.fromkeys(names))):
            yield self.arrays(read_table(table.from_batches([batch])))

    def read(self, path: Path) -> Rows:
        """Read a whole Parquet file."""
        return _joined(list(self.batches(path)))


def parquet_columns(path: Path) -> list[str]:
    """Names of the columns of a Parquet file."""
    names: list[str] = _open(path).schema_arrow.names
    return names


def _joined(parts: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def stream_statistics(
    path: Path, columns: LogColumns, intercept: bool, batch_rows: int = BATCH_ROWS
) -> TaskStatistics:
    """Sum up a Parquet file by task, with one batch of rows in memory at a time."""
    names = (INTERCEPT,) * intercept + columns.features
    places: dict[Any, int] = {}
    totals = np.zeros((1024, 2 + len(names) * (len(names) + 3) // 2))
    for batch in columns.batches(path, batch_rows):
        features = batch["features"]
        if intercept:
            features = np.column_stack([np.ones(len(features)), features])
        labels, inverse = np.unique(batch["tasks"], return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(inverse, minlength=len(labels)))])
        summands = products(features, batch["rewards"], batch["weights"])
        own = [places.setdefault(label, len(places)) for label in labels.tolist()]
        while len(places) > len(totals):
            totals = np.concatenate([totals, np.zeros_like(totals)])
        totals[own] += segment_sums(summands[order], starts)
    labels = np.array(list(places))
    return from_products(labels, label_hashes(labels), totals[: len(places)], names).checked()


def sample_tasks(
    path: Path, columns: LogColumns, max_rows: int, batch_rows: int = BATCH_ROWS
) -> Rows:
    """Read all rows of as many whole tasks as `max_rows` allow, chosen by their labels."""
    limit = _hash_limit(path, columns, max_rows, batch_rows)
    parts: list[Rows] = []
    for batch in columns.batches(path, batch_rows):
        labels, inverse = np.unique(batch["tasks"], return_inverse=True)
        chosen = (label_hashes(labels) <= limit)[inverse]
        parts.append({name: values[chosen] for name, values in batch.items()})
    return _joined(parts)


def _hash_limit(path: Path, columns: LogColumns, max_rows: int, batch_rows: int) -> np.uint64:
    counts: dict[int, int] = {}
    for batch in _open(path).iter_batches(batch_rows, columns=[columns.task]):
        column = batch.column(0).to_numpy(zero_copy_only=False)
        labels, sizes = np.unique(column, return_counts=True)
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
