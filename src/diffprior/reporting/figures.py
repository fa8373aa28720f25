"""Figures: how they look in light and dark, and points of past tasks against a prior's draws."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import require
from ..files.atomic import write_whole

DATA, MODEL = "#3b78c9", "#d1495b"  # past tasks or the truth; what was learned
MOST_SHOWN = 6  # parameters of a figure of pairs
LIGHT: Any = {
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
INK, PAPER = "#d8dbe0", "#191c20"
DARK: Any = {
    **LIGHT,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


def render(draw: Callable[[], Any], ending: str, *, dark: bool = False) -> bytes:
    """The bytes of a figure.

    Args:
        draw: Makes the figure; called under the style.
        ending: png, pdf or svg.
        dark: For a dark page.
    """
    require("plot", "matplotlib")
    import matplotlib

    with matplotlib.rc_context(DARK if dark else LIGHT), io.BytesIO() as file:
        draw().savefig(file, format=ending, dpi=150)
        return file.getvalue()


def new_figure(rows: int, columns: int, *, width: float, height: float) -> tuple[Any, Any]:
    """A figure of no window, with (rows, columns) axes of so many inches each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def legend_below(figure: Any) -> None:
    """One legend for the whole figure, under the axes, where it covers nothing."""
    found = [axis.get_legend_handles_labels() for axis in figure.axes]
    entries = {
        label: handle
        for handles, labels in found
        for handle, label in zip(handles, labels, strict=True)
    }
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=min(max(1, int(figure.get_figwidth() / 1.4)), len(entries)),
    )


def scatter(axis: Any, data: np.ndarray, draws: np.ndarray) -> None:
    """Two clouds of points in the plane."""
    for points, color in ((data, DATA), (draws, MODEL)):
        axis.scatter(points[:, 0], points[:, 1], s=2, alpha=0.4, color=color, lw=0)


def save_prior_figure(
    path: Path, data: np.ndarray, draws: np.ndarray, names: Sequence[str]
) -> None:
    """Draw past tasks against a prior's draws to a .png, .pdf or .svg file."""
    picture = render(lambda: prior_figure(data, draws, names), path.suffix.lower().lstrip("."))
    write_whole(path, picture)


def prior_figure(data: np.ndarray, draws: np.ndarray, names: Sequence[str]) -> Any:
    """Past tasks (n, d) against a prior's draws (m, d).

    Every pair of parameters has a panel and every parameter a histogram; of many parameters the
    first six.
    """
    shown = min(data.shape[1], MOST_SHOWN)
    labels = [f"parameter {name}" if name.isdigit() else name for name in names[:shown]]
    size = 5.0 if shown == 1 else max(1.9, 7.5 / shown)
    figure, axes = new_figure(shown, shown, width=size, height=size)
    for i in range(shown):
        for j in range(shown):
            axis = axes[i, j]
            if j > i:
                axis.set_visible(False)
            elif i == j:
                _histograms(axis, data[:, i], draws[:, i])
            else:
                scatter(axis, data[:, [j, i]], draws[:, [j, i]])
            _name_axes(axis, labels, i, j)
    figure.legend(*_key(), loc="outside upper center", ncols=2)
    if shown < data.shape[1]:
        figure.suptitle(f"the first {shown} of {data.shape[1]} parameters", fontsize=9)
    return figure


def _histograms(axis: Any, data: np.ndarray, draws: np.ndarray) -> None:
    low, high = np.quantile(np.concatenate([data, draws]), (0.001, 0.999))
    edges = np.linspace(low, high if high > low else low + 1.0, 40)
    for values, color in ((data, DATA), (draws, MODEL)):
        axis.hist(values, edges, density=True, histtype="step", color=color, lw=1.3)
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)


def _name_axes(axis: Any, labels: Sequence[str], i: int, j: int) -> None:
    """Names on the outer axes only."""
    if i == len(labels) - 1:
        axis.set_xlabel(labels[j])
    else:
        axis.tick_params(labelbottom=False)
    if j == 0 and i > 0:
        axis.set_ylabel(labels[i])
    elif i != j:
        axis.tick_params(labelleft=False)


def _key() -> tuple[list[Any], list[str]]:
    from matplotlib.lines import Line2D

    marks = [Line2D([], [], ls="", marker="o", ms=5, color=color) for color in (DATA, MODEL)]
    return marks, ["past tasks", "draws of the prior"]
