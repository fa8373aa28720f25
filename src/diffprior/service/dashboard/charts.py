"""Charts as SVG, colored by CSS classes so that pages can be dark."""

import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import ArrayLike

from ...reporting.page import templates
from ...reporting.tables import Table
from .pages import TEMPLATES, Address, downloadable, slug

WIDTH, HEIGHT, TOP, BOTTOM = 420.0, 230.0, 10.0, 38.0
MAX_SPOKEN = 12  # rows of the table that the label of a chart names
# Classes of colors, each with one meaning. The newest version is the model of today.
VERSIONS = ("model", "older1", "older2", "older3")
REWARD, PREDICTED, LOST, OTHER = "reward", "predicted", "lost", "other"
ARMS = ("arm1", "arm2", "arm3", "arm4", "arm5")
Range = tuple[float, float]
Tick = tuple[float, str]
Row = Mapping[str, str]  # of the numbers of a chart


class Plot:
    """An SVG picture with two axes, to which marks are added; ticks are round numbers by default.

    `left` and `right` are room for labels beside the vertical axis and on the other side.
    """

    def __init__(
        self,
        x: Range,
        y: Range,
        *,
        x_title: str,
        x_ticks: Sequence[Tick] | None = None,
        y_ticks: Sequence[Tick] | None = None,
        height: float = HEIGHT,
        left: float = 46.0,
        right: float = 16.0,
    ) -> None:
        bottom, end = height - BOTTOM, WIDTH - right
        self.x_range, self._height = x, height
        self._x, self._y = (x, (left, end)), (y, (bottom, TOP))
        self._marks: list[str] = []
        for value, text in round_ticks(*y) if y_ticks is None else y_ticks:
            self._mark("path", "grid", d=f"M{left:.1f} {_place(value, *self._y):.1f}H{end:.1f}")
            self._text(left - 6, _place(value, *self._y) + 4, text, "end")
        for value, text in round_ticks(*x) if x_ticks is None else x_ticks:
            self._text(_place(value, *self._x), bottom + 15, text, "middle")
        self._mark("path", "axis", d=f"M{left:.1f} {bottom:.1f}H{end:.1f}")
        self._text((left + end) / 2, height - 5, x_title, "middle", "title")

    def note(self, y: float, text: str) -> None:
        self._text(WIDTH - 6, _place(y, *self._y) + 4, text, "end", "name")

    def bar(self, x: Range, y: Range, color: str, about: Row) -> None:
        """Add a rectangle, unless it is empty; a pointer on it shows what it is about."""
        (left, right), (bottom, top) = _place(x, *self._x), _place(y, *self._y)
        if bottom > top and x[1] > x[0]:
            size = {"width": max(right - left - 1.0, 1.0), "height": bottom - top}
            self._mark("rect", f"mark fill {color}", about, x=left + 0.5, y=top, **size)

    def bars(self, edges: ArrayLike, heights: ArrayLike, color: str, rows: Iterable[Row]) -> None:
        sides, tops = np.asarray(edges, float), np.asarray(heights, float)
        for low, high, top, row in zip(sides[:-1], sides[1:], tops, rows, strict=True):
            self.bar((low, high), (0.0, top), color, row)

    def line(self, xs: ArrayLike, ys: ArrayLike, kind: str) -> None:
        """Add a line through points, of a color, or of the class `guide` for a dashed one."""
        drawn = kind if kind == "guide" else f"mark line {kind}"
        self._mark("path", drawn, d=self._path(xs, ys))

    def band(self, xs: ArrayLike, lows: ArrayLike, highs: ArrayLike, color: str) -> None:
        around = np.append(xs, np.flip(xs)), np.append(highs, np.flip(lows))
        self._mark("path", f"mark band {color}", d=self._path(*around) + "Z")

    def dots(
        self, xs: ArrayLike, ys: ArrayLike, color: str, rows: Iterable[Row], radius: float = 3.2
    ) -> None:
        """Add points; a pointer close to one shows what it is about."""
        for x, y, row in zip(_place(xs, *self._x), _place(ys, *self._y), rows, strict=True):
            self._mark("circle", f"mark fill dot {color}", row, cx=x, cy=y, r=radius)

    def svg(self, label: str) -> Markup:
        """Return the picture; `label` says what it shows to those who cannot see it."""
        box = f"0 0 {WIDTH:g} {self._height:g}"
        opening = f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">'
        return Markup(opening + "".join(self._marks) + "</svg>")

    def _text(self, x: float, y: float, text: str, anchor: str, kind: str = "tick") -> None:
        where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._marks.append(f'<text class="{kind}" {where}>{escape(text)}</text>')

    def _path(self, xs: ArrayLike, ys: ArrayLike) -> str:
        points = zip(_place(xs, *self._x), _place(ys, *self._y), strict=True)
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

    def _mark(self, tag: str, kind: str, about: Row | None = None, **where: float | str) -> None:
        places = {k: v if isinstance(v, str) else f"{v:.1f}" for k, v in where.items()}
        listed = " ".join(f'{name}="{value}"' for name, value in places.items())
        hover = Markup("<title>{}</title>").format(spoken(about)) if about else ""
        self._marks.append(f'<{tag} class="{kind}" {listed}>{hover}</{tag}>')


def spoken(row: Row) -> str:
    """A row of numbers in words."""
    return ", ".join(map(" ".join, row.items()))


def _place(values: ArrayLike, limits: Range, ends: Range) -> Any:
    """Coordinates between two ends of numbers, which are limited to a range."""
    low, high = limits
    return np.interp(np.asarray(values), (low, high if high > low else low + 1.0), ends)


def round_ticks(low: float, high: float, count: int = 5) -> list[Tick]:
    """About `count` round numbers within [low, high], with their text."""
    if not high > low:
        return [(low, f"{low:g}")]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [float(f"{number * step:.10g}") for number in range(first, last + 1)]
    return [(v, f"{v / 1000:g}k" if 1e4 <= abs(v) < 1e7 else f"{v:g}") for v in values]


def time_ticks(low: float, high: float, count: int = 4) -> list[Tick]:
    """Times (UTC) within [low, high] in seconds, as precise as their distance requires."""
    span = max(high - low, 1e-3)
    pattern = "%d %b" if span > 3 * 86400 else "%d %b %H:%M" if span > 86400 else "%H:%M"
    pattern = "%H:%M:%S" if span < 600 else pattern
    return [(t, utc(t, pattern)) for t in (low + span * (i + 0.5) / count for i in range(count))]


def utc(seconds: float, pattern: str = "%d %b %H:%M") -> str:
    """Format a Unix time."""
    return datetime.datetime.fromtimestamp(float(seconds), datetime.UTC).strftime(pattern)


@dataclass(frozen=True)
class Chart:
    """A picture with its meaning in a sentence with numbers, and the table of its numbers.

    `plot` is None while there is nothing to draw; `legend` has classes of colors and their meaning.
    """

    title: str
    summary: str
    plot: Plot | None = None
    rows: Sequence[Row] = ()
    legend: Sequence[tuple[str, str]] = ()

    @property
    def table(self) -> Table:
        return Table.of(self.rows, self.title)

    @property
    def svg(self) -> Markup:
        """The picture, labeled with its numbers."""
        step = -(-len(self.rows) // MAX_SPOKEN) or 1
        label = f"{self.title}. {self.summary} {'; '.join(map(spoken, self.rows[::step]))}"
        return Markup("") if self.plot is None else self.plot.svg(label)


def drawn(
    charts: Sequence[Chart], address: Address, prefix: str = ""
) -> tuple[Markup, dict[str, Table]]:
    """Charts as HTML, drawn once for all readers, and their tables by name."""
    tables: dict[str, Table] = {}
    cards = []
    for chart in charts:
        name = prefix + slug(chart.title)
        tables |= {name: chart.table} if chart.rows else {}
        cards.append((chart, downloadable(chart.table, name, address)))
    macros: Any = templates(TEMPLATES).get_template("charts.html").module
    return macros.cards(cards), tables


def padded(values: Sequence[float], share: float = 0.06) -> Range:
    """A range that holds all values, with some room on both sides."""
    low, high = min(values), max(values)
    room = share * (high - low) or 0.5
    return low - room, high + room


def rows_plot(
    x: Range,
    names: Sequence[str],
    x_title: str,
    *,
    height: float,
    left: float = 104.0,
    right: float = 16.0,
) -> Plot:
    """A plot with a row per name, the first at the top; row i has its middle at y = -i."""
    ticks = [(-float(i), name) for i, name in enumerate(names)]
    ends = (0.5 - len(names), 0.5)
    return Plot(x, ends, x_title=x_title, y_ticks=ticks, height=height, left=left, right=right)
