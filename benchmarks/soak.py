"""Long runs: memory that must stay flat, and threads that must lose nothing.

`python -m benchmarks.soak service --minutes 60 --out results/soak`, `... library --minutes 60`,
`... threads --seconds 60`
"""

import dataclasses
import itertools
import json
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import diffprior as dp
from diffprior.files.atomic import write_atomic
from diffprior.reporting.figures import new_figure, render

from .service import TASKS, make_store, resident_memory, running

DIM = 5
app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Minutes = Annotated[float, typer.Option(help="How long.")]


@app.command()
def service(
    minutes: Minutes = 60.0,
    out: Annotated[Path, typer.Option(help="Folder for soak.json and soak.png.")] = Path(
        "results/soak"
    ),
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
                passed = minutes * (number + 1) / readings
                row = {"minutes": passed, "memory_mb": process.memory()}
                rows.append(row | dataclasses.asdict(found))
                typer.echo(json.dumps(rows[-1]))
                write_atomic(out / "soak.json", json.dumps({"rate": rate, "readings": rows}))
                write_atomic(out / "soak.png", render(lambda: soak_figure(rows), "png"))


def soak_figure(rows: list[dict[str, float]]) -> Any:
    """Memory and latency over time."""
    figure, axes = new_figure(1, 2, width=3.5, height=2.4)
    minutes = [row["minutes"] for row in rows]
    memory, latency = axes.ravel()
    memory.plot(minutes, [row["memory_mb"] for row in rows])
    memory.set(xlabel="minutes", ylabel="resident memory, MB")
    memory.set_ylim(0, 1.3 * max(row["memory_mb"] for row in rows))
    for name in ("p50", "p99"):
        latency.plot(minutes, [row[name] for row in rows], label=name)
    latency.set(xlabel="minutes", ylabel="latency of a decision, ms", yscale="log")
    latency.legend()
    return figure


@app.command()
def library(minutes: Minutes = 60.0) -> None:
    """Decide and update with varying numbers; print memory and memory maps."""
    for line in soak(minutes):
        typer.echo(line)


def soak(minutes: float, readings: int = 12) -> Iterator[str]:
    """Decide and update with numbers of actions, decisions and draws that vary; lines at equal
    intervals say what the process holds."""
    rng, bandits = np.random.default_rng(0), _bandits()
    begin, shown = time.monotonic(), 0
    for bandit in itertools.cycle(bandits):
        batch_size = int(rng.integers(1, 40)) if rng.random() < 0.25 else 1
        draws = int(rng.integers(1, 400)) if rng.random() < 0.2 else None
        features = rng.uniform(-0.5, 0.5, (batch_size, int(rng.integers(1, 201)), DIM))
        action = bandit.decide(features, propensity_draws=draws).action
        chosen = np.take_along_axis(features, action[:, None, None], axis=1)[:, 0]
        bandit.update(chosen, rng.integers(0, 2, len(chosen)).astype(float))
        passed = (time.monotonic() - begin) / 60
        if passed * readings >= minutes * (shown + 1):
            shown += 1
            decisions = sum(b.num_decisions for b in bandits)
            maps = len(Path("/proc/self/maps").read_text().splitlines())
            memory = f"{resident_memory():7.1f} MB  {maps:6,} maps"
            yield f"{passed:6.1f} min  {decisions:9,} decisions  {memory}"
        if passed >= minutes:
            return


@app.command()
def threads(seconds: Annotated[float, typer.Option(help="How long, each time.")] = 60.0) -> None:
    """Share bandits between one and eight threads; print decisions per second."""
    gaussian, *_, chain = _bandits()
    for bandit in (gaussian, chain):
        bandit.warm_up(20)
        for number in (1, 8):
            rate, whole = share(bandit, number, seconds)
            counted = "all counted" if whole else "SOME LOST"
            typer.echo(f"{bandit!r}, {number} threads: {rate:,.0f} per second, {counted}")


def share(bandit: dp.Bandit, num_threads: int, seconds: float) -> tuple[float, bool]:
    """Decisions per second of threads that share a linear bandit, and whether every one was
    counted and learned."""
    before, counts = bandit.num_decisions, [0] * num_threads
    begin = time.monotonic()

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        while time.monotonic() - begin < seconds:
            features = rng.standard_normal((20, DIM))
            bandit.update(features[bandit.decide(features).action], rng.integers(2))
            counts[number] += 1

    workers = [threading.Thread(target=work, args=(i,)) for i in range(num_threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    passed, total = time.monotonic() - begin, sum(counts)
    learned = float(bandit.evidence.count)
    return total / passed, before + total == bandit.num_decisions == learned


def _bandits() -> list[dp.Bandit]:
    """One of every kind of program."""
    gaussian = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
    means = np.stack([np.ones(DIM), -np.ones(DIM)])
    mixture = dp.MixturePrior(np.ones(2), means, np.stack([np.eye(DIM)] * 2))
    chain = dp.EvidenceDPS(dp.DiffusionPrior.from_prior(mixture), steps=5)
    return [
        dp.Bandit(gaussian, dp.Linear(1.0), seed=0),
        dp.Bandit(mixture, dp.Logistic(), seed=0, max_rows=256),
        dp.Bandit(gaussian, dp.Poisson(), seed=0, max_rows=256),
        dp.Bandit(chain, dp.Linear(1.0), seed=0),
    ]


if __name__ == "__main__":
    app()
