"""Results in a notebook: tables as HTML, and figures in the axes of Matplotlib."""

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..checks import require
from .figures import MODEL
from .page import Block, fragment
from .tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#4477aa", "#228833", "#ee6677", "#ccbb44", "#66ccee", "#aa3377")
MAX_INTERVALS = 40  # parameters in a figure


class AbstractResult:
    """Result that is a table: as text in a terminal, as HTML in a notebook."""

    def table(self) -> Table:
        """The result as a table.

        Returns:
            The table, with a caption.
        """
        raise NotImplementedError

    def __str__(self) -> str:
        return str(self.table())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str | None:
        return html([self.table()])


def html(blocks: Sequence[Block]) -> str | None:
    """Blocks as a part of a page; None without Jinja2, for which notebooks show the text."""
    return fragment(blocks) if importlib.util.find_spec("jinja2") else None


def axes_or_new(ax: "Axes | None", *, height: float = 3.4) -> "Axes":
    """Axes to draw in: those given, or those of a new figure, which a notebook shows."""
    require("plot", "matplotlib")
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(5.5, height), layout="constrained")[1]


def plot_curves(
    ax: "Axes | None",
    curves: Mapping[str, tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]],
    across: str,
    up: str,
) -> "Axes":
    """Plot curves with bands of two standard errors."""
    axes = axes_or_new(ax)
    for i, (name, (mean, error)) in enumerate(curves.items()):
        x, color = np.arange(1, len(mean) + 1), COLORS[i % len(COLORS)]
        axes.plot(x, mean, color=color, label=name)
        axes.fill_between(x, mean - 2 * error, mean + 2 * error, color=color, alpha=0.2, lw=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.legend(frameon=False)
    return axes


def plot_intervals(
    ax: "Axes | None",
    names: Sequence[str],
    middle: Sequence[float] | Float[np.ndarray, " n"],
    ends: Float[np.ndarray, "n 2"],
    along: str,
    line: float | None = None,
) -> "Axes":
    """Plot an interval per row, the first at the top, and a line to compare them with."""
    shown = min(len(names), MAX_INTERVALS)
    axes = axes_or_new(ax, height=1.0 + 0.3 * shown)
    rows, at = np.arange(shown), np.asarray(middle)[:shown]
    if line is not None:
        axes.axvline(line, color="gray", lw=0.8)
    axes.hlines(rows, *np.asarray(ends)[:shown].T, color=COLORS[0], lw=2)
    axes.plot(at, rows, "o", color=COLORS[0], ms=5)
    axes.set_yticks(rows, [str(name) for name in names[:shown]])
    axes.set_ylim(shown - 0.5, -0.5)
    axes.set_xlabel(along)
    return axes


def plot_draws(ax: "Axes | None", draws: Float[np.ndarray, "n d"], names: Sequence[str]) -> "Axes":
    """Plot draws of one parameter as a histogram, of two as points, of more as 90 % intervals."""
    dim = draws.shape[1]
    if dim > 2:
        ends = np.quantile(draws, (0.05, 0.95), axis=0).T
        return plot_intervals(ax, names, draws.mean(axis=0), ends, "mean and 90 % interval")
    axes = axes_or_new(ax)
    axes.set_xlabel(names[0])
    if dim == 1:
        axes.hist(draws[:, 0], 50, color=MODEL, alpha=0.8)
        axes.set_yticks([])
    else:
        axes.scatter(draws[:, 0], draws[:, 1], s=4, alpha=0.5, color=MODEL, lw=0)
        axes.set_ylabel(names[1])
    return axes


def parameter_names(dim: int, names: Sequence[str] = ()) -> list[str]:
    """Names of parameters, numbered from 1 where they have none."""
    return [*names] or [f"parameter {i + 1}" for i in range(dim)]
