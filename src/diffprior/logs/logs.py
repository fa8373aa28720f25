"""Logs: what past tasks showed, row by row: which task, what was chosen, what came of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from ..checks import positive_int, real_numbers
from .columns import chosen_columns, labels_of, numbers, open_table
from .design import check_design, with_intercept
from .grouping import check_several_rows, checked_times, checked_weights, grouped, times_of
from .labels import label_hashes
from .statistics import TaskStatistics, sum_by_task
from .streams import Columns, sample_tasks, stream_statistics


class Logs:
    """Rows of past tasks, grouped by task; within a task in the order in which they came.

    Attributes:
        labels: one label for each task, (t,).
        starts: rows of task i are `starts[i]` to `starts[i + 1]`, (t + 1,).
        features: feature vectors of the actions that were taken, (n, d).
        rewards: what they paid, (n,).
        weights: how many observations each row stands for, (n,); ones unless given.
        times: when each row came, (n,), or None.
        feature_names: names of the columns of `features`.

    Example:
        >>> import diffprior as dp
        >>> logs = dp.Logs(["a", "a", "b"], [[1.0, 0.5], [0.0, 1.0], [1.0, 1.5]], [1.0, 2.0, 0.5])
        >>> logs.num_tasks, logs.num_rows, logs.dim
        (2, 3, 2)
    """

    def __init__(
        self,
        tasks: Any,
        features: Any,
        rewards: Any,
        *,
        weights: Any = None,
        times: Any = None,
        feature_names: Sequence[str] | None = None,
        intercept: bool = False,
        design: bool = True,
    ) -> None:
        """Check and group rows.

        Args:
            tasks: the task of every row, numbers or text, (n,).
            features: feature vector of the action taken, (n, d).
            rewards: what it paid, (n,).
            weights: observations that each row stands for, (n,); 1 by default.
            times: order or time of the rows, (n,); by default, the order given.
            feature_names: names for messages and reports; x1, x2, ... by default.
            intercept: put a feature that is always 1 before the others.
            design: check that features can be told apart, and that tasks have several rows; not
                where the rows are a part of all.

        Raises:
            ValueError: what is wrong and in which rows: shapes, missing values, constant or
                collinear features, a task for every row.
        """
        features = np.asarray(
            real_numbers("features", features, ("n", "d"), "one row for each observation"),
            np.float64,
        )
        n = len(features)
        rewards = np.asarray(real_numbers("rewards", rewards, (n,), "one for each row"), np.float64)
        labels = np.asarray(tasks)
        if labels.shape != (n,):
            raise ValueError(
                f"`tasks`: expected shape ({n},), got {labels.shape}; "
                "pass the label of its task for each row of `features`"
            )
        if 0 in features.shape:
            raise ValueError(
                f"`features`: expected at least one row and column, got {features.shape}; "
                "pass the rows of past tasks"
            )
        names = tuple(feature_names or (f"x{i + 1}" for i in range(features.shape[1])))
        if intercept:
            features, names = with_intercept(features, names)
        if design:
            check_design(features, names)
        order, self.labels, self.starts = grouped(labels, times)
        if design:
            check_several_rows(len(self.labels), n)
        self.features = features[order]
        self.rewards = rewards[order]
        self.weights = checked_weights(weights, n)[order]
        self.times = None if times is None else checked_times(times, n)[order]
        self.feature_names = names
        self._hashes: UInt64[np.ndarray, " t"] | None = None

    @staticmethod
    def read(
        source: Any,
        *,
        task: str,
        reward: str,
        features: str | Sequence[str],
        weight: str | None = None,
        time: str | None = None,
        intercept: bool = False,
        max_rows: int | None = None,
    ) -> "Logs":
        """Logs from a table: a CSV or Parquet file, or a pandas, polars or Arrow table.

        Args:
            source: path to the file, or the table.
            task: column of task labels.
            reward: column of rewards.
            features: columns of features: a name, a pattern such as "x*", or several of them.
            weight: column of the number of observations that a row stands for.
            time: column of times or order; rows of a task are sorted by it.
            intercept: put a feature that is always 1 before the others.
            max_rows: of a Parquet file, read whole tasks, chosen by their labels, up to so many
                rows; the file is never in memory as a whole. By default, all rows.

        Returns:
            The logs. `read_statistics` sums up linear rewards of files of any size.

        Raises:
            ValueError: no such file or column; cells that are no numbers; or as of `Logs`.
            ImportError: if narwhals and pyarrow are not installed.
        """
        if max_rows is not None:
            where = Columns.of(Path(source), task, reward, features, weight, time)
            rows = sample_tasks(Path(source), where, positive_int("max_rows", max_rows))
            return Logs.of_rows(rows, where.features, intercept)
        frame = open_table(source)
        taken = [name for name in (task, reward, weight, time) if name]
        names = chosen_columns(list(frame.columns), features, taken)
        columns = [numbers(frame, name, "features") for name in names]
        return Logs(
            labels_of(frame, task),
            np.stack(columns, axis=1),
            numbers(frame, reward, "reward"),
            weights=None if weight is None else numbers(frame, weight, "weight"),
            times=None if time is None else times_of(frame[time].to_numpy()),
            feature_names=names,
            intercept=intercept,
        )

    @staticmethod
    def read_statistics(
        path: str | Path,
        *,
        task: str,
        reward: str,
        features: str | Sequence[str],
        weight: str | None = None,
        intercept: bool = False,
    ) -> TaskStatistics:
        """What linear rewards need of every task of a Parquet file of rows, batch by batch.

        Args: as of `read`. Memory grows with the number of tasks, not of rows.

        Returns:
            Counts and sums of products of every task.

        Raises:
            ValueError: no such file or column, or cells that are no numbers.
            ImportError: if pyarrow is not installed.
        """
        columns = Columns.of(Path(path), task, reward, features, weight)
        return stream_statistics(Path(path), columns, intercept)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.features.shape[1]

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.labels)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.rewards)

    @property
    def counts(self) -> Int[np.ndarray, " t"]:
        """Rows of every task."""
        return np.diff(self.starts)

    @property
    def hashes(self) -> UInt64[np.ndarray, " t"]:
        """A number for every task that depends on its label alone."""
        if self._hashes is None:
            self._hashes = label_hashes(self.labels)
        return self._hashes

    @property
    def row_tasks(self) -> Int[np.ndarray, " n"]:
        """The task of every row, as a position in `labels`."""
        return np.repeat(np.arange(self.num_tasks), self.counts)

    @property
    def tasks(self) -> np.ndarray:
        """The label of its task for every row, (n,)."""
        return self.labels[self.row_tasks]

    def select(self, tasks: Int[np.ndarray, " k"] | Bool[np.ndarray, " t"]) -> "Logs":
        """The logs of some tasks: positions, or a mask.

        Args:
            tasks: Positions in `labels`, or a mask (t,).

        Returns:
            Their logs.
        """
        chosen = np.arange(self.num_tasks)[tasks]
        counts = self.counts[chosen]
        starts = np.concatenate([[0], np.cumsum(counts)])
        rows = np.repeat(self.starts[chosen] - starts[:-1], counts) + np.arange(starts[-1])
        return self._with(self.labels[chosen], self.hashes[chosen], starts, rows)

    def rows(self, keep: Bool[np.ndarray, " n"]) -> "Logs":
        """The same tasks with some of their rows, perhaps none.

        Args:
            keep: A mask of the rows (n,).

        Returns:
            Logs of as many tasks.
        """
        ends = np.concatenate([[0], np.cumsum(keep)])
        return self._with(self.labels, self.hashes, ends[self.starts], np.flatnonzero(keep))

    @staticmethod
    def of_rows(
        rows: dict[str, np.ndarray], names: tuple[str, ...], intercept: bool, design: bool = True
    ) -> "Logs":
        """Logs of what `Columns.batches` gives.

        Args:
            rows: arrays by the names of the arguments of `Logs`.
            names: of the features.
            intercept: as of `Logs`.
            design: as of `Logs`.

        Returns:
            The logs.
        """
        return Logs(
            rows["tasks"],
            rows["features"],
            rows["rewards"],
            weights=rows["weights"],
            times=rows.get("times"),
            feature_names=names,
            intercept=intercept,
            design=design,
        )

    @staticmethod
    def of_tasks(
        hashes: UInt64[np.ndarray, " t"],
        counts: Int[np.ndarray, " t"],
        features: Float[np.ndarray, "n d"],
        rewards: Float[np.ndarray, " n"],
        weights: Float[np.ndarray, " n"],
        times: Float[np.ndarray, " n"] | None,
        feature_names: tuple[str, ...],
    ) -> "Logs":
        """Logs of checked rows that are grouped by task already; hashes stand for labels.

        Args: as the attributes of `Logs`.

        Returns:
            The logs.
        """
        made = object.__new__(Logs)
        made.labels = made._hashes = hashes
        made.starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        made.features, made.rewards, made.weights = features, rewards, weights
        made.times, made.feature_names = times, feature_names
        return made

    def statistics(self) -> TaskStatistics:
        """What linear rewards need of every task: counts and sums of products.

        Returns:
            Counts and sums of products.
        """
        return sum_by_task(
            self.labels,
            self.starts,
            self.features,
            self.rewards,
            self.weights,
            self.feature_names,
            self.hashes,
        )

    def _with(
        self, labels: np.ndarray, hashes: np.ndarray, starts: np.ndarray, rows: np.ndarray
    ) -> "Logs":
        part = object.__new__(Logs)
        part.labels, part.starts, part._hashes = labels, starts, hashes
        part.features, part.rewards = self.features[rows], self.rewards[rows]
        part.weights = self.weights[rows]
        part.times = None if self.times is None else self.times[rows]
        part.feature_names = self.feature_names
        return part

    def __repr__(self) -> str:
        return f"Logs({self.num_tasks} tasks, {self.num_rows} rows, {self.dim} features)"
