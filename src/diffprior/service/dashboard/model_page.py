"""Page of a model: is the service healthy, does the prior pay, which version is better."""

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import sqlalchemy as sa

from ...reporting.tables import Link, Table
from ..guard import Guard
from ..models import Catalog, Version
from ..store import Database, tasks
from .charts import model_charts
from .items import duration, item_charts, most_shown, newest_items
from .prior_gain import PriorGain, PriorGains
from .statistics import (
    CACHE_SECONDS,
    WINDOW_SIZE,
    Mean,
    Window,
    WindowReader,
    explored,
    of_version,
    outcomes,
    rewarded,
    task_mean,
    versions_in,
)

Content = tuple[str, dict[str, Any]]  # the name of a template, and its variables
MAX_TASKS = 12  # in the list of recent tasks
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
        self._windows, self._gains = WindowReader(database), PriorGains(database)
        self._making, self._made = threading.Lock(), dict[object, tuple[float, Content]]()

    def content(
        self, model: str | None, allowed: Sequence[str] | None, database_answers: bool
    ) -> Content:
        """The page, made once every `CACHE_SECONDS`, however many readers there are."""
        key = (model, allowed, database_answers)
        with self._making:
            made, found = self._made.get(key, (-CACHE_SECONDS, None))
            if found is None or time.monotonic() - made > CACHE_SECONDS:
                found = self._content(model, allowed, database_answers)
                self._made[key] = time.monotonic(), found
            return found

    def _content(
        self, model: str | None, allowed: Sequence[str] | None, database_answers: bool
    ) -> Content:
        names = [n for n in self._catalog.names() if allowed is None or n in allowed]
        window = self._windows.read()
        if model is None:
            seen = [n for n in dict.fromkeys(window.model[::-1].tolist()) if n in names]
            model = next(iter(seen or names), None)
        if model is None:
            return "no_model.html", {"title": "No model yet"}
        versions, window = self._catalog.versions_of(model), window[window.model == model]
        evaluated = [v for v in versions if v.share > 0 or v.version in versions_in(window)]
        gains = self._gains.get(evaluated[:MAX_GAINS]) if len(window) else {}
        at_random = [version.version for version in versions if version.at_random]
        predicted = window[~np.isin(window.version, at_random)]
        content = {
            "title": f"Model {model}",
            "links": [Link(name, model_address(name)) for name in names],
            "current": model_address(model),
            "model": model,
            "dim": versions[0].dim,
            "shown": len(window),
            "window_size": WINDOW_SIZE,
            "versions": _versions_table(versions, window, gains),
        }
        if len(window):
            answers = {
                "Is it healthy?": health(window, database_answers, self._catalog.broken.values()),
                "Does the prior pay?": prior_pays(gains),
                "Which version is better?": better_version(window, versions),
                "Are predictions right?": calibrated(predicted),
            }
            if guarded := self._guard.about(model):
                answers["Is the new version guarded?"] = Answer(*guarded)
            content["answers"] = answers
            content["charts"] = model_charts(window, predicted, gains)
            content["tasks"] = self._tasks_table(model, window)
            content |= self._items(model, window[window.choice])
        return "model.html", content

    def _items(self, model: str, window: Window) -> dict[str, Any]:
        """What the page says of items, if there were choices among them."""
        if not len(window):
            return {}
        with self._database.reading() as connection:
            names = most_shown(connection, window)
            newest = newest_items(connection, model, window, lambda n: task_address(model, n))
        table, words = newest
        return {"item_charts": item_charts(window, names), "items": table, "learning": words}

    def _tasks_table(self, model: str, window: Window) -> Table:
        newest = list(dict.fromkeys(window.task[::-1].tolist()))[:MAX_TASKS]
        with self._database.reading() as connection:
            found = connection.execute(sa.select(tasks).where(tasks.c.id.in_(newest))).all()
        rows = []
        for row in sorted(found, key=lambda row: newest.index(row.id)):
            rewards = window.reward[(window.task == row.id) & np.isfinite(window.reward)]
            mean = f"{rewards.mean():.3g}" if len(rewards) else "none yet"
            name = Link(row.name, task_address(model, row.name))
            rows.append((name, str(row.num_decisions), str(row.num_learned), mean))
        columns = ("task", "decisions", "rewards", "recent mean reward")
        return Table(columns, rows, "Most recent tasks")


def model_address(model: str) -> str:
    """The address of a model's page."""
    return f"/?model={quote(model, safe='')}"


def task_address(model: str, task: str) -> str:
    """The address of a task's page."""
    return f"/tasks/{quote(model, safe='')}/{quote(task, safe='')}"


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
