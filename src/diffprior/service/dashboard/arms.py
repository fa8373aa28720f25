"""Arms of a model, its actions or items: their share of traffic, rewards, chance to be best."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float, Int

from ...reporting.tables import Link, Table
from ..store import observations, tasks
from .charts import ARMS, TIME_POINTS, Axis, Bins, Chart, utc
from .pages import task_address
from .statistics import Bin, Mean, Window, binned, explored, rewarded, task_mean

MAX_LISTED = 100  # arms in the files
MAX_NEWEST = 12  # in the table
NUM_NEW, NUM_REWARDS = 200, 16  # how long the newest items took to have so many rewards


def most_taken(window: Window, most: int) -> list[str]:
    """Arms that were taken most often, the first the most."""
    names, counts = np.unique(window.arm.astype(str), return_counts=True)
    return names[np.argsort(-counts, kind="stable")][:most].tolist()


def arm_charts(window: Window, predicted: Window) -> list[Chart]:
    """Shares of traffic, mean rewards and probabilities of being best of the most taken arms."""
    top, known = most_taken(window, len(ARMS)), rewarded(window)
    axis, colors = Axis.time(window, TIME_POINTS), dict(zip(top, ARMS, strict=False))
    shares, earned = {}, {}
    for name in top:
        taken, own = window.arm == name, known[known.arm == name]
        shares[name] = binned(window.created, taken * 1.0, units(window), axis.edges)
        if len(own):
            earned[name] = binned(own.created, own.reward, units(own), axis.edges)
    best = best_over_time(explored(predicted), top, axis.edges)
    total = np.mean(np.isin(window.arm, top))
    most = f"The {len(top)} arms taken most have {total:.0%} of {len(window):,} decisions"
    wins = "Posterior probability, estimated from the propensities of the actions taken"
    described: list[tuple[str, str, Bins, str]] = [
        ("Share of traffic", f"{most}.", shares, "share"),
        ("Mean reward of arms", f"{most}.", earned, "mean reward"),
        ("Probability of being best", f"{wins}.", best, "probability"),
    ]
    none = {"mean reward": "No rewards yet.", "probability": "Propensities are off."}
    return [
        axis.chart(title, summary, found, value, colors=colors, group="arm")
        if found
        else Chart(title, none[value])
        for title, summary, found, value in described
    ]


def units(window: Window) -> Int[np.ndarray, " n"]:
    """What counts as independent: tasks, but decisions of items, each of which is one task."""
    return np.arange(len(window)) if len(window) and window.choice.all() else window.task


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
