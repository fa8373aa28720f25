"""Charts as SVG, colored by CSS classes so that pages can be dark, and those of one model."""

import datetime
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from markupsafe import Markup, escape
from numpy.typing import ArrayLike

from ...reporting.page import templates
from ...reporting.tables import Table
from .pages import TEMPLATES, Address, downloadable, slug
from .prior_gain import PriorGain
from .statistics import (
    Bin,
    Window,
    age_groups,
    age_label,
    binned,
    explored,
    outcomes,
    quantile_edges,
    rewarded,
    task_mean,
    versions_in,
)

WIDTH, HEIGHT, TOP, BOTTOM = 420.0, 230.0, 10.0, 38.0
MAX_SPOKEN = 12  # rows of the table that the label of a chart names
# Classes of colors, each with one meaning. The newest version is the model of today.
VERSIONS = ("model", "older1", "older2", "older3")
REWARD, PREDICTED, LOST, OTHER = "reward", "predicted", "lost", "other"
ARMS = ("arm1", "arm2", "arm3", "arm4", "arm5")
TIME_BARS, TIME_POINTS, CALIBRATION_BINS, PROPENSITY_BINS = 40, 12, 10, 10
Range = tuple[float, float]
Tick = tuple[float, str]
Bins = Mapping[str, Sequence[Bin]]  # by version or arm


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
        """Add text at the right edge."""
        self._text(WIDTH - 6, _place(y, *self._y) + 4, text, "end", "name")

    def bar(self, x: Range, y: Range, color: str, text: str) -> None:
        """Add a rectangle, unless it is empty; a pointer on it shows the text."""
        (left, right), (bottom, top) = _place(x, *self._x), _place(y, *self._y)
        if bottom > top and x[1] > x[0]:
            size = {"width": max(right - left - 1.0, 1.0), "height": bottom - top}
            self._mark("rect", f"mark fill {color}", hover(text), x=left + 0.5, y=top, **size)

    def bars(self, edges: ArrayLike, heights: ArrayLike, color: str, texts: Iterable[str]) -> None:
        """Add a histogram."""
        sides, tops = np.asarray(edges, float), np.asarray(heights, float)
        for low, high, top, text in zip(sides[:-1], sides[1:], tops, texts, strict=True):
            self.bar((low, high), (0.0, top), color, text)

    def line(self, xs: ArrayLike, ys: ArrayLike, kind: str) -> None:
        """Add a line through points, of a color, or of the class `guide` for a dashed one."""
        drawn = kind if kind == "guide" else f"mark line {kind}"
        self._mark("path", drawn, d=self._path(xs, ys))

    def band(self, xs: ArrayLike, lows: ArrayLike, highs: ArrayLike, color: str) -> None:
        """Add the area between two lines."""
        around = np.append(xs, np.flip(xs)), np.append(highs, np.flip(lows))
        self._mark("path", f"mark band {color}", d=self._path(*around) + "Z")

    def dots(
        self,
        xs: ArrayLike,
        ys: ArrayLike,
        color: str,
        texts: Iterable[str],
        radius: float = 3.2,
    ) -> None:
        """Add points; a pointer close to one shows its text."""
        for x, y, text in zip(_place(xs, *self._x), _place(ys, *self._y), texts, strict=True):
            self._mark("circle", f"mark fill dot {color}", hover(text), cx=x, cy=y, r=radius)

    def svg(self, label: str) -> Markup:
        """Return the picture; `label` says what it shows to those who cannot see it."""
        box = f"0 0 {WIDTH:g} {self._height:g}"
        opening = f'<svg viewBox="{box}" role="img" aria-label="{escape(label)}">'
        return Markup(opening + "".join(self._marks) + "</svg>")

    def _text(self, x: float, y: float, text: str, anchor: str, kind: str = "tick") -> None:
        self._mark("text", kind, escape(text), x=x, y=y, text_anchor=anchor)

    def _path(self, xs: ArrayLike, ys: ArrayLike) -> str:
        points = zip(_place(xs, *self._x), _place(ys, *self._y), strict=True)
        return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)

    def _mark(self, tag: str, kind: str, inside: str = "", **where: float | str) -> None:
        places = {k: v if isinstance(v, str) else f"{v:.1f}" for k, v in where.items()}
        listed = " ".join(f'{k.replace("_", "-")}="{v}"' for k, v in places.items())
        self._marks.append(f'<{tag} class="{kind}" {listed}>{inside}</{tag}>')


def hover(text: str) -> Markup:
    """What a browser shows when the pointer is on a mark."""
    return Markup("<title>{}</title>").format(text)


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
    rows: Sequence[Mapping[str, str]] = ()
    legend: Sequence[tuple[str, str]] = ()

    @property
    def table(self) -> Table:
        """The numbers of the chart."""
        return Table.of(self.rows, self.title)

    @property
    def svg(self) -> Markup:
        """The picture, labeled with its numbers."""
        step = -(-len(self.rows) // MAX_SPOKEN) or 1
        spoken = [", ".join(map(" ".join, row.items())) for row in self.rows[::step]]
        label = f"{self.title}. {self.summary} {'; '.join(spoken)}"
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


def model_charts(
    window: Window, predicted: Window, gains: Mapping[int, PriorGain | None], scale: float
) -> list[Chart]:
    """All charts of a model."""
    colors = version_colors({*versions_in(window), *gains})
    return [
        reward_by_age(window, colors),
        reward_over_time(window, colors),
        gains_chart(gains, colors),
        calibration(predicted),
        decisions_over_time(window, scale),
        outcomes_chart(window),
        exploration(window, colors),
        propensities(window),
    ]


def version_colors(versions: Iterable[int]) -> dict[str, str]:
    """Color of each version by its name; the newest is the model of today."""
    ordered = sorted(versions, reverse=True)
    return {f"version {v}": VERSIONS[min(i, len(VERSIONS) - 1)] for i, v in enumerate(ordered)}


class Axis(NamedTuple):
    """A horizontal axis with bins: time, or the age of tasks, which doubles from bin to bin."""

    title: str
    edges: Float[np.ndarray, " m"]
    ticks: Sequence[Tick]
    keys: Callable[[Window], Float[np.ndarray, " n"]]
    label: Callable[[Bin], str]

    @staticmethod
    def time(window: Window, num_bins: int) -> "Axis":
        """From the first to the last decision."""
        first, last = float(window.created.min()), float(window.created.max())
        edges, ticks = np.linspace(first, max(last, first + 1.0), num_bins + 1), time_ticks
        return Axis(
            "time, UTC",
            edges,
            ticks(edges[0], edges[-1]),
            lambda w: w.created,
            lambda b: utc(b.low),
        )

    @staticmethod
    def age(window: Window) -> "Axis":
        """Ages of tasks at these decisions."""
        last = int(age_groups(window.number).max())
        ticks = [(float(i), age_label(i)) for i in range(0, last + 1, 1 if last < 7 else 2)]
        return Axis(
            "decision of the task",
            np.arange(last + 2) - 0.5,
            ticks,
            lambda w: age_groups(w.number),
            lambda b: age_label(b.key),
        )

    def plot(self, y: Range) -> Plot:
        """An empty plot over this axis."""
        x = (float(self.edges[0]), float(self.edges[-1]))
        return Plot(x, y, x_title=self.title, x_ticks=self.ticks)

    def by_version(self, window: Window, values: Float[np.ndarray, " n"]) -> Bins:
        """Bins of every version along this axis."""
        keys, masks = self.keys(window), {v: window.version == v for v in versions_in(window)}
        return {
            f"version {v}": binned(keys[m], values[m], window.task[m], self.edges)
            for v, m in masks.items()
        }

    def chart(
        self,
        title: str,
        summary: str,
        found: Bins,
        value: str,
        y: Range | None = None,
        *,
        colors: Mapping[str, str],
        group: str = "version",
    ) -> Chart:
        """A line per version or arm, the first one in front; of versions, which are few, in a band
        of two standard errors.
        """
        if y is None and group != "version":
            y = padded([b.mean.value for bins in found.values() for b in bins])
        plot = self.plot(_range(found) if y is None else y)
        legend = [(colors[name], name) for name in found]
        for (kind, name), bins in reversed(list(zip(legend, found.values(), strict=True))):
            xs, ys = [b.key for b in bins], [b.mean.value for b in bins]
            lows, highs = zip(*(b.mean.ends for b in bins), strict=True)
            if group == "version":
                plot.band(xs, lows, highs, kind)
            plot.line(xs, ys, kind)
            plot.dots(xs, ys, kind, [f"{name}, {self.label(b)}: {b.mean}" for b in bins], 2.4)
        rows = [
            {self.title: self.label(b), group: name.removeprefix("version "), value: str(b.mean)}
            for name, bins in found.items()
            for b in bins
        ]
        return Chart(title, summary, plot, rows, legend)


def _range(found: Bins) -> Range:
    """A range that holds all means, and the bands of those of at least twenty numbers."""
    means = [b.mean for bins in found.values() for b in bins]
    sure = [m for m in means if m.count >= 20] or means
    return padded([*(m.value for m in means), *(end for m in sure for end in m.ends)])


def decisions_over_time(window: Window, scale: float = 1.0) -> Chart:
    """Decisions over time, with and without rewards; each stands for `scale` of them."""
    axis, known = Axis.time(window, TIME_BARS), rewarded(window)
    counts, with_reward = (
        np.rint(scale * np.histogram(w.created, axis.edges)[0]) for w in (window, known)
    )
    plot = axis.plot((0.0, 1.08 * float(max(counts.max(), 1))))
    listed = list(zip(axis.edges.tolist(), counts, with_reward, strict=False))
    texts = [f"from {utc(t)}: {n:,.0f} decisions, {r:,.0f} with a reward" for t, n, r in listed]
    plot.bars(axis.edges, counts, OTHER, texts)
    plot.bars(axis.edges, with_reward, REWARD, texts)
    about = "About " if scale > 1 else ""
    return Chart(
        "Decisions and rewards over time",
        f"{about}{scale * len(window):,.0f} decisions since {utc(axis.edges[0])} UTC; "
        f"{len(known) / len(window):.1%} have a reward.",
        plot,
        [
            {axis.title: utc(t), "decisions": f"{n:.0f}", "with a reward": f"{r:.0f}"}
            for t, n, r in listed
        ],
        ((REWARD, "with a reward"), (OTHER, "without one so far")),
    )


def reward_over_time(window: Window, colors: Mapping[str, str]) -> Chart:
    """Mean reward of every version over time."""
    known, title = rewarded(window), "Mean reward over time"
    if not len(known):
        return Chart(title, "No rewards yet.")
    mean, axis = task_mean(known.reward, known.task), Axis.time(window, TIME_POINTS)
    summary = f"{mean} per decision; bands are two standard errors over tasks."
    found = axis.by_version(known, known.reward)
    return axis.chart(title, summary, found, "mean reward", colors=colors)


def reward_by_age(window: Window, colors: Mapping[str, str]) -> Chart:
    """Mean reward of every version by age of the task: cold start."""
    known, title = rewarded(window), "Cold start: mean reward by age of the task"
    if not len(known):
        return Chart(title, "No rewards yet.")
    found = (axis := Axis.age(window)).by_version(known, known.reward)
    trends = [
        f"{name} from {bins[0].mean.value:.3g} at the first decision to "
        f"{bins[-1].mean.value:.3g} at {age_label(bins[-1].key)}"
        for name, bins in found.items()
    ]
    summary = f"How quickly tasks earn: {'; '.join(trends[:2])}."
    return axis.chart(title, summary, found, "mean reward", colors=colors)


def exploration(window: Window, colors: Mapping[str, str]) -> Chart:
    """Effective exploration, mean of 1 - propensity, by age of the task."""
    known, title = explored(window), "Effective exploration"
    if not len(known):
        return Chart(title, "Propensities are off: `propensity_draws` is 0.")
    summary = (
        f"The same policy would have chosen another action {np.mean(1 - known.propensity):.1%} of "
        "the time (mean of 1 - propensity); it should fall as tasks learn."
    )
    found = (axis := Axis.age(known)).by_version(known, 1 - known.propensity)
    return axis.chart(title, summary, found, "mean of 1 - propensity", (0.0, 1.0), colors=colors)


def calibration(window: Window) -> Chart:
    """Predicted rewards of the actions taken against the rewards they earned."""
    known, title = rewarded(window), "Calibration: obtained against predicted reward"
    if len(known) < 2:
        return Chart(title, "There are no rewards yet to compare predictions with.")
    edges = quantile_edges(known.predicted, CALIBRATION_BINS)
    bins = binned(known.predicted, known.reward, known.task, edges)
    ends = padded([b.key for b in bins] + [b.mean.value for b in bins])
    plot = Plot(ends, ends, x_title="predicted reward")
    plot.line(ends, ends, "guide")
    for b in bins:
        text = f"predicted {b.key:.3g}, obtained {b.mean} in {b.mean.count:,} decisions"
        plot.line([b.key] * 2, b.mean.ends, REWARD)
        plot.dots([b.key], [b.mean.value], REWARD, [text])
    return Chart(
        title,
        f"Obtained minus predicted: {task_mean(known.reward - known.predicted, known.task)}. "
        "On the dashed line predictions are right; bars are two standard errors.",
        plot,
        [
            {"predicted": f"{b.key:.3g}", "obtained": str(b.mean), "decisions": str(b.mean.count)}
            for b in bins
        ],
    )


def outcomes_chart(window: Window) -> Chart:
    """Number of decisions by outcome."""
    counts = {name: int(np.sum(own)) for name, own in outcomes(window).items()}
    plot = rows_plot((0.0, float(len(window))), list(counts), "decisions", height=HEIGHT)
    colors = {"rewarded": REWARD, "default reward": REWARD, "never rewarded": LOST}
    for i, (name, count) in enumerate(counts.items()):
        ends, color = (-i - 0.32, -i + 0.32), colors.get(name, OTHER)
        plot.bar((0.0, float(count)), ends, color, f"{name}: {count:,}")
    listed = counts | {"late rewards": int(window.late.sum())}
    return Chart(
        "Outcomes of decisions",
        f"{counts['rewarded'] + counts['default reward']:,} rewarded, {counts['waiting']:,} "
        f"waiting, {counts['never rewarded']:,} never rewarded; {listed['late rewards']:,} rewards "
        "arrived too late or for settled decisions and were not learned from.",
        plot,
        [{"outcome": name, "decisions": str(count)} for name, count in listed.items()],
    )


def propensities(window: Window) -> Chart:
    """Histogram of propensities."""
    known = explored(window).propensity
    if not len(known):
        return Chart("Propensities", "Propensities are off: `propensity_draws` is 0.")
    counts, edges = np.histogram(known, np.linspace(0, 1, PROPENSITY_BINS + 1))
    plot = Plot((0.0, 1.0), (0.0, 1.08 * float(counts.max())), x_title="propensity")
    listed = [(f"{a:.1f} to {a + 0.1:.1f}", n) for a, n in zip(edges, counts, strict=False)]
    plot.bars(edges, counts, OTHER, [f"{interval}: {n:,} decisions" for interval, n in listed])
    return Chart(
        "Propensities of the actions taken",
        f"Median {np.median(known):.2f}; {np.mean(known < 0.1):.1%} below 0.1, which get large "
        "weights in off-policy estimates.",
        plot,
        [{"propensity": interval, "decisions": str(n)} for interval, n in listed],
    )


def gains_chart(gains: Mapping[int, PriorGain | None], colors: Mapping[str, str]) -> Chart:
    """Log evidence of every version's prior over a cold start."""
    title = "Benefit of the prior: log evidence over starting cold"
    known = {v: g for v, g in gains.items() if g is not None and not g.problem}
    words = {v: str(g) if g else "being computed" for v, g in gains.items()}
    listed = "; ".join(f"version {version}: {text}" for version, text in words.items())
    if not known:
        return Chart(title, f"{listed}." if listed else "No version serves.")
    means = [gain.over_cold for gain in known.values()]
    ends = padded([0.0, *(end for m in means for end in m.ends)], 0.08)
    names = [f"version {v}" for v in known]
    x_title = "nats per task; right of the dashed line the prior pays"
    plot = rows_plot(ends, names, x_title, height=90.0 + 36.0 * len(known), left=70.0)
    plot.line([0.0, 0.0], [0.5, 0.5 - len(known)], "guide")
    for i, (name, mean) in enumerate(zip(names, means, strict=True)):
        ends = (min(0.0, mean.value), max(0.0, mean.value))
        plot.bar(ends, (-i - 0.25, -i + 0.25), colors[name], f"{name}: {mean} nats per task")
        plot.line(mean.ends, [-i, -i], "axis")
    return Chart(
        title,
        f"Over starting cold, {listed}. One nat makes the rewards e = 2.7 times as probable.",
        plot,
        [{"version": str(version), "gain": text} for version, text in words.items()],
        (("axis", "two standard errors over tasks"),),
    )
