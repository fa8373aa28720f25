"""Matplotlib figures for light and dark pages and for notebooks; results that are tables."""

import importlib.util
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from ..checks import require
from .page import Block, Picture, fragment
from .tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


DATA, MODEL = "#3b78c9", "#d1495b"  # past tasks or the truth; what was learned
LIGHT: Any = {  # rcParams
    "figure.facecolor": "white",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}
INK, PAPER = "#dde1e6", "#1d2126"  # --ink and --card of style.css in the dark
DARK: Any = {
    **LIGHT,
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


def render(draw: "Callable[[], Figure]", file_format: str, *, dark: bool = False) -> bytes:
    """Draw a figure to bytes."""
    require("plot", "matplotlib")
    import matplotlib

    with matplotlib.rc_context(DARK if dark else LIGHT), io.BytesIO() as file:
        draw().savefig(file, format=file_format, dpi=150)
        return file.getvalue()


def picture(caption: str, draw: "Callable[[], Figure]") -> Picture:
    """Draw a figure for a page, once for light and once for dark."""
    return Picture(render(draw, "png"), render(draw, "png", dark=True), caption)


def new_figure(
    rows: int, columns: int, *, width: float, height: float
) -> "tuple[Figure, np.ndarray]":
    """Create a figure without a window."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend_below(figure: "Figure") -> None:
    """Add one legend for the whole figure, under the axes, where it covers nothing."""
    found = [axis.get_legend_handles_labels() for axis in figure.axes]
    entries = {
        label: handle
        for handles, labels in found
        for handle, label in zip(handles, labels, strict=True)
    }
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="outside lower center",
        ncols=min(max(1, int(figure.get_figwidth() / 1.4)), len(entries)),
    )


COLORS = ("#4477aa", "#228833", "#ee6677", "#ccbb44", "#66ccee", "#aa3377")
MAX_INTERVALS = 40  # parameters in a figure


class AbstractResult:
    """Result that is a table: as text in a terminal, as HTML in a notebook."""

    def table(self) -> Table:
        """The result as a table."""
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
