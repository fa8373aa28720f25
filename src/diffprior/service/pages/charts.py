"""The dashboard's pictures of one model, made from its newest decisions."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float

from .chart import Chart, color
from .statistics import Bin, Mean, binned, doubling_edges, quantile_edges, task_mean
from .svg import HEIGHT, Plot, time_ticks
from .window import Window, moment

TIME_BARS, TIME_POINTS, CALIBRATION_BINS, PROPENSITY_BINS = 40, 12, 10, 10
FATES = ("rewarded", "default reward", "waiting", "no reward came", "deferred", "cancelled")


def over_time(window: Window) -> Chart:
    """How many decisions were taken, and how many of them have a reward."""
    edges = _time_edges(window, TIME_BARS)
    all_of_them, _ = np.histogram(window.created, edges)
    with_reward, _ = np.histogram(window.rewarded.created, edges)
    plot = _time_plot(edges, (0.0, 1.08 * float(max(all_of_them.max(), 1))))
    sides = (edges[:-1].tolist(), edges[1:].tolist())
    plot.bars(*sides, all_of_them.astype(float).tolist(), "c3")
    plot.bars(*sides, with_reward.astype(float).tolist(), "c0")
    joined = len(window.rewarded) / len(window)
    rows = [
        (moment(left), str(count), str(rewarded))
        for left, count, rewarded in zip(edges, all_of_them, with_reward, strict=False)
    ]
    return Chart(
        "Decisions and rewards over time",
        f"{len(window):,} decisions since {moment(edges[0])} UTC; {joined:.1%} have a reward.",
        plot,
        ("from", "decisions", "with a reward"),
        rows,
        (("c0", "with a reward"), ("c3", "without one so far")),
    )


def reward_over_time(window: Window) -> Chart:
    """The mean reward of every version, over time."""
    title = "Mean reward over time"
    if not len(window.rewarded):
        return Chart(title, "No rewards yet.")
    edges = _time_edges(window, TIME_POINTS)
    found = {v: _bins(w, w.created, edges) for v, w in _by_version(window).items()}
    plot = _time_plot(edges, _range(found))
    _draw_versions(plot, found)
    total = task_mean(window.rewarded.reward, window.rewarded.task)
    return Chart(
        title,
        f"{total} a decision; bands are two standard errors over tasks.",
        plot,
        ("from", "version", "mean reward"),
        _rows(found, lambda b: moment(b.low)),
        _legend(found),
    )


def reward_by_age(window: Window) -> Chart:
    """The mean reward of every version by how many decisions the task had before: cold start."""
    title = "Cold start: mean reward by age of the task"
    if not len(window.rewarded):
        return Chart(title, "No rewards yet.")
    found = _by_age(window.rewarded, window.rewarded.reward)
    plot = _age_plot(window, _range(found))
    _draw_versions(plot, _at_places(found))
    return Chart(
        title,
        "How soon tasks earn: " + _first_and_last(found),
        plot,
        ("decision of the task", "version", "mean reward"),
        _rows(found, _span),
        _legend(found),
    )


def exploration(window: Window) -> Chart:
    """Effective exploration, mean of 1 - propensity, by age of the task."""
    known = window.where(np.isfinite(window.propensity))
    if not len(known):
        return Chart("Effective exploration", "Propensities are off: `propensity_draws` is 0.")
    found = _by_age(known, 1 - known.propensity)
    plot = _age_plot(known, (0.0, 1.0))
    _draw_versions(plot, _at_places(found))
    overall = task_mean(1 - known.propensity, known.task)
    return Chart(
        "Effective exploration",
        f"The same policy would have done something else {overall.value:.1%} of the time "
        "(mean of 1 - propensity); it should fall as tasks learn.",
        plot,
        ("decision of the task", "version", "mean of 1 - propensity"),
        _rows(found, _span),
        _legend(found),
    )


def calibration(window: Window) -> Chart:
    """What was predicted for the action taken, against what it earned."""
    known = window.rewarded
    if len(known) < 2:
        return Chart("Calibration", "It takes rewards to compare predictions with.")
    bins = _bins(known, known.predicted, quantile_edges(known.predicted, CALIBRATION_BINS))
    keys, means = [b.key for b in bins], [b.mean for b in bins]
    reach = [*keys, *(m.value for m in means)]
    low, high = _padded(min(reach), max(reach))
    plot = Plot((low, high), (low, high), x_title="predicted reward")
    plot.guide([low, high], [low, high])
    plot.upright(keys, [m.low for m in means], [m.high for m in means], "c0")
    plot.dots(keys, [m.value for m in means], "c0")
    off = task_mean(known.reward - known.predicted, known.task)
    return Chart(
        "Calibration: obtained against predicted reward",
        f"Obtained minus predicted: {off}. Dots on the line are right; bars are two standard "
        "errors.",
        plot,
        ("predicted", "obtained", "decisions"),
        [(f"{b.key:.3g}", str(b.mean), str(b.mean.count)) for b in bins],
    )


def fates(window: Window) -> Chart:
    """What became of decisions: with rewards joined, or without."""
    counts = {name: int(np.sum(own)) for name, own in fate_of(window).items()}
    plot = Plot(
        (0.0, float(len(window))),
        (0.0, float(len(FATES))),
        x_title="decisions",
        y_ticks=[(len(FATES) - 0.5 - i, name) for i, name in enumerate(FATES)],
        left=104.0,
    )
    for place, (name, count) in enumerate(counts.items()):
        y = len(FATES) - 0.5 - place
        plot.bars([0.0], [float(count)], [y + 0.32], _fate_color(name), [y - 0.32])
    late = int(window.late.sum())
    joined = counts["rewarded"] + counts["default reward"]
    return Chart(
        "Rewards joined to decisions",
        f"{joined:,} joined, {counts['waiting']:,} waiting, {counts['no reward came']:,} never "
        f"rewarded; {late:,} rewards came too late or for nothing and were not learned.",
        plot,
        ("what became of it", "decisions"),
        [*((name, str(count)) for name, count in counts.items()), ("late rewards", str(late))],
    )


def fate_of(window: Window) -> dict[str, Bool[np.ndarray, " n"]]:
    """Which decisions met which fate; every one has exactly one."""
    learned = np.isfinite(window.reward)
    open_, active = ~learned & ~window.settled, window.status == "active"
    masks = (
        learned & ~window.by_default,
        learned & window.by_default,
        open_ & active,
        ~learned & window.settled & (window.status != "cancelled"),
        open_ & (window.status == "deferred"),
        ~learned & (window.status == "cancelled"),
    )
    return dict(zip(FATES, masks, strict=True))


def propensities(window: Window) -> Chart:
    """How sure decisions were."""
    known = window.where(np.isfinite(window.propensity))
    if not len(known):
        return Chart("Propensities", "Propensities are off: `propensity_draws` is 0.")
    counts, edges = np.histogram(known.propensity, np.linspace(0, 1, PROPENSITY_BINS + 1))
    plot = Plot((0.0, 1.0), (0.0, 1.08 * float(counts.max())), x_title="propensity")
    plot.bars(edges[:-1].tolist(), edges[1:].tolist(), counts.astype(float).tolist(), "c0")
    low = float(np.mean(known.propensity < 0.1))
    return Chart(
        "Propensities of the actions taken",
        f"Median {np.median(known.propensity):.2f}; {low:.1%} below 0.1, whose weights in "
        "off-policy estimates are large.",
        plot,
        ("propensity", "decisions"),
        [
            (f"{a:.1f} to {b:.1f}", str(n))
            for a, b, n in zip(edges, edges[1:], counts, strict=False)
        ],
    )


def _fate_color(name: str) -> str:
    return {"rewarded": "c0", "default reward": "c0", "no reward came": "c1"}.get(name, "c3")


def _by_version(window: Window) -> dict[int, Window]:
    known = window.rewarded
    return {v: known.where(known.version == v) for v in known.versions}


def _bins(
    window: Window, keys: Float[np.ndarray, " n"], edges: Float[np.ndarray, " m"]
) -> list[Bin]:
    return binned(keys, window.reward, window.task, edges)


def _by_age(window: Window, values: Float[np.ndarray, " n"]) -> dict[int, list[Bin]]:
    """Means by version and age of the task."""
    edges = doubling_edges(int(window.number.max(initial=0)) + 1)
    found = {}
    for version in window.versions:
        own = window.version == version
        ages = window.number[own] + 1.0
        found[version] = binned(ages, values[own], window.task[own], edges)
    return found


def _age_plot(window: Window, y: tuple[float, float]) -> Plot:
    """Ages double from one mark to the next."""
    edges = doubling_edges(int(window.number.max(initial=0)) + 1)
    last = len(edges) - 2
    step = 1 if last < 7 else 2
    ticks = [(float(i), _ages(edges[i], edges[i + 1])) for i in range(0, last + 1, step)]
    return Plot((-0.3, max(last, 1) + 0.3), y, x_title="decision of the task", x_ticks=ticks)


def _at_places(found: dict[int, list[Bin]]) -> dict[int, list[Bin]]:
    """The same bins, at the marks of `_age_plot`."""
    return {v: [_moved(b, _place(b.low)) for b in bins] for v, bins in found.items()}


def _moved(one: Bin, place: float) -> Bin:
    return Bin(one.low, one.high, place, one.mean)


def _place(age: float) -> float:
    """0, 1, 2, 3 for bins that begin at 1, 2, 3, 5."""
    return 0.0 if age < 2 else 1.0 + float(np.log2(age - 1))


def _ages(low: float, high: float) -> str:
    return f"{low:.0f}" if high - low < 2 else f"{low:.0f}–{high - 1:.0f}"


def _span(one: Bin) -> str:
    return _ages(one.low, one.high)


def _draw_versions(plot: Plot, found: dict[int, list[Bin]]) -> None:
    for place, bins in reversed(list(enumerate(found.values()))):
        keys, means = [b.key for b in bins], [b.mean for b in bins]
        plot.band(keys, [m.low for m in means], [m.high for m in means], color(place))
        plot.line(keys, [m.value for m in means], color(place))
        plot.dots(keys, [m.value for m in means], color(place), 2.4)


def _rows(found: dict[int, list[Bin]], name: Callable[[Bin], str]) -> list[tuple[str, ...]]:
    return [(name(b), str(v), str(b.mean)) for v, bins in found.items() for b in bins]


def _legend(found: dict[int, list[Bin]]) -> list[tuple[str, str]]:
    return [(color(place), f"version {version}") for place, version in enumerate(found)]


def _first_and_last(found: dict[int, list[Bin]]) -> str:
    told = [
        f"version {v} from {bins[0].mean.value:.3g} at the first decision to "
        f"{bins[-1].mean.value:.3g} at {_span(bins[-1])}"
        for v, bins in found.items()
        if bins
    ]
    return "; ".join(told[:2]) + "."


def _range(found: dict[int, list[Bin]]) -> tuple[float, float]:
    """What holds all means, and most of their bands."""
    means: list[Mean] = [b.mean for bins in found.values() for b in bins]
    if not means:
        return 0.0, 1.0
    sure = [m for m in means if m.count >= 20] or means
    ends = [m.value for m in means] + [m.low for m in sure] + [m.high for m in sure]
    return _padded(min(ends), max(ends))


def _padded(low: float, high: float) -> tuple[float, float]:
    room = 0.06 * (high - low) or 0.5
    return low - room, high + room


def _time_edges(window: Window, count: int) -> Float[np.ndarray, " m"]:
    first, last = float(window.created.min()), float(window.created.max())
    return np.linspace(first, max(last, first + 1.0), count + 1)


def _time_plot(edges: Float[np.ndarray, " m"], y: tuple[float, float]) -> Plot:
    ends = (float(edges[0]), float(edges[-1]))
    return Plot(ends, y, x_title="time, UTC", x_ticks=time_ticks(*ends), height=HEIGHT)
