"""Task labels and splits by them; sufficient statistics of linear rewards, per task."""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from ..checks import choice
from ..tables import label_column, numeric_column, read_table, reject_rows, require_column, text_of


def label_hashes(labels: np.ndarray) -> UInt64[np.ndarray, " n"]:
    """A 64-bit hash per label that depends on its text alone.

    The integer 7, the float 7.0 and the text "7" are one label, because a CSV file does not
    distinguish them. Python's own `hash` differs from one process to the next.
    """
    digests = (hashlib.blake2b(text_of(label).encode(), digest_size=8).digest() for label in labels)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def folds(hashes: UInt64[np.ndarray, " n"], num_folds: int, salt: int = 0) -> Int[np.ndarray, " n"]:
    """The fold of every task, from 0 to num_folds - 1; another `salt` is another partition."""
    return (_mixed(hashes, salt) % np.uint64(num_folds)).astype(np.int64)


def held_out(
    hashes: UInt64[np.ndarray, " n"], share: float, salt: int = 0
) -> Bool[np.ndarray, " n"]:
    """Whether each task is held out, about `share` of them; its label alone decides."""
    return _mixed(hashes, salt) < np.uint64(int(share * 2.0**64))


@dataclass(frozen=True)
class Selection:
    """Some of all tasks, chosen by their labels alone, so that every shard can choose its own.

    A share `held_out` is left out; then the first of `num_folds`, if positive; of the rest, a
    `share` is taken. Salts say which.
    """

    held_out: float = 0.0
    num_folds: int = 0
    fold_salt: int = 0
    share: float = 1.0
    share_salt: int = 0

    def mask(self, hashes: UInt64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
        """Whether each task is chosen."""
        chosen = ~held_out(hashes, self.held_out)
        if self.num_folds:
            chosen &= folds(hashes, self.num_folds, self.fold_salt) != 0
        if self.share < 1.0:
            chosen &= held_out(hashes, self.share, self.share_salt)
        return chosen


def uniforms(
    hashes: UInt64[np.ndarray, " n"], count: int, *numbers: int
) -> Float[np.ndarray, "n c"]:
    """Uniform numbers in (0, 1) per task, the same in any shard; its label and `numbers` decide."""
    salt = 0
    for number in numbers:
        salt = (salt * 1_000_003 + number + 1) % 2**48
    streams = _mixed(hashes, salt)
    bits = np.stack([_mixed(streams, counter + 1) for counter in range(count)], axis=1)
    return ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normals(
    hashes: UInt64[np.ndarray, " n"], count: int, *numbers: int
) -> Float[np.ndarray, "n c"]:
    """Standard normal numbers per task, like `uniforms`."""
    from scipy.special import ndtri  # slow to import, and not needed to decide

    return np.asarray(ndtri(uniforms(hashes, count, *numbers)))


def _mixed(hashes: UInt64[np.ndarray, " n"], salt: int) -> UInt64[np.ndarray, " n"]:
    """The finalizer of SplitMix64 applied to hash plus salt, so that splits do not share bits."""
    step = np.uint64((0x9E3779B97F4A7C15 * (salt + 1)) % 2**64)
    with np.errstate(over="ignore"):
        z = hashes + step
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


MIN_EIGENVALUE = 1e-9  # of a task's own Gram matrix, over its largest
SINGULAR = 1e-12  # smallest eigenvalue of the scaled Gram matrix, relative to the largest
DIALECTS = {  # quote, and the name of a double
    "duckdb": ('"', "DOUBLE"),
    "postgres": ('"', "DOUBLE PRECISION"),
    "snowflake": ('"', "DOUBLE"),
    "bigquery": ("`", "FLOAT64"),
    "spark": ("`", "DOUBLE"),
}


@dataclass(frozen=True, eq=False)
class TaskStatistics:
    """Counts and sums of products per task: all that learning from linear rewards needs.

    Attributes:
        labels: Label per task, (t,).
        hashes: A number per task that depends on its label alone, (t,).
        counts: Number of rows, or the sum of their weights, (t,).
        xx: Sums of products of features, the lower triangle by rows, (t, d (d + 1) / 2).
        xy: Sums of feature times reward, (t, d).
        yy: Sums of squared rewards, (t,).
        feature_names: Names of the features.
    """

    labels: np.ndarray
    hashes: UInt64[np.ndarray, " t"]
    counts: Float[np.ndarray, " t"]
    xx: Float[np.ndarray, "t p"]
    xy: Float[np.ndarray, "t d"]
    yy: Float[np.ndarray, " t"]
    feature_names: tuple[str, ...]

    @staticmethod
    def read(
        source: object, *, task: str = "task", features: Sequence[str] | None = None
    ) -> "TaskStatistics":
        """Read the result of the SQL that `diffprior statistics` prints.

        Args:
            source: CSV or Parquet file, or a pandas, polars or Arrow table, with columns n, yy,
                xy_1, ... and xx_1_1, xx_2_1, xx_2_2, ...
            task: Column of task labels.
            features: Names of the features; x1, x2, ... by default.

        Returns:
            Statistics of every task.

        Raises:
            ValueError: A column is missing, a cell is not a number, or a task occurs twice.
            ImportError: narwhals and pyarrow are not installed.
        """
        frame = read_table(source)
        dim = sum(name.startswith("xy_") for name in frame.columns)
        if dim == 0:
            require_column(frame.columns, "xy_1", "source")
        labels = label_column(frame, task)
        num_different = len(set(labels.tolist()))
        if num_different != len(labels):
            raise ValueError(
                f"`task`: expected each task once, got {len(labels)} rows for {num_different} "
                "tasks; group by the task alone"
            )

        sums = ["n", "yy", *(f"xy_{i + 1}" for i in range(dim))]
        sums += [f"xx_{i + 1}_{j + 1}" for i, j in triangle(dim)]
        columns = np.stack([numeric_column(frame, name, "source") for name in sums], axis=1)
        reject_rows(columns[:, 1] < 0, "yy", "no negative sums of squares", "sum reward * reward")
        names = tuple(features or (f"x{i + 1}" for i in range(dim)))
        return from_products(labels, label_hashes(labels), columns, names).checked()

    def checked(self) -> "TaskStatistics":
        """Return itself, or raise if features are constant zero or collinear over all tasks."""
        check_gram(unpacked(self.xx.sum(axis=0)[None])[0], self.feature_names, self.num_rows)
        return self

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return int(self.xy.shape[1])

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.labels)

    @property
    def num_rows(self) -> int:
        """Number of rows that were summed."""
        return round(float(self.counts.sum()))

    def select(self, tasks: Int[np.ndarray, " k"] | Bool[np.ndarray, " t"]) -> "TaskStatistics":
        """Take some tasks: `tasks` are positions in `labels`, or a mask (t,)."""
        per_task = ("labels", "hashes", "counts", "xx", "xy", "yy")
        return dataclasses.replace(self, **{name: getattr(self, name)[tasks] for name in per_task})

    def statistics(self) -> "TaskStatistics":
        """Return itself, like `Logs.statistics`."""
        return self

    def __repr__(self) -> str:
        return f"TaskStatistics({self.num_tasks} tasks, {self.num_rows} rows, {self.dim} features)"


def statistics_sql(
    features: Sequence[str],
    *,
    task: str,
    reward: str,
    table: str = "logs",
    dialect: str = "duckdb",
    intercept: bool = True,
    weight: str | None = None,
) -> str:
    """Write the SQL whose result `TaskStatistics.read` reads: one row per task."""
    quote, double = DIALECTS[choice("dialect", dialect, tuple(DIALECTS))]

    def name(column: str) -> str:
        return f"{quote}{column.replace(quote, 2 * quote)}{quote}"

    def number(column: str) -> str:
        return f"CAST({name(column)} AS {double})"

    x = ["1.0"] * intercept + [number(column) for column in features]
    y, w = number(reward), "" if weight is None else f"{number(weight)} * "
    total = "COUNT(*)" if weight is None else f"SUM({number(weight)})"
    columns = [f"{name(task)} AS {name('task')}", f"{total} AS n", f"SUM({w}{y} * {y}) AS yy"]
    columns += [f"SUM({w}{a} * {y}) AS xy_{i + 1}" for i, a in enumerate(x)]
    columns += [f"SUM({w}{x[i]} * {x[j]}) AS xx_{i + 1}_{j + 1}" for i, j in triangle(len(x))]
    body = ",\n  ".join(columns)
    return f"SELECT\n  {body}\nFROM {table}\nGROUP BY {name(task)}"


def row_products(
    features: Float[np.ndarray, "n d"], rewards: Float[np.ndarray, " n"], weights: np.ndarray
) -> Float[np.ndarray, "n q"]:
    """The columns that are summed per task: weight, y y, x y and the triangle of x x'."""
    x, y, w = features, rewards, weights
    linear = [x[:, i] * y * w for i in range(x.shape[1])]
    quadratic = [x[:, i] * x[:, j] * w for i, j in triangle(x.shape[1])]
    return np.stack([w, w * y**2, *linear, *quadratic], axis=1)


def from_products(
    labels: np.ndarray,
    hashes: UInt64[np.ndarray, " t"],
    sums: Float[np.ndarray, "t q"],
    feature_names: tuple[str, ...],
) -> TaskStatistics:
    """Statistics from sums over the columns of `row_products`."""
    end = 2 + len(feature_names)
    counts, yy, xy, xx = sums[:, 0], sums[:, 1], sums[:, 2:end], sums[:, end:]
    return TaskStatistics(labels, hashes, counts, xx, xy, yy, feature_names)


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


@functools.lru_cache(maxsize=32)
def triangle_places(dim: int) -> Int[np.ndarray, "d d"]:
    """Where each entry of a symmetric matrix is in its lower triangle."""
    rows, columns = np.tril_indices(dim)
    index = np.zeros((dim, dim), np.int64)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return index


def unpacked(packed: Float[np.ndarray, "t p"]) -> Float[np.ndarray, "t d d"]:
    """Symmetric matrices from their lower triangles."""
    dim = int((np.sqrt(8 * packed.shape[1] + 1) - 1) / 2)
    return np.asarray(packed[:, triangle_places(dim)])


def pooled_residuals(statistics: TaskStatistics) -> tuple[float, float]:
    """Summed squares of residuals of each task's own regression, and their degrees of freedom."""
    total, freedom = 0.0, 0.0
    for start in range(0, statistics.num_tasks, 8192):
        part = statistics.select(np.arange(start, min(start + 8192, statistics.num_tasks)))
        precisions = unpacked(part.xx)
        scale = np.sqrt(np.maximum(np.diagonal(precisions.sum(axis=0)), 1e-300))
        values, vectors = np.linalg.eigh(precisions / np.outer(scale, scale))
        used = values > MIN_EIGENVALUE * np.maximum(values[:, -1:], 1e-300)
        along = np.einsum("nij,ni->nj", vectors, part.xy / scale)
        explained = np.sum(np.where(used, along**2 / np.where(used, values, 1.0), 0.0), axis=1)
        spare = part.counts - used.sum(axis=1)
        left = np.where(spare > 0, part.yy - explained, 0.0)
        total += float(np.sum(np.maximum(left, 0.0)))
        freedom += float(np.sum(np.maximum(spare, 0.0)))
    return total, freedom


def check_gram(gram: Float[np.ndarray, "d d"], names: tuple[str, ...], num_rows: int) -> None:
    """Raise if the summed products of features are singular, naming the features involved."""
    lengths = np.sqrt(np.diagonal(gram))
    if not np.all(lengths > 0):
        zero = ", ".join(n for n, length in zip(names, lengths, strict=True) if not length > 0)
        raise ValueError(
            f"`features`: expected features that vary, got {zero}, always 0; drop them"
        )
    if num_rows < len(names):
        return
    values, vectors = np.linalg.eigh(gram / np.outer(lengths, lengths))
    if values[0] < SINGULAR * values[-1]:
        shares = np.abs(vectors[:, 0])
        involved = [n for n, share in zip(names, shares, strict=True) if share > 0.05]
        raise ValueError(
            f"`features`: expected independent features, got collinear {', '.join(involved)}; "
            "drop one of them (of one-hot columns beside an intercept, one is always too many)"
        )
