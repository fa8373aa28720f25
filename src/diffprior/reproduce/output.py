"""What an experiment leaves behind: figures as PNG and PDF, and report.html."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..files.atomic import write_whole
from .parts import Parts
from .report import Block, closing, page

REPORT = "report.html"


def save_figure(
    out: Path, name: str, draw: Callable[[Any, Path], None], panels: list[dict[str, Any]]
) -> bytes:
    """Draw a figure to NAME.png and NAME.pdf; the bytes of the former."""
    out.mkdir(parents=True, exist_ok=True)
    for ending in ("pdf", "png"):
        draw(panels, out / f"{name}.{ending}")
    return (out / f"{name}.png").read_bytes()


def write_report(
    out: Path, title: str, blocks: list[Block], settings: dict[str, str], parts: Parts
) -> Path:
    """Write the report, with settings, machine and times at its end; where it is."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / REPORT
    write_whole(path, page(title, [*blocks, *closing(settings, parts.done)]))
    return path
