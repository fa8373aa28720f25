"""Rows shared out into files by task, in little memory: what `diffprior shard` does."""

import heapq
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int, UInt64

from ..checks import positive_int
from ..files.atomic import write_whole
from .columns import arrow, refuse_rows, require_column
from .labels import label_hashes

MANIFEST = "_shards.json"
ROWS_AT_ONCE = 2**16
ROWS_WAITING = 2**20  # of all files together, before they are written
MOST_FILES = 500  # that are open at once
NUM_LEAST = 4096  # hashes kept to count tasks


def write_shards(source: Path, folder: Path, task: str, tasks_per_file: int) -> None:
    """Write files of about so many tasks each, and a list of them when all are whole."""
    size = positive_int("tasks_per_file", tasks_per_file)
    files = _files(source, task)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"`folder`: expected an empty folder or none, got {folder}; name another, or remove it"
        )
    num_rows, num_tasks = _count(files, task)
    num_files = -(-num_tasks // size)
    if num_files > MOST_FILES:
        raise ValueError(
            f"`tasks_per_file`: expected at least {-(-num_tasks // MOST_FILES)}, for at most "
            f"{MOST_FILES} files of about {num_tasks} tasks, got {size}; raise it"
        )
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"part-{number:05d}.parquet" for number in range(num_files)]
    written = _write(files, task, paths)
    manifest = {
        "version": 1,
        "id": secrets.token_hex(8),
        "task": task,
        "num_tasks": num_tasks,
        "num_rows": num_rows,
        "files": [path.name for path in written],
    }
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")


def bucket_of(hashes: UInt64[np.ndarray, " n"], num_files: int) -> Int[np.ndarray, " n"]:
    """The file of every task: files hold ranges of hashes, in ascending order."""
    high = hashes >> np.uint64(32)
    return ((high * np.uint64(num_files)) >> np.uint64(32)).astype(np.int64)


def _files(source: Path, task: str) -> list[Path]:
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


def _count(files: list[Path], task: str) -> tuple[int, int]:
    """Rows; and tasks from the least of their hashes: exact up to 4,096, then to about 2 %."""
    num_rows, least = 0, set[int]()
    for path in files:
        for batch in arrow("parquet").ParquetFile(path).iter_batches(ROWS_AT_ONCE, columns=[task]):
            hashes, inverse = _hashes(batch.column(0), task)
            num_rows += len(inverse)
            least = set(heapq.nsmallest(NUM_LEAST, least | set(hashes.tolist())))
    if len(least) < NUM_LEAST:
        return num_rows, len(least)
    return num_rows, round((NUM_LEAST - 1) / ((max(least) + 1) / 2.0**64))


def _hashes(column: Any, task: str) -> tuple[np.ndarray, np.ndarray]:
    """Hashes of the different labels of a column, and which of them each row has."""
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
    refuse_rows(missing, "`task`", f"no missing labels in {task!r}", "drop those rows")
    encoded = column.dictionary_encode()
    labels = encoded.dictionary.to_numpy(zero_copy_only=False)
    return label_hashes(labels), encoded.indices.to_numpy(zero_copy_only=False)


def _write(files: list[Path], task: str, paths: list[Path]) -> list[Path]:
    """Write the rows of each path, and return those that have any."""
    schema, writers = arrow("parquet").read_schema(files[0]), dict[int, Any]()
    waiting, num_waiting = dict[int, list[Any]](), 0
    numeric = arrow("types").is_floating, arrow("types").is_integer  # a dictionary each is much
    words = [field.name for field in schema if not any(kind(field.type) for kind in numeric)]

    def flush() -> None:
        for bucket, rows in waiting.items():
            if bucket not in writers:
                writers[bucket] = arrow("parquet").ParquetWriter(
                    paths[bucket], schema, use_dictionary=words
                )
            writers[bucket].write_table(arrow("lib").Table.from_batches(rows).combine_chunks())
        waiting.clear()

    try:
        for bucket, rows in _shared_out(files, task, len(paths)):
            waiting.setdefault(bucket, []).append(rows)
            num_waiting += len(rows)
            if num_waiting >= ROWS_WAITING:
                flush()
                num_waiting = 0
        flush()
    finally:
        for writer in writers.values():
            writer.close()
    return [paths[bucket] for bucket in sorted(writers)]


def _shared_out(files: list[Path], task: str, num_files: int) -> Iterator[tuple[int, Any]]:
    """Rows for each file, in the order in which they stand."""
    schema = arrow("parquet").read_schema(files[0])
    for path in files:
        for batch in arrow("parquet").ParquetFile(path).iter_batches(ROWS_AT_ONCE):
            hashes, inverse = _hashes(batch.column(task), task)
            bucket = bucket_of(hashes, num_files)[inverse]
            order = np.argsort(bucket, kind="stable")
            rows = batch.take(order).select(schema.names)
            ends = np.cumsum(np.bincount(bucket, minlength=num_files))
            for number in np.unique(bucket).tolist():
                begin = ends[number - 1] if number else 0
                yield number, rows.slice(begin, ends[number] - begin)
