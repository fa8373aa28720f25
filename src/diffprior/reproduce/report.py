"""A report as one HTML file that needs nothing else: text, tables, pictures, the machine."""

import base64
import html
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax

from .parts import Part, package_version


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Figure:
    """A picture, as the bytes of a PNG file."""

    png: bytes
    caption: str


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles, if any; `marked` cells, by row and column, stand out."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()


Block = Heading | Text | Figure | Table


def page(title: str, blocks: Sequence[Block]) -> str:
    """The report as HTML."""
    body = "\n".join(_block(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def closing(settings: dict[str, str], parts: Sequence[Part]) -> list[Block]:
    """What every report ends with: settings, machine, and the time of each part."""
    total = sum(part.seconds for part in parts)
    learning = sum(part.seconds for part in parts if part.name.startswith("prior"))
    rows = [(part.name, f"{part.seconds:.1f}", "before" if part.kept else "now") for part in parts]
    return [
        Heading("Settings"),
        Table(("setting", "value"), list(settings.items())),
        Heading("Machine"),
        Table((), list(machine().items())),
        Heading("Wall time"),
        Text(
            f"{total:.0f} seconds in all, {learning:.0f} of them to learn the priors. A part that "
            "was finished before is not run again; its time is that of the run that finished it."
        ),
        Table(("part", "seconds", "run"), rows),
    ]


def machine() -> dict[str, str]:
    """What the numbers were computed with; nothing that tells whose machine it was."""
    device = jax.devices()[0]
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()}, {platform.machine()}",
        "device": f"{device.platform}, {device.device_kind}",
        "precision": "double" if jax.config.read("jax_enable_x64") else "single",
        "Python": platform.python_version(),
        "JAX": jax.__version__,
        "diffprior": package_version(),
    }


def plus_minus(mean: float, error: float, *, signed: bool = False) -> str:
    """A number with its standard error, both to the digits that the error leaves."""
    digits = 2 if error < 0.1 else 1
    return f"{mean:{'+' if signed else ''}.{digits}f} ± {error:.{digits}f}"


def plain(table: Table) -> str:
    """A table as lines of text, for a terminal."""
    rows = [list(table.columns), *map(list, table.rows)]
    widths = [max(len(row[j]) for row in rows) for j in range(len(table.columns))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if j == 0 else cell.rjust(width)
            for j, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )


def _processor() -> str:
    """The model name, where the system tells it."""
    listing = Path("/proc/cpuinfo")
    if listing.is_file():
        for line in listing.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _block(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h2>{html.escape(block.text)}</h2>"
    if isinstance(block, Text):
        return f"<p>{html.escape(block.text)}</p>"
    if isinstance(block, Figure):
        return _figure(block)
    return _table(block)


def _figure(figure: Figure) -> str:
    data, caption = base64.b64encode(figure.png).decode(), html.escape(figure.caption)
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{caption}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    titles = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    head = f"<thead><tr>{titles}</tr></thead>" if titles else ""
    rows = "\n".join(
        "<tr>"
        + "".join(_cell(cell, (i, j) in table.marked) for j, cell in enumerate(row))
        + "</tr>"
        for i, row in enumerate(table.rows)
    )
    caption = f'<p class="caption">{html.escape(table.caption)}</p>' if table.caption else ""
    return f'{caption}<div class="wide"><table>{head}<tbody>\n{rows}\n</tbody></table></div>'


def _cell(text: str, marked: bool) -> str:
    return (
        f'<td class="best">{html.escape(text)}</td>' if marked else f"<td>{html.escape(text)}</td>"
    )


_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #fbfaf8; color: #22252a;
  font: 17px/1.6 Georgia, "Times New Roman", serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1.1rem 4rem; }
h1, h2, th, .caption, figcaption { font-family: system-ui, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 1rem 0; }
h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem; }
p { max-width: 44rem; }
figure { margin: 1.5rem 0; }
img { max-width: 100%; height: auto; background: #fff; border: 1px solid #e4e1da; }
.caption, figcaption { font-size: .9rem; color: #595d66; margin: 1.4rem 0 .3rem; }
.wide { overflow-x: auto; margin: .3rem 0 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem .25rem 0; text-align: right; white-space: nowrap;
  border-bottom: 1px solid #e4e1da; }
th { font-weight: 600; border-bottom: 2px solid #b9b4a8; }
th:first-child, td:first-child { text-align: left; }
td.best { font-weight: 700; color: #14532d; }
"""
