"""Linear rewards in numbers that do not grow with the rows: counts and sums of products a task."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from .columns import labels_of, numbers, open_table, refuse_rows, require_column
from .design import check_gram
from .labels import label_hashes


@dataclass(frozen=True, eq=False)
class TaskStatistics:
    """Counts and sums of products of every task: all that linear rewards need.

    Attributes:
        labels: one label for each task, (t,).
        hashes: a number for every task that depends on its label alone, (t,).
        counts: rows of each task, or their summed weights, (t,).
        xx: sums of products of features, the lower triangle by rows, (t, d (d + 1) / 2).
        xy: sums of feature times reward, (t, d).
        yy: sums of squared rewards, (t,).
        feature_names: names of the features.
        noise_std: known noise, where the table has it (estimates with standard errors); or None.
    """

    labels: np.ndarray
    hashes: UInt64[np.ndarray, " t"]
    counts: Float[np.ndarray, " t"]
    xx: Float[np.ndarray, "t p"]
    xy: Float[np.ndarray, "t d"]
    yy: Float[np.ndarray, " t"]
    feature_names: tuple[str, ...]
    noise_std: float | None = None

    @staticmethod
    def read(
        source: Any,
        *,
        task: str = "task",
        features: Sequence[str] | None = None,
    ) -> "TaskStatistics":
        """Statistics from a table with columns n, yy, xy_1.. and xx_1_1, xx_2_1, ..: what the SQL
        of `diffprior statistics` makes.

        Args:
            source: CSV or Parquet file, or a pandas, polars or Arrow table.
            task: column of task labels.
            features: names for the features; x1, x2, ... by default.

        Returns:
            Statistics of every task.
        """
        frame = open_table(source)
        dim = sum(name.startswith("xy_") for name in frame.columns)
        if dim == 0:
            require_column(list(frame.columns), "xy_1", "source")
        names = tuple(features or (f"x{i + 1}" for i in range(dim)))
        xx = [numbers(frame, f"xx_{i + 1}_{j + 1}", "source") for i, j in triangle(dim)]
        labels = labels_of(frame, task)
        if len(set(labels.tolist())) != len(labels):
            raise ValueError(
                f"`task`: expected each task once, got {len(labels)} rows for "
                f"{len(set(labels.tolist()))} tasks; group by the task alone"
            )
        made = TaskStatistics(
            labels,
            label_hashes(labels),
            numbers(frame, "n", "source"),
            np.stack(xx, axis=1),
            np.stack([numbers(frame, f"xy_{i + 1}", "source") for i in range(dim)], axis=1),
            numbers(frame, "yy", "source"),
            names,
        )
        refuse_rows(made.yy < 0, "`yy`", "no negative sums of squares", "sum reward * reward")
        check_gram(unpacked(made.xx.sum(axis=0)[None])[0], names, int(made.counts.sum()))
        return made

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.xy.shape[1]

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.labels)

    @property
    def num_rows(self) -> int:
        """Number of rows that were summed."""
        return int(round(self.counts.sum()))

    def select(self, tasks: Int[np.ndarray, " k"] | Bool[np.ndarray, " t"]) -> "TaskStatistics":
        """The statistics of some tasks: positions, or a mask.

        Args:
            tasks: Positions in `labels`, or a mask (t,).

        Returns:
            Their statistics.
        """
        return dataclasses.replace(
            self,
            labels=self.labels[tasks],
            hashes=self.hashes[tasks],
            counts=self.counts[tasks],
            xx=self.xx[tasks],
            xy=self.xy[tasks],
            yy=self.yy[tasks],
        )

    def statistics(self) -> "TaskStatistics":
        """Themselves, as `Logs.statistics`.

        Returns:
            Itself.
        """
        return self

    def __repr__(self) -> str:
        return f"TaskStatistics({self.num_tasks} tasks, {self.num_rows} rows, {self.dim} features)"


def sum_by_task(
    labels: np.ndarray,
    starts: Int[np.ndarray, " s"],
    features: Float[np.ndarray, "n d"],
    rewards: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    feature_names: tuple[str, ...],
    hashes: UInt64[np.ndarray, " t"] | None = None,
) -> TaskStatistics:
    """The statistics of rows that are grouped by task."""
    with np.errstate(over="ignore", invalid="ignore"):
        products = [features[:, i] * features[:, j] for i, j in triangle(features.shape[1])]
        xx = segment_sums(np.stack(products, axis=1) * weights[:, None], starts)
        xy = segment_sums(features * (weights * rewards)[:, None], starts)
        sums = segment_sums(np.stack([weights, weights * rewards**2], axis=1), starts)
    if not all(np.all(np.isfinite(found)) for found in (xx, xy, sums)):
        raise ValueError(
            "`rewards`: expected features and rewards whose squares can be summed in double "
            "precision, got larger ones; rescale them"
        )
    hashes = label_hashes(labels) if hashes is None else hashes
    return TaskStatistics(labels, hashes, sums[:, 0], xx, xy, sums[:, 1], feature_names)


def segment_sums(
    values: Float[np.ndarray, "n k"], starts: Int[np.ndarray, " s"]
) -> Float[np.ndarray, "t k"]:
    """Sums over rows starts[i] to starts[i + 1]; zero where there are none."""
    if len(values) == 0:
        return np.zeros((len(starts) - 1, values.shape[1]))
    sums = np.add.reduceat(values, np.minimum(starts[:-1], len(values) - 1), axis=0)
    return np.where((np.diff(starts) > 0)[:, None], sums, 0.0)


def triangle(dim: int) -> list[tuple[int, int]]:
    """Places of the lower triangle, row by row."""
    return [(i, j) for i in range(dim) for j in range(i + 1)]


def unpacked(packed: Float[np.ndarray, "t p"]) -> Float[np.ndarray, "t d d"]:
    """Symmetric matrices from their lower triangles."""
    dim = int((np.sqrt(8 * packed.shape[1] + 1) - 1) / 2)
    rows, columns = np.tril_indices(dim)
    full = np.empty((len(packed), dim, dim), packed.dtype)
    full[:, rows, columns] = packed
    full[:, columns, rows] = packed
    return full


def packed(matrices: Float[np.ndarray, "*t d d"]) -> Float[np.ndarray, "*t p"]:
    """Lower triangles of symmetric matrices, row by row."""
    rows, columns = np.tril_indices(matrices.shape[-1])
    return matrices[..., rows, columns]
