"""Logs: rows of past tasks in memory, checked and grouped by task."""

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64
from numpy.typing import ArrayLike

from ..checks import positive_int, real_numbers
from ..encoders import INTERCEPT, Encoder
from ..tables import choose_columns, column_cells, read_table, reject_rows, text_of
from .statistics import (
    Selection,
    TaskStatistics,
    check_gram,
    from_products,
    label_hashes,
    row_products,
    segment_sums,
)
from .streams import LogColumns, Rows, first_frame, read_sample, stream_statistics

if TYPE_CHECKING:
    from ..tables import Frame


class Logs:
    """Rows of past tasks, grouped by task and, within a task, in order of time.

    Attributes:
        labels: Label per task, (t,).
        starts: Rows of task i are `starts[i]` to `starts[i + 1]`, (t + 1,).
        features: Feature vectors of the actions taken, (n, d).
        rewards: Their rewards, (n,).
        weights: Number of observations that each row stands for, (n,); 1 by default.
        times: Time of each row, (n,), or None.
        feature_names: Names of the columns of `features`.
        encoder: How raw columns became features, or None of arrays.
        attributes: What was known of each task before its first reward, (t, a), or None.
        attribute_encoder: How raw columns became attributes, or None.
        attribute_names: Names of the columns of `attributes`.
        parameters: True parameters of each task, (t, d), where they are known; or None.

    Example:
        >>> import diffprior as dp
        >>> logs = dp.Logs(["a", "a", "b"], [[1.0, 0.5], [0.0, 1.0], [1.0, 1.5]], [1.0, 2.0, 0.5])
        >>> logs.num_tasks, logs.num_rows, logs.dim
        (2, 3, 2)
    """

    labels: np.ndarray
    starts: Int[np.ndarray, " s"]
    features: Float[np.ndarray, "n d"]
    rewards: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    times: Float[np.ndarray, " n"] | None
    feature_names: tuple[str, ...]
    encoder: Encoder | None = None
    attributes: Float[np.ndarray, "t a"] | None = None
    attribute_encoder: Encoder | None = None
    attribute_names: tuple[str, ...] = ()
    parameters: Float[np.ndarray, "t p"] | None = None
    _hashes: UInt64[np.ndarray, " t"] | None

    def __init__(
        self,
        tasks: ArrayLike,
        features: ArrayLike,
        rewards: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        times: ArrayLike | None = None,
        feature_names: Sequence[str] | None = None,
        intercept: bool = False,
        check_features: bool = True,
        attributes: ArrayLike | None = None,
        attribute_names: Sequence[str] | None = None,
        parameters: ArrayLike | None = None,
    ) -> None:
        """Check and group rows.

        Args:
            tasks: Task label per row, numbers or text, (n,).
            features: Feature vector of the action taken, (n, d).
            rewards: Its reward, (n,).
            weights: Number of observations that each row stands for, (n,); 1 by default.
            times: Time of each row, (n,); by default rows are in order.
            feature_names: Names for messages and reports; x1, x2, ... by default.
            intercept: Whether to prepend a feature that is always 1.
            check_features: Whether to reject constant and collinear features, and logs with one
                row per task; turn it off for a part of larger logs.
            attributes: What is known of each task before its first reward, as numbers, NaN where it
                is not known: (t, a), in the order in which tasks appear first, or (n, a), the same
                in all rows of a task.
            attribute_names: Names for messages and reports; z1, z2, ... by default.
            parameters: True parameters, to evaluate posteriors: (t, d), in the order in which tasks
                appear first.

        Raises:
            ValueError: Shapes disagree, values are missing, features are constant or collinear,
                every row has its own task, or an attribute varies within a task; the message names
                columns and rows.
        """
        phi = np.asarray(
            real_numbers("features", features, ("n", "d"), "one row per observation"), np.float64
        )
        n = len(phi)
        y = np.asarray(real_numbers("rewards", rewards, (n,), "one per row"), np.float64)
        labels = np.asarray(tasks)
        if labels.shape != (n,):
            raise ValueError(
                f"`tasks`: expected shape ({n},), got {labels.shape}; "
                "pass the task label of each row of `features`"
            )
        if 0 in phi.shape:
            raise ValueError(
                f"`features`: expected at least one row and column, got {phi.shape}; "
                "pass the rows of past tasks"
            )
        names = tuple(feature_names or (f"x{i + 1}" for i in range(phi.shape[1])))
        if intercept:
            phi, names = np.column_stack([np.ones(n), phi]), (INTERCEPT, *names)
        order, self.labels, self.starts = _grouped(labels, times)
        if check_features:
            _check_features(phi, names)
            check_several_rows(len(self.labels), n)
        self.features = phi[order]
        self.rewards = y[order]
        self.weights = _checked_weights(weights, n)[order]
        self.times = None if times is None else _checked_times(times, n)[order]
        self.feature_names = names
        self._hashes = None
        if attributes is not None:
            self.attributes, self.attribute_names = _checked_attributes(
                attributes, attribute_names, self.labels, self.starts, order
            )
        if parameters is not None:
            fix = "one row per task, in the order in which tasks appear first"
            truths = real_numbers("parameters", parameters, (self.num_tasks, "d"), fix)
            self.parameters = np.asarray(truths, np.float64)

    @staticmethod
    def read(
        source: object,
        *,
        task: str,
        reward: str,
        features: str | Sequence[str] | None = None,
        attributes: str | Sequence[str] = (),
        weight: str | None = None,
        time: str | None = None,
        intercept: bool | None = None,
        standardize: bool | None = None,
        max_rows: int | None = None,
        encoder: Encoder | None = None,
        attribute_encoder: Encoder | None = None,
    ) -> "Logs":
        """Read logs from a table with columns of any type.

        If all features are numbers or booleans without a missing cell, they are used as they are,
        beside an intercept. Otherwise they are encoded as `Encoder.fit` describes.

        Args:
            source: Path to a .csv, .tsv (also .gz) or .parquet file; a table of pandas, polars,
                Arrow or DuckDB; or a list of dicts.
            task: Column of task labels.
            reward: Column of rewards.
            features: Columns of features: names, patterns such as "x*", and interactions such as
                "age*device"; by default all columns that have no other role.
            attributes: Columns, of any type, of what is known of a task before its first reward,
                with one value per task; cells may be missing.
            weight: Column with the number of observations that a row stands for.
            time: Column of times; rows of a task are sorted by it.
            intercept: Whether to prepend a feature that is always 1; by default, unless a column is
                constant already.
            standardize: Whether numbers get mean 0 and standard deviation 1; by default, if
                features are encoded.
            max_rows: From a Parquet file, read whole tasks, chosen by their labels, up to this
                number of rows; the file is never in memory as a whole. By default, all rows.
            encoder: Encoder of a model, by which features become those of its prior, instead of
                `features`, `intercept` and `standardize`.
            attribute_encoder: Likewise, instead of `attributes`.

        Returns:
            The logs. For files of any size, see `read_statistics` (linear rewards) and
            `ShardedLogs`.

        Raises:
            ValueError: There is no such file or column, a column cannot be encoded, or as for
                `Logs`; the message names the column.
            ImportError: narwhals and pyarrow are not installed.
        """
        if max_rows is None:
            frame = read_table(source)
        else:
            frame = read_sample(Path(str(source)), task, positive_int("max_rows", max_rows))
        if attribute_encoder is not None:
            known = (column.name for column in attribute_encoder.columns)
            attributes = [name for name in known if name in frame.columns]
        named = choose_columns(frame.columns, attributes, argument="attributes")
        roles = (task, reward, features, weight, time, named)
        if encoder is not None:
            columns = LogColumns(task, reward, encoder, weight, time)
        else:
            columns = LogColumns.fit(frame, *roles, intercept=intercept, standardize=standardize)
            columns.encoder.warn()
        rows = columns.arrays(frame)
        logs = encoded_logs(rows, columns.encoder, check_features=encoder is None)
        if named:
            logs._add_attributes(frame, named, rows["tasks"], attribute_encoder)
        return logs

    @staticmethod
    def read_statistics(
        path: str | Path,
        *,
        task: str,
        reward: str,
        features: str | Sequence[str],
        weight: str | None = None,
        intercept: bool | None = None,
    ) -> TaskStatistics:
        """Sum up the rows of a Parquet file by task, in batches.

        Args: as of `read`. Memory grows with the number of tasks, not of rows.

        Returns:
            Sufficient statistics of linear rewards.

        Raises:
            ValueError: There is no such file or column, or a cell is not a number.
            ImportError: pyarrow is not installed.
        """
        frame = first_frame(Path(path))
        columns = LogColumns.fit(frame, task, reward, features, weight, intercept=intercept)
        if not columns.encoder.plain:
            raise ValueError(
                f"`features`: expected numbers without missing cells, got {columns.encoder}; "
                "encode such columns with `Logs.read` or `ShardedLogs`"
            )
        return stream_statistics(Path(path), columns)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return int(self.features.shape[1])

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
        """Number of rows per task."""
        return np.diff(self.starts)

    @property
    def hashes(self) -> UInt64[np.ndarray, " t"]:
        """A number per task that depends on its label alone."""
        if self._hashes is None:
            self._hashes = label_hashes(self.labels)
        return self._hashes

    @property
    def row_tasks(self) -> Int[np.ndarray, " n"]:
        """The task of every row, as a position in `labels`."""
        return np.repeat(np.arange(self.num_tasks), self.counts)

    @property
    def tasks(self) -> np.ndarray:
        """The task label of every row, (n,)."""
        return np.asarray(self.labels[self.row_tasks])

    def select(self, tasks: Int[np.ndarray, " k"] | Bool[np.ndarray, " t"] | slice) -> "Logs":
        """Take some tasks: `tasks` are positions in `labels`, a slice, or a mask (t,)."""
        chosen = np.arange(self.num_tasks)[tasks]
        counts = self.counts[chosen]
        starts = _starts(counts)
        rows = np.repeat(self.starts[chosen] - starts[:-1], counts) + np.arange(starts[-1])
        return self._with(chosen, counts, rows)

    def select_rows(self, keep: Bool[np.ndarray, " n"]) -> "Logs":
        """Take the rows where the mask `keep` (n,) is true, of every task, possibly none."""
        counts = np.diff(_starts(keep)[self.starts])
        return self._with(slice(None), counts, np.flatnonzero(keep))

    @property
    def row_places(self) -> Int[np.ndarray, " n"]:
        """The place of every row in its task, from 0."""
        return np.arange(self.num_rows) - np.repeat(self.starts[:-1], self.counts)

    def first_rows(self, count: int) -> "Logs":
        """Take the first `count` rows of every task, or all where there are fewer."""
        return self.select_rows(self.row_places < count)

    def by_hash(self, selection: Selection | None = None) -> "Logs":
        """Sort the tasks of `selection`, all by default, by hash, whatever file they are from."""
        order = np.argsort(self.hashes, kind="stable")
        return self.select(
            order if selection is None else order[selection.mask(self.hashes[order])]
        )

    def _add_attributes(
        self, frame: "Frame", names: list[str], tasks: np.ndarray, encoder: Encoder | None
    ) -> None:
        """Encode the attributes of each task, which are the same in all of its rows."""
        _, first, inverse = np.unique(tasks.astype(str), return_index=True, return_inverse=True)
        for name in names:
            cells = np.array([text_of(cell) for cell in column_cells(frame[name])])
            _reject_varying(name, cells != cells[first[inverse.reshape(-1)]], tasks)
        table = frame[np.sort(first)]  # labels are in the order of their first rows
        if encoder is None:
            encoder = Encoder.fit(table, names, intercept=False, standardize=True)
            optional = (dataclasses.replace(one, optional=True) for one in encoder.columns)
            encoder = dataclasses.replace(encoder, columns=tuple(optional))
            encoder.warn()
        self.attribute_encoder, self.attribute_names = encoder, encoder.names
        self.attributes = encoder.encode(table)

    def statistics(self) -> TaskStatistics:
        """Sum up the rows of every task: sufficient statistics of linear rewards."""
        with np.errstate(over="ignore", invalid="ignore"):
            summands = row_products(self.features, self.rewards, self.weights)
            sums = segment_sums(summands, self.starts)
        if not np.all(np.isfinite(sums)):
            raise ValueError(
                "`rewards`: expected features and rewards whose squares can be summed in double "
                "precision, got larger ones; rescale them"
            )
        return from_products(self.labels, self.hashes, sums, self.feature_names)

    def _with(
        self, tasks: Int[np.ndarray, " k"] | slice, counts: np.ndarray, rows: np.ndarray
    ) -> "Logs":
        logs = copy.copy(self)
        logs.labels, logs._hashes = self.labels[tasks], self.hashes[tasks]
        logs.starts = _starts(counts)
        logs.features, logs.rewards = self.features[rows], self.rewards[rows]
        logs.weights = self.weights[rows]
        logs.times = None if self.times is None else self.times[rows]
        logs.attributes = None if self.attributes is None else self.attributes[tasks]
        logs.parameters = None if self.parameters is None else self.parameters[tasks]
        return logs

    def __repr__(self) -> str:
        return f"Logs({self.num_tasks} tasks, {self.num_rows} rows, {self.dim} features)"


def check_several_rows(num_tasks: int, num_rows: int) -> None:
    """Raise if every row has a task of its own."""
    if num_tasks == num_rows and num_rows > 1:
        raise ValueError(
            f"`tasks`: expected several rows in some tasks, got {num_tasks} tasks in {num_rows} "
            "rows; choose the column that says which rows belong together (campaign, user, item), "
            "not a row number"
        )


def check_varying(
    low: Float[np.ndarray, " d"], high: Float[np.ndarray, " d"], names: tuple[str, ...]
) -> None:
    """Raise if a feature is constant, given the range of each; one column of ones is allowed."""
    ranges = zip(names, low, high, strict=True)
    constant = [name for name, least, most in ranges if least == most and least != 1]
    if constant:
        raise ValueError(
            f"`features`: expected features that vary, got constant {', '.join(constant)}; "
            "drop them, and pass intercept=True if you want a constant"
        )


def _check_features(features: Float[np.ndarray, "n d"], names: tuple[str, ...]) -> None:
    if len(names) != features.shape[1]:
        raise ValueError(
            f"`feature_names`: expected {features.shape[1]} names, got {len(names)}; "
            "pass one for each column of `features`"
        )
    if len(features) > 1:
        check_varying(features.min(axis=0), features.max(axis=0), names)
    with np.errstate(over="ignore", invalid="ignore"):
        gram = features.T @ features
    if not np.all(np.isfinite(gram)):
        raise ValueError(
            "`features`: expected numbers whose squares can be summed, got up to "
            f"{np.max(np.abs(features)):.3g}; rescale them"
        )
    check_gram(gram, names, len(features))


def encoded_logs(rows: Rows, encoder: Encoder, *, check_features: bool = False) -> Logs:
    """Logs of rows that an encoder made."""
    logs = Logs(
        rows["tasks"],
        rows["features"],
        rows["rewards"],
        weights=rows["weights"],
        times=rows.get("times"),
        feature_names=encoder.names,
        check_features=check_features,
    )
    logs.encoder = encoder
    return logs


def grouped_logs(
    hashes: UInt64[np.ndarray, " t"],
    counts: Int[np.ndarray, " t"],
    features: Float[np.ndarray, "n d"],
    rewards: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    times: Float[np.ndarray, " n"] | None,
    feature_names: tuple[str, ...],
) -> Logs:
    """Logs of checked rows, grouped by task, whose labels are hashes."""
    logs = object.__new__(Logs)
    logs.labels = logs._hashes = hashes
    logs.starts = _starts(counts)
    logs.features, logs.rewards, logs.weights = features, rewards, weights
    logs.times, logs.feature_names = times, feature_names
    return logs


def _starts(counts: np.ndarray) -> Int[np.ndarray, " s"]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _grouped(
    labels: np.ndarray, times: ArrayLike | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order that groups rows by task, the labels in order of appearance, and the starts."""
    comparable = labels.astype(str) if labels.dtype == object else labels
    _, first, inverse = np.unique(comparable, return_index=True, return_inverse=True)
    num_tasks = len(first)
    by_appearance = np.argsort(first, kind="stable")
    rank = np.empty(num_tasks, np.int64)
    rank[by_appearance] = np.arange(num_tasks)
    task = rank[inverse.reshape(-1)]
    order = np.lexsort((task,) if times is None else (_checked_times(times, len(labels)), task))
    return order, labels[first[by_appearance]], _starts(np.bincount(task, minlength=num_tasks))


def _checked_attributes(
    attributes: ArrayLike,
    names: Sequence[str] | None,
    labels: np.ndarray,
    starts: Int[np.ndarray, " s"],
    order: Int[np.ndarray, " n"],
) -> tuple[Float[np.ndarray, "t a"], tuple[str, ...]]:
    """Attributes of each task, from one row per task or per row of the logs, and their names."""
    try:
        z = np.asarray(attributes, np.float64)
    except (TypeError, ValueError):
        raise ValueError(
            "`attributes`: expected numbers, got others; read raw columns of any type with "
            "Logs.read(..., attributes=[columns])"
        ) from None
    if z.ndim != 2 or z.shape[1] == 0 or len(z) not in (len(labels), len(order)):
        raise ValueError(
            f"`attributes`: expected {len(labels)} rows, one per task, or {len(order)}, one per "
            f"row, of at least one number, got shape {z.shape}; encode other columns with Logs.read"
        )
    named = tuple(names or (f"z{i + 1}" for i in range(z.shape[1])))
    if len(named) != z.shape[1]:
        raise ValueError(
            f"`attribute_names`: expected {z.shape[1]} names, got {len(named)}; pass one for each "
            "column of `attributes`"
        )
    infinite = np.asarray(np.isinf(z).any(axis=1))
    reject_rows(infinite, "attributes", "finite numbers", "fix them", "infinite")
    if len(z) == len(labels):
        return z, named
    rows = z[order]
    own = rows[np.repeat(starts[:-1], np.diff(starts))]
    varies = (rows != own) & ~(np.isnan(rows) & np.isnan(own))
    for place, name in enumerate(named):
        _reject_varying(name, varies[:, place], np.repeat(labels, np.diff(starts)))
    return rows[starts[:-1]], named


def _reject_varying(name: str, varies: Bool[np.ndarray, " n"], tasks: np.ndarray) -> None:
    """Raise if an attribute has several values in a task."""
    if varies.any():
        raise ValueError(
            f"`{name}`: expected one value per task, got several in task "
            f"{text_of(tasks[np.argmax(varies)])}; attributes are what is known of a task before "
            "its first reward, so pass the column as a feature"
        )


def _checked_times(times: ArrayLike, n: int) -> Float[np.ndarray, " n"]:
    """Times as numbers: datetimes in seconds, numbers as they are, text by its order."""
    values = np.asarray(times)
    if values.shape != (n,):
        raise ValueError(f"`times`: expected shape ({n},), got {values.shape}; one per row")
    if values.dtype.kind == "M":
        numbers = values.astype("datetime64[us]").astype(np.int64) / 1e6
        numbers[np.isnat(values)] = np.nan
    elif values.dtype.kind in "iuf":
        numbers = values.astype(np.float64)
    else:
        numbers = np.unique(values.astype(str), return_inverse=True)[1].astype(np.float64)
    reject_rows(np.isnan(numbers), "times", "no missing times", "drop those rows")
    return numbers


def _checked_weights(weights: ArrayLike | None, n: int) -> Float[np.ndarray, " n"]:
    if weights is None:
        return np.ones(n)
    numbers = np.asarray(real_numbers("weights", weights, (n,), "one per row"), np.float64)
    reject_rows(numbers < 0, "weights", "no negative weights", "a weight counts repetitions")
    return numbers
