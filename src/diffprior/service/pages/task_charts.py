"""Pictures of one task: every parameter before and after its rewards, and its history."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from .chart import Chart
from .svg import Plot

MAX_PARAMETERS = 24  # of the picture; all are in the numbers
GRID = 64  # points of a density
HALF = 0.42  # height of the highest density, in rows


def parameters_chart(
    prior: Float[np.ndarray, "n d"], posterior: Float[np.ndarray, "m d"], num_rewards: int
) -> Chart:
    """Densities and 90 % intervals of every parameter: prior above, posterior below its line."""
    shown = min(prior.shape[1], MAX_PARAMETERS)
    before, after = (np.quantile(draws, [0.05, 0.5, 0.95], axis=0) for draws in (prior, posterior))
    both = np.concatenate([prior[:, :shown], posterior[:, :shown]])
    low, high = (float(end) for end in np.quantile(both, [0.002, 0.998]))
    room = 0.04 * (high - low) or 0.5
    plot = Plot(
        (low - room, high + room),
        (0.0, float(shown)),
        x_title="value of the parameter",
        y_ticks=[(shown - 0.5 - i, f"θ{i + 1}") for i in range(shown)],
        height=56.0 + 40.0 * shown,
    )
    for i in range(shown):
        y = shown - 0.5 - i
        for draws, side, kind in ((prior[:, i], 1.0, "c3"), (posterior[:, i], -1.0, "c0")):
            _half_density(plot, draws, y, side, kind)
        plot.level([before[0, i]], [before[2, i]], [y + 0.05], "c3")
        plot.level([after[0, i]], [after[2, i]], [y - 0.05], "c0")
        plot.dots([after[1, i]], [y - 0.05], "c0", 3.4)
    widths = (after[2] - after[0]) / np.maximum(before[2] - before[0], 1e-300)
    rows = [
        (f"θ{i + 1}", _interval(before[:, i]), _interval(after[:, i])) for i in range(len(widths))
    ]
    return Chart(
        "Posterior against prior",
        f"{num_rewards:,} rewards have narrowed its 90 % intervals to {np.median(widths):.0%} of "
        "the prior's (median over parameters).",
        plot,
        ("parameter", "prior: median and 90 % interval", "posterior"),
        rows,
        (("c3", "prior"), ("c0", "posterior: density, 90 % interval, median")),
    )


def _half_density(
    plot: Plot, draws: Float[np.ndarray, " n"], y: float, side: float, kind: str
) -> None:
    """A kernel density on one side of a line, as high as there is room for."""
    spread = float(np.std(draws)) or 1e-9
    grid = np.linspace(max(plot.x.low, draws.min()), min(plot.x.high, draws.max()), GRID)
    width = 0.6 * spread * len(draws) ** -0.2  # below Silverman's, which blurs two modes into one
    height = np.exp(-0.5 * ((grid[:, None] - draws) / width) ** 2).sum(axis=1)
    edge = y + side * HALF * height / max(float(height.max()), 1e-300)
    flat = [y] * GRID
    plot.band(grid.tolist(), flat, edge.tolist(), kind)


def _interval(ends: Float[np.ndarray, " 3"]) -> str:
    return f"{ends[1]:.3g} ({ends[0]:.3g} to {ends[2]:.3g})"


def history_chart(history: Sequence[Any]) -> Chart:
    """Predicted and obtained rewards in the order of the task's decisions."""
    title = "Predicted and obtained rewards"
    if not history:
        return Chart(title, "It has not been decided for yet.")
    numbers = [row.number + 1.0 for row in history]
    predicted = [float(row.predicted) for row in history]
    paid = [(row.number + 1.0, float(row.reward)) for row in history if row.reward is not None]
    values = [*predicted, *(reward for _, reward in paid)]
    room = 0.08 * (max(values) - min(values)) or 0.5
    plot = Plot(
        (numbers[0] - 0.5, max(numbers[-1], numbers[0] + 1) + 0.5),
        (min(values) - room, max(values) + room),
        x_title="decision of the task",
    )
    plot.line(numbers, predicted, "c1")
    plot.dots(numbers, predicted, "c1", 1.5)
    plot.dots([n for n, _ in paid], [reward for _, reward in paid], "c0", 3.0)
    mean = f"{np.mean([reward for _, reward in paid]):.3g}" if paid else "none yet"
    return Chart(
        title,
        f"Last {len(history)} decisions: mean reward {mean}, mean prediction "
        f"{np.mean(predicted):.3g}.",
        plot,
        ("decision", "predicted", "obtained"),
        [(str(row.number + 1), f"{row.predicted:.3g}", _obtained(row.reward)) for row in history],
        (("c0", "obtained reward"), ("c1", "predicted")),
    )


def _obtained(reward: float | None) -> str:
    return "none" if reward is None else f"{reward:.3g}"
