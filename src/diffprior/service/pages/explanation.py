"""Why the next decision would be what it is: scores of all actions and how often each is best."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..version import Version
from .actions import action_features, action_name, allowed_actions
from .chart import Chart
from .svg import WIDTH, Plot

ROWS_AT_ONCE = 128  # actions are padded to it, so that one program serves any number of them
MAX_SHOWN = 12  # actions of the picture
TITLE = "Its next decision, if its last actions were offered again"


@dataclass(frozen=True)
class Action:
    """Mean reward of an action over the posterior, its central 90 % interval, its propensity."""

    name: str
    mean: float
    low: float
    high: float
    propensity: float


@dataclass(frozen=True)
class Explained:
    """Actions that could be chosen next, most probable first."""

    actions: list[Action]
    at_random: bool


def explain(version: Version, draws: Float[np.ndarray, "n d"], row: Any) -> Explained | None:
    """What the posterior thinks of the actions of a decision, if they were offered again.

    Args:
        version: That serves the task.
        draws: From the posterior.
        row: A decision of the log, with its actions.

    Returns:
        None if the actions have other features than the version knows.
    """
    features = action_features(row)
    if features.shape[1] != version.dim:
        return None
    allowed = np.flatnonzero(allowed_actions(row))
    predictors = features[allowed].astype(draws.dtype) @ draws.T
    scores = _mean_rewards(version, predictors)
    low, high = np.quantile(scores, [0.05, 0.95], axis=1)
    best = np.bincount(np.argmax(predictors, axis=0), minlength=len(allowed)) / len(draws)
    if version.at_random:
        best = np.full(len(allowed), 1 / len(allowed))
    means = scores.mean(axis=1)
    found = [
        Action(action_name(row.names, int(a)), *map(float, (means[i], low[i], high[i], best[i])))
        for i, a in enumerate(allowed)
    ]
    ordered = sorted(found, key=lambda action: (-action.propensity, -action.mean))
    return Explained(ordered, version.at_random)


def _mean_rewards(
    version: Version, predictors: Float[np.ndarray, "k n"]
) -> Float[np.ndarray, "k n"]:
    """The likelihood's mean at each linear predictor."""
    count = len(predictors)
    padded = np.pad(predictors, [(0, -count % ROWS_AT_ONCE), (0, 0)])
    parts = np.split(padded, len(padded) // ROWS_AT_ONCE)
    return np.concatenate([np.asarray(version.mean_reward(part)) for part in parts])[:count]


def explanation_chart(explained: Explained) -> Chart:
    """Intervals of the mean reward of every action, and how often it would be chosen."""
    shown = explained.actions[:MAX_SHOWN]
    count = len(shown)
    ends = [end for action in shown for end in (action.low, action.high)]
    room = 0.05 * (max(ends) - min(ends)) or 0.5
    plot = Plot(
        (min(ends) - room, max(ends) + room),
        (0.0, float(count)),
        x_title="mean reward: mean and 90 % interval",
        y_ticks=[(count - 0.5 - i, _shortened(action.name)) for i, action in enumerate(shown)],
        height=56.0 + 26.0 * count,
        left=104.0,
        right=48.0,
    )
    for place, action in enumerate(shown):
        y = count - 0.5 - place
        kind = "c0" if place == 0 else "c3"
        plot.level([action.low], [action.high], [y], kind)
        plot.dots([action.mean], [y], kind, 4.0)
        plot.text(WIDTH - 6, plot.y(y) + 4, f"{action.propensity:.0%}", "end", "name")
    return Chart(
        TITLE,
        _sentence(explained),
        plot,
        ("action", "mean reward", "90 % interval", "propensity"),
        [
            (a.name, f"{a.mean:.3g}", f"{a.low:.3g} to {a.high:.3g}", f"{a.propensity:.3f}")
            for a in explained.actions
        ],
        (("c0", "chosen most often"), ("c3", "others; at the right: how often each is chosen")),
    )


def _sentence(explained: Explained) -> str:
    """The choice in words."""
    first, *others = explained.actions
    if explained.at_random:
        return "This version chooses at random, on purpose, as a control."
    told = f"It would choose {first.name!r} in {first.propensity:.0%} of draws: "
    told += f"{first.mean:.3g} expected, {first.low:.3g} to {first.high:.3g}. "
    second = next((a for a in others if a.propensity > 0), None)
    if second is None:
        return told + "No other action is ever best: it is sure."
    reason = "expects less but may be better" if second.mean < first.mean else "expects as much"
    told += f"{second.name!r} {reason} ({second.mean:.3g}, up to {second.high:.3g}) and is tried "
    told += f"in {second.propensity:.0%}."
    hidden = len(explained.actions) - MAX_SHOWN
    return told + (f" {hidden} more actions are in the numbers alone." if hidden > 0 else "")


def _shortened(name: str) -> str:
    return name if len(name) <= 14 else name[:13] + "…"
