"""`diffprior shard`: logs in files by task, which many workers can read."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import friendly_errors, say


def shard(
    logs: Annotated[Path, typer.Argument(help="Rows of past tasks: .parquet, or a folder of them")],
    out: Annotated[Path, typer.Option(help="Folder for the files; new, or empty.")],
    task: Annotated[str, typer.Option(help="Column of task labels.")] = "task",
    tasks_per_file: Annotated[
        int, typer.Option(min=1, help="Tasks of a file, about; it must fit into a worker's memory.")
    ] = 10_000,
) -> None:
    """Share out logs into files by task, for `diffprior learn --ray`."""
    with friendly_errors():
        from ..extras import require

        require("logs", "narwhals", "pyarrow")
        from ..logs.shards import ShardedLogs

        ShardedLogs.write(logs, out, task=task, tasks_per_file=tasks_per_file)
        say(f"wrote {len(list(out.glob('*.parquet')))} files in {out}")
