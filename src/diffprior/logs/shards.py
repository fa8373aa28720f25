"""Logs in many files, each with all rows of its tasks: read by workers, one file at a time."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .design import INTERCEPT
from .logs import Logs
from .sharding import MANIFEST, write_shards
from .streams import ROWS_AT_ONCE, Columns


@dataclass(frozen=True)
class Shard:
    """One file, and which of its columns hold what."""

    path: str
    columns: Columns
    intercept: bool

    def read(self) -> Logs:
        """The logs of its tasks."""
        batches = list(self.columns.batches(Path(self.path), ROWS_AT_ONCE))
        rows = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
        return Logs.of_rows(rows, self.columns.features, self.intercept, design=False)

    def __str__(self) -> str:
        return self.path


@dataclass(frozen=True)
class ShardedLogs:
    """Logs of any size in a folder of Parquet files, with all rows of a task in one file.

    `write`, or `diffprior shard`, makes the folder. `learn` goes over the files, wherever its
    executor's workers are, and never has all rows in one place.

    Attributes:
        shards: the files.
        num_tasks: tasks of all files, to about two in a hundred.
        num_rows: rows of all files.
        feature_names: names of the features.
        digest: tells these files from those of any other folder.
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
        features: str | Sequence[str],
        weight: str | None = None,
        time: str | None = None,
        intercept: bool = False,
    ) -> "ShardedLogs":
        """The logs of a folder; no row is read yet.

        Args:
            folder: what `write` has made, on storage that all workers see under this name.
            task: column of task labels, by which the files were made.
            reward: column of rewards.
            features: columns of features: a name, a pattern such as "x*", or several of them.
            weight: column of the number of observations that a row stands for.
            time: column of times or order; rows of a task are sorted by it.
            intercept: put a feature that is always 1 before the others.

        Returns:
            The logs, for `learn`.

        Raises:
            ValueError: no such folder or column, or files by another column.
            ImportError: if pyarrow is not installed.
        """
        text, manifest = _manifest(Path(folder))
        if manifest["task"] != task:
            raise ValueError(
                f"`task`: expected {manifest['task']!r}, by which the files of {folder} were made, "
                f"got {task!r}; pass that, or make other files with `diffprior shard`"
            )
        paths = [Path(folder).absolute() / name for name in manifest["files"]]
        columns = Columns.of(paths[0], task, reward, features, weight, time)
        names = (INTERCEPT,) * intercept + columns.features
        return ShardedLogs(
            tuple(Shard(str(path), columns, intercept) for path in paths),
            manifest["num_tasks"],
            manifest["num_rows"],
            names,
            hashlib.sha256(text.encode()).hexdigest(),
        )

    @staticmethod
    def write(
        source: str | Path, folder: str | Path, *, task: str, tasks_per_file: int = 10_000
    ) -> None:
        """Share out the rows of a Parquet file, or of a folder of them, into files by task.

        Two passes over the rows, of which few are in memory at a time.

        Args:
            source: the Parquet file, or a folder of such files.
            folder: where to write; must not exist, or be empty.
            task: column of task labels.
            tasks_per_file: tasks of a file, about; a file must fit into a worker's memory.

        Raises:
            ValueError: no such file or column; a folder that is not empty; too many files.
            ImportError: if pyarrow is not installed.
        """
        write_shards(Path(source), Path(folder), task, tasks_per_file)

    def __repr__(self) -> str:
        return f"ShardedLogs({len(self.shards)} files, about {self.num_tasks} tasks)"


def is_sharded(folder: str | Path) -> bool:
    """Whether a folder is one that `ShardedLogs.write` has made."""
    return (Path(folder) / MANIFEST).is_file()


def _manifest(folder: Path) -> tuple[str, dict[str, Any]]:
    if not is_sharded(folder):
        raise ValueError(
            f"`folder`: expected a folder of files by task, found no {MANIFEST} in {folder}; make "
            "one with `diffprior shard LOGS --task COLUMN --out FOLDER`"
        )
    text = (folder / MANIFEST).read_text(encoding="utf-8")
    return text, json.loads(text)
