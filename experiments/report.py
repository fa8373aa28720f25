"""What an experiment leaves in its folder: report.html, and its figures as PNG and PDF."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffprior.files.atomic import write_atomic
from diffprior.files.cache import Entry, ResultCache
from diffprior.reporting.figures import render
from diffprior.reporting.page import Block, Columns, Heading, Picture, page
from diffprior.reporting.tables import Table

from .machine import machine, peak_memory

REPORT = "report.html"


def picture(out: Path, name: str, caption: str, draw: Callable[[], Any]) -> Picture:
    """Draw a figure to NAME.png and NAME.pdf, and for the report's two looks."""
    out.mkdir(parents=True, exist_ok=True)
    light, dark = render(draw, "png"), render(draw, "png", dark=True)
    (out / f"{name}.png").write_bytes(light)
    (out / f"{name}.pdf").write_bytes(render(draw, "pdf"))
    return Picture(light, dark, caption)


def write_report(
    out: Path,
    title: str,
    blocks: Sequence[Block],
    settings: Mapping[str, str],
    cache: ResultCache,
) -> Path:
    """Write the report, with settings, machine and times at its end; where it is."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / REPORT
    write_atomic(path, page(title, [*blocks, *closing(settings, cache.entries)]))
    return path


def closing(settings: Mapping[str, str], entries: Sequence[Entry]) -> list[Block]:
    """Settings, machine, and what took longest."""
    reused = sum(entry.reused for entry in entries)
    longest = sorted(entries, key=lambda entry: -entry.seconds)[:12]
    total = sum(entry.seconds for entry in entries)
    caption = (
        f"Results that took longest, in seconds; {total:.0f} s in all. {reused} of "
        f"{len(entries)} were kept from an earlier run of the same code and settings."
    )
    facts = {**machine(), "peak memory": peak_memory()}
    return [
        Heading("Settings, machine and time"),
        Columns(
            [
                Table((), list(settings.items()), "Settings.", words=True),
                Table((), list(facts.items()), "Computed with.", words=True),
                Table((), [(entry.name, f"{entry.seconds:.1f}") for entry in longest], caption),
            ]
        ),
    ]
