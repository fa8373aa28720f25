"""Parquet files of rows, read in batches: summed up by task, or sampled to whole tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .labels import label_hashes
from .statistics import TaskStatistics, from_products, products, segment_sums
from .tables import arrow, choose_columns, reject_missing_labels, require_column, to_numbers

INTERCEPT = "intercept"
BATCH_ROWS = 2**16
Rows = dict[str, np.ndarray]  # arrays by the names of the arguments of `Logs`


@dataclass(frozen=True)
class Columns:
    """Roles of the columns of a file."""

    task: str
    reward: str
    features: tuple[str, ...]
    weight: str | None = None
    time: str | None = None

    @staticmethod
    def of(
        path: Path,
        task: str,
        reward: str,
        features: str | Sequence[str],
        weight: str | None = None,
        time: str | None = None,
    ) -> "Columns":
        """Choose columns of a Parquet file by names and patterns."""
        available = _open(path).schema_arrow.names
        roles = {"task": task, "reward": reward, "weight": weight, "time": time}
        given = {argument: name for argument, name in roles.items() if name is not None}
        for argument, name in given.items():
            require_column(available, name, argument)
        names = choose_columns(available, features, list(given.values()))
        return Columns(task, reward, tuple(names), weight, time)

    def batches(self, path: Path, batch_rows: int = BATCH_ROWS) -> Iterator[Rows]:
        """Read a file as batches of arrays; `times` only if there is a column for them."""
        names = [self.task, self.reward, *self.features]
        names += [name for name in (self.weight, self.time) if name]
        for batch in _open(path).iter_batches(batch_rows, columns=list(dict.fromkeys(names))):
            yield self._arrays(batch)

    def read(self, path: Path) -> Rows:
        """Read a whole file."""
        batches = list(self.batches(path))
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    def _arrays(self, batch: Any) -> Rows:
        def column(name: str, argument: str) -> np.ndarray:
            return to_numbers(batch.column(name).to_numpy(zero_copy_only=False), name, argument)

        labels = batch.column(self.task)
        missing = np.asarray(labels.is_null().to_numpy(zero_copy_only=False), bool)
        reject_missing_labels(missing, self.task)
        weights = None if self.weight is None else column(self.weight, "weight")
        arrays = {
            "tasks": labels.to_numpy(zero_copy_only=False),
            "rewards": column(self.reward, "reward"),
            "features": np.stack([column(name, "features") for name in self.features], axis=1),
            "weights": np.ones(len(labels)) if weights is None else weights,
        }
        if self.time is not None:
            arrays["times"] = batch.column(self.time).to_numpy(zero_copy_only=False)
        return arrays


def stream_statistics(
    path: Path, columns: Columns, intercept: bool, batch_rows: int = BATCH_ROWS
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


def sample_tasks(path: Path, columns: Columns, max_rows: int, batch_rows: int = BATCH_ROWS) -> Rows:
    """Read all rows of as many whole tasks as `max_rows` allow, chosen by their labels."""
    limit = _hash_limit(path, columns, max_rows, batch_rows)
    parts: list[Rows] = []
    for batch in columns.batches(path, batch_rows):
        labels, inverse = np.unique(batch["tasks"], return_inverse=True)
        chosen = (label_hashes(labels) <= limit)[inverse]
        parts.append({name: values[chosen] for name, values in batch.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _hash_limit(path: Path, columns: Columns, max_rows: int, batch_rows: int) -> np.uint64:
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
