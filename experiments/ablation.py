"""The ablation of Appendix C.3, on cross: training samples, stages, and what stages cost.

`python -m experiments.ablation --quick`
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import typer

import diffprior as dp
from diffprior.progress import Progress, progress
from diffprior.reporting.page import Block, Callout, Heading, SideBySide, Text
from diffprior.reporting.tables import Table, plus_minus

from .agents import CHOSEN, LearnedPriors, true_prior
from .cache import ResultCache
from .command import Fresh, Json, Out, Quick, Runs, Seed, conduct
from .experiment import Effort, Regret, past_tasks, play
from .figures import Curve, Panel, panels_figure
from .report import picture, write_report

PROBLEM = "cross"
SAMPLES = (100, 300, 1000, 3000, 10_000)
STAGES = (1, 2, 5, 10, 20, 50, 100, 200, 300)
DEFAULT_UP_TO = 100  # stages of the default prior's chains: they need fewer
PAPER = {1: "26", 50: "15", 100: "15", 200: "15", 300: "15"}  # regret read off Appendix C.3
PRESET, FITTED, OURS = "DiffTS (paper's preset)", "DiffTS fitted (default prior)", "EvidenceDPS"
MIXTURE = "MixTS(K)"


@dataclass(frozen=True)
class AblationResult:
    """Regret by number of training samples and of stages; and what to compare with."""

    settings: dict[str, str]
    levels: dict[str, Regret]
    by_samples: dict[int, dict[str, Regret]]
    by_stages: dict[int, dict[str, Regret]]

    @property
    def summary(self) -> list[Table]:
        """Tables for a terminal."""
        return [samples_table(self), stages_table(self)]


def paper_schedule(num_stages: int) -> dp.Schedule:
    """T stages that end at the paper's noise: alpha = 0.97^(100 / T), so 0.97 at T = 100."""
    return dp.Schedule.constant(num_stages, 0.97 ** (100 / num_stages))


class Ablation:
    """Samplers on cross, by number of training samples and of stages."""

    def __init__(self, cache: ResultCache, effort: Effort, seed: int, shown: Progress) -> None:
        self.problem, self.cache, self.shown = dp.synthetic(PROBLEM), cache, shown
        self.effort, self.seed = effort, seed
        self.samples = past_tasks(self.problem, effort.num_samples, seed)

    def levels(self) -> dict[str, Regret]:
        """TS, and exact sampling with the true prior."""
        standard = self.priors(len(self.samples))["N(0, I)"]
        true = true_prior(self.problem, self.seed)
        samplers: dict[str, Callable[[], dp.AbstractSampler]]
        samplers = {"TS": lambda: dp.Exact(standard), "true prior": lambda: dp.Exact(true)}
        return self._regrets({}, samplers)

    def by_samples(self, count: int) -> dict[str, Regret]:
        """Priors learned from the first so many samples."""
        few = self.priors(count)
        samplers: dict[str, Callable[[], dp.AbstractSampler]] = {
            MIXTURE: lambda: dp.Exact(few[CHOSEN]),
            PRESET: lambda: dp.LaplaceDPS(few.diffusion("paper"), covariance="paper"),
            FITTED: lambda: dp.LaplaceDPS(few.diffusion("default")),
            OURS: lambda: dp.EvidenceDPS(few.diffusion("default")),
        }
        return self._regrets({"samples": count}, samplers)

    def by_stages(self, count: int) -> dict[str, Regret]:
        """So many stages; the default prior is the same for all."""
        priors = self.priors(len(self.samples))
        schedule = None if count == 100 else paper_schedule(count)
        samplers: dict[str, Callable[[], dp.AbstractSampler]] = {
            PRESET: lambda: dp.LaplaceDPS(priors.diffusion("paper", schedule), covariance="paper"),
        }
        if count <= DEFAULT_UP_TO:
            samplers[FITTED] = lambda: dp.LaplaceDPS(priors.diffusion("default"), steps=count)
            samplers[OURS] = lambda: dp.EvidenceDPS(priors.diffusion("default"), steps=count)
        return self._regrets({"stages": count}, samplers)

    def priors(self, count: int) -> LearnedPriors:
        """Priors learned from the first `count` samples."""
        label = f"{PROBLEM}, {count} samples"
        return LearnedPriors(label, self.samples[:count], self.cache, self.seed)

    def _regrets(
        self, varied: dict[str, int], samplers: dict[str, Callable[[], dp.AbstractSampler]]
    ) -> dict[str, Regret]:
        settings = {**dataclasses.asdict(self.effort), "seed": self.seed, **varied}
        what = "".join(f", {value} {key}" for key, value in varied.items())
        found = {}
        for name, make in samplers.items():
            self.shown.describe(name + what)
            play_it = functools.partial(self._play, make)
            found[name] = self.cache.numbers(Regret, f"regret, {name}{what}", settings, play_it)
        self.shown.advance()
        return found

    def _play(self, make: Callable[[], dp.AbstractSampler]) -> Regret:
        agent = dp.ThompsonSampling(make(), self.problem.likelihood)
        return play(self.problem, agent, self.effort.num_runs, self.effort.num_rounds, self.seed)


def run_ablation(
    out: Path,
    cache: ResultCache,
    *,
    effort: Effort | None = None,
    quick: bool = False,
    seed: int = 0,
) -> AblationResult:
    """Run what is missing, draw the figure and write the report."""
    effort = effort or Effort()
    samples, stages = (SAMPLES[::2], (1, 5, 20)) if quick else (SAMPLES, STAGES)
    with progress("", 1 + len(samples) + len(stages)) as shown:
        ablation = Ablation(cache, effort, seed, shown)
        settings = {"problem": PROBLEM, "runs": str(effort.num_runs), "seed": str(seed)}
        result = AblationResult(
            settings | {"rounds": str(effort.num_rounds)},
            ablation.levels(),
            {count: ablation.by_samples(count) for count in samples},
            {count: ablation.by_stages(count) for count in stages},
        )
    panels = _panels(result, effort.num_runs)
    shown = picture(out, "ablation", _CAPTION, lambda: panels_figure(panels))
    blocks: list[Block] = [
        Text(_INTRODUCTION),
        shown,
        Heading("Numbers"),
        SideBySide([samples_table(result), stages_table(result)]),
        _table(result.by_stages, "stages", lambda r: _time(r, effort.num_runs), _TIME),
    ]
    write_report(out, "Ablation on cross", _verdict(result), blocks, result.settings, cache)
    return result


def _verdict(result: AblationResult) -> Callout:
    """The lowest regret with most samples."""
    most, by_name = max(result.by_samples.items())
    best = min(by_name, key=lambda name: by_name[name].mean)
    rest = ", ".join(f"{name} {_regret(row)}" for name, row in by_name.items() if name != best)
    found = f"{best} has the lowest regret, {_regret(by_name[best])}"
    return Callout(f"With {most:,} samples, {found}; {rest}.")


def samples_table(result: AblationResult) -> Table:
    """Regret by number of training samples."""
    levels = ", ".join(f"{name} {_regret(row)}" for name, row in result.levels.items())
    return _table(result.by_samples, "samples", _regret, f"Regret; to compare with: {levels}.")


def stages_table(result: AblationResult) -> Table:
    """Regret by number of stages, beside what the paper shows."""
    table = _table(result.by_stages, "stages", _regret, "Regret by stages.")
    rows = [[*row, PAPER.get(int(row[0]), "")] for row in table.rows]
    return Table((*table.columns, "the paper"), rows, table.caption)


def _table(
    rows: dict[int, dict[str, Regret]], across: str, cell: Callable[[Regret], str], caption: str
) -> Table:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [
        [str(count), *(cell(row[name]) if name in row else "" for name in names)]
        for count, row in rows.items()
    ]
    return Table((across, *names), cells, caption)


def _regret(regret: Regret) -> str:
    return plus_minus(regret.mean, regret.standard_error)


def _time(regret: Regret, num_runs: int) -> str:
    return f"{100 * regret.seconds / num_runs:.2f}"


def _panels(result: AblationResult, num_runs: int) -> list[Panel]:
    """The three panels of the paper's figure."""
    levels = {name: row.mean for name, row in result.levels.items()}
    samples, stages = (_curves(rows) for rows in (result.by_samples, result.by_stages))
    times = _curves(result.by_stages, lambda r: 100 * r.seconds / num_runs, lambda r: 0.0)
    return [
        Panel("(a) training samples", "samples", "regret", samples, levels),
        Panel("(b) stages", "stages T", "regret", stages, levels),
        Panel("(c) time of 100 runs", "stages T", "seconds", times, {}, log_y=True),
    ]


def _curves(
    rows: dict[int, dict[str, Regret]],
    value: Callable[[Regret], float] = lambda regret: regret.mean,
    error: Callable[[Regret], float] = lambda regret: regret.standard_error,
) -> dict[str, Curve]:
    names = dict.fromkeys(name for row in rows.values() for name in row)
    having = {name: {c: row[name] for c, row in rows.items() if name in row} for name in names}
    return {
        name: Curve(
            list(found), [value(r) for r in found.values()], [error(r) for r in found.values()]
        )
        for name, found in having.items()
    }


_INTRODUCTION = (
    "Cross, linear rewards: how much a diffusion prior needs to see, and how many stages its "
    "chains need. The paper's preset learns one regressor for each stage, and its stages end at "
    "the same noise whatever their number. The default prior is learned once; its chains may have "
    "any number of stages."
)
_CAPTION = "Regret by training samples (a) and stages (b); time by stages (c)."
_TIME = "Seconds for 100 runs, without compilation."


def main(
    out: Out = Path("results/ablation"),
    json: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Regret by training samples and by stages, and the time of stages (Appendix C.3)."""
    effort = Effort.of(runs, quick)
    run = functools.partial(run_ablation, out, effort=effort, quick=quick, seed=seed)
    conduct(run, out, json, fresh)


if __name__ == "__main__":
    typer.run(main)
