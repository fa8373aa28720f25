"""The page at `/`: whether the service is healthy, the prior pays, and which version is better."""

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import sqlalchemy as sa

from ..catalog import Catalog
from ..store import Database, tasks
from ..version import Version
from . import charts, verdicts
from .chart import Chart
from .markup import (
    Frame,
    Link,
    answers,
    cards,
    code,
    heading,
    model_address,
    page,
    table,
    task_address,
    text,
)
from .prior_gain import PriorGain, PriorGains
from .statistics import task_mean
from .svg import Plot
from .window import SIZE, Window, WindowReader

MAX_TASKS = 12  # in the list of those decided for last
MAX_GAINS = 4  # versions whose prior is judged
VERSION_COLUMNS = (
    "version",
    "prior",
    "likelihood",
    "sampler",
    "share of tasks",
    "decisions",
    "with a reward",
    "mean reward",
    "exploration",
    "over its Gaussian",
)


@dataclass(frozen=True)
class Dashboard:
    """Makes the page; reads the log, never waits for a decision and never holds one up."""

    database: Database
    catalog: Catalog
    windows: WindowReader
    gains: PriorGains

    def page(
        self, model: str | None, models: tuple[str, ...] | None, healthy: bool, frame: Frame
    ) -> str:
        """The page of a model, or of the one that decided last.

        Args:
            model: Its name; None for any.
            models: Models that the reader may see; None for all.
            healthy: Whether the database answers the engine.
            frame: What is around the page.
        """
        names = [n for n in self.catalog.names() if models is None or n in models]
        window = self.windows.read()
        if model is None:
            model = _latest(window, names)
        if model is None:
            return page("No model yet", _no_model(), frame)
        versions = self.catalog.versions_of(model)
        shown = [Link(name, model_address(name), name == model) for name in names]
        own = window.of_model(model)
        body = self._body(model, versions, own, healthy)
        return page(f"Model {model}", body, frame, links=shown, footer=_footer(len(own)))

    def _body(
        self, model: str, versions: list[Version], window: Window, healthy: bool
    ) -> list[str]:
        if not len(window):
            return [*_no_decision(model, versions[0].dim), _versions_table(versions, window, {})]
        judged = [v for v in versions if v.share > 0 or v.version in window.versions][:MAX_GAINS]
        gains = self.gains.get(judged)
        predicted = window.where(~np.isin(window.version, _at_random(versions)))
        found = [
            verdicts.health(window, healthy),
            verdicts.prior_pays(gains),
            verdicts.better_version(window, versions),
            verdicts.calibrated(predicted),
        ]
        pictures = [
            charts.reward_by_age(window),
            charts.reward_over_time(window),
            gains_chart(gains),
            charts.calibration(predicted),
            charts.over_time(window),
            charts.fates(window),
            charts.exploration(window),
            charts.propensities(window),
        ]
        return [
            answers(found),
            heading("Versions"),
            _versions_table(versions, window, gains),
            heading("Pictures"),
            cards(pictures),
            heading("Tasks"),
            self._tasks(model, window),
        ]

    def _tasks(self, model: str, window: Window) -> str:
        """Tasks that were decided for last, and a way to any other."""
        newest = list(dict.fromkeys(window.task[::-1].tolist()))[:MAX_TASKS]
        query = sa.select(tasks).where(tasks.c.id.in_(newest))
        with self.database.reading() as connection:
            rows = {row.id: row for row in connection.execute(query)}
        listed = [_task_row(model, rows[one], window) for one in newest if one in rows]
        columns = ("task", "decisions", "rewards", "mean reward lately")
        return _find_form(model) + table("Tasks decided for last", columns, listed)


def gains_chart(gains: dict[int, PriorGain | None]) -> Chart:
    """Nats a task that each version's prior gains over its Gaussian."""
    title = "What the prior saved: log evidence over its Gaussian"
    known = {v: g for v, g in gains.items() if g is not None and not g.problem}
    rows = [(str(v), str(g) if g else "being computed") for v, g in gains.items()]
    told = "; ".join(f"version {version}: {words}" for version, words in rows)
    if not known:
        return Chart(title, f"{told}." if told else "No version serves.")
    ends = [0.0] + [g.gain + s * 2 * g.error for g in known.values() for s in (-1, 1)]
    room = 0.08 * (max(ends) - min(ends)) or 0.5
    count = len(known)
    plot = Plot(
        (min(ends) - room, max(ends) + room),
        (0.0, float(count)),
        x_title="nats a task; right of the dashed line it pays",
        y_ticks=[(count - 0.5 - i, f"version {v}") for i, v in enumerate(known)],
        height=90.0 + 36.0 * count,
        left=70.0,
    )
    plot.guide([0.0, 0.0], [0.0, float(count)])
    for place, gain in enumerate(known.values()):
        y, low, high = count - 0.5 - place, gain.gain - 2 * gain.error, gain.gain + 2 * gain.error
        plot.bars([min(0.0, gain.gain)], [max(0.0, gain.gain)], [y + 0.25], "c0", [y - 0.25])
        plot.level([low], [high], [y], "c1")
    return Chart(
        title,
        f"Over a Gaussian of the same moments, {told}; one nat: the rewards are e = 2.7 times as "
        "probable.",
        plot,
        ("version", "gain"),
        rows,
        (("c0", "mean over tasks"), ("c1", "two standard errors")),
    )


def _versions_table(
    versions: list[Version], window: Window, gains: dict[int, PriorGain | None]
) -> str:
    known, rows = window.rewarded, []
    for version in versions:
        own, paid = (w.where(w.version == version.version) for w in (window, known))
        explored = own.where(np.isfinite(own.propensity))
        gain = gains.get(version.version)
        rows.append(
            (
                str(version.version),
                type(version.prior).__name__,
                version.settings.likelihood,
                version.settings.sampler,
                f"{version.share:.0%}",
                f"{len(own):,}",
                f"{len(paid):,}",
                str(task_mean(paid.reward, paid.task)),
                str(task_mean(1 - explored.propensity, explored.task)),
                "" if gain is None else str(gain),
            )
        )
    return table("Versions of the model, newest first", VERSION_COLUMNS, rows)


def _at_random(versions: list[Version]) -> list[int]:
    """Versions that choose at random, and so predict nothing."""
    return [version.version for version in versions if version.at_random]


def _latest(window: Window, names: list[str]) -> str | None:
    """The model that decided last, else the first."""
    seen = [name for name in dict.fromkeys(window.model[::-1].tolist()) if name in names]
    return next(iter(seen or names), None)


def _task_row(model: str, row: Any, window: Window) -> tuple[Any, ...]:
    own = window.rewarded
    values = own.reward[own.task == row.id]
    mean = f"{values.mean():.3g}" if len(values) else "none yet"
    name = (row.name, task_address(model, row.name))
    return (name, str(row.num_decisions), str(row.num_learned), mean)


def _find_form(model: str) -> str:
    return (
        '<form action="/tasks" method="get" role="search">'
        f'<input type="hidden" name="model" value="{escape(model)}">'
        '<label for="task">Name of a task</label>'
        '<input id="task" name="task" required maxlength="200" autocomplete="off">'
        "<button>Show it</button></form>"
    )


def _footer(shown: int) -> str:
    return (
        f"Made from {shown:,} of the newest {SIZE:,} decisions. Standard errors count tasks, not "
        "decisions, as independent. Load the page again for newer numbers."
    )


def _no_model() -> list[str]:
    return [
        text("The service runs and has no model. Put one, then reload this page:"),
        code(
            "diffprior serve --model shop=prior.dprior --likelihood logistic\n\n"
            "# or into the running service\n"
            "curl -s -X PUT localhost:8000/v1/models/shop -H 'content-type: application/json' \\\n"
            '  -d "{\\"prior\\": \\"$(base64 -w0 prior.dprior)\\"}"'
        ),
        text("`diffprior learn` makes a prior from logs of past tasks."),
    ]


def _no_decision(model: str, dim: int) -> list[str]:
    first, second = (str([float(i == j) for j in range(dim)]) for i in (0, 1))
    return [
        text("The model is ready and has not decided yet. Ask it, then tell what came of it:"),
        code(
            f"curl -s localhost:8000/v1/models/{model}/tasks/campaign-7/decisions \\\n"
            "  -H 'content-type: application/json' \\\n"
            f"""  -d '{{"actions": {{"red": {first}, "blue": {second}}}}}'\n\n"""
            "curl -s localhost:8000/v1/decisions/ID/reward \\\n"
            """  -H 'content-type: application/json' -d '{"reward": 1}'"""
        ),
    ]
