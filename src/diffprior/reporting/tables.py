"""Tables of text, printed in a terminal or on a page, and numbers with their standard errors."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"
NUMBER = re.compile(
    r"(?P<value>[+-]?(?:0|[1-9][\d,]*)(?:\.\d+)?(?:e[+-]?\d+)?)(?P<percent> ?%)?"
    r"(?: ± (?P<error>[\d.]+(?:e[+-]?\d+)?))?"
)
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how text begins that spreadsheets compute


class Link(str):
    """Text that links to an address on a page, and is plain text elsewhere."""

    address: str

    def __new__(cls, text: str, address: str) -> "Link":
        """Create the text and attach its address."""
        link = super().__new__(cls, text)
        link.address = address
        return link


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles; `str` aligns it for a terminal.

    On a page, `files` are links to the same numbers as files, and `order` is a column by which the
    rows are sorted, and how: ascending or descending.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()
    words: bool = False
    files: Sequence[Link] = ()
    order: tuple[int, str] = (-1, "")

    @staticmethod
    def of(records: Sequence[Mapping[str, str]], caption: str = "") -> "Table":
        """A table with a row for each record, whose keys are the columns."""
        columns = tuple(next(iter(records), ()))
        return Table(columns, [tuple(record.values()) for record in records], caption)

    def __str__(self) -> str:
        return self.to_text()

    @property
    def numeric(self) -> list[bool]:
        """For each column whether it has numbers; the first one names the rows."""
        return [
            i > 0 and not self.words and any(map(NUMBER.fullmatch, column))
            for i, column in enumerate(zip(*self.rows, strict=True))
        ]

    def sorted_by(self, column: int, *, descending: bool) -> "Table":
        """The rows in the order of a column: its numbers, then its texts, such as `none yet`."""
        sign = -1 if descending else 1

        def rank(row: Sequence[str]) -> tuple[bool, float]:
            value, _ = number(row[column])
            return value is None, sign * (value or 0.0)

        rows = sorted(self.rows, key=lambda row: row[column], reverse=descending)
        order = (column, "descending" if descending else "ascending")
        return replace(self, rows=sorted(rows, key=rank), marked=frozenset(), order=order)

    def records(self) -> list[dict[str, str | float | None]]:
        """Each row by column, with numbers as such, and their standard errors as columns."""
        uncertain = {i for row in self.rows for i, cell in enumerate(row) if number(cell)[1]}
        found: list[dict[str, str | float | None]] = []
        for row in self.rows:
            found.append({})
            for i, (name, cell) in enumerate(zip(self.columns, row, strict=True)):
                value, error = number(cell) if i else (None, None)
                found[-1][name] = cell if value is None else value
                if i in uncertain:
                    found[-1][f"{name}, standard error"] = error
        return found

    def to_csv(self) -> str:
        """The records as CSV, in which no text is a formula."""
        file, records = io.StringIO(newline=""), self.records()
        writer = csv.DictWriter(file, list(next(iter(records), self.columns)))
        writer.writeheader()
        for record in records:
            writer.writerow(
                {
                    name: f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell
                    for name, cell in record.items()
                }
            )
        return file.getvalue()

    def to_text(self, *, bold: bool = False) -> str:
        """Align the table for a terminal: first column left, numbers right, caption above."""
        lines = [*([self.columns] if self.columns else []), *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [self._line(row, widths, None) for row in lines[: len(lines) - len(self.rows)]]
        shown += [self._line(row, widths, i if bold else None) for i, row in enumerate(self.rows)]
        return "\n".join([*([self.caption] if self.caption else []), *shown])

    def _line(self, row: Sequence[str], widths: Sequence[int], index: int | None) -> str:
        cells = [
            cell.ljust(width) if i == 0 or self.words else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        cells[-1:] = [cell.rstrip() for cell in cells[-1:]]
        return "  ".join(
            f"{BOLD}{cell}{PLAIN}" if (index, i) in self.marked else cell
            for i, cell in enumerate(cells)
        ).rstrip()


def number(cell: str) -> tuple[float | None, float | None]:
    """The number in a cell and its standard error; None for what is not there."""
    found = NUMBER.fullmatch(cell)
    if found is None:
        return None, None
    unit = 0.01 if found["percent"] else 1.0
    value = float(found["value"].replace(",", "")) * unit
    return value, None if found["error"] is None else float(found["error"]) * unit


def plus_minus(value: float, error: float, *, signed: bool = False) -> str:
    """Format a number with its standard error."""
    sign = "+" if signed else ""
    if not math.isfinite(error) or error <= 0:
        return f"{value:{sign}.4g}"
    digits = min(6, max(0, -math.floor(math.log10(error / 1.95))))
    return f"{value:{sign}.{digits}f} ± {error:.{digits}f}"


def standard_error(values: Float[np.ndarray, " n"]) -> float:
    """Standard error of the mean of independent numbers; NaN for fewer than two."""
    if len(values) < 2:
        return float("nan")
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))
