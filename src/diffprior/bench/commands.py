"""The suite on the command line: `diffprior bench`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..checks import choice
from ..reproduce.output import REPORT, save_figure, write_report
from ..reproduce.parts import Parts
from ..reproduce.plots import growth_figure
from ..reproduce.report import Block, Figure, Heading, Table, plain
from ..terminal import console, refusals, watching
from .suite import Suite

SECTIONS = ("runs", "decisions", "logistic", "first decision", "fit", "growth", "draws")


def bench(
    out: Annotated[Path, typer.Option(help="Folder for report and figure.")] = Path(
        "results/bench"
    ),
    json_file: Annotated[Path | None, typer.Option("--json", help="File for the numbers.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    section: Annotated[
        list[str] | None, typer.Option(help=f"One of {', '.join(SECTIONS)}; repeat for more.")
    ] = None,
) -> None:
    """Measure what decisions cost, side by side with rivals."""
    with refusals(), watching() as watch:
        names = tuple(choice("section", name, SECTIONS) for name in section or SECTIONS)
        parts = Parts(out / "parts", watch=watch)
        numbers = Suite(parts, quick=quick).run(names)
        blocks = report_blocks(out, numbers)
        write_report(out, "What a decision costs", blocks, {"sections": ", ".join(names)}, parts)
        if json_file is not None:
            json_file.write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    for block in blocks:
        if isinstance(block, Table):
            console.print(plain(block), soft_wrap=True, markup=False)
    console.print(f"the report is {out / REPORT}", soft_wrap=True, markup=False)


def report_blocks(out: Path, numbers: dict[str, Any]) -> list[Block]:
    """Tables of the sections that were run, and the figure of growth."""
    blocks: list[Block] = []
    for name, make in _TABLES.items():
        if name in numbers:
            blocks += [Heading(name), make(numbers[name])]
    if "growth" in numbers:
        png = save_figure(out, "growth", growth_figure, _curves(numbers["growth"]))
        figure = Figure(png, "Microseconds a draw as one thing grows.")
        blocks += [Heading("growth"), figure, _growth(numbers["growth"])]
    return blocks


def _runs(numbers: dict[str, Any]) -> Table:
    columns = ("100 runs x 200 rounds", "seconds", "NumPy TS", "ratio", "over limit", "compiling")
    rows = [
        (
            name,
            f"{row['seconds']['median']:.3f}",
            f"{row['NumPy']['median']:.4f}",
            f"{row['ratio']:.1f}",
            f"{row['over the limit']:.1f}",
            f"{row['compiling']:.1f} s",
        )
        for name, row in numbers["rows"].items()
    ]
    rate = 2 * numbers["matrix rate, multiply-adds a second"] / 1e9
    return Table(columns, rows, f"Matrix rate {rate:.0f} GFLOP/s.")


def _decisions(numbers: dict[str, Any]) -> Table:
    columns = ("one decision, 100 actions", "p50 ms", "p99 ms", "first s")
    rows = [
        (f"{dim}: {name}", *_milliseconds(timing))
        for dim, timings in numbers.items()
        if isinstance(timings, dict)
        for name, timing in timings.items()
    ]
    return Table(columns, rows)


def _logistic(numbers: dict[str, Any]) -> Table:
    columns = ("logistic, rewards so far", "p50 ms", "p99 ms", "first s", "mean off", "variances")
    rows = []
    for size, timing in numbers["timings"].items():
        error = numbers["errors"][size]
        low, high = error["smallest_variance_ratio"], error["largest_variance_ratio"]
        moved = (f"{error['mean_in_deviations']:.3f} sd", f"{low:.3f} to {high:.3f}")
        rows.append((size, *_milliseconds(timing), *moved))
    return Table(columns, rows)


def _first(numbers: dict[str, Any]) -> Table:
    rows = [(name, " ".join(f"{s:.2f}" for s in numbers[name])) for name in ("cold", "warm")]
    return Table(("compilation cache", "seconds to the first decision of a process"), rows)


def _fit(numbers: dict[str, Any]) -> Table:
    rows = [
        (name, f"{row['seconds']:.1f}", f"{row['100 regressors']:.0f}", f"{row['ratio']:.0f}")
        for name, row in numbers.items()
        if isinstance(row, dict)
    ]
    return Table(("learning a prior", "seconds", "100 regressors", "ratio"), rows)


def _draws(numbers: dict[str, Any]) -> Table:
    rows = [
        (name, f"{row['draws a second']:,.0f}", f"{row['arithmetic limit']:,.0f}")
        for name, row in numbers["rows"].items()
    ]
    return Table((numbers["device"], "draws a second", "arithmetic limit"), rows)


def _growth(numbers: dict[str, Any]) -> Table:
    rows = [
        (curve["name"], f"{x:g}", f"{y:.1f}")
        for curve in _curves(numbers)
        for x, y in zip(curve["x"], curve["y"], strict=True)
    ]
    return Table(("what grows", "to", "microseconds a draw"), rows)


def _milliseconds(timing: dict[str, float]) -> tuple[str, str, str]:
    return f"{timing['median'] * 1e3:.3f}", f"{timing['p99'] * 1e3:.3f}", f"{timing['first']:.2f}"


def _curves(numbers: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "x": [float(x) for x in curve], "y": list(curve.values())}
        for name, curve in numbers.items()
        if isinstance(curve, dict)
    ]


_TABLES = {
    "runs": _runs,
    "decisions": _decisions,
    "logistic": _logistic,
    "first decision": _first,
    "fit": _fit,
    "draws": _draws,
}
