"""Pictures: samples of a prior, and distances of posteriors."""

from pathlib import Path
from typing import Any

import numpy as np

TRUE_COLOUR, LEARNED_COLOUR = "#3b6fb6", "#c8423f"


def prior_scatter(data: np.ndarray, learned: np.ndarray, path: str | Path) -> None:
    """Data (blue) against draws of the learned prior (red), for pairs of up to four parameters."""
    plt = _pyplot()
    pairs = _pairs(data.shape[1])
    figure, axes = plt.subplots(1, len(pairs), figsize=(4 * len(pairs), 4), squeeze=False)
    for axis, (i, j) in zip(axes[0], pairs, strict=True):
        _scatter(axis, data, learned, i, j)
        axis.set_xlabel(f"parameter {i}")
        axis.set_ylabel(f"parameter {j}" if data.shape[1] > 1 else "density order")
    axes[0, 0].legend(["past tasks", "learned prior"], loc="upper right", markerscale=4)
    _save(figure, path)


def quality_figure(panels: list[dict[str, Any]], path: str | Path) -> None:
    """The paper's arrangement: prior samples above, distance against size of history below."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, len(panels), figsize=(4.2 * len(panels), 7), squeeze=False)
    for column, panel in zip(axes.T, panels, strict=True):
        _scatter(column[0], panel["true"], panel["learned"], 0, 1)
        column[0].set_title(panel["name"])
        for name, curve in panel["curves"].items():
            column[1].errorbar(panel["sizes"], curve["mean"], curve["se"], label=name, lw=1.4)
        column[1].plot(panel["sizes"], panel["floor"], "k:", label="two exact samples")
        column[1].set_xscale("symlog", linthresh=1)
        column[1].set_yscale("log")
        column[1].set_xlabel("observations")
    axes[1, 0].set_ylabel("earth mover's distance")
    axes[1, -1].legend(fontsize=7)
    _save(figure, path)


def _scatter(axis: Any, data: np.ndarray, learned: np.ndarray, i: int, j: int) -> None:
    for points, colour in ((data, TRUE_COLOUR), (learned, LEARNED_COLOUR)):
        if points.shape[1] == 1:
            axis.plot(np.sort(points[:, 0]), np.linspace(0, 1, len(points)), color=colour)
        else:
            axis.scatter(points[:, i], points[:, j], s=2, alpha=0.4, color=colour, lw=0)


def _pairs(dim: int) -> list[tuple[int, int]]:
    shown = min(dim, 4)
    return [(i, i + 1) for i in range(0, shown - 1, 2)] or [(0, 0)]


def _save(figure: Any, path: str | Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    _pyplot().close(figure)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib; install it with `pip install 'diffprior[experiments]'`"
        ) from error
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
