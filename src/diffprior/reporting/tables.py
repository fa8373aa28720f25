"""Tables of text, with a caption and cells that stand out: for pages and for a terminal."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles, if any.

    Args:
        columns: Their titles, or none.
        rows: Cells of text.
        caption: What the table shows.
        marked: Cells, by row and column, that stand out.
        words: Whether cells are words, to the left and wrapped, rather than numbers.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()
    words: bool = False


def plus_minus(mean: float, error: float, *, signed: bool = False) -> str:
    """A number with its standard error, to the digits that the error leaves."""
    digits = 2 if error < 0.1 else 0 if error >= 10 else 1
    number = f"{mean:{'+' if signed else ''}.{digits}f}"
    return number if math.isnan(error) else f"{number} ± {error:.{digits}f}"


def for_terminal(table: Table) -> Any:
    """The table for Rich to print, its caption above."""
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(table.columns):
        right = place > 0 and not table.words
        shown.add_column(
            Text(column), justify="right" if right else "left", no_wrap=not table.words
        )
    for i, row in enumerate(table.rows):
        styles = ["bold" if (i, j) in table.marked else "" for j in range(len(row))]
        shown.add_row(*(Text(cell, style) for cell, style in zip(row, styles, strict=True)))
    return Group(Padding(Text(table.caption), (1, 0, 0, 0)), shown)


def table_width(table: Table) -> int:
    """Characters that a table of numbers needs on a terminal."""
    lines = [list(table.columns), *map(list, table.rows)]
    return sum(max(map(len, column)) + 3 for column in zip(*lines, strict=True))
