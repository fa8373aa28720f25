"""The ablation of Appendix C.3, on cross: training samples, stages, and what stages cost.

`python -m experiments.ablation --quick`
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import typer

import diffprior as dp
from diffprior.progress import progress
from diffprior.reporting.page import Callout, Heading, SideBySide, Text
from diffprior.reporting.tables import Table

from .agents import CHOSEN, LearnedPriors, true_prior
from .experiment import Effort, Regret, past_tasks, play
from .figures import Curve, Panel, figure_of
from .report import regret_text
from .results import Quick, Results, Runs, Seed, command

PROBLEM = "cross"
SAMPLES = (100, 300, 1000, 3000, 10_000)
STAGES = (1, 2, 5, 10, 20, 50, 100, 200, 300)
DEFAULT_UP_TO = 100  # stages of the default prior's chains: they need fewer
PAPER = {1: "26", 50: "15", 100: "15", 200: "15", 300: "15"}  # regret read off Appendix C.3
PRESET, FITTED, OURS = "DiffTS (paper's preset)", "DiffTS fitted (default prior)", "EvidenceDPS"
MIXTURE = "MixTS(K)"

Samplers = dict[str, Callable[[], dp.AbstractSampler]]
Regrets = dict[int, dict[str, Regret]]  # by what is varied, and agent


def paper_schedule(num_stages: int) -> dp.Schedule:
    """T stages that end at the paper's noise: alpha = 0.97^(100 / T), so 0.97 at T = 100."""
    return dp.Schedule.constant(num_stages, 0.97 ** (100 / num_stages))


def levels(priors: LearnedPriors, problem: dp.AbstractProblem) -> Samplers:
    """TS, and exact sampling with the true prior, to compare with."""
    true = true_prior(problem, priors.seed)
    return {"TS": lambda: dp.Exact(priors["N(0, I)"]), "true prior": lambda: dp.Exact(true)}


def of_samples(few: LearnedPriors) -> Samplers:
    """Priors learned from few samples."""
    return {
        MIXTURE: lambda: dp.Exact(few[CHOSEN]),
        PRESET: lambda: dp.LaplaceDPS(few.diffusion("paper"), covariance="paper"),
        FITTED: lambda: dp.LaplaceDPS(few.diffusion("default")),
        OURS: lambda: dp.EvidenceDPS(few.diffusion("default")),
    }


def of_stages(priors: LearnedPriors, count: int) -> Samplers:
    """So many stages; the default prior is the same for all."""
    schedule = None if count == 100 else paper_schedule(count)
    preset: Samplers = {
        PRESET: lambda: dp.LaplaceDPS(priors.diffusion("paper", schedule), covariance="paper")
    }
    default: Samplers = {
        FITTED: lambda: dp.LaplaceDPS(priors.diffusion("default"), steps=count),
        OURS: lambda: dp.EvidenceDPS(priors.diffusion("default"), steps=count),
    }
    return preset | (default if count <= DEFAULT_UP_TO else {})


def run_ablation(
    results: Results,
    *,
    runs: Runs = None,
    quick: Quick = False,
    seed: Seed = 0,
    effort: Effort | None = None,
    samples: tuple[int, ...] = SAMPLES,
    stages: tuple[int, ...] = STAGES,
) -> dict[str, Any]:
    """Regret by training samples and by stages, and the time of stages (Appendix C.3)."""
    effort, problem = effort or Effort.of(runs, quick), dp.synthetic(PROBLEM)
    samples, stages = (samples[::2], (1, 5, 20)) if quick else (samples, stages)
    past = past_tasks(problem, effort.num_samples, seed)

    def learned(count: int) -> LearnedPriors:
        return LearnedPriors(f"{PROBLEM}, {count} samples", past[:count], results, seed)

    def played(varied: str, count: int, samplers: Samplers) -> dict[str, Regret]:
        settings = {**dataclasses.asdict(effort), "seed": seed, varied: count}
        found = {}
        for name, make in samplers.items():
            shown.describe(what := f"{name}, {count} {varied}")

            def compute(make: Callable[[], dp.AbstractSampler] = make) -> Regret:
                agent = dp.ThompsonSampling(make(), problem.likelihood)
                return play(problem, agent, effort.num_runs, effort.num_rounds, seed)

            found[name] = results.numbers(Regret, f"regret, {what}", settings, compute)
        shown.advance()
        return found

    every = learned(len(past))
    with progress("", 1 + len(samples) + len(stages)) as shown:
        known = played("samples", len(past), levels(every, problem))
        by_samples = {n: played("samples", n, of_samples(learned(n))) for n in samples}
        by_stages = {n: played("stages", n, of_stages(every, n)) for n in stages}
    seconds = {
        n: {name: f"{100 * r.seconds / effort.num_runs:.2f}" for name, r in row.items()}
        for n, row in by_stages.items()
    }
    caption = ", ".join(f"{name} {regret_text(row)}" for name, row in known.items())
    tables = [
        table(texts(by_samples), "samples", f"Regret; to compare with: {caption}."),
        table(
            {n: row | {"the paper": PAPER.get(n, "")} for n, row in texts(by_stages).items()},
            "stages",
            "Regret by stages.",
        ),
    ]
    of_time = table(seconds, "stages", "Seconds for 100 runs, without compilation.")
    panels = _panels(known, by_samples, by_stages, effort.num_runs)
    shown_figure = results.picture("ablation", _CAPTION, lambda: figure_of([panels]))
    blocks = [Text(_INTRODUCTION), shown_figure, Heading("Numbers"), SideBySide(tables), of_time]
    settings = {"problem": PROBLEM, "runs": str(effort.num_runs), "seed": str(seed)}
    settings["rounds"] = str(effort.num_rounds)
    results.report("Ablation on cross", _verdict(by_samples), blocks, settings, tables)
    found = {"levels": known, "by_samples": by_samples, "by_stages": by_stages}
    return {"settings": settings, **found}


def _verdict(by_samples: Regrets) -> Callout:
    """The lowest regret with most samples."""
    most, by_name = max(by_samples.items())
    best = min(by_name, key=lambda name: by_name[name].mean)
    rest = ", ".join(f"{name} {regret_text(r)}" for name, r in by_name.items() if name != best)
    found = f"{best} has the lowest regret, {regret_text(by_name[best])}"
    return Callout(f"With {most:,} samples, {found}; {rest}.")


def texts(rows: Regrets) -> dict[int, dict[str, str]]:
    return {n: {name: regret_text(r) for name, r in row.items()} for n, row in rows.items()}


def table(rows: dict[int, dict[str, str]], across: str, caption: str) -> Table:
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = [[str(n), *(row.get(name, "") for name in names)] for n, row in rows.items()]
    return Table((across, *names), cells, caption)


def _panels(
    known: dict[str, Regret], by_samples: Regrets, by_stages: Regrets, num_runs: int
) -> list[Panel]:
    """The three panels of the paper's figure."""

    def curves(rows: Regrets, seconds: bool = False) -> dict[str, Curve]:
        found = {}
        for name in dict.fromkeys(name for row in rows.values() for name in row):
            own = {n: row[name] for n, row in rows.items() if name in row}
            y = [100 * r.seconds / num_runs if seconds else r.mean for r in own.values()]
            error = [0.0 if seconds else r.standard_error for r in own.values()]
            found[name] = Curve(list(own), y, error)
        return found

    level = {name: row.mean for name, row in known.items()}
    return [
        Panel("(a) training samples", "samples", "regret", curves(by_samples), level),
        Panel("(b) stages", "stages T", "regret", curves(by_stages), level),
        Panel("(c) time of 100 runs", "stages T", "seconds", curves(by_stages, True), {}, True),
    ]


_INTRODUCTION = (
    "Cross, linear rewards: how much a diffusion prior needs to see, and how many stages its "
    "chains need. The paper's preset learns one regressor for each stage, and its stages end at "
    "the same noise whatever their number. The default prior is learned once; its chains may have "
    "any number of stages."
)
_CAPTION = "Regret by training samples (a) and stages (b); time by stages (c)."

if __name__ == "__main__":
    typer.run(command(run_ablation))
