"""Parquet files larger than memory: summed up batch by batch, or thinned to whole tasks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .columns import arrow, as_numbers, chosen_columns, refuse_rows, require_column
from .design import INTERCEPT, check_gram
from .labels import label_hashes
from .statistics import TaskStatistics, segment_sums, triangle, unpacked

ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class Columns:
    """Which columns of a file hold what."""

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
        """The columns of a Parquet file that the names and patterns choose."""
        available = _open(path).schema_arrow.names
        for name, argument in ((task, "task"), (reward, "reward"), (weight, "weight")):
            if name is not None:
                require_column(available, name, argument)
        taken = [name for name in (task, reward, weight, time) if name]
        names = chosen_columns(available, features, taken)
        return Columns(task, reward, tuple(names), weight, time)

    def batches(self, path: Path, rows_at_once: int) -> Iterator[dict[str, np.ndarray]]:
        """Batches of rows as arrays: task, rewards, features, weights, and times if there are."""
        names = [self.task, self.reward, *self.features]
        names += [name for name in (self.weight, self.time) if name]
        for batch in _open(path).iter_batches(rows_at_once, columns=list(dict.fromkeys(names))):
            yield self._arrays(batch)

    def _arrays(self, batch: Any) -> dict[str, np.ndarray]:
        def column(name: str, argument: str) -> np.ndarray:
            values = batch.column(name).to_numpy(zero_copy_only=False)
            return as_numbers(values, name, argument)

        labels = batch.column(self.task)
        missing = np.asarray(labels.is_null().to_numpy(zero_copy_only=False), bool)
        refuse_rows(missing, "`task`", f"no missing labels in {self.task!r}", "drop those rows")
        arrays = {
            "tasks": labels.to_numpy(zero_copy_only=False),
            "rewards": column(self.reward, "reward"),
            "features": np.stack([column(n, "features") for n in self.features], axis=1),
            "weights": np.ones(len(labels))
            if self.weight is None
            else column(self.weight, "weight"),
        }
        if self.time is not None:
            arrays["times"] = batch.column(self.time).to_numpy(zero_copy_only=False)
        return arrays


def stream_statistics(
    path: Path, columns: Columns, intercept: bool, rows_at_once: int = ROWS_AT_ONCE
) -> TaskStatistics:
    """Statistics of every task of a Parquet file of rows; one batch is in memory at a time."""
    names = (INTERCEPT,) * intercept + columns.features
    totals = _Totals(len(names))
    for batch in columns.batches(path, rows_at_once):
        features = batch["features"]
        if intercept:
            features = np.column_stack([np.ones(len(features)), features])
        totals.add(batch["tasks"], features, batch["rewards"], batch["weights"])
    made = totals.statistics(names)
    check_gram(unpacked(made.xx.sum(axis=0)[None])[0], names, made.num_rows)
    return made


def sample_tasks(
    path: Path, columns: Columns, max_rows: int, rows_at_once: int = ROWS_AT_ONCE
) -> dict[str, np.ndarray]:
    """All rows of as many whole tasks as `max_rows` allow; which ones, their labels decide."""
    limit = _hash_limit(path, columns, max_rows, rows_at_once)
    kept: list[dict[str, np.ndarray]] = []
    for batch in columns.batches(path, rows_at_once):
        labels, inverse = np.unique(batch["tasks"], return_inverse=True)
        keep = (label_hashes(labels) <= limit)[inverse]
        kept.append({name: values[keep] for name, values in batch.items()})
    return {name: np.concatenate([part[name] for part in kept]) for name in kept[0]}


def _hash_limit(path: Path, columns: Columns, max_rows: int, rows_at_once: int) -> np.uint64:
    counts: dict[int, int] = {}
    for batch in _open(path).iter_batches(rows_at_once, columns=[columns.task]):
        labels, sizes = np.unique(
            batch.column(0).to_numpy(zero_copy_only=False), return_counts=True
        )
        for hash_, size in zip(label_hashes(labels).tolist(), sizes.tolist(), strict=True):
            counts[hash_] = counts.get(hash_, 0) + size
    ordered = sorted(counts)
    inside = np.cumsum([counts[h] for h in ordered]) <= max_rows
    if not inside[0]:
        raise ValueError(
            f"`max_rows`: expected room for one task, got {max_rows} where one has "
            f"{counts[ordered[0]]} rows; raise it"
        )
    return np.uint64(ordered[int(inside.sum()) - 1])


class _Totals:
    """Sums of products by task, of tasks that turn up in any order."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.places: dict[Any, int] = {}
        self.sums = np.zeros((1024, 2 + dim + dim * (dim + 1) // 2))

    def add(
        self, tasks: np.ndarray, features: np.ndarray, rewards: np.ndarray, weights: np.ndarray
    ) -> None:
        labels, inverse = np.unique(tasks, return_inverse=True)
        order = np.argsort(inverse, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(inverse, minlength=len(labels)))])
        x, y, w = features[order], rewards[order], weights[order]
        products = [x[:, i] * x[:, j] * w for i, j in triangle(self.dim)]
        linear = [x[:, i] * y * w for i in range(self.dim)]
        sums = segment_sums(np.stack([w, w * y**2, *linear, *products], axis=1), starts)
        places = [self.places.setdefault(label, len(self.places)) for label in labels.tolist()]
        while len(self.places) > len(self.sums):
            self.sums = np.concatenate([self.sums, np.zeros_like(self.sums)])
        self.sums[places] += sums

    def statistics(self, names: tuple[str, ...]) -> TaskStatistics:
        sums, d = self.sums[: len(self.places)], self.dim
        labels = np.array(list(self.places))
        return TaskStatistics(
            labels,
            label_hashes(labels),
            sums[:, 0],
            sums[:, 2 + d :],
            sums[:, 2 : 2 + d],
            sums[:, 1],
            names,
        )


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ValueError(f"`source`: expected a Parquet file, found none at {path}; check the name")
    return arrow("parquet").ParquetFile(path)
