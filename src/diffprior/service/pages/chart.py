"""A picture with what it says: a title, a sentence, a legend, and its numbers as a table."""

from collections.abc import Sequence
from dataclasses import dataclass

from .svg import Plot

MOST_SPOKEN = 12  # rows of the table that the label of a picture names
KINDS = ("c0", "c1", "c2", "c3", "c4")  # classes of colors, in the order of a legend
Row = tuple[str, ...]


@dataclass(frozen=True)
class Chart:
    """One picture of a page.

    Args:
        title: What is shown.
        says: What it says, in a sentence with numbers.
        plot: The picture; None where there is nothing to draw yet.
        columns: Titles of the table of its numbers.
        rows: The table.
        legend: Classes of colors and what they stand for.
    """

    title: str
    says: str
    plot: Plot | None = None
    columns: Row = ()
    rows: Sequence[Row] = ()
    legend: Sequence[tuple[str, str]] = ()

    def svg(self) -> str:
        """The picture, labeled with its numbers."""
        return self.plot.svg(self.label) if self.plot is not None else ""

    @property
    def label(self) -> str:
        """The picture in words."""
        step = -(-len(self.rows) // MOST_SPOKEN) or 1
        spoken = [
            ", ".join(f"{name} {cell}" for name, cell in zip(self.columns, row, strict=True))
            for row in self.rows[::step]
        ]
        return f"{self.title}. {self.says} " + "; ".join(spoken)


def color(place: int) -> str:
    """The class of the color of the entry at a place of a legend."""
    return KINDS[min(place, len(KINDS) - 1)]
