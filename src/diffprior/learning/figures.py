"""Figures of a learning report: gains by length of history, draws of the priors, calibration."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..reporting.figures import legend_below, new_figure
from .scoring import FamilyResult

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = ("#4477aa", "#228833", "#ee6677", "#ccbb44", "#66ccee")  # of families, in their order
MAX_PAIRS = 3  # pairs of parameters shown


@dataclass(frozen=True, eq=False)
class Pictures:
    """Samples that the figures show, left out of the report's numbers."""

    draws: dict[str, np.ndarray]  # from each family's prior, (n, d)
    estimates: np.ndarray  # one posterior draw per task, (n, d)
    places: np.ndarray | None  # predictive probabilities of smaller rewards than the next ones


def gains_figure(families: Sequence[FamilyResult], length_names: Sequence[str]) -> "Figure":
    """Plot gains over the Gaussian by number of rows per task, a bar per other family."""
    from matplotlib import rcParams

    figure, axes = new_figure(1, 1, width=7.0, height=3.0)
    axis, ink = axes[0, 0], rcParams["text.color"]
    others = [(i, f) for i, f in enumerate(families) if f.name != "Gaussian" and f.by_length]
    width = 0.8 / len(others)
    for place, (i, family) in enumerate(others):
        axis.bar(
            np.arange(len(family.by_length)) + (place - 0.5 * (len(others) - 1)) * width,
            [gain.mean for gain in family.by_length],
            width,
            yerr=[gain.error for gain in family.by_length],
            label=family.name,
            color=COLORS[i % len(COLORS)],
            error_kw={"elinewidth": 1, "ecolor": ink},
        )
    axis.axhline(0.0, color=ink, linewidth=0.8)
    axis.set_xticks(range(len(length_names)))
    axis.set_xticklabels([f"{name} rows" for name in length_names])
    axis.set_ylabel("nats per task over the Gaussian")
    legend_below(figure)
    return figure


def priors_figure(
    pictures: Pictures, families: Sequence[FamilyResult], feature_names: Sequence[str]
) -> "Figure":
    """Plot draws from each prior and one posterior draw per task, by pairs of parameters."""
    from matplotlib import rcParams

    colors = {f.name: COLORS[i % len(COLORS)] for i, f in enumerate(families)}
    panels = {**pictures.draws, "one posterior draw per task": pictures.estimates}
    dim = pictures.estimates.shape[1]
    pairs = [(0, 0)] if dim == 1 else [(i, i + 1) for i in range(0, dim - 1, 2)][:MAX_PAIRS]
    figure, axes = new_figure(len(pairs), len(panels), width=3.0, height=3.0)
    low, high = np.quantile(np.concatenate(list(panels.values())), [0.001, 0.999], axis=0)
    for row, (i, j) in zip(axes, pairs, strict=True):
        for axis, (name, draws) in zip(row, panels.items(), strict=True):
            color = colors.get(name, rcParams["text.color"])
            if dim == 1:
                axis.hist(draws[:, 0], 60, range=(low[0], high[0]), color=color)
            else:
                axis.scatter(draws[:, i], draws[:, j], s=2, alpha=0.4, linewidths=0, color=color)
                axis.set_xlim(low[i], high[i])
                axis.set_ylim(low[j], high[j])
                axis.set_ylabel(feature_names[j])
            axis.set_xlabel(feature_names[i])
            axis.set_title(name)
    return figure


def calibration_figure(places: Float[np.ndarray, " n"]) -> "Figure":
    """Plot predictive probabilities of smaller rewards, with two standard errors of a flat one."""
    from matplotlib import rcParams

    figure, axes = new_figure(1, 1, width=6.0, height=2.6)
    axis, ink, paper = axes[0, 0], rcParams["text.color"], rcParams["figure.facecolor"]
    expected = len(places) / 20
    spread = 2 * np.sqrt(expected)
    axis.hist(places, 20, range=(0, 1), color=COLORS[0], edgecolor=paper)
    axis.axhspan(expected - spread, expected + spread, color=ink, alpha=0.12, linewidth=0)
    axis.axhline(expected, color=ink, linewidth=0.8)
    axis.set_xlabel("probability of a smaller reward")
    axis.set_ylabel("next rows")
    return figure
