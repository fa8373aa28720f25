"""Shared by the benchmarks: their command line, fair timing, learned priors, tables and files."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

import diffprior as dp
from diffprior.checks import choice
from diffprior.cli.options import Json, friendly_errors, say, say_table
from diffprior.files.atomic import write_atomic
from diffprior.files.cache import Checkpoints, array_digest
from diffprior.progress import progress
from diffprior.reporting.page import Callout, Code, page
from diffprior.reporting.tables import Table

NUM_SAMPLES = 10_000  # past tasks that priors are learned from
LAST_RUN, REPORT = "last.json", "report.html"
AGAIN = Code("make bench  # again: the last column shows what has changed")
NOISE = 0.1  # a smaller relative change is not one


@dataclass(frozen=True)
class Measurement:
    """Quantities of one case, by name; units are in the names, and the first is the headline."""

    case: str
    quantities: Mapping[str, float | str]


@dataclass(frozen=True)
class Timing:
    """Seconds per call: median, lower quartile, 99th percentile; and the first, which compiles."""

    median: float
    low: float
    p99: float
    first: float

    def milliseconds(self) -> dict[str, float]:
        p99, first = self.p99 * 1e3, self.first
        return {"median, ms": self.median * 1e3, "p99, ms": p99, "first, s": first}


Calls = dict[str, Callable[[], object]]


def take_turns(candidates: Calls, num_rounds: int) -> dict[str, Timing]:
    """Time every candidate `num_rounds` times, in turn, so that all meet the same disturbances."""
    firsts = {name: seconds(call) for name, call in candidates.items()}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(num_rounds):
        for name, call in candidates.items():
            times[name].append(seconds(call))
    return {
        name: Timing(*map(float, np.quantile(times[name], (0.5, 0.25, 0.99))), firsts[name])
        for name in candidates
    }


def timed(calls: Calls, num_rounds: int) -> list[Measurement]:
    """Milliseconds of each call, in turns."""
    timings = take_turns(calls, num_rounds)
    return [Measurement(name, timing.milliseconds()) for name, timing in timings.items()]


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def resident(process: int | str = "self") -> float:
    """Memory of a process in MB."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return float(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@dataclass(frozen=True)
class Bench:
    """How much to measure, and learned priors, which are cached in `folder`."""

    folder: Path
    quick: bool = False
    only: tuple[str, ...] = ()

    def wants(self, case: str) -> bool:
        """Whether a case is to be measured: if its name has any of the texts of `only`."""
        return not self.only or any(text in case for text in self.only)

    def prior(self, name: str, preset: str = "default") -> dp.DiffusionPrior:
        """A prior learned from samples of the mixture called `name`."""
        key = jax.random.key(100)
        samples = np.asarray(dp.example_mixture(name).sample(key, NUM_SAMPLES), float)
        return self.learned(name, samples, preset)

    def learned(self, name: str, samples: np.ndarray, preset: str = "default") -> dp.DiffusionPrior:
        """A prior learned from samples (n, d), or from the cache."""
        return Checkpoints(self.folder / "priors").get(
            f"prior, {name}, {preset}",
            {"preset": preset, "samples": array_digest(samples)},
            lambda: dp.DiffusionPrior.fit(samples, preset=preset, progress=False),
        )


Section = Callable[[Bench], list[Measurement]]


def command(
    sections: Mapping[str, Section],
    usual: Iterable[str] | None = None,
    finish: Callable[[Path, dict[str, list[Measurement]]], None] | None = None,
) -> None:
    """Run a module's sections as its command line says."""

    def main(
        section: Annotated[list[str] | None, typer.Option(help="One; repeat for more.")] = None,
        out: Annotated[
            Path, typer.Option(help="Folder for cached priors and the last run.")
        ] = Path("results/bench"),
        json: Json = None,
        quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
        only: Annotated[list[str] | None, typer.Option(help="Text in names of cases.")] = None,
    ) -> None:
        with friendly_errors():
            names = [choice("section", name, tuple(sections)) for name in section or ()]
            names = names or list(usual or sections)
            bench = Bench(out, quick, tuple(only or ()))
            found = run(bench, {name: sections[name] for name in names})
            if finish is not None:
                finish(out, found)
            write_json(json, {name: as_numbers(rows) for name, rows in found.items()})

    typer.run(main)


def run(bench: Bench, sections: Mapping[str, Section]) -> dict[str, list[Measurement]]:
    """Measure; print a table for each section beside the last run's figures, and store them."""
    bench.folder.mkdir(parents=True, exist_ok=True)
    last, found = read_last_run(bench.folder), {}
    with progress("", len(sections)) as shown:
        for name, section in sections.items():
            shown.describe(name)
            found[name] = section(bench)
            shown.advance()
    tables = [
        table(_title(sections[name]), rows, last.get(name, [])) for name, rows in found.items()
    ]
    for shown_table in tables:
        say_table(shown_table)
    changes = [row[-1] for each in tables for row in each.rows if "since" in each.columns[-1]]
    changed = [change for change in changes if change not in ("", "same")]
    verdict = f"{len(changed)} of {len(changes)} cases changed by over {NOISE:.0%}."
    if not changes:
        verdict = "A first run, with which later ones are compared."
    write_atomic(bench.folder / REPORT, page("Benchmarks", Callout(verdict), tables, AGAIN))
    numbers = {name: as_numbers(rows) for name, rows in {**last, **found}.items()}
    write_atomic(bench.folder / LAST_RUN, json.dumps(numbers, indent=1))
    return found


def _title(section: Section) -> str:
    return " ".join((getattr(section, "func", section).__doc__ or "").split())


def table(title: str, rows: list[Measurement], last: Iterable[Measurement] = ()) -> Table:
    """A row per case and a column per quantity, then the change of the headline since `last`."""
    before = {row.case: row for row in last}
    columns = list(dict.fromkeys(name for row in rows for name in row.quantities))
    cells = [
        [row.case, *(_cell(row.quantities.get(name, "")) for name in columns)]
        + [_change(row, before.get(row.case))] * bool(before)
        for row in rows
    ]
    return Table(("", *columns, *["since last run"] * bool(before)), cells, title)


def read_last_run(folder: Path) -> dict[str, list[Measurement]]:
    """Measurements of the run before this one, by section; empty if there was none."""
    path = folder / LAST_RUN
    stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {name: [Measurement(**row) for row in rows] for name, rows in stored.items()}


def as_numbers(rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Dataclasses as plain dictionaries."""
    return [dataclasses.asdict(row) for row in rows]


def write_json(path: Path | None, content: Any) -> None:
    """Write numbers to a file and say so; nothing without a path."""
    if path is not None:
        write_atomic(path, json.dumps(content, indent=1))
        say(f"wrote {path}")


def _change(now: Measurement, before: Measurement | None) -> str:
    name, figure = next(iter(now.quantities.items()))
    last = None if before is None else before.quantities.get(name)
    if not isinstance(figure, float) or not isinstance(last, float) or last == 0:
        return ""
    change = figure / last - 1.0
    return "same" if abs(change) < NOISE else f"{change:+.0%}"


def _cell(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
