"""The page of a task: what is known of it beside the prior, its history, its next decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from ..reading import Reader
from ..store import Database, TaskRow, decisions, observations
from ..tasks import empty_state
from ..version import Version
from .actions import action_name
from .chart import Chart
from .explanation import TITLE, explain, explanation_chart
from .markup import Frame, Link, cards, heading, model_address, page, table, text
from .task_charts import history_chart, parameters_chart
from .window import moment

NUM_DRAWS = 256  # at least, of prior and posterior
MAX_HISTORY = 200  # decisions of the picture
MAX_LISTED = 25  # of them in the table


@dataclass(frozen=True)
class TaskPage:
    """Makes the page of any task."""

    database: Database
    reader: Reader

    def page(self, model: str, name: str, frame: Frame) -> str:
        """The page.

        Raises:
            ServiceError: There is no such task.
        """
        version, row, state = self.reader.task_state(model, name)
        num_calls = -(-NUM_DRAWS // (1 + version.settings.propensity_draws))
        nothing = empty_state(version, row["id"], row["seed"])
        prior = nothing.posterior_draws(version, 0, num_calls)
        posterior = state.posterior_draws(version, row["num_decisions"], num_calls)
        history = self._history(row["id"])
        pictures = [
            _next_decision(version, posterior, self._last(row["id"])),
            parameters_chart(prior, posterior, state.num_learned),
            history_chart(history),
        ]
        body = [
            text(_about(version, row)),
            heading("Now"),
            cards(pictures),
            heading("History"),
            _history_table(history[-MAX_LISTED:][::-1]),
        ]
        back = [Link(f"Model {model}", model_address(model))]
        return page(f"Task {name}", body, frame, links=back)

    def _history(self, task_id: int) -> list[Any]:
        """The newest decisions with what was learned from them, oldest first."""
        d, o = decisions.c, observations.c
        columns = (d.id, d.number, d.version, d.names, d.taken, d.propensity, d.predicted)
        query = (
            sa.select(*columns, d.status, d.settled, d.created, o.reward, o.source)
            .outerjoin(observations, o.decision_id == d.id)
            .where(d.task_id == task_id)
            .order_by(d.number.desc())
            .limit(MAX_HISTORY)
        )
        with self.database.reading() as connection:
            return list(connection.execute(query))[::-1]

    def _last(self, task_id: int) -> Any:
        """The newest decision with all that was offered, if there is one."""
        d = decisions.c
        query = sa.select(decisions).where(d.task_id == task_id).order_by(d.number.desc()).limit(1)
        with self.database.reading() as connection:
            return connection.execute(query).one_or_none()


def _about(version: Version, row: TaskRow) -> str:
    return (
        f"{row['num_decisions']:,} decisions and {row['num_learned']:,} rewards since "
        f"{moment(row['created'])} UTC. Version {version.version} of the model serves it."
    )


def _next_decision(version: Version, draws: Any, last: Any) -> Chart:
    if last is None:
        return Chart(TITLE, "It has not been decided for yet.")
    explained = explain(version, draws, last)
    if explained is None:
        return Chart(TITLE, "Its last actions have other features than this version knows.")
    return explanation_chart(explained)


def _history_table(rows: Sequence[Any]) -> str:
    columns = ("decision", "time, UTC", "version", "action", "propensity", "predicted", "reward")
    listed = [
        (
            str(row.number + 1),
            moment(row.created),
            str(row.version),
            action_name(row.names, row.taken),
            "" if row.propensity is None else f"{row.propensity:.2f}",
            f"{row.predicted:.3g}",
            _outcome(row),
        )
        for row in rows
    ]
    return table("Newest decisions, the last one first", columns, listed)


def _outcome(row: Any) -> str:
    if row.reward is not None:
        return f"{row.reward:.3g}" + (" (default)" if row.source == "default" else "")
    if row.status == "cancelled":
        return "cancelled"
    return "none came" if row.settled else "deferred" if row.status == "deferred" else "waiting"
