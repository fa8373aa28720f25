"""The ablation of Appendix C.3, on cross: training samples, stages, and what stages cost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..bandits.agents import ThompsonSampling
from ..problems.synthetic import synthetic
from ..samplers.base import AbstractSampler
from ..samplers.evidence_dps import EvidenceDPS
from ..samplers.exact import Exact
from ..samplers.laplace_dps import LaplaceDPS
from ..schedule import Schedule
from .agents import Materials
from .output import save_figure, write_report
from .parts import Parts, digest
from .plots import ablation_figure
from .report import Block, Figure, Heading, Table, Text, plus_minus
from .study import Effort, past_tasks, play

PROBLEM = "cross"
SAMPLES = (100, 300, 1000, 3000, 10_000)
STAGES = (1, 2, 5, 10, 20, 50, 100, 200, 300)
DEFAULT_UP_TO = 100  # stages of the default prior's chains: they need fewer
PAPER = {1: "26", 50: "15", 100: "15", 200: "15", 300: "15"}  # regret read off Appendix C.3
PRESET, FITTED, OURS = "DiffTS (paper's preset)", "DiffTS fitted (default prior)", "EvidenceDPS"


def paper_schedule(num_stages: int) -> Schedule:
    """T stages that end at the paper's noise: alpha = 0.97^(100 / T), so 0.97 at T = 100."""
    return Schedule.constant(num_stages, 0.97 ** (100 / num_stages))


class Ablation:
    """Samplers on cross, by number of training samples and of stages."""

    def __init__(self, parts: Parts, effort: Effort, seed: int) -> None:
        self.problem, self.parts = synthetic(PROBLEM), parts
        self.effort, self.seed = effort, seed
        self.samples = past_tasks(self.problem, effort.num_samples, seed)

    def by_samples(self, counts: tuple[int, ...]) -> list[dict[str, Any]]:
        """Regret with priors learned from the first so many samples."""
        rows = []
        for count in counts:
            few = self._materials(f"{count} samples", count)
            paper, default = few.prior("paper"), few.prior("default")
            samplers = {
                PRESET: LaplaceDPS(paper, covariance="paper"),
                FITTED: LaplaceDPS(default),
                OURS: EvidenceDPS(default),
            }
            found = {n: self._play(n, s, {"samples": count}) for n, s in samplers.items()}
            rows.append({"samples": count, "agents": found})
        return rows

    def by_stages(self, stages: tuple[int, ...]) -> list[dict[str, Any]]:
        """Regret and time with so many stages; the default prior is the same for all."""
        whole = self._materials(PROBLEM, len(self.samples))
        rows = []
        for count in stages:
            paper = self.parts.prior(
                f"prior, {count} stages",
                self.samples,
                preset="paper",
                schedule=None if count == 100 else paper_schedule(count),
                seed=self.seed,
            )
            samplers: dict[str, AbstractSampler] = {PRESET: LaplaceDPS(paper, covariance="paper")}
            if count <= DEFAULT_UP_TO:
                samplers[FITTED] = LaplaceDPS(whole.prior("default"), steps=count)
                samplers[OURS] = EvidenceDPS(whole.prior("default"), steps=count)
            found = {n: self._play(n, s, {"stages": count}) for n, s in samplers.items()}
            rows.append({"stages": count, "agents": found})
        return rows

    def levels(self) -> dict[str, Any]:
        """What to compare with: TS, and exact sampling with the true prior."""
        whole = self._materials(PROBLEM, len(self.samples))
        samplers = {"TS": Exact(whole.standard()), "true prior": Exact(whole.true())}  # type: ignore[arg-type]
        return {name: self._play(name, sampler, {}) for name, sampler in samplers.items()}

    def _materials(self, label: str, count: int) -> Materials:
        samples = self.samples[:count]
        return Materials(label, self.problem, samples, self.parts, self.seed)

    def _play(self, name: str, sampler: AbstractSampler, varied: dict[str, int]) -> dict[str, Any]:
        runs, rounds = self.effort.num_runs, self.effort.num_rounds
        agent = ThompsonSampling(sampler, self.problem.likelihood)
        what = "".join(f", {value} {key}" for key, value in varied.items())
        settings: dict[str, Any] = {
            "runs": runs,
            "rounds": rounds,
            "seed": self.seed,
            "agent": name,
            **varied,
        }
        settings["past"] = digest(self.samples)
        row = self.parts.numbers(
            f"regret, {name}{what}",
            settings,
            lambda: play(self.problem, agent, runs, rounds, self.seed),
        )
        kept = ("regret", "standard_error", "seconds", "compile_seconds", "failures")
        return {key: row[key] for key in kept}


def ablation_experiment(
    out: Path,
    parts: Parts,
    *,
    effort: Effort | None = None,
    quick: bool = False,
    samples: tuple[int, ...] | None = None,
    stages: tuple[int, ...] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Run what is missing, draw the figure, write the report, and return the numbers."""
    effort = effort or Effort()
    samples = samples or (SAMPLES[::2] if quick else SAMPLES)
    stages = stages or ((1, 5, 20) if quick else STAGES)
    ablation = Ablation(parts, effort, seed)
    few = sum(count <= DEFAULT_UP_TO for count in stages)
    parts.watch.plan(2 + 5 * len(samples) + 2 * len(stages) + 2 * few + 1)
    levels = ablation.levels()
    by_samples, by_stages = ablation.by_samples(samples), ablation.by_stages(stages)
    panels = _panels(by_samples, by_stages, levels, effort.num_runs)
    figure = save_figure(out, "ablation", ablation_figure, panels)
    settings = {
        "problem": PROBLEM,
        "runs": str(effort.num_runs),
        "rounds": str(effort.num_rounds),
        "seed": str(seed),
    }
    blocks = _blocks(figure, by_samples, by_stages, levels, effort.num_runs)
    write_report(out, "Ablation on cross", blocks, settings, parts)
    return {
        "experiment": "ablation",
        "settings": settings,
        "levels": levels,
        "samples": by_samples,
        "stages": by_stages,
    }


def _panels(
    by_samples: list[dict[str, Any]],
    by_stages: list[dict[str, Any]],
    levels: dict[str, Any],
    num_runs: int,
) -> list[dict[str, Any]]:
    """The three panels of the paper's figure."""
    lines = {name: row["regret"] for name, row in levels.items()}
    regret, time = (lambda row: row["regret"]), (lambda row: 100 * row["seconds"] / num_runs)
    error = lambda row: row["standard_error"]  # noqa: E731
    none = lambda row: 0.0  # noqa: E731
    samples = _curves(by_samples, "samples", regret, error)
    return [
        _panel("(a) training samples", "samples", "regret", samples, lines),
        _panel(
            "(b) stages", "stages T", "regret", _curves(by_stages, "stages", regret, error), lines
        ),
        {
            **_panel(
                "(c) time of 100 runs",
                "stages T",
                "seconds",
                _curves(by_stages, "stages", time, none),
                {},
            ),
            "log": True,
        },
    ]


def _panel(
    title: str, across: str, up: str, curves: dict[str, Any], lines: dict[str, float]
) -> dict[str, Any]:
    return {"title": title, "across": across, "up": up, "curves": curves, "lines": lines}


def _curves(
    rows: list[dict[str, Any]],
    across: str,
    value: Callable[[dict[str, Any]], float],
    error: Callable[[dict[str, Any]], float],
) -> dict[str, Any]:
    curves: dict[str, Any] = {}
    for row in rows:
        for name, found in row["agents"].items():
            curve = curves.setdefault(name, {"x": [], "y": [], "se": []})
            curve["x"].append(row[across])
            curve["y"].append(value(found))
            curve["se"].append(error(found))
    return curves


def _blocks(
    figure: bytes,
    by_samples: list[dict[str, Any]],
    by_stages: list[dict[str, Any]],
    levels: dict[str, Any],
    num_runs: int,
) -> list[Block]:
    known = ", ".join(
        f"{name} {plus_minus(row['regret'], row['standard_error'])}" for name, row in levels.items()
    )
    return [
        Text(_INTRODUCTION + f" To compare with: {known}."),
        Figure(figure, "Regret by training samples (a) and stages (b); time by stages (c)."),
        Heading("Training samples"),
        _table(by_samples, "samples", {}),
        Heading("Stages"),
        _table(by_stages, "stages", PAPER),
        Heading("Time"),
        _time_table(by_stages, num_runs),
    ]


def _table(rows: list[dict[str, Any]], across: str, paper: dict[int, str]) -> Table:
    names = list(rows[0]["agents"])
    cells = [
        [
            str(row[across]),
            *(
                plus_minus(row["agents"][n]["regret"], row["agents"][n]["standard_error"])
                if n in row["agents"]
                else ""
                for n in names
            ),
            *([paper.get(row[across], "")] if paper else []),
        ]
        for row in rows
    ]
    columns = (across, *names, *(["the paper"] if paper else []))
    return Table(columns, cells, "Regret after the last round, with its standard error.")


def _time_table(rows: list[dict[str, Any]], num_runs: int) -> Table:
    names = list(rows[0]["agents"])
    cells = [
        [
            str(row["stages"]),
            *(
                f"{100 * row['agents'][n]['seconds'] / num_runs:.2f}" if n in row["agents"] else ""
                for n in names
            ),
        ]
        for row in rows
    ]
    return Table(("stages", *names), cells, "Seconds for 100 runs, without compilation.")


_INTRODUCTION = (
    "Cross, linear rewards: how much a diffusion prior needs to see, and how many stages its "
    "chains need. The paper's preset learns one regressor for each stage, and its stages end at "
    "the same noise whatever their number. The default prior is learned once; its chains may have "
    "any number of stages."
)
