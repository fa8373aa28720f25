"""Page of a model: is the service healthy, does the prior pay, which version is better."""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import sqlalchemy as sa

from ...reporting.tables import Link, Table
from ..guard import Guard
from ..models import Catalog, Version
from ..store import Database, decisions, tasks
from .arms import arm_charts, arms_table, duration, newest_items
from .charts import drawn, model_charts
from .pages import RANGES, Page, model_address, task_address
from .prior_gain import PriorGain, PriorGains
from .statistics import (
    Mean,
    Sample,
    SampleReader,
    Window,
    explored,
    of_version,
    outcomes,
    rewarded,
    task_mean,
    versions_in,
)

MAX_TASKS = 12  # in the list of recent tasks
NUM_LAST = 200  # decisions among which a model is looked for that decided last
MAX_GAINS = 4  # versions whose prior is evaluated
MAX_LATE, MAX_FAILED, MAX_UNREWARDED = 0.05, 0.01, 0.5  # shares of a healthy service


class Answer(NamedTuple):
    """A short answer to a question, and its reason; `status` is good, bad or empty."""

    short: str
    why: str
    status: str = ""


class ModelPage:
    """Makes the page of any model from the log, without waiting for or delaying decisions."""

    def __init__(self, database: Database, catalog: Catalog, guard: Guard) -> None:
        self._database, self._catalog, self._guard = database, catalog, guard
        self._samples, self._gains = SampleReader(database), PriorGains(database)

    def newest(self, names: Sequence[str]) -> str | None:
        """Of these models the one that decided last; None if there are none."""
        d, t = decisions.c, tasks.c
        last = sa.select(d.task_id).order_by(d.created.desc()).limit(NUM_LAST).subquery()
        query = sa.select(t.model).join(last, last.c.task_id == t.id)
        with self._database.reading() as connection:
            found = connection.execute(query).scalars().all()
        return next((name for name in [*found, *names] if name in names), None)

    def content(self, model: str, time_range: str, database_answers: bool) -> Page:
        """The page of a model."""
        sample, versions = self._samples.read(time_range), self._catalog.versions_of(model)
        window = sample.window[sample.window.model == model]
        evaluated = [v for v in versions if v.share > 0 or v.version in versions_in(window)]
        gains = self._gains.get(evaluated[:MAX_GAINS]) if len(window) else {}
        at_random = [version.version for version in versions if version.at_random]
        predicted = window[~np.isin(window.version, at_random)]
        tables = {"versions": _versions_table(versions, window, gains)}
        numbers: dict[str, Table] = {}
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
            for name, kind in (("actions", ~window.choice), ("items", window.choice)):
                if np.any(kind):
                    own = predicted[predicted.choice == (name == "items")]
                    found = arm_charts(window[kind], own)
                    context[name], more = drawn(found, address, f"{name}-")
                    tables[name], numbers = arms_table(model, window[kind], own), numbers | more
            with self._database.reading() as connection:
                tables["tasks"] = _tasks_table(connection, model, window)
                if "items" in context:
                    newest = newest_items(connection, model, window[window.choice])
                    tables["newest"], context["learning"] = newest
        return Page("model.html", context, tables, numbers)

    def _has_decided(self, model: str) -> bool:
        query = sa.select(tasks.c.id).where(tasks.c.model == model, tasks.c.num_decisions > 0)
        with self._database.reading() as connection:
            return connection.execute(query.limit(1)).first() is not None


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
    """Whether the newest prior with a known gain beats a cold start."""
    known = {v: g for v, g in gains.items() if g is not None and not g.problem}
    if not known:
        reasons = [f"Version {v}: {g.problem}." for v, g in gains.items() if g is not None]
        if len(reasons) < len(gains):
            reasons = ["It is being computed; reload the page."]
        return Answer("Not known yet", " ".join(reasons))
    version, gain = next(iter(known.items()))
    why = f"Version {version}: {gain.in_words}."
    if abs(gain.over_cold.value) <= 2 * gain.over_cold.error:
        return Answer("No difference so far", why)
    short, status = ("Yes", "good") if gain.over_cold.value > 0 else ("It costs", "bad")
    return Answer(short, why, status)


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
    if not gap.error > 0 or abs(gap.value) <= 2 * gap.error:
        return Answer("No difference so far", why)
    return Answer(f"Version {present[0 if gap.value > 0 else 1]}", why, "good")


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
