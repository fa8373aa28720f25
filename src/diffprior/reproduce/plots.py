"""Pictures: samples of a prior, distances of posteriors, regret, and the ablation."""

from pathlib import Path
from typing import Any

import numpy as np

TRUE_COLOUR, LEARNED_COLOUR = "#3b6fb6", "#c8423f"
LINES = {  # colour and dashes of each agent
    "TS": ("#8a8f98", "-"),
    "TunedTS": ("#5b6470", "--"),
    "MixTS": ("#2f8f5b", "-"),
    "MixTS(10)": ("#2f8f5b", ":"),
    "LinUCB": ("#c9a227", "-."),
    "EpsilonGreedy": ("#b08968", ":"),
    "DPS": ("#8e5ea2", "--"),
    "DiffTS": ("#c8423f", "-"),
    "DiffTS fitted": ("#e08a3c", "-"),
    "EvidenceDPS": ("#1f4e9c", "-"),
    "TwistedSMC": ("#4aa3c7", "--"),
    "Exact": ("#111111", ":"),
}


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
    axes[1, -1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    _save(figure, path)


def regret_figure(panels: list[dict[str, Any]], path: str | Path) -> None:
    """The paper's arrangement: samples of true and learned priors above, regret curves below.

    A panel has a `name`, `true` samples, `learned` samples by name of the prior, and `curves`.
    """
    plt = _pyplot()
    rows = 1 + max(len(panel["learned"]) for panel in panels)
    heights = [1.0] * (rows - 1) + [1.15]
    size = (4.2 * len(panels), 3.5 * rows)
    grid = {"height_ratios": heights}
    figure, axes = plt.subplots(rows, len(panels), figsize=size, squeeze=False, gridspec_kw=grid)
    for column, panel in zip(axes.T, panels, strict=True):
        for axis, (name, learned) in zip(column, panel["learned"].items(), strict=False):
            _scatter(axis, panel["true"], learned, 0, 1)
            axis.set_title(f"{panel['name']}, {name}", fontsize=10)
        _regret_curves(column[-1], panel["curves"])
        column[-1].set_xlabel("round")
    axes[0, 0].legend(["true prior", "learned prior"], loc="upper right", markerscale=4, fontsize=7)
    axes[-1, 0].set_ylabel("regret")
    axes[-1, -1].legend(fontsize=7, ncols=2)
    _save(figure, path)


def real_figure(panels: list[dict[str, Any]], path: str | Path) -> None:
    """The paper's arrangement: overlap of true and learned prior, then regret of each kind.

    The first panel is one of `overlap_figure`; the others have a `name` and `curves`.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.2), squeeze=False)
    _overlap(axes[0, 0], panels[0])
    for axis, panel in zip(axes[0, 1:], panels[1:], strict=True):
        _regret_curves(axis, panel["curves"])
        axis.set_title(panel["name"], fontsize=10)
        axis.set_xlabel("round")
        axis.set_ylabel("regret")
    axes[0, 1].legend(fontsize=7, ncols=2)
    _save(figure, path)


def overlap_figure(panels: list[dict[str, Any]], path: str | Path) -> None:
    """Overlap of true and learned priors; a panel has `name`, `true` and `learned`, on a plane."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.6 * len(panels), 4.2), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        _overlap(axis, panel)
    _save(figure, path)


def _overlap(axis: Any, panel: dict[str, Any]) -> None:
    _scatter(axis, panel["true"], panel["learned"], 0, 1)
    axis.set_title(panel["name"], fontsize=10)
    axis.set_xticks([])
    axis.set_yticks([])
    axis.legend(["true prior", "learned prior"], loc="best", markerscale=4, fontsize=7)


def ablation_figure(panels: list[dict[str, Any]], path: str | Path) -> None:
    """Curves with error bars beside each other; a panel has `title`, `across`, `up` and `curves`.

    `lines` are levels to compare with, by name.
    """
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.8), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        for name, curve in panel["curves"].items():
            axis.errorbar(curve["x"], curve["y"], curve["se"], marker="o", ms=4, lw=1.4, label=name)
        for level, (name, style) in zip(panel["lines"].values(), _levels(panel), strict=True):
            axis.axhline(level, color="#555555", ls=style, lw=1, label=name)
        axis.set_xscale("log")
        axis.set_yscale("log" if panel.get("log") else "linear")
        axis.set_title(panel["title"], fontsize=10)
        axis.set_xlabel(panel["across"])
        axis.set_ylabel(panel["up"])
        axis.legend(fontsize=7)
    _save(figure, path)


def growth_figure(panels: list[dict[str, Any]], path: str | Path) -> None:
    """Cost as one thing grows, a panel each, both axes logarithmic."""
    plt = _pyplot()
    figure, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 3.2), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        axis.loglog(panel["x"], panel["y"], "o-", color=TRUE_COLOUR, lw=1.5)
        axis.set_title(panel["name"], fontsize=9)
        axis.set_ylim(bottom=min(panel["y"]) / 2)
        axis.set_xticks(panel["x"], [f"{x:g}" for x in panel["x"]])
        axis.minorticks_off()
    axes[0, 0].set_ylabel("microseconds a draw")
    _save(figure, path)


def _levels(panel: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, (":", "--", "-.")[i % 3]) for i, name in enumerate(panel["lines"])]


def _regret_curves(axis: Any, curves: dict[str, Any]) -> None:
    """Means with bands of one standard error; the height leaves out agents that are far off."""
    tops = [curve["mean"][-1] for curve in curves.values()]
    for name, curve in curves.items():
        mean, error = np.array(curve["mean"]), np.nan_to_num(np.array(curve["se"]))
        rounds = np.arange(1, len(mean) + 1)
        colour, dashes = LINES.get(name.partition(" (")[0], ("#444444", "-"))
        axis.plot(rounds, mean, dashes, color=colour, lw=1.5, label=name)
        axis.fill_between(rounds, mean - error, mean + error, color=colour, alpha=0.2, lw=0)
    axis.set_ylim(0, min(1.1 * max(tops), 2.5 * float(np.median(tops))))


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
