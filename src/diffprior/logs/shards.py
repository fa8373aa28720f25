"""Logs in many Parquet files, each with all rows of its tasks, read by workers one at a time."""

import hashlib
import heapq
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import positive_int
from ..encoders import Encoder
from ..files.atomic import write_atomic
from ..tables import arrow, reject_missing_labels, require_column
from .logs import Logs, encoded_logs
from .statistics import Selection, label_hashes
from .streams import BATCH_ROWS, LogColumns, first_frame

MANIFEST = "_shards.json"
BUFFER_ROWS = 2**20  # of all files together, before they are written
MAX_FILES = 500  # open at a time
SKETCH_SIZE = 4096  # hashes stored to count tasks


@dataclass(frozen=True)
class Shard:
    """One file of `ShardedLogs`."""

    path: str
    columns: LogColumns
    selection: Selection | None = None

    def read(self) -> Logs:
        """Read the logs of its tasks; of a selection, in the order of their hashes."""
        logs = encoded_logs(self.columns.read(Path(self.path)), self.columns.encoder)
        return logs if self.selection is None else logs.by_hash(self.selection)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class ShardedLogs:
    """Logs of any size in a folder of Parquet files, with all rows of a task in one file.

    `write`, or `diffprior shard`, makes the folder. `learn` goes over the files, wherever its
    executor's workers are, and never has all rows in one place.

    Attributes:
        shards: The files.
        num_tasks: Number of tasks, to about 2 %.
        num_rows: Number of rows.
        feature_names: Names of the features.
        digest: Identifies the contents of the folder.
    """

    shards: tuple[Shard, ...]
    num_tasks: int
    num_rows: int
    feature_names: tuple[str, ...]
    digest: str

    @staticmethod
    def read(
        folder: str | Path,
        *,
        task: str,
        reward: str,
        features: str | Sequence[str] | None = None,
        weight: str | None = None,
        time: str | None = None,
        intercept: bool | None = None,
        standardize: bool | None = None,
    ) -> "ShardedLogs":
        """Open a folder; only the first rows of it are read, to which features are encoded.

        Args, as of `Logs.read`; `folder` is one that `write` made, by the same `task`, on storage
        that all workers see under this name.

        Raises:
            ValueError: There is no such folder or column, or files were made by another column.
            ImportError: pyarrow is not installed.
        """
        if not is_sharded(folder):
            raise ValueError(
                f"`folder`: expected a folder of files by task, found no {MANIFEST} in {folder}; "
                "make one with `diffprior shard LOGS --task COLUMN --output FOLDER`"
            )
        text = (Path(folder) / MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
        if manifest["task"] != task:
            raise ValueError(
                f"`task`: expected {manifest['task']!r}, by which the files of {folder} were made, "
                f"got {task!r}; pass that, or make other files with `diffprior shard`"
            )
        paths = [Path(folder).absolute() / name for name in manifest["files"]]
        columns = LogColumns.fit(
            first_frame(paths[0]),
            *(task, reward, features, weight, time),
            intercept=intercept,
            standardize=standardize,
        )
        columns.encoder.warn()
        return ShardedLogs(
            tuple(Shard(str(path), columns) for path in paths),
            manifest["num_tasks"],
            manifest["num_rows"],
            columns.encoder.names,
            hashlib.sha256(text.encode()).hexdigest(),
        )

    @staticmethod
    def write(
        source: str | Path, folder: str | Path, *, task: str, tasks_per_file: int = 10_000
    ) -> None:
        """Distribute the rows of Parquet files over files by task.

        Makes two passes over the rows of `source`, a file or a folder, with few in memory at a
        time. The `folder` must not exist, or be empty; `task` is the column of labels. A file of
        about `tasks_per_file` tasks must fit into a worker's memory.

        Raises:
            ValueError: There is no such file or column, the folder is not empty, or there would be
                too many files.
            ImportError: pyarrow is not installed.
        """
        write_shards(Path(source), Path(folder), task, tasks_per_file)

    @property
    def encoder(self) -> Encoder:
        """Encoder of the raw columns, the same for all files."""
        return self.shards[0].columns.encoder

    def __repr__(self) -> str:
        return f"ShardedLogs({len(self.shards)} files, about {self.num_tasks} tasks)"


def is_sharded(folder: str | Path) -> bool:
    """Whether `ShardedLogs.write` made this folder."""
    return (Path(folder) / MANIFEST).is_file()


def write_shards(
    source: Path,
    folder: Path,
    task: str,
    tasks_per_file: int,
    batch_rows: int = BATCH_ROWS,
    buffer_rows: int = BUFFER_ROWS,
) -> None:
    """Write the files, and the manifest when all of them are complete."""
    positive_int("tasks_per_file", tasks_per_file)
    files = _parquet_files(source, task)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"`folder`: expected an empty folder or none, got {folder}; name another, or remove it"
        )
    num_rows, num_tasks = count_rows_and_tasks(files, task)
    num_files = -(-num_tasks // tasks_per_file)
    if num_files > MAX_FILES:
        raise ValueError(
            f"`tasks_per_file`: expected at least {-(-num_tasks // MAX_FILES)}, for at most "
            f"{MAX_FILES} files of about {num_tasks} tasks, got {tasks_per_file}; raise it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:05d}.parquet" for number in range(num_files)]
    batches = _distributed(files, task, num_files, batch_rows)
    written = _write_files(arrow("parquet").read_schema(files[0]), paths, batches, buffer_rows)
    manifest = {
        "version": 1,
        "id": secrets.token_hex(8),
        "task": task,
        "num_tasks": num_tasks,
        "num_rows": num_rows,
        "files": [path.name for path in written],
    }
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def _parquet_files(source: Path, task: str) -> list[Path]:
    if source.is_dir():
        files = sorted(path for path in source.glob("*.parquet") if not path.name.startswith("_"))
    else:
        files = [source] if source.is_file() and source.suffix in (".parquet", ".pq") else []
    if not files:
        raise ValueError(
            f"`source`: expected a Parquet file or a folder of them, found none at {source}; "
            "check the name, or convert the table"
        )
    for path in files:
        require_column(arrow("parquet").read_schema(path).names, task, "task")
    return files


def count_rows_and_tasks(
    files: Sequence[Path], task: str, sketch_size: int = SKETCH_SIZE
) -> tuple[int, int]:
    """Count rows, and tasks by their smallest hashes: exact while these are few, then to 2 %."""
    num_rows, smallest = 0, set[int]()
    for path in files:
        for batch in arrow("parquet").ParquetFile(path).iter_batches(BATCH_ROWS, columns=[task]):
            hashes, inverse = _row_hashes(batch.column(0), task)
            num_rows += len(inverse)
            smallest = set(heapq.nsmallest(sketch_size, smallest | set(hashes.tolist())))
    if len(smallest) < sketch_size:
        return num_rows, len(smallest)
    return num_rows, round((sketch_size - 1) / ((max(smallest) + 1) / 2.0**64))


def _row_hashes(column: Any, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the different labels of a column, and which of them each row has."""
    reject_missing_labels(column.is_null().to_numpy(zero_copy_only=False), task)
    encoded = column.dictionary_encode()
    labels = encoded.dictionary.to_numpy(zero_copy_only=False)
    return label_hashes(labels), encoded.indices.to_numpy(zero_copy_only=False)


def _write_files(
    schema: Any, paths: list[Path], batches: Iterator[tuple[int, Any]], buffer_rows: int
) -> list[Path]:
    """Write the rows of each path, and return the paths that have any."""
    parquet, types, writers = arrow("parquet"), arrow("types"), dict[int, Any]()
    text = [f.name for f in schema if not (types.is_floating(f.type) or types.is_integer(f.type))]
    buffers, num_buffered = dict[int, list[Any]](), 0

    def flush() -> None:
        for number, rows in buffers.items():
            if number not in writers:
                # Dictionaries of numbers would take more memory than they save.
                writers[number] = parquet.ParquetWriter(paths[number], schema, use_dictionary=text)
            writers[number].write_table(arrow("lib").Table.from_batches(rows).combine_chunks())
        buffers.clear()

    try:
        for number, rows in batches:
            buffers.setdefault(number, []).append(rows)
            num_buffered += len(rows)
            if num_buffered >= buffer_rows:
                flush()
                num_buffered = 0
        flush()
    finally:
        for writer in writers.values():
            writer.close()
    return [paths[number] for number in sorted(writers)]


def _distributed(
    files: list[Path], task: str, num_files: int, batch_rows: int
) -> Iterator[tuple[int, Any]]:
    """Rows with the number of their file, in order."""
    names = arrow("parquet").read_schema(files[0]).names
    for path in files:
        for batch in arrow("parquet").ParquetFile(path).iter_batches(batch_rows):
            hashes, inverse = _row_hashes(batch.column(task), task)
            # Files hold ranges of hashes, in ascending order.
            places = ((hashes >> np.uint64(32)) * np.uint64(num_files)) >> np.uint64(32)
            number = places.astype(np.int64)[inverse]
            rows = batch.take(np.argsort(number, kind="stable")).select(names)
            ends = np.cumsum(np.bincount(number, minlength=num_files))
            for own in np.unique(number).tolist():
                begin = ends[own - 1] if own else 0
                yield own, rows.slice(begin, ends[own] - begin)
