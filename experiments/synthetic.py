"""The synthetic experiments of Section 6.2 and Appendix C.1: six priors in the plane.

`python -m experiments.synthetic --problem corners --quick`
"""

import functools
from typing import Annotated, Any

import typer

import diffprior as dp
from diffprior.problems.synthetic import SYNTHETIC
from diffprior.progress import progress
from diffprior.reporting.page import Block, Heading, SideBySide, Text

from .agents import NAMES, SAMPLED, LearnedPriors, agents_table
from .experiment import Effort, Experiment, ProblemResult, in_words, past_tasks
from .figures import Clouds, figure_of
from .report import (
    cost_table,
    equal_temperature_table,
    findings_table,
    posterior_table,
    regret_table,
    temperature_table,
    verdict,
)
from .results import Agents, Problems, Quick, Results, Runs, Seed, command

PER_FIGURE = 3
NUM_SHOWN = 2000  # samples of a prior in a picture


def run_synthetic(
    results: Results,
    *,
    problem: Problems = None,
    agent: Agents = None,
    logistic: Annotated[bool, typer.Option("--logistic", help="Rewards of 0 and 1.")] = False,
    runs: Runs = None,
    quick: Quick = False,
    seed: Seed = 0,
    effort: Effort | None = None,
) -> dict[str, Any]:
    """Regret on the six synthetic problems (Section 6.2 and Appendix C.1)."""
    effort, rewards = effort or Effort.of(runs, quick), "logistic" if logistic else "linear"
    experiments = []
    for name in problem or SYNTHETIC:
        where = dp.synthetic(name, dp.Logistic() if logistic else None)
        priors = LearnedPriors(name, past_tasks(where, effort.num_samples, seed), results, seed)
        options: dict[str, Any] = {"effort": effort, "agents": agent or NAMES, "seed": seed}
        experiments.append(Experiment(name, where, priors, **options))
    with progress("", sum(e.num_steps for e in experiments)) as shown:
        problems = [experiment.run(shown) for experiment in experiments]
    columns = [[*_clouds(e), found] for e, found in zip(experiments, problems, strict=True)]
    blocks = _blocks(results, f"synthetic-{rewards}", columns, problems)
    settings = {"rewards": rewards, **in_words(effort), "seed": str(seed)}
    summary = [regret_table(problems), findings_table(problems)]
    title = f"Synthetic problems, {rewards} rewards"
    results.report(title, verdict(problems), blocks, settings, summary)
    return {"settings": settings, "problems": problems}


def _clouds(experiment: Experiment) -> list[Clouds]:
    priors, used = experiment.priors, {spec.prior for spec in experiment.specs}
    true = priors.samples[:NUM_SHOWN]
    return [
        Clouds(f"{experiment.name}, {title}", true, priors.draws(name, NUM_SHOWN))
        for name, title in SAMPLED.items()
        if name in used
    ]


def _blocks(
    results: Results,
    name: str,
    columns: list[list[Clouds | ProblemResult]],
    problems: list[ProblemResult],
) -> list[Block]:
    pictures: list[Block] = []
    for i in range(0, len(columns), PER_FIGURE):
        some = columns[i : i + PER_FIGURE]
        rows = list(zip(*some, strict=True)) if len(some) > 1 else some  # the paper's arrangement
        draw = functools.partial(figure_of, rows)
        pictures.append(results.picture(f"{name}-{1 + i // PER_FIGURE}", _CAPTION, draw))
    return [
        Text(_INTRODUCTION),
        Heading("What it says"),
        findings_table(problems),
        *pictures,
        Heading("Regret, and the agents"),
        SideBySide([regret_table(problems), agents_table(list(problems[0].agents))]),
        Text(_EXACT),
        Heading("Posteriors"),
        Text(_POSTERIORS),
        SideBySide([posterior_table(problem) for problem in problems]),
        Heading("Temperatures"),
        equal_temperature_table(problems),
        SideBySide([temperature_table(problem) for problem in problems]),
        Heading("Cost"),
        cost_table(problems),
    ]


_INTRODUCTION = (
    "A new task has two unknown parameters and 100 actions; its rewards are noisy. Agents differ "
    "in what they have learned from the parameters of past tasks, the blue points below. All of "
    "them meet the same new tasks and the same noise; regret is the reward that they lose while "
    "they learn."
)
_CAPTION = (
    "Points: parameters of past tasks (blue) and draws of what was learned from them (red). "
    "Curves: regret by round, with bands of one standard error."
)
_EXACT = (
    "Exact draws from the true posterior: in closed form where there is one, elsewhere under "
    "fresh samples of the true prior. Thompson sampling with them is a reference, not a bound: an "
    "agent that explores less may be ahead over few rounds."
)
_POSTERIORS = (
    "Regret does not tell a good posterior from a narrow one. Distance is the earth mover's, from "
    "the true posterior, over that of exact draws from each other: 1 is exact. Coverage is how "
    "often 90 % intervals hold the truth."
)

if __name__ == "__main__":
    typer.run(command(run_synthetic))
