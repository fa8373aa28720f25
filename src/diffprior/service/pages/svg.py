"""Small pictures as SVG: scales, axes and marks, colored by classes so that a page can be dark."""

import datetime
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 420.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 10.0, 38.0
Numbers = Sequence[float]
Tick = tuple[float, str]


@dataclass(frozen=True)
class Scale:
    """From numbers in [low, high] to places between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of a number."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.start + share * (self.end - self.start)


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers within [low, high], about `count` of them."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def tick_labels(values: Numbers) -> list[Tick]:
    """Numbers with their text."""
    return [(value, _short(float(f"{value:.10g}"))) for value in values]


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if 10_000 <= abs(value) < 10_000_000 else f"{value + 0.0:g}"


def time_ticks(low: float, high: float, count: int = 4) -> list[Tick]:
    """Moments (UTC) within [low, high] in seconds, written as finely as their distance asks."""
    span = max(high - low, 1e-3)
    pattern = "%d %b" if span > 3 * 86400 else "%d %b %H:%M" if span > 86400 else "%H:%M"
    pattern = "%H:%M:%S" if span < 600 else pattern
    places = [low + span * (i + 0.5) / count for i in range(count)]
    utc = datetime.UTC
    return [(t, datetime.datetime.fromtimestamp(t, utc).strftime(pattern)) for t in places]


class Plot:
    """A picture with two axes, to which marks are added; `kind` is the class of their color.

    Args:
        x: Least and greatest number on the horizontal axis.
        y: Of the vertical axis.
        x_title: What is on the horizontal axis.
        x_ticks: Numbers to write there; round ones if None.
        y_ticks: As `x_ticks`.
        height: Of the picture, in its own units.
        left: Room for the labels of the vertical axis.
        right: Room on the other side.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        *,
        x_title: str,
        x_ticks: Sequence[Tick] | None = None,
        y_ticks: Sequence[Tick] | None = None,
        height: float = HEIGHT,
        left: float = LEFT,
        right: float = RIGHT,
    ) -> None:
        self._height, self._left, self._right = height, left, WIDTH - right
        self.x = Scale(*x, left, self._right)
        self.y = Scale(*y, height - BOTTOM, TOP)
        self._marks: list[str] = []
        self._axes(x_title, x_ticks, y_ticks)

    def _axes(
        self, x_title: str, x_ticks: Sequence[Tick] | None, y_ticks: Sequence[Tick] | None
    ) -> None:
        bottom, right = self._height - BOTTOM, self._right
        rows = tick_labels(round_ticks(self.y.low, self.y.high)) if y_ticks is None else y_ticks
        for value, text in rows:
            place = self.y(value)
            self._add(f'<path class="grid" d="M{self._left:.1f} {place:.1f}H{right:.1f}"/>')
            self.text(self._left - 6, place + 4, text, "end")
        columns = tick_labels(round_ticks(self.x.low, self.x.high)) if x_ticks is None else x_ticks
        for value, text in columns:
            self.text(self.x(value), bottom + 15, text, "middle")
        self._add(f'<path class="axis" d="M{self._left:.1f} {bottom:.1f}H{right:.1f}"/>')
        self.text((self._left + right) / 2, self._height - 5, x_title, "middle", "title")

    def text(self, x: float, y: float, text: str, anchor: str, kind: str = "tick") -> None:
        """Words at a place of the picture."""
        where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._add(f'<text class="{kind}" {where}>{escape(text)}</text>')

    def bars(
        self, lefts: Numbers, rights: Numbers, tops: Numbers, kind: str, bases: Numbers = ()
    ) -> None:
        """Upright bars from zero, or from `bases`."""
        bases = bases or [0.0] * len(tops)
        for left, right, top, base in zip(lefts, rights, tops, bases, strict=True):
            x, width = self.x(left) + 0.5, max(self.x(right) - self.x(left) - 1.0, 1.0)
            y, height = self.y(max(top, base)), abs(self.y(base) - self.y(top))
            if height > 0 and right > left:
                place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
                self._add(f'<rect class="mark fill {kind}" {place}/>')

    def line(self, xs: Numbers, ys: Numbers, kind: str) -> None:
        """A line through points."""
        if len(xs):
            self._add(f'<path class="mark line {kind}" d="{self._path(xs, ys)}"/>')

    def band(self, xs: Numbers, lows: Numbers, highs: Numbers, kind: str) -> None:
        """The area between two lines."""
        if len(xs):
            around = self._path([*xs, *reversed(xs)], [*highs, *reversed(lows)])
            self._add(f'<path class="mark band {kind}" d="{around}Z"/>')

    def dots(self, xs: Numbers, ys: Numbers, kind: str, radius: float = 3.2) -> None:
        """Points."""
        for x, y in zip(xs, ys, strict=True):
            place = f'cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="{radius:.1f}"'
            self._add(f'<circle class="mark fill {kind}" {place}/>')

    def upright(self, xs: Numbers, lows: Numbers, highs: Numbers, kind: str) -> None:
        """Upright intervals, of which what is off the picture is left out."""
        for x, low, high in zip(xs, lows, highs, strict=True):
            ends = f"{self.y(self._within(low)):.1f}V{self.y(self._within(high)):.1f}"
            self._add(f'<path class="mark line {kind}" d="M{self.x(x):.1f} {ends}"/>')

    def level(self, lows: Numbers, highs: Numbers, ys: Numbers, kind: str) -> None:
        """Level intervals."""
        for low, high, y in zip(lows, highs, ys, strict=True):
            where = f"M{self.x(low):.1f} {self.y(y):.1f}H{self.x(high):.1f}"
            self._add(f'<path class="mark line {kind}" d="{where}"/>')

    def guide(self, xs: Numbers, ys: Numbers) -> None:
        """A thin line to compare with, which is no mark of the data."""
        self._add(f'<path class="guide" d="{self._path(xs, ys)}"/>')

    def svg(self, label: str) -> str:
        """The picture; `label` says to those who cannot see it what its numbers are."""
        box = f"0 0 {WIDTH:g} {self._height:g}"
        return (
            f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">'
            f"{''.join(self._marks)}</svg>"
        )

    def _within(self, value: float) -> float:
        return min(max(value, self.y.low), self.y.high)

    def _path(self, xs: Numbers, ys: Numbers) -> str:
        points = (
            f"{self.x(x):.1f} {self.y(self._within(y)):.1f}" for x, y in zip(xs, ys, strict=True)
        )
        return "M" + "L".join(points)

    def _add(self, mark: str) -> None:
        self._marks.append(mark)
