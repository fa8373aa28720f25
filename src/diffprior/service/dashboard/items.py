"""Items on the page of a model: their share of impressions, what they earn, how fast they learn."""

from collections.abc import Callable, Mapping

import numpy as np
import sqlalchemy as sa

from ...reporting.tables import Link, Table
from ..store import observations, tasks
from .charts import COLORS, TIME_POINTS, Axis, Chart, padded, utc
from .statistics import Window, binned, rewarded

MAX_NAMED = 4  # items with a line of their own
MAX_NEWEST = 12  # in the table
NUM_NEW, NUM_REWARDS = 200, 16  # how long the newest items took to have so many rewards


def item_charts(window: Window, names: Mapping[int, str]) -> list[Chart]:
    """Shares of impressions and mean rewards over time, of the items shown most."""
    top = list(names)[:MAX_NAMED]
    axis, known = Axis.time(window, TIME_POINTS), rewarded(window)
    shares = {
        task: binned(window.created, (window.task == task) * 1.0, window.task, axis.edges)
        for task in top
    }
    earned = {
        task: binned(own.created, own.reward, own.task, axis.edges)
        for task in top
        if len(own := known[known.task == task])
    }
    total = np.mean(np.isin(window.task, top))
    most = f"The {len(top)} items shown most have {total:.0%} of {len(window):,} choices"
    charts = []
    for title, summary, found, value in (
        ("Share of impressions over time", f"{most}.", shares, "share"),
        ("Mean reward of items over time", f"{most}.", earned, "mean reward"),
    ):
        if not found:
            charts.append(Chart(title, "No rewards yet."))
            continue
        points = [b.mean.value for bins in found.values() for b in bins]
        plot = axis.plot(padded([0.0, *points]))
        rows, legend = [], []
        for color, (task, bins) in zip(COLORS, found.items(), strict=False):
            xs, ys = [b.key for b in bins], [b.mean.value for b in bins]
            plot.line(xs, ys, color)
            plot.dots(xs, ys, color, 2.4)
            legend.append((color, names[task]))
            rows += [
                {"time, UTC": utc(b.low), "item": names[task], value: f"{b.mean.value:.3g}"}
                for b in bins
            ]
        charts.append(Chart(title, summary, plot, rows, legend))
    return charts


def most_shown(connection: sa.Connection, window: Window) -> dict[int, str]:
    """Names of the items shown most, by id, the first the most."""
    ids, counts = np.unique(window.task, return_counts=True)
    top = ids[np.argsort(-counts, kind="stable")][:MAX_NAMED].tolist()
    found = connection.execute(sa.select(tasks.c.id, tasks.c.name).where(tasks.c.id.in_(top)))
    names = {row.id: row.name for row in found}
    return {task: names[task] for task in top}


def newest_items(
    connection: sa.Connection, model: str, window: Window, address: Callable[[str], str]
) -> tuple[Table, str]:
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
        name = Link(row.name, address(row.name))
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
