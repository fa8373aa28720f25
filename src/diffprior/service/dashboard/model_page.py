"""Page of a model: is the service healthy, does the prior pay, which version is better.

Below the answers are charts of versions, predictions and outcomes, and of arms: actions or items.
"""

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float, Int

from ...reporting.tables import Link, Table
from ..guard import Guard
from ..models import Catalog, Version
from ..store import Database, decisions, observations, tasks
from .charts import (
    ARMS,
    HEIGHT,
    LOST,
    OTHER,
    REWARD,
    VERSIONS,
    Chart,
    Plot,
    Range,
    Tick,
    drawn,
    padded,
    rows_plot,
    time_ticks,
    utc,
)
from .pages import RANGES, Page, Snapshots, model_address, task_address
from .prior_gain import PriorGain, PriorGains
from .statistics import (
    Bin,
    Mean,
    Sample,
    Window,
    age_groups,
    age_label,
    binned,
    explored,
    of_version,
    outcomes,
    quantile_edges,
    read_range,
    rewarded,
    task_mean,
    versions_in,
)

MAX_TASKS, MAX_NEWEST = 12, 12  # in the lists of recent tasks and of the newest items
MAX_LISTED = 100  # arms in the files
NUM_NEW, NUM_REWARDS = 200, 16  # how long the newest items took to have so many rewards
NUM_LAST = 200  # decisions among which a model is looked for that decided last
MAX_GAINS = 4  # versions whose prior is evaluated
MAX_LATE, MAX_FAILED, MAX_UNREWARDED = 0.05, 0.01, 0.5  # shares of a healthy service
TIME_BARS, TIME_POINTS, CALIBRATION_BINS, PROPENSITY_BINS = 40, 12, 10, 10
Bins = Mapping[str, Sequence[Bin]]  # by version or arm


class Answer(NamedTuple):
    """A short answer to a question, and its reason; `status` is good, bad or empty."""

    short: str
    why: str
    status: str = ""


class ModelPage:
    """Makes the page of any model from the log, without waiting for or delaying decisions."""

    def __init__(self, database: Database, catalog: Catalog, guard: Guard) -> None:
        self._database, self._catalog, self._guard = database, catalog, guard
        self._samples: Snapshots[Sample] = Snapshots()
        self._gains = PriorGains(database)

    def newest(self, names: Sequence[str]) -> str | None:
        """Of these models the one that decided last; None if there are none."""
        d, t = decisions.c, tasks.c
        last = sa.select(d.task_id).order_by(d.created.desc()).limit(NUM_LAST).subquery()
        query = sa.select(t.model).join(last, last.c.task_id == t.id)
        found = [row.model for row in self._database.read(query)]
        return next((name for name in [*found, *names] if name in names), None)

    def content(self, model: str, time_range: str, database_answers: bool) -> Page:
        read = functools.partial(read_range, self._database, time_range)
        sample, versions = self._samples.get(time_range, read), self._catalog.versions_of(model)
        window = sample.window[sample.window.model == model]
        evaluated = [v for v in versions if v.share > 0 or v.version in versions_in(window)]
        gains = self._gains.get(evaluated[:MAX_GAINS]) if len(window) else {}
        at_random = [version.version for version in versions if version.at_random]
        predicted = window[~np.isin(window.version, at_random)]
        tables = {"versions": _versions_table(versions, window, gains)}
        context: dict[str, Any] = {
            "title": f"Model {model}",
            "model": model,
            "dim": versions[0].dim,
            "basis": basis(len(window), sample, time_range),
            "has_decided": len(window) > 0 or self._has_decided(model),
            "answers": {},
        }
        if len(window):
            context["answers"] = {
                "Is it healthy?": health(window, database_answers, self._catalog.broken.values()),
                "Does the prior pay?": prior_pays(gains),
                "Which version is better?": better_version(window, versions),
                "Are predictions right?": calibrated(predicted),
            }
            if guarded := self._guard.about(model):
                context["answers"]["Is the new version guarded?"] = Answer(*guarded)
            scale, address = sample.total / len(sample.window), model_address(model, time_range)
            charts = model_charts(window, predicted, gains, scale)
            context["charts"], numbers = drawn(charts, address)
            tables |= numbers
            for name, kind in (("actions", ~window.choice), ("items", window.choice)):
                if np.any(kind):
                    own = predicted[predicted.choice == (name == "items")]
                    found = arm_charts(window[kind], own)
                    context[name], more = drawn(found, address, f"{name}-")
                    tables |= more | {name: arms_table(model, window[kind], own)}
            with self._database.reading() as connection:
                tables["tasks"] = _tasks_table(connection, model, window)
                if "items" in context:
                    newest = newest_items(connection, model, window[window.choice])
                    tables["newest"], context["learning"] = newest
        return Page("model.html", context, tables)

    def _has_decided(self, model: str) -> bool:
        query = sa.select(tasks.c.id).where(tasks.c.model == model, tasks.c.num_decisions > 0)
        return bool(self._database.read(query.limit(1)))


def basis(shown: int, sample: Sample, time_range: str) -> str:
    """Which decisions a page is based on."""
    when = "" if time_range == "all" else f" of the last {RANGES[time_range]}"
    if sample.total <= len(sample.window):
        return f"Based on all {shown:,} decisions{when}."
    return (
        f"Based on {shown:,} decisions of this model, a sample: {len(sample.window):,} of "
        f"{sample.total:,} decisions of all models{when}, spread evenly over them."
    )


def _tasks_table(connection: sa.Connection, model: str, window: Window) -> Table:
    newest = list(dict.fromkeys(window.task[::-1].tolist()))[:MAX_TASKS]
    found = connection.execute(sa.select(tasks).where(tasks.c.id.in_(newest))).all()
    rows = []
    for row in sorted(found, key=lambda row: newest.index(row.id)):
        earned = rewarded(window[window.task == row.id]).reward
        mean = f"{earned.mean():.3g}" if len(earned) else "none yet"
        name = Link(row.name, task_address(model, row.name)())
        rows.append((name, str(row.num_decisions), str(row.num_learned), mean))
    columns = ("task", "decisions", "rewards", "recent mean reward")
    return Table(columns, rows, "Most recent tasks")


def _versions_table(
    versions: Sequence[Version], window: Window, gains: Mapping[int, PriorGain | None]
) -> Table:
    records = []
    for version in versions:
        own = of_version(window, version.version)
        earned, drawn = rewarded(own), explored(own)
        records.append(
            {
                "version": str(version.version),
                "prior": type(version.prior).__name__,
                "likelihood": str(version.settings.likelihood),
                "sampler": version.settings.sampler,
                "share of tasks": f"{version.share:.0%}",
                "decisions": f"{len(own):,}",
                "with a reward": f"{len(earned):,}",
                "mean reward": str(task_mean(earned.reward, earned.task)),
                "exploration": str(task_mean(1 - drawn.propensity, drawn.task)),
                "over a cold start": str(gains.get(version.version) or ""),
            }
        )
    return Table.of(records, "Versions of the model, newest first")


def health(window: Window, database_answers: bool, broken: Iterable[str] = ()) -> Answer:
    """Whether anything is wrong with the service itself."""
    failed, num_late = float(np.mean(window.failed)), int(window.late.sum())
    late = num_late / max(len(rewarded(window)) + num_late, 1)
    unrewarded = float(np.mean(outcomes(window)["never rewarded"]))
    problems = dict.fromkeys(broken, True) | {
        "the database does not answer": not database_answers,
        f"{failed:.1%} of draws failed: features or rewards have an extreme scale": (
            failed > MAX_FAILED
        ),
        f"{late:.1%} of rewards were late: `reward_wait` is too short": late > MAX_LATE,
        f"{unrewarded:.0%} of decisions never got a reward: set `default_reward`": (
            unrewarded > MAX_UNREWARDED
        ),
    }
    found = [problem for problem, present in problems.items() if present]
    if found:
        return Answer("Needs attention", f"{'; '.join(found)}.", "bad")
    why = (
        f"Last decision {duration(time.time() - window.created[-1])} ago; {late:.1%} of rewards "
        f"were late, {failed:.1%} of draws failed."
    )
    return Answer("Yes", why, "good")


def prior_pays(gains: Mapping[int, PriorGain | None]) -> Answer:
    """Whether the newest prior with a known gain beats a cold start, in all that is said of it."""
    known = {v: g for v, g in gains.items() if g is not None and not g.problem}
    if not known:
        reasons = [f"Version {v}: {g.problem}." for v, g in gains.items() if g is not None]
        if len(reasons) < len(gains):
            reasons = ["It is being computed; reload the page."]
        return Answer("Not known yet", " ".join(reasons))
    version, gain = next(iter(known.items()))
    why = f"Version {version}: {gain.in_words}."
    found = {gain.over_cold.sign, gain.reward.sign}
    if found >= {1, -1}:
        return Answer("Yes and no", f"{why} Its predictions and its first choices disagree.")
    if found == {0}:
        return Answer("No difference so far", why)
    return Answer("Yes", why, "good") if 1 in found else Answer("It costs", why, "bad")


def better_version(window: Window, versions: Sequence[Version]) -> Answer:
    """Which of the two newest versions earns more, while both served."""
    known = rewarded(window)
    listed = {version.version for version in versions}
    present = [v for v in versions_in(known) if v in listed][:2]
    if len(present) < 2:
        why = "Add a version with half of the traffic to compare."
        return Answer("Only one serves", why)
    both = served_together(known, present[0], present[1])
    owns = [of_version(both, version) for version in present]
    new, old = (task_mean(own.reward, own.task) for own in owns)
    gap = Mean(new.value - old.value, float(np.hypot(new.error, old.error)), new.count)
    why = (
        f"Version {present[0]} earns {new}, version {present[1]} {old} per decision while both "
        f"served; the difference is {gap}."
    )
    if not gap.sign:
        return Answer("No difference so far", why)
    return Answer(f"Version {present[0 if gap.sign > 0 else 1]}", why, "good")


def served_together(window: Window, first: int, second: int) -> Window:
    """Decisions of two versions from when both had begun until one of them stopped."""
    times = [of_version(window, version).created for version in (first, second)]
    begin, end = max(t.min() for t in times), min(t.max() for t in times)
    own = np.isin(window.version, (first, second))
    return window[own & (window.created >= begin) & (window.created <= end)]


def calibrated(window: Window) -> Answer:
    """Whether rewards agree with predictions."""
    known = rewarded(window)
    gap = task_mean(known.reward - known.predicted, known.task)
    if not gap.error > 0:
        return Answer("Too early to say", "It takes rewards of several tasks.")
    why = (
        f"Obtained {np.mean(known.reward):.3g}, predicted {np.mean(known.predicted):.3g} per "
        f"decision; the difference is {gap}."
    )
    if abs(gap.value) <= 3 * gap.error:
        return Answer("Yes", why, "good")
    short = "Too low" if gap.value > 0 else "Too high"
    return Answer(short, f"{why} Learn a new prior from the log.", "bad")


def arms_table(model: str, window: Window, predicted: Window) -> Table:
    """The arms taken most; those that are items link to their pages."""
    names = most_taken(window, MAX_LISTED)
    known = explored(predicted)
    best = best_probability(known, names) if len(known) else [float("nan")] * len(names)
    records = []
    for name, probability in zip(names, best, strict=True):
        taken = window.arm == name
        own = rewarded(window[taken])
        is_item = bool(window.choice[taken].any())
        records.append(
            {
                "arm": Link(name, task_address(model, name)()) if is_item else name,
                "decisions": f"{taken.sum():,}",
                "share of traffic": f"{np.mean(taken):.1%}",
                "rewards": f"{len(own):,}",
                "mean reward": str(task_mean(own.reward, units(own))),
                "probability of being best": f"{probability:.3f}",
                "last taken, UTC": utc(float(window.created[taken].max())),
            }
        )
    return Table.of(records, "Arms, the most taken first")


def newest_items(connection: sa.Connection, model: str, window: Window) -> tuple[Table, str]:
    """A table of the newest items, and in words how long new items took to learn."""
    t, o = tasks.c, observations.c
    active = sa.select(t.id, t.name, t.created).where(t.model == model, t.retired.is_(None))
    newest = connection.execute(active.order_by(t.created.desc(), t.id).limit(NUM_NEW)).all()
    created = {row.id: row.created for row in newest}
    learned = sa.select(o.task_id, o.learned).where(
        o.task_id.in_(list(created)), o.number == NUM_REWARDS - 1
    )
    waits = [row.learned - created[row.task_id] for row in connection.execute(learned)]
    rows = []
    for row in newest[:MAX_NEWEST]:
        own = window[window.task == row.id]
        earned = rewarded(own).reward
        mean = f"{earned.mean():.3g}" if len(earned) else "none yet"
        since = int(np.sum(window.created >= row.created))
        share = f"{len(own) / since:.1%}" if since else "none yet"
        name = Link(row.name, task_address(model, row.name)())
        rows.append((name, utc(row.created), str(len(own)), share, str(len(earned)), mean))
    columns = ("item", "added, UTC", "choices", "share since", "rewards", "mean reward")
    listed = f"the {len(newest)} newest items"
    if not waits:
        return Table(columns, rows, "Newest items"), f"None of {listed} has {NUM_REWARDS} rewards."
    words = (
        f"{len(waits)} of {listed} have {NUM_REWARDS} rewards, which took them "
        f"{duration(float(np.median(waits)))} (median)."
    )
    return Table(columns, rows, "Newest items"), words


def duration(seconds: float) -> str:
    """A time in its largest unit."""
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} seconds"


def model_charts(
    window: Window, predicted: Window, gains: Mapping[int, PriorGain | None], scale: float
) -> list[Chart]:
    """All charts of a model but those of its arms."""
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
        edges = np.linspace(first, max(last, first + 1.0), num_bins + 1)
        ticks = time_ticks(edges[0], edges[-1])
        return Axis("time, UTC", edges, ticks, lambda w: w.created, lambda b: utc(b.low))

    @staticmethod
    def age(window: Window) -> "Axis":
        """Ages of tasks at these decisions."""
        last = int(age_groups(window.number).max())
        ticks = [(float(i), age_label(i)) for i in range(0, last + 1, 1 if last < 7 else 2)]
        edges, keys = np.arange(last + 2) - 0.5, lambda w: age_groups(w.number)
        return Axis("decision of the task", edges, ticks, keys, lambda b: age_label(b.key))

    def plot(self, y: Range) -> Plot:
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
        colors: Mapping[str, str],
        *,
        y: Range | None = None,
        group: str = "version",
    ) -> Chart:
        """A line per version or arm, the first one in front; of versions, which are few, in a band
        of two standard errors.
        """
        means = [b.mean for bins in found.values() for b in bins]
        if y is None and group == "version":  # all means, and bands of at least twenty numbers
            sure = [mean for mean in means if mean.count >= 20] or means
            y = padded([*(m.value for m in means), *(end for m in sure for end in m.ends)])
        plot = self.plot(y or padded([mean.value for mean in means]))
        rows = {
            name: [
                {
                    self.title: self.label(b),
                    group: name.removeprefix("version "),
                    value: f"{b.mean}",
                }
                for b in bins
            ]
            for name, bins in found.items()
        }
        for name, bins in reversed(list(found.items())):
            xs, ys = [b.key for b in bins], [b.mean.value for b in bins]
            if group == "version":
                lows, highs = zip(*(b.mean.ends for b in bins), strict=True)
                plot.band(xs, lows, highs, colors[name])
            plot.line(xs, ys, colors[name])
            plot.dots(xs, ys, colors[name], rows[name], 2.4)
        listed = [row for own in rows.values() for row in own]
        return Chart(title, summary, plot, listed, [(colors[name], name) for name in found])


def decisions_over_time(window: Window, scale: float = 1.0) -> Chart:
    """Decisions over time, with and without rewards; each stands for `scale` of them."""
    axis, known = Axis.time(window, TIME_BARS), rewarded(window)
    counts, with_reward = (
        np.rint(scale * np.histogram(w.created, axis.edges)[0]) for w in (window, known)
    )
    rows = [
        {axis.title: utc(t), "decisions": f"{n:.0f}", "with a reward": f"{r:.0f}"}
        for t, n, r in zip(axis.edges.tolist(), counts, with_reward, strict=False)
    ]
    plot = axis.plot((0.0, 1.08 * float(max(counts.max(), 1))))
    plot.bars(axis.edges, counts, OTHER, rows)
    plot.bars(axis.edges, with_reward, REWARD, rows)
    about = "About " if scale > 1 else ""
    return Chart(
        "Decisions and rewards over time",
        f"{about}{scale * len(window):,.0f} decisions since {utc(axis.edges[0])} UTC; "
        f"{len(known) / len(window):.1%} have a reward.",
        plot,
        rows,
        ((REWARD, "with a reward"), (OTHER, "without one so far")),
    )


def reward_over_time(window: Window, colors: Mapping[str, str]) -> Chart:
    """Mean reward of every version over time."""
    known, title = rewarded(window), "Mean reward over time"
    if not len(known):
        return Chart(title, "No rewards yet.")
    mean, axis = task_mean(known.reward, known.task), Axis.time(window, TIME_POINTS)
    summary = f"{mean} per decision; bands are two standard errors over tasks."
    return axis.chart(title, summary, axis.by_version(known, known.reward), "mean reward", colors)


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
    return axis.chart(title, summary, found, "mean reward", colors)


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
    return axis.chart(title, summary, found, "mean of 1 - propensity", colors, y=(0.0, 1.0))


def calibration(window: Window) -> Chart:
    """Predicted rewards of the actions taken against the rewards they earned."""
    known, title = rewarded(window), "Calibration: obtained against predicted reward"
    if len(known) < 2:
        return Chart(title, "There are no rewards yet to compare predictions with.")
    edges = quantile_edges(known.predicted, CALIBRATION_BINS)
    bins = binned(known.predicted, known.reward, known.task, edges)
    rows = [
        {"predicted": f"{b.key:.3g}", "obtained": str(b.mean), "decisions": str(b.mean.count)}
        for b in bins
    ]
    ends = padded([b.key for b in bins] + [b.mean.value for b in bins])
    plot = Plot(ends, ends, x_title="predicted reward")
    plot.line(ends, ends, "guide")
    for b in bins:
        plot.line([b.key] * 2, b.mean.ends, REWARD)
    plot.dots([b.key for b in bins], [b.mean.value for b in bins], REWARD, rows)
    summary = (
        f"Obtained minus predicted: {task_mean(known.reward - known.predicted, known.task)}. "
        "On the dashed line predictions are right; bars are two standard errors."
    )
    return Chart(title, summary, plot, rows)


def outcomes_chart(window: Window) -> Chart:
    """Number of decisions by outcome."""
    counts = {name: int(np.sum(own)) for name, own in outcomes(window).items()}
    listed = counts | {"late rewards": int(window.late.sum())}
    rows = [{"outcome": name, "decisions": str(count)} for name, count in listed.items()]
    plot = rows_plot((0.0, float(len(window))), list(counts), "decisions", height=HEIGHT)
    colors = {"rewarded": REWARD, "default reward": REWARD, "never rewarded": LOST}
    for i, (name, count) in enumerate(counts.items()):
        ends, color = (-i - 0.32, -i + 0.32), colors.get(name, OTHER)
        plot.bar((0.0, float(count)), ends, color, rows[i])
    return Chart(
        "Outcomes of decisions",
        f"{counts['rewarded'] + counts['default reward']:,} rewarded, {counts['waiting']:,} "
        f"waiting, {counts['never rewarded']:,} never rewarded; {listed['late rewards']:,} rewards "
        "arrived too late or for settled decisions and were not learned from.",
        plot,
        rows,
    )


def propensities(window: Window) -> Chart:
    """Histogram of propensities."""
    known = explored(window).propensity
    if not len(known):
        return Chart("Propensities", "Propensities are off: `propensity_draws` is 0.")
    counts, edges = np.histogram(known, np.linspace(0, 1, PROPENSITY_BINS + 1))
    rows = [
        {"propensity": f"{low:.1f} to {low + 0.1:.1f}", "decisions": str(count)}
        for low, count in zip(edges, counts, strict=False)
    ]
    plot = Plot((0.0, 1.0), (0.0, 1.08 * float(counts.max())), x_title="propensity")
    plot.bars(edges, counts, OTHER, rows)
    summary = (
        f"Median {np.median(known):.2f}; {np.mean(known < 0.1):.1%} below 0.1, which get large "
        "weights in off-policy estimates."
    )
    return Chart("Propensities of the actions taken", summary, plot, rows)


def gains_chart(gains: Mapping[int, PriorGain | None], colors: Mapping[str, str]) -> Chart:
    """Log evidence of every version's prior over a cold start."""
    title = "Benefit of the prior: log evidence over starting cold"
    known = {f"version {v}": g.over_cold for v, g in gains.items() if g and not g.problem}
    words = {v: str(g) if g else "being computed" for v, g in gains.items()}
    listed = "; ".join(f"version {version}: {text}" for version, text in words.items())
    if not known:
        return Chart(title, f"{listed}." if listed else "No version serves.")
    ends = padded([0.0, *(end for mean in known.values() for end in mean.ends)], 0.08)
    x_title = "nats per task; right of the dashed line the prior pays"
    plot = rows_plot(ends, list(known), x_title, height=90.0 + 36.0 * len(known), left=70.0)
    plot.line([0.0, 0.0], [0.5, 0.5 - len(known)], "guide")
    for i, (name, mean) in enumerate(known.items()):
        ends, about = (min(0.0, mean.value), max(0.0, mean.value)), {name: f"{mean} nats per task"}
        plot.bar(ends, (-i - 0.25, -i + 0.25), colors[name], about)
        plot.line(mean.ends, [-i, -i], "axis")
    return Chart(
        title,
        f"Over starting cold, {listed}. One nat makes the rewards e = 2.7 times as probable.",
        plot,
        [{"version": str(version), "gain": text} for version, text in words.items()],
        (("axis", "two standard errors over tasks"),),
    )


def most_taken(window: Window, most: int) -> list[str]:
    """Arms that were taken most often, the first the most."""
    names, counts = np.unique(window.arm.astype(str), return_counts=True)
    return names[np.argsort(-counts, kind="stable")][:most].tolist()


def units(window: Window) -> Int[np.ndarray, " n"]:
    """What counts as independent: tasks, but decisions of items, each of which is one task."""
    return np.arange(len(window)) if len(window) and window.choice.all() else window.task


def arm_charts(window: Window, predicted: Window) -> list[Chart]:
    """Shares of traffic, mean rewards and probabilities of being best of the most taken arms."""
    top, known = most_taken(window, len(ARMS)), rewarded(window)
    axis, colors = Axis.time(window, TIME_POINTS), dict(zip(top, ARMS, strict=False))
    shares = {
        name: binned(window.created, (window.arm == name) * 1.0, units(window), axis.edges)
        for name in top
    }
    of_arm = {name: own for name in top if len(own := known[known.arm == name])}
    earned = {
        name: binned(own.created, own.reward, units(own), axis.edges)
        for name, own in of_arm.items()
    }
    best = best_over_time(explored(predicted), top, axis.edges)
    total = np.mean(np.isin(window.arm, top))
    most = f"The {len(top)} arms taken most have {total:.0%} of {len(window):,} decisions."
    wins = "Posterior probability, estimated from the propensities of the actions taken."
    described: list[tuple[str, str, Bins, str, str]] = [
        ("Share of traffic", most, shares, "share", ""),
        ("Mean reward of arms", most, earned, "mean reward", "No rewards yet."),
        ("Probability of being best", wins, best, "probability", "Propensities are off."),
    ]
    return [
        axis.chart(title, summary, found, value, colors, group="arm")
        if found
        else Chart(title, none)
        for title, summary, found, value, none in described
    ]


def best_probability(window: Window, names: Sequence[str]) -> Float[np.ndarray, " k"]:
    """Mean posterior probability that arms are best, over decisions with propensities.

    A decision gives the arm taken its propensity p, and the others the rest 1 - p in proportion to
    how often they are taken. That is exact for two arms, and has the right mean if all decisions
    have the same probabilities.
    """
    arms, place, counts = np.unique(window.arm.astype(str), return_inverse=True, return_counts=True)
    share = counts / len(window)
    own = np.bincount(place, weights=window.propensity, minlength=len(arms))
    rest = np.bincount(place, weights=1 - window.propensity, minlength=len(arms))
    spread = rest / np.maximum(1 - share, 1e-12)
    found = (own + share * (spread.sum() - spread)) / len(window)
    return np.array([found[arms == name].sum() for name in names])


def best_over_time(window: Window, names: Sequence[str], edges: Float[np.ndarray, " m"]) -> Bins:
    """Probabilities of being best by time."""
    found: dict[str, list[Bin]] = {name: [] for name in names} if len(window) else {}
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        own = window[(window.created >= low) & (window.created <= high)]
        if len(own):
            middle, shares = float(np.mean(own.created)), best_probability(own, names)
            for name, share in zip(names, shares.tolist(), strict=True):
                found[name].append(Bin(low, high, middle, Mean(share, float("nan"), len(own))))
    return found
