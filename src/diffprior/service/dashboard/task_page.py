"""Page of a task: its next decision explained, its posterior against the prior, its history."""

import json
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import sqlalchemy as sa
from jaxtyping import Float

from ...reporting.tables import Link, Table
from ..models import Version
from ..reading import Reader
from ..store import Database, Row, decisions, observations, read_rows
from ..tasks import TaskState
from .charts import OTHER, PREDICTED, REWARD, VERSIONS, Chart, Plot, drawn, padded, rows_plot, utc
from .pages import Page, model_address, task_address

MIN_DRAWS = 256  # from prior and posterior
MAX_HISTORY, MAX_LISTED = 200, 25  # decisions in the chart and in the table
MAX_ACTIONS, MAX_PARAMETERS = 12, 24  # in the charts; all are in their numbers
MAX_NAME = 24  # letters of a parameter in the chart
GRID = 64  # points of a density
HALF = 0.42  # height of the highest density, in rows
NEXT_DECISION = "Next decision, if the last actions were offered again"


def task_page(database: Database, reader: Reader, model: str, name: str) -> Page:
    """The page of a task."""
    row, state = reader.task_state(model, name)
    version = state.version
    prior = TaskState.empty(row, version).posterior_draws(row, MIN_DRAWS)
    posterior = state.posterior_draws(row, MIN_DRAWS)
    history, last = _history(database, row["id"])
    found = [
        next_decision_chart(version, posterior, last),
        parameters_chart(prior, posterior, state.num_learned, version.feature_names),
        history_chart(history),
    ]
    charts, numbers = drawn(found, task_address(model, name))
    context = {
        "title": f"Task {name}",
        "links": [Link(f"Model {model}", model_address(model)())],
        "about": f"{row['num_decisions']:,} decisions and {row['num_learned']:,} rewards since "
        f"{utc(row['created'])} UTC. Version {version.version} of the model serves it.",
        "charts": charts,
    }
    tables = {"history": _history_table(history[: -MAX_LISTED - 1 : -1])}
    return Page("task.html", context, numbers | tables)


def _history(database: Database, task_id: int) -> tuple[list[Row], Row | None]:
    """The newest decisions with what was learned, oldest first; the last among actions in full."""
    d, o = decisions.c, observations.c
    columns = (d.number, d.version, d.names, d.taken, d.propensity, d.predicted, d.status)
    newest = sa.select(*columns, d.settled, d.created, o.reward, o.source).outerjoin(
        observations, o.decision_id == d.id
    )
    offered = sa.select(decisions).where(d.task_id == task_id, d.candidates.is_(None))
    whole = offered.order_by(d.number.desc())
    query = newest.where(d.task_id == task_id).order_by(d.number.desc()).limit(MAX_HISTORY)
    with database.reading() as connection:
        last = next(iter(read_rows(connection, whole.limit(1))), None)
        return read_rows(connection, query)[::-1], last


class Action(NamedTuple):
    """An action with its mean reward over the posterior, 90 % interval and propensity."""

    name: str
    mean: float
    low: float
    high: float
    propensity: float


def explain(
    version: Version, draws: Float[np.ndarray, "n d"], decision: Row
) -> list[Action] | None:
    """Evaluate the actions of a decision under the posterior, as if they were offered again."""
    features = np.frombuffer(decision["features"]).reshape(decision["num_actions"], -1)
    if features.shape[1] != version.num_features:
        return None
    mask = decision["mask"]
    allowed = (
        np.arange(len(features)) if mask is None else np.flatnonzero(np.frombuffer(mask, bool))
    )
    predictors = np.stack([version.predictors(draws, x) for x in features[allowed]])
    rewards = version.mean_reward(predictors)
    low, high = np.quantile(rewards, [0.05, 0.95], axis=1)
    best = np.bincount(np.argmax(predictors, axis=0), minlength=len(allowed)) / len(draws)
    if version.at_random:
        best = np.full(len(allowed), 1 / len(allowed))
    numbers = np.stack([rewards.mean(axis=1), low, high, best], axis=1).tolist()
    names = [action_name(decision["names"], action) for action in allowed.tolist()]
    found = [Action(name, *own) for name, own in zip(names, numbers, strict=True)]
    return sorted(found, key=lambda action: (-action.propensity, -action.mean))


def action_name(names: str | None, action: int) -> str:
    """The caller's name of an action, or its number."""
    return str(json.loads(names)[action]) if names else f"action {action}"


def next_decision_chart(
    version: Version, draws: Float[np.ndarray, "n d"], last: Row | None
) -> Chart:
    """Mean rewards of the last actions, and how often each would be chosen."""
    if last is None:
        return Chart(NEXT_DECISION, "No decisions among actions yet.")
    actions = explain(version, draws, last)
    if actions is None:
        why = "The features of the last actions do not fit this version."
        return Chart(NEXT_DECISION, why)
    shown = actions[:MAX_ACTIONS]
    names = [a.name if len(a.name) <= 14 else a.name[:13] + "…" for a in shown]
    ends = padded([end for action in shown for end in (action.low, action.high)], 0.05)
    x_title, height = "mean reward: mean and 90 % interval", 56.0 + 26.0 * len(shown)
    plot = rows_plot(ends, names, x_title, height=height, right=48.0)
    rows = [
        {
            "action": a.name,
            "mean reward": f"{a.mean:.3g}",
            "90 % interval": f"{a.low:.3g} to {a.high:.3g}",
            "propensity": f"{a.propensity:.3f}",
        }
        for a in actions
    ]
    for i, action in enumerate(shown):
        kind = VERSIONS[0] if i == 0 else OTHER
        plot.line([action.low, action.high], [-i, -i], kind)
        plot.dots([action.mean], [-i], kind, [rows[i]], 4.0)
        plot.note(-float(i), f"{action.propensity:.0%}")
    return Chart(
        NEXT_DECISION,
        "This version chooses at random, as a control." if version.at_random else _reason(actions),
        plot,
        rows,
        (
            (VERSIONS[0], "chosen most often"),
            (OTHER, "others; on the right, how often each is chosen"),
        ),
    )


def _reason(actions: Sequence[Action]) -> str:
    """The choice in words."""
    first, *others = actions
    text = (
        f"It would choose {first.name!r} in {first.propensity:.0%} of draws: {first.mean:.3g} "
        f"expected, {first.low:.3g} to {first.high:.3g}. "
    )
    second = next((a for a in others if a.propensity > 0), None)
    if second is None:
        return text + "No other action is ever best: it is sure."
    reason = "expects less but may be better" if second.mean < first.mean else "expects as much"
    text += f"{second.name!r} {reason} ({second.mean:.3g}, up to {second.high:.3g}) and is tried "
    text += f"in {second.propensity:.0%}."
    hidden = len(actions) - MAX_ACTIONS
    return text + (f" {hidden} more actions are in the numbers only." if hidden > 0 else "")


def parameters_chart(
    prior: Float[np.ndarray, "n d"],
    posterior: Float[np.ndarray, "m d"],
    num_rewards: int,
    names: Sequence[str],
) -> Chart:
    """Densities and 90 % intervals of every parameter: prior above, posterior below its line."""
    shown = min(prior.shape[1], MAX_PARAMETERS)
    before, after = (np.quantile(draws, [0.05, 0.5, 0.95], axis=0) for draws in (prior, posterior))
    both = np.concatenate([prior[:, :shown], posterior[:, :shown]])
    ends = padded(np.quantile(both, [0.002, 0.998]).tolist(), 0.04)
    names = names or [f"θ{i + 1}" for i in range(prior.shape[1])]
    title, height = "value of the parameter", 56.0 + 40.0 * shown
    left = max(46.0, *(20.0 + 7.0 * min(len(name), MAX_NAME) for name in names[:shown]))
    labels = [name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…" for name in names]
    plot = rows_plot(ends, labels[:shown], title, height=height, left=left)
    intervals = [[f"{m:.3g} ({a:.3g} to {b:.3g})" for a, m, b in q.T] for q in (before, after)]
    columns = ("parameter", "prior: median and 90 % interval", "posterior")
    rows = [dict(zip(columns, row, strict=True)) for row in zip(names, *intervals, strict=True)]
    for i in range(shown):
        _half_density(plot, prior[:, i], -i, 1.0, OTHER)
        _half_density(plot, posterior[:, i], -i, -1.0, VERSIONS[0])
        plot.line(before[::2, i], [0.05 - i] * 2, OTHER)
        plot.line(after[::2, i], [-0.05 - i] * 2, VERSIONS[0])
        plot.dots([after[1, i]], [-0.05 - i], VERSIONS[0], [rows[i]], 3.4)
    widths = (after[2] - after[0]) / np.maximum(before[2] - before[0], 1e-300)
    return Chart(
        "Posterior against prior",
        f"{num_rewards:,} rewards have narrowed the 90 % intervals to {np.median(widths):.0%} of "
        "the prior's (median over parameters).",
        plot,
        rows,
        ((OTHER, "prior"), (VERSIONS[0], "posterior: density, 90 % interval, median")),
    )


def _half_density(
    plot: Plot, draws: Float[np.ndarray, " n"], y: int, side: float, kind: str
) -> None:
    """A kernel density on one side of a line, scaled to the height of its row."""
    low, high = np.clip([draws.min(), draws.max()], *plot.x_range)
    grid = np.linspace(low, high, GRID)
    spread = float(np.std(draws)) or 1e-9
    width = 0.6 * spread * len(draws) ** -0.2  # below Silverman's, which blurs two modes into one
    height = np.exp(-0.5 * ((grid[:, None] - draws) / width) ** 2).sum(axis=1)
    edge = y + side * HALF * height / max(float(height.max()), 1e-300)
    plot.band(grid, [y] * GRID, edge, kind)


def history_chart(history: Sequence[Row]) -> Chart:
    """Predicted and obtained rewards in the order of the task's decisions."""
    title = "Predicted and obtained rewards"
    if not history:
        return Chart(title, "No decisions yet.")
    numbers = [row["number"] + 1 for row in history]
    predicted = [float(row["predicted"]) for row in history]
    rewarded = [row for row in history if row["reward"] is not None]
    rewards = [float(row["reward"]) for row in rewarded]
    ends = (numbers[0] - 0.5, max(numbers[-1], numbers[0] + 1) + 0.5)
    plot = Plot(ends, padded([*predicted, *rewards], 0.08), x_title="decision of the task")
    rows = [
        {"decision": str(n), "predicted": f"{p:.3g}", "obtained": _outcome(row)}
        for n, p, row in zip(numbers, predicted, history, strict=True)
    ]
    earned = [about for about, row in zip(rows, history, strict=True) if row["reward"] is not None]
    plot.line(numbers, predicted, PREDICTED)
    plot.dots(numbers, predicted, PREDICTED, rows, 1.5)
    plot.dots([row["number"] + 1.0 for row in rewarded], rewards, REWARD, earned, 3.0)
    mean = f"{np.mean(rewards):.3g}" if rewards else "none yet"
    return Chart(
        title,
        f"Last {len(history)} decisions: mean reward {mean}, mean prediction "
        f"{np.mean(predicted):.3g}.",
        plot,
        rows,
        ((REWARD, "obtained reward"), (PREDICTED, "predicted")),
    )


def _history_table(rows: Sequence[Row]) -> Table:
    records = [
        {
            "decision": str(row["number"] + 1),
            "time, UTC": utc(row["created"]),
            "version": str(row["version"]),
            "action": action_name(row["names"], row["taken"]),
            "propensity": "" if row["propensity"] is None else f"{row['propensity']:.2f}",
            "predicted": f"{row['predicted']:.3g}",
            "reward": _outcome(row),
        }
        for row in rows
    ]
    return Table.of(records, "Newest decisions, the last one first")


def _outcome(row: Row) -> str:
    if row["reward"] is not None:
        return f"{row['reward']:.3g}" + (" (default)" if row["source"] == "default" else "")
    if row["status"] == "cancelled":
        return "cancelled"
    return "none" if row["settled"] else "deferred" if row["status"] == "deferred" else "waiting"
