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
from ..evaluate.comparison import COLD
from ..files.atomic import write_atomic
from ..files.base import Serializable
from ..reporting.figures import COLORS, html, new_figure, picture, plot_intervals
from ..reporting.page import Block, Callout, Code, Heading, Text, page
from ..reporting.tables import Table, plus_minus
from .attributes import AttributeReport
from .diagnostics import NextRewards, Simulation
from .network_encoder import LearnedFeatures
from .payoff import LearningCurve, RowsSaved
from .scoring import FamilyResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MAX_PAIRS = 3  # pairs of parameters shown
MANY_MORE = 1.5  # times the past tasks there are, from which more of them are advised
TOO_MANY = 50  # times, from which no number is given


@dataclass(frozen=True, eq=False)
class Pictures:
    """Samples that the figures show, left out of the report's numbers."""

    draws: dict[str, np.ndarray]  # from each family's prior, (n, d)
    estimates: np.ndarray  # one posterior draw per task, (n, d)
    places: np.ndarray | None  # predictive probabilities of smaller rewards than the next ones


def curve_figure(curve: LearningCurve) -> "Figure":
    """Plot the gain over a cold start by number of past tasks, with two standard errors."""
    figure, axes = new_figure(1, 1, width=6.0, height=2.6)
    axis, means = axes[0, 0], [gain.mean for gain in curve.gains]
    errors = [2 * gain.error for gain in curve.gains]
    axis.errorbar(curve.num_tasks, means, errors, marker="o", color=COLORS[0])
    axis.set_xscale("log", base=2)
    axis.set_xticks(curve.num_tasks, [f"{count:,}" for count in curve.num_tasks])
    axis.set_xlabel("past tasks")
    axis.set_ylabel("nats per task over a cold start")
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
    axis.set_ylim(bottom=0)
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
        families: Scores of every family on the held-out tasks, beginning with the cold start.
        rows_saved: First rewards of a new task that the chosen prior replaces; or None.
        curve: Gain by number of past tasks; None of very few.
        next_rewards: The second half of each task's rewards beside their predictions; or None.
        simulation: Expected regret of the families; or None.
        chosen: Name of the chosen family.
        sentence: The choice and how it was made.
        hedge: Weight of a cold start and a wide Gaussian mixed in.
        warnings: Warnings about the data.
        seconds: Duration of each part.
        likelihood_advice: The likelihood that the rewards suggest, and why.
        attributes: What attributes of tasks are worth, or None of logs without.
        features: What learned features are worth; None if none were asked for.
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
    rows_saved: RowsSaved | None
    curve: LearningCurve | None
    next_rewards: NextRewards | None
    simulation: Simulation | None
    chosen: str
    sentence: str
    hedge: float
    warnings: tuple[str, ...]
    seconds: dict[str, float]
    likelihood_advice: str = ""
    attributes: AttributeReport | None = None
    features: LearnedFeatures | None = None
    pictures: Pictures | None = dataclasses.field(default=None, repr=False, compare=False)

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return {name: hint for name, hint in super().file_hints().items() if name != "pictures"}

    @property
    def result(self) -> FamilyResult:
        """Scores of the chosen family."""
        return next(family for family in self.families if family.name == self.chosen)

    @property
    def verdict(self) -> str:
        """Whether to use the prior, in words; every number in it is one of the report's."""
        over, saved, advice = self.result.over_cold, self.rows_saved, _advice(self)
        if not over.mean > 2 * over.error:
            if advice:
                return f"Not enough tasks: {advice}."
            return "Past tasks say too little here: starting cold is as good."
        if saved is not None:
            start = f"as if {saved} rewards were already known ({saved.interval})"
        else:
            start = f"{over} nats ahead of a cold start"
        little = saved is not None and saved.count < 1
        first = "Past tasks say little here" if little else "Use this prior"
        sentences = [f"{first}: a new task starts {start}", "a Gaussian is enough"]
        if not self.chosen.startswith("Gaussian"):
            sentences[1] = f"more than a Gaussian gains {self.result.over_gaussian} nats"
        if advice:
            sentences.append(f"{advice} to learn most of what they can tell")
        return f"{'; '.join(sentences)}."

    def to_dict(self) -> dict[str, object]:
        """Return the verdict and the report as plain numbers and text, without the pictures."""
        fields = dataclasses.asdict(dataclasses.replace(self, pictures=None))
        del fields["pictures"]
        return {"verdict": self.verdict} | {name: _plain(value) for name, value in fields.items()}

    def to_json(self, path: str | Path) -> None:
        """Write `to_dict` to the file at `path`."""
        write_atomic(path, json.dumps(self.to_dict(), indent=2) + "\n")

    def to_html(self, path: str | Path, model: str | Path = "tasks.model") -> None:
        """Write one self-contained page with tables and figures to `path`.

        Args:
            path: File to write.
            model: File of the learned model, which the page says how to serve.

        Raises:
            ImportError: Matplotlib or Jinja2 is missing.
        """
        require("plot", "matplotlib", "jinja2")
        title = "Does a learned prior pay on these tasks?"
        write_atomic(path, page(title, _lead(self), _blocks(self), _next_step(Path(model))))

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot what families gain over a cold start in nats per task, with two standard errors.

        Args:
            ax: Axes of Matplotlib; by default those of a new figure.
        """
        others = [family for family in self.families if family.name != COLD]
        gains = [family.over_cold for family in others]
        ends = np.array([(g.mean - 2 * g.error, g.mean + 2 * g.error) for g in gains])
        names, means = [family.name for family in others], [gain.mean for gain in gains]
        along = f"nats per task over a {COLD}"
        return plot_intervals(ax, names, means, ends.reshape(-1, 2), along, 0.0)

    def _repr_html_(self) -> str | None:
        warnings = [Callout(text, "bad") for text in self.warnings]
        return html([_lead(self), *warnings, family_table(self)])

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
        tables = (str(family_table(self)), self.sentence, attributes)
        sections = (self.verdict, _about_logs(self), *tables, _limits(self), regret, warnings)
        return "\n\n".join(section for section in sections if section)


def _advice(report: LearningReport) -> str:
    """How many past tasks to collect, if many more than there are."""
    enough = None if report.curve is None else report.curve.enough
    if enough is None or enough < MANY_MORE * report.num_tasks:
        return ""
    if enough > TOO_MANY * report.num_tasks:
        return "collect many more"
    return f"collect about {float(f'{enough:.1g}'):,.0f}"


def _lead(report: LearningReport) -> Callout:
    good = report.result.over_cold.mean > 2 * report.result.over_cold.error
    return Callout(report.verdict, "good" if good else "")


def _curve_line(curve: LearningCurve) -> str:
    pairs = zip(curve.gains, curve.num_tasks, strict=True)
    gains = ", ".join(f"{gain} from {count:,}" for gain, count in pairs)
    line = f"nats per task of a Gaussian over a {COLD}, by past tasks: {gains}"
    if curve.enough is not None:
        line += f"; nine tenths of the {curve.limit} from any number take {curve.enough:,}"
    return line


def _about_logs(report: LearningReport) -> str:
    least, median, most = report.rows_per_task
    lines = [
        f"{report.num_tasks:,} tasks, {report.num_rows:,} rows "
        f"({least:g} to {most:g} per task, median {median:g}), "
        f"{len(report.feature_names)} features, {report.likelihood} rewards"
    ]
    if report.features is not None:
        lines.append(str(report.features))
    if report.noise_std is not None:
        lines.append(f"noise {report.noise_std:.4g} ({report.noise_from})")
    if report.likelihood_advice:
        lines.append(f"the likelihood to choose is {report.likelihood_advice}")
    if report.reliability:
        shares = " ".join(f"{value:.2f}" for value in report.reliability[:12])
        lines.append(f"information of one task about theta, by direction (0 to 1): {shares}")
    return "\n".join(lines)


def family_table(report: LearningReport) -> Table:
    """The families side by side."""
    columns = (
        "prior",
        f"log evidence of {report.num_report_tasks} new tasks",
        f"over a {COLD}",
        "over the Gaussian",
        "reward of first choices",
        "choice",
    )
    rows: list[tuple[str, ...]] = [
        (
            family.name,
            f"{family.log_evidence:.3f}",
            str(family.over_cold),
            str(family.over_gaussian),
            "" if family.first_reward is None else str(family.first_reward),
            "chosen" if family.chosen else "",
        )
        for family in report.families
    ]
    return Table(columns, rows, marked=_row_of(report.chosen, rows))


def attribute_table(attributes: AttributeReport) -> Table:
    """Gain from attributes by number of rows, and from each raw column."""
    what = "a Gaussian given attributes, over one without"
    pairs = zip(attributes.num_rows, attributes.by_rows, strict=True)
    rows = [(what, f"first {count}", gain) for count, gain in pairs]
    losses = zip(attributes.columns, attributes.losses, strict=True)
    rows += [(f"all attributes, over all but {name}", "all", loss) for name, loss in losses]
    cells = [(what, which, str(gain), f"{gain.num_tasks:,}") for what, which, gain in rows]
    return Table(("attributes, on tasks held out in turn", "rows", "nats per task", "tasks"), cells)


def regret_table(simulation: Simulation, chosen: str = "") -> Table:
    """Expected regret, families by temperatures."""
    temperatures = sorted({r.temperature for r in simulation.regrets}, reverse=True)
    names = list(dict.fromkeys(r.family for r in simulation.regrets))
    by = {(r.family, r.temperature): r for r in simulation.regrets}
    headings = (f"temperature {t:g}" for t in temperatures)
    columns = ("expected regret", *headings, f"over a {COLD}", "over the Gaussian")
    rows: list[tuple[str, ...]] = []
    for name in names:
        one = by[name, 1.0]
        means = (plus_minus(by[name, t].mean, by[name, t].error) for t in temperatures)
        over_cold = plus_minus(one.over_cold, one.over_cold_error, signed=True)
        over = plus_minus(one.over_gaussian, one.over_gaussian_error, signed=True)
        others = ("" if name == COLD else over_cold, "" if name == "Gaussian" else over)
        rows.append((name, *means, *others))
    return Table(columns, rows, marked=_row_of(chosen, rows))


def _row_of(name: str, rows: list[tuple[str, ...]]) -> frozenset[tuple[int, int]]:
    """Cells of the row of a family."""
    return frozenset(
        (i, j) for i, row in enumerate(rows) if row[0] == name for j in range(len(row))
    )


def _limits(report: LearningReport) -> str:
    lines = [] if report.curve is None else [_curve_line(report.curve)]
    lines += [
        "fine structure, narrower than what one task's rows can tell, is not known from these logs"
    ]
    if report.next_rewards is not None:
        lines.append(str(report.next_rewards))
    if report.hedge:
        lines.append(
            f"{100 * report.hedge:g} % of a cold start and of a wide Gaussian are mixed in, for "
            "tasks unlike any before"
        )
    return "\n".join(lines)


def _simulated(simulation: Simulation) -> str:
    return (
        f"Thompson sampling over {simulation.num_rounds} rounds, {simulation.num_runs} runs, in "
        "tasks drawn from the posterior of those held out, with actions from the logs; compare "
        "priors at equal temperatures only"
    )


def _next_step(model: Path) -> Code:
    return Code(f"""\
# decide over HTTP, with a log and a dashboard
diffprior serve --model {model.stem}={model}

# or in Python
import diffprior as dp
bandit = dp.load("{model}").bandit()
decision = bandit.decide(features)  # a row per action, (K, d)
bandit.update(features[decision.action], reward)""")


def _blocks(report: LearningReport) -> list[Block]:
    """Contents of the page."""
    families = dataclasses.replace(
        family_table(report),
        caption=f"Mean log evidence in nats of {report.num_report_tasks} tasks that nothing was "
        "learned from; differences with paired standard errors. First choices are among the rows "
        "of a task, with the rewards that were observed, over those of the cold start.",
    )
    blocks: list[Block] = [
        Text(f"{_capitalized(report.sentence)}."),
        *(Callout(text, "bad") for text in report.warnings),
        *(Text(f"{_capitalized(line)}.") for line in _about_logs(report).splitlines()),
        Heading("Families side by side"),
        families,
    ]
    curve = report.curve
    if curve is not None:
        caption = "Gain of a Gaussian by number of past tasks, with two standard errors."
        blocks.append(picture(caption, lambda: curve_figure(curve)))
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
