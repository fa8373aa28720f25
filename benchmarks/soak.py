"""The decision service under an even load for long: memory that must stay flat.

`python -m benchmarks.soak --minutes 60 --out results/soak`
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

import diffprior as dp
from diffprior.files.atomic import write_atomic
from diffprior.reporting.figures import new_figure, render

from .service import TASKS, make_store, running


def soak(
    minutes: Annotated[float, typer.Option(help="How long.")] = 60.0,
    out: Annotated[Path, typer.Option(help="For soak.json and soak.png.")] = Path("results/soak"),
    readings: Annotated[int, typer.Option(help="How often to look at memory.")] = 60,
) -> None:
    """Find the highest load of the service, hold half of it, and write memory and latency."""
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        store = make_store(Path(name) / "log", dp.example_mixture("clusters"), TASKS)
        with running({"": store}) as services:
            process = services[""]
            rate = process.load(20.0, num_tasks=TASKS).decisions_per_second / 2
            for number in range(readings):
                found = process.load(60 * minutes / readings, rate, num_tasks=TASKS)
                row = {"minutes": minutes * (number + 1) / readings, "memory_mb": process.memory()}
                rows.append(row | dataclasses.asdict(found))
                typer.echo(json.dumps(rows[-1]))
                write_atomic(out / "soak.json", json.dumps({"rate": rate, "readings": rows}))
                write_atomic(out / "soak.png", render(lambda: soak_figure(rows), "png"))


def soak_figure(rows: list[dict[str, float]]) -> Any:
    """Memory and latency over time."""
    figure, ((memory, latency),) = new_figure(1, 2, width=3.5, height=2.4)
    minutes, megabytes = ([row[name] for row in rows] for name in ("minutes", "memory_mb"))
    memory.plot(minutes, megabytes)
    memory.set(xlabel="minutes", ylabel="resident memory, MB", ylim=(0, 1.3 * max(megabytes)))
    for name in ("p50", "p99"):
        latency.plot(minutes, [row[name] for row in rows], label=name)
    latency.set(xlabel="minutes", ylabel="latency of a decision, ms", yscale="log")
    latency.legend()
    return figure


if __name__ == "__main__":
    typer.run(soak)
