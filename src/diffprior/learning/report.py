"""The report of learning from logs: as text, as plain numbers, and as a page with its figures."""

import dataclasses
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from ..checks import require
from ..files.atomic import write_atomic
from ..files.base import Serializable
from ..reporting.figures import html, legend_below, new_figure, picture, plot_intervals
from ..reporting.page import Block, Callout, Code, Heading, Text, page
from ..reporting.tables import Table, plus_minus
from .attributes import AttributeReport
from .diagnostics import NextRewards, Simulation
from .scoring import FamilyResult, Gain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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


@dataclass(frozen=True, repr=False)
class LearningReport(Serializable):
    """Whether a learned prior pays off on these tasks, with warnings about the data.

    Attributes:
        num_tasks: Number of tasks in the logs.
        num_rows: Number of rows in the logs.
        rows_per_task: Smallest, median and largest number of rows per task.
        feature_names: Names of the features.
        likelihood: Name of the likelihood.
        noise_std: Noise of linear rewards, or None.
        noise_from: How the noise was estimated, or None.
        num_report_tasks: Number of held-out tasks that the figures are computed on.
        reliability: Information of one task about theta, 0 to 1, by direction.
        learnable_order: Order of structure that this number of tasks can show.
        families: Scores of every family on the held-out tasks, beginning with naive estimates.
        length_names: Names of the groups of tasks by number of rows.
        next_rewards: The second half of each task's rewards beside their predictions; or None.
        simulation: Expected regret of the families; or None.
        chosen: Name of the chosen family.
        sentence: The choice and its reason.
        hedge: Weight of a wide Gaussian mixed in.
        warnings: Warnings about the data.
        seconds: Duration of each part.
        likelihood_advice: The likelihood that the rewards suggest, and why.
        attributes: What attributes of tasks are worth, or None of logs without.
    """

    num_tasks: int
    num_rows: int
    rows_per_task: tuple[float, float, float]
    feature_names: tuple[str, ...]
    likelihood: str
    noise_std: float | None
    noise_from: str | None
    num_report_tasks: int
    reliability: tuple[float, ...]
    learnable_order: float
    families: tuple[FamilyResult, ...]
    length_names: tuple[str, ...]
    next_rewards: NextRewards | None
    simulation: Simulation | None
    chosen: str
    sentence: str
    hedge: float
    warnings: tuple[str, ...]
    seconds: dict[str, float]
    likelihood_advice: str = ""
    attributes: AttributeReport | None = None
    pictures: Pictures | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return {name: hint for name, hint in super().file_hints().items() if name != "pictures"}

    def to_dict(self) -> dict[str, object]:
        """Return the report as plain numbers and text, without the pictures."""
        fields = dataclasses.asdict(dataclasses.replace(self, pictures=None))
        del fields["pictures"]
        return {name: _plain(value) for name, value in fields.items()}

    def to_json(self, path: str | Path) -> None:
        """Write `to_dict` to the file at `path`."""
        write_atomic(path, json.dumps(self.to_dict(), indent=2) + "\n")

    def to_html(self, path: str | Path) -> None:
        """Write one self-contained page with tables and figures to `path`.

        Raises:
            ImportError: Matplotlib or Jinja2 is missing.
        """
        require("plot", "matplotlib", "jinja2")
        title, verdict = (
            "Does a learned prior pay on these tasks?",
            Callout(f"{_capitalized(self.sentence)}."),
        )
        write_atomic(path, page(title, verdict, _blocks(self), Code(_NEXT_STEP)))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot what each family gains over the Gaussian in nats per task, with two standard errors.

        Args:
            ax: Axes of Matplotlib; by default those of a new figure.
        """
        others = [family for family in self.families if family.name != "Gaussian"]
        gains = [family.over_gaussian for family in others]
        ends = np.array([(g.mean - 2 * g.error, g.mean + 2 * g.error) for g in gains])
        names, means = [family.name for family in others], [gain.mean for gain in gains]
        along = "nats per task over the Gaussian"
        return plot_intervals(ax, names, means, ends.reshape(-1, 2), along, 0.0)

    def _repr_html_(self) -> str | None:
        warnings = [Callout(text, "bad") for text in self.warnings]
        return html([Callout(f"{_capitalized(self.sentence)}."), *warnings, family_table(self)])

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        """The report for a terminal."""
        simulation, regret = self.simulation, ""
        if simulation is not None:
            regret = (
                f"{regret_table(simulation)}\n({_simulated(simulation)})\n"
                "recommended temperature for the chosen prior: "
                f"{simulation.recommended_temperature:g}"
            )
        warnings = "\n".join(f"warning: {text}" for text in self.warnings)
        attributes = "" if self.attributes is None else str(attribute_table(self.attributes))
        first = (_about_logs(self), str(family_table(self)), self.sentence, attributes)
        sections = (*first, _limits(self), regret, warnings)
        return "\n\n".join(section for section in sections if section)


def _about_logs(report: LearningReport) -> str:
    least, median, most = report.rows_per_task
    lines = [
        f"{report.num_tasks:,} tasks, {report.num_rows:,} rows "
        f"({least:g} to {most:g} per task, median {median:g}), "
        f"{len(report.feature_names)} features, {report.likelihood} rewards"
    ]
    if report.noise_std is not None:
        lines.append(f"noise {report.noise_std:.4g} ({report.noise_from})")
    if report.likelihood_advice:
        lines.append(f"the likelihood to choose is {report.likelihood_advice}")
    shares = " ".join(f"{value:.2f}" for value in report.reliability[:12])
    lines.append(f"information of one task about theta, by direction (0 to 1): {shares}")
    return "\n".join(lines)


def family_table(report: LearningReport) -> Table:
    """The families side by side; tasks all of one length are not split."""
    lengths = report.length_names if len(report.length_names) > 1 else ()
    columns = (
        "prior",
        f"log evidence of {report.num_report_tasks} new tasks",
        "over the Gaussian",
        *(f"{name} rows" for name in lengths),
        "next rows",
        "choice",
    )
    rows = [
        (
            family.name,
            f"{family.log_evidence:.3f}",
            _gain(family.over_gaussian),
            *(_gain(gain) for gain in family.by_length[: len(lengths)]),
            "" if family.next_rows is None else _gain(family.next_rows),
            "chosen" if family.chosen else "",
        )
        for family in report.families
    ]
    return Table(columns, rows, marked=_row_of(report.chosen, rows))


def attribute_table(attributes: AttributeReport) -> Table:
    """Gain from attributes by number of rows, and from each raw column."""
    rows = [("a Gaussian given attributes, over one without", "all", attributes.gain)]
    pairs = zip(attributes.num_rows, attributes.by_rows, strict=True)
    rows += [("", f"first {count}", gain) for count, gain in pairs]
    losses = zip(attributes.columns, attributes.losses, strict=True)
    rows += [(f"all attributes, over all but {name}", "all", loss) for name, loss in losses]
    cells = [(what, which, _gain(gain), f"{gain.num_tasks:,}") for what, which, gain in rows]
    return Table(("attributes, on tasks held out in turn", "rows", "nats per task", "tasks"), cells)


def regret_table(simulation: Simulation, chosen: str = "") -> Table:
    """Expected regret, families by temperatures."""
    temperatures = sorted({r.temperature for r in simulation.regrets}, reverse=True)
    names = list(dict.fromkeys(r.family for r in simulation.regrets))
    by = {(r.family, r.temperature): r for r in simulation.regrets}
    headings = (f"temperature {t:g}" for t in temperatures)
    columns = ("expected regret", *headings, "over the Gaussian")
    rows = [
        (
            name,
            *(plus_minus(by[name, t].mean, by[name, t].error) for t in temperatures),
            ""
            if name == "Gaussian"
            else plus_minus(by[name, 1.0].over_gaussian, by[name, 1.0].over_gaussian_error),
        )
        for name in names
    ]
    return Table(columns, rows, marked=_row_of(chosen, rows))


def _row_of(name: str, rows: list[tuple[str, ...]]) -> frozenset[tuple[int, int]]:
    """Cells of the row of a family."""
    return frozenset(
        (i, j) for i, row in enumerate(rows) if row[0] == name for j in range(len(row))
    )


def _limits(report: LearningReport) -> str:
    lines = [
        "fine structure, narrower than what one task's rows can tell, is not known from these logs"
    ]
    if report.next_rewards is not None:
        lines.append(str(report.next_rewards))
    if report.hedge:
        lines.append(
            f"{100 * report.hedge:g} % of a wide Gaussian is mixed in, for tasks unlike any before"
        )
    return "\n".join(lines)


def _simulated(simulation: Simulation) -> str:
    return (
        f"Thompson sampling over {simulation.num_rounds} rounds, {simulation.num_runs} runs, in "
        "tasks drawn from the posterior of those held out, with actions from the logs; compare "
        "priors at equal temperatures only"
    )


def _gain(gain: Gain) -> str:
    if gain.num_tasks == 0 or (gain.mean == gain.error == 0.0):
        return "0"
    return plus_minus(gain.mean, gain.error, signed=True)


_NEXT_STEP = """\
# decide over HTTP, with a log and a dashboard
diffprior serve --model tasks=tasks.model

# or in Python
import diffprior as dp
bandit = dp.load("tasks.model").bandit()
decision = bandit.decide(features)  # a row per action, (K, d)
bandit.update(features[decision.action], reward)"""


def _blocks(report: LearningReport) -> list[Block]:
    """Contents of the page."""
    families = dataclasses.replace(
        family_table(report),
        caption=f"Mean log evidence in nats of {report.num_report_tasks} tasks that nothing was "
        "learned from; differences from the Gaussian with paired standard errors.",
    )
    blocks: list[Block] = [
        *(Callout(text, "bad") for text in report.warnings),
        *(Text(f"{_capitalized(line)}.") for line in _about_logs(report).splitlines()),
        Heading("Families side by side"),
        families,
    ]
    split = any(f.by_length for f in report.families if f.name != "Gaussian")
    if split and len(report.length_names) > 1:
        caption = "Gain over the Gaussian by rows per task, with standard errors."
        blocks.append(picture(caption, lambda: gains_figure(report.families, report.length_names)))
    if report.attributes is not None:
        blocks += [Heading("What attributes are worth"), attribute_table(report.attributes)]
    blocks.append(Heading("What the logs can tell"))
    blocks += [Text(f"{_capitalized(line)}.") for line in _limits(report).splitlines()]
    found = report.pictures
    if found is not None:
        caption = "Draws from the priors, and one posterior draw per task."
        names = report.feature_names
        blocks.append(picture(caption, lambda: priors_figure(found, report.families, names)))
        if found.places is not None:
            places = found.places
            caption = "Next rewards within their predictive distributions; flat is calibrated."
            blocks += [Heading("Calibration"), picture(caption, lambda: calibration_figure(places))]
    simulation = report.simulation
    if simulation is not None:
        regrets = dataclasses.replace(
            regret_table(simulation, report.chosen), caption=_simulated(simulation)
        )
        recommended = f"Recommended temperature: {simulation.recommended_temperature:g}."
        blocks += [Heading("Expected regret"), regrets, Text(recommended)]
    return blocks


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain(value: object) -> object:
    """JSON's own types; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
