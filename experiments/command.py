"""The command line of the experiments: options that they share, and how one is run."""

import dataclasses
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from diffprior.cli.options import (
    Json,
    Seed,
    check_output,
    friendly_errors,
    say,
    say_table,
)
from diffprior.files.atomic import write_atomic
from diffprior.files.cache import source_digest

from .cache import ResultCache
from .report import REPORT

__all__ = ["Agents", "Folder", "Fresh", "Json", "Out", "Problems", "Quick", "Runs", "Seed"]

Out = Annotated[Path, typer.Option(help="Folder for figures, report and cached results.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version of everything.")]
Runs = Annotated[int | None, typer.Option(min=1, help="Runs of each agent; 512 unless quick.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute cached results again.")]
Folder = Annotated[Path | None, typer.Option("--data", help="Folder of the data's official files.")]
Problems = Annotated[list[str] | None, typer.Option("--problem", help="One; repeat for more.")]
Agents = Annotated[
    list[str] | None, typer.Option("--agent", help="Such as TS or EvidenceDPS; repeat for more.")
]


def conduct(
    run: Callable[[ResultCache], Any],
    out: Path,
    json_file: Path | None,
    fresh: bool,
) -> None:
    """Check what an experiment needs, run it, print its tables, and say where the report is.

    Results are cached in `out`, apart for every version of the experiments' own code.
    """
    with friendly_errors():
        missing = [name for name in ("matplotlib", "ot") if find_spec(name) is None]
        if missing:
            raise ImportError(
                f"`experiments`: expected {' and '.join(missing)} to be installed, got none; run "
                "`pip install --group experiments`"
            )
        if json_file is not None:
            check_output("json", json_file)
        out.mkdir(parents=True, exist_ok=True)
        version = source_digest(Path(__file__).parent)[:8]
        result = run(ResultCache(out / "cache" / version, fresh=fresh))
        if json_file is not None:
            write_atomic(json_file, json.dumps(dataclasses.asdict(result), indent=1))
            say(f"wrote {json_file}")
        for table in result.summary:
            say_table(table)
        say(f"the report is {out / REPORT}")
