"""Tables of text, printed in a terminal or on a page, and numbers with their standard errors."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

BOLD, PLAIN = "\x1b[1m", "\x1b[0m"


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
    """Rows of text under column titles; `str` aligns it for a terminal."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    marked: frozenset[tuple[int, int]] = frozenset()
    words: bool = False

    @staticmethod
    def of(records: Sequence[Mapping[str, str]], caption: str = "") -> "Table":
        """A table with a row for each record, whose keys are the columns."""
        columns = tuple(next(iter(records), ()))
        return Table(columns, [tuple(record.values()) for record in records], caption)

    def __str__(self) -> str:
        return self.to_text()

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
