"""The paper's figures: priors above regret, distances of posteriors, and the ablation."""

import importlib.util
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diffprior.reporting.figures import DATA, MODEL, legend_below, new_figure

from .experiment import ProblemResult

LINES = {  # color and dashes of each agent
    "TS": ("#8a8f98", "-"),
    "TunedTS": ("#8a8f98", "--"),
    "MixTS": ("#3a9d6b", "--"),
    "MixTS(K)": ("#3a9d6b", "-"),
    "LinUCB": ("#c9a227", "-."),
    "EpsilonGreedy": ("#b08968", ":"),
    "DPS": ("#9d6bb5", "--"),
    "DiffTS": ("#d1495b", "-"),
    "DiffTS fitted": ("#e08a3c", "-"),
    "EvidenceDPS": ("#3b78c9", "-"),
    "TwistedSMC": ("#4aa3c7", "--"),
    "Exact": ("#6f6f6f", ":"),
}


@dataclass(frozen=True)
class Curve:
    """A line with error bars."""

    x: Sequence[int]
    y: Sequence[float]
    error: Sequence[float]


@dataclass(frozen=True)
class Panel:
    """Curves by name in one pair of axes; `levels` are horizontal lines to compare with."""

    title: str
    across: str
    up: str
    curves: Mapping[str, Curve]
    levels: Mapping[str, float]
    log_y: bool = False
    log_x: str = "log"


@dataclass(frozen=True)
class Clouds:
    """Points of the true prior and of a learned one, in the plane."""

    title: str
    true: np.ndarray
    learned: np.ndarray


def figure_of(rows: Sequence[Sequence[Clouds | ProblemResult | Panel]]) -> Any:
    """Clouds, regret curves and panels, as they are arranged."""
    figure, axes = new_figure(len(rows), len(rows[0]), width=4.4, height=3.6)
    for row, shown in zip(axes, rows, strict=True):
        for axis, each in zip(row, shown, strict=True):
            draw = {Clouds: _draw_clouds, ProblemResult: _draw_regret, Panel: _draw_panel}
            draw[type(each)](axis, each)  # type: ignore[operator]
    legend_below(figure)
    return figure


def _draw_clouds(axis: Any, clouds: Clouds) -> None:
    for points, color in ((clouds.true, DATA), (clouds.learned, MODEL)):
        axis.scatter(points[:, 0], points[:, 1], s=2, alpha=0.4, color=color, lw=0)
    for color, label in ((DATA, "true prior"), (MODEL, "learned prior")):
        axis.plot([], [], "o", ms=4, color=color, label=label)
    axis.set_title(clouds.title)


def _draw_regret(axis: Any, result: ProblemResult) -> None:
    """Means with bands of one standard error; the height leaves out agents that are far off."""
    tops = [agent.regret.mean for agent in result.agents.values()]
    for name, agent in result.agents.items():
        mean, error = np.array(agent.regret.curve), np.nan_to_num(agent.regret.curve_error)
        rounds = np.arange(1, len(mean) + 1)
        color, dashes = LINES.get(name, ("#777777", "-"))
        axis.plot(rounds, mean, dashes, color=color, lw=1.5, label=name)
        axis.fill_between(rounds, mean - error, mean + error, color=color, alpha=0.2, lw=0)
    axis.set_ylim(0, min(1.1 * max(tops), 2.5 * float(np.median(tops))) or 1.0)
    axis.set_title(result.name)
    axis.set(xlabel="round", ylabel="regret")


def _draw_panel(axis: Any, panel: Panel) -> None:
    for name, curve in panel.curves.items():
        axis.errorbar(curve.x, curve.y, curve.error, marker="o", ms=3, lw=1.4, label=name)
    for style, (name, level) in zip((":", "--", "-."), panel.levels.items(), strict=False):
        axis.axhline(level, color="#888888", ls=style, lw=1, label=name)
    axis.set_xscale(panel.log_x, **({"linthresh": 1} if panel.log_x == "symlog" else {}))
    axis.set_yscale("log" if panel.log_y else "linear")
    axis.set_title(panel.title)
    axis.set_xlabel(panel.across)
    axis.set_ylabel(panel.up)


def embedding_method() -> str:
    """The method that embeds in the plane."""
    return "UMAP" if importlib.util.find_spec("umap") is not None else "PCA"


def on_plane(points: np.ndarray, seed: int) -> np.ndarray:
    """All rows (n, d) together on one plane, (n, 2)."""
    scaled = (points - points.mean(axis=0)) / points.std(axis=0)
    if embedding_method() == "UMAP":
        return _umap(scaled, seed)
    from sklearn.decomposition import PCA

    return PCA(2, random_state=seed).fit_transform(scaled)


def _umap(points: np.ndarray, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies, and that a seed costs threads
        import umap

        return np.asarray(umap.UMAP(random_state=seed).fit_transform(points), np.float64)
