"""`python -m benchmarks`: what decisions, draws and priors cost, and how good they are."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from diffprior.cli.options import Json, check_output
from diffprior.cli.terminal import friendly_errors, say, say_table


def bench(
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("results/bench"),
    json_file: Json = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    section: Annotated[
        list[str] | None, typer.Option(help="Such as decisions or fit; repeat for more.")
    ] = None,
) -> None:
    """Measure what decisions, draws and priors cost, side by side with peers."""
    with friendly_errors():
        from diffprior.extras import require

        require("bench", "bayesianbandits", "ot")
        if json_file is not None:
            check_output("json", json_file)
        from diffprior.checks import choice
        from diffprior.files.atomic import write_whole
        from diffprior.files.cache import ResultCache
        from experiments.report import REPORT

        from .sections import SECTIONS, USUAL, run_bench

        names = tuple(choice("section", name, tuple(SECTIONS)) for name in section or USUAL)
        result = run_bench(out, ResultCache(out / "kept"), names=names, quick=quick)
        if json_file is not None:
            numbers = json.dumps(dataclasses.asdict(result), indent=1)
            write_whole(json_file, numbers)
            say(f"wrote {json_file}")
        for table in result.summary:
            if table.rows:  # none in the last one where no section has a rival
                say_table(table)
        say(f"the report is {out / REPORT}")


if __name__ == "__main__":
    typer.run(bench)
