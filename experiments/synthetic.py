"""The synthetic experiments of Section 6.2 and Appendix C.1: six priors in the plane.

`python -m experiments.synthetic --problem corners --quick`
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

import diffprior as dp
from diffprior.problems.synthetic import SYNTHETIC
from diffprior.progress import progress
from diffprior.reporting.page import Block, Heading, SideBySide, Text
from diffprior.reporting.tables import Table

from .agents import NAMES, SAMPLED, LearnedPriors, agents_table
from .cache import ResultCache
from .command import Agents, Fresh, Json, Out, Problems, Quick, Runs, Seed, conduct
from .experiment import Effort, Experiment, ProblemResult, in_words, past_tasks
from .figures import Clouds, regret_figure
from .report import (
    cost_table,
    equal_temperature_table,
    findings_table,
    picture,
    posterior_table,
    regret_table,
    temperature_table,
    verdict,
    write_report,
)

PER_FIGURE = 3
NUM_SHOWN = 2000  # samples of a prior in a picture


@dataclass(frozen=True)
class SyntheticResult:
    """All agents on every problem, with one kind of rewards."""

    rewards: str
    settings: dict[str, str]
    problems: tuple[ProblemResult, ...]

    @property
    def summary(self) -> list[Table]:
        """Tables for a terminal."""
        return [regret_table(self.problems), findings_table(self.problems)]


def run_synthetic(
    out: Path,
    cache: ResultCache,
    *,
    names: tuple[str, ...] = SYNTHETIC,
    agents: tuple[str, ...] = NAMES,
    effort: Effort | None = None,
    logistic: bool = False,
    seed: int = 0,
) -> SyntheticResult:
    """Run what is missing, draw the figures and write the report."""
    effort = effort or Effort()
    rewards = "logistic" if logistic else "linear"
    experiments = [_experiment(name, cache, effort, agents, logistic, seed) for name in names]
    with progress("", sum(e.num_steps for e in experiments)) as shown:
        problems = tuple(experiment.run(shown) for experiment in experiments)
    settings = {"rewards": rewards, **in_words(effort), "seed": str(seed)}
    result = SyntheticResult(rewards, settings, problems)
    blocks = _blocks(out, experiments, result)
    title = f"Synthetic problems, {rewards} rewards"
    write_report(out, title, verdict(result.problems), blocks, settings, cache)
    return result


def _experiment(
    name: str,
    cache: ResultCache,
    effort: Effort,
    agents: tuple[str, ...],
    logistic: bool,
    seed: int,
) -> Experiment:
    problem = dp.synthetic(name, dp.Logistic() if logistic else None)
    samples = past_tasks(problem, effort.num_samples, seed)
    priors = LearnedPriors(name, samples, cache, seed)
    return Experiment(name, problem, priors, effort=effort, agents=agents, seed=seed)


def _blocks(out: Path, experiments: list[Experiment], result: SyntheticResult) -> list[Block]:
    problems = result.problems
    columns = [(_clouds(e), found) for e, found in zip(experiments, problems, strict=True)]
    pictures = [
        picture(
            out,
            f"synthetic-{result.rewards}-{1 + i // PER_FIGURE}",
            _CAPTION,
            functools.partial(regret_figure, columns[i : i + PER_FIGURE]),
        )
        for i in range(0, len(columns), PER_FIGURE)
    ]
    agents = tuple(dict.fromkeys(spec.name for e in experiments for spec in e.specs))
    return [
        Text(_INTRODUCTION),
        Heading("What it says"),
        findings_table(problems),
        *pictures,
        Heading("Regret, and the agents"),
        SideBySide([regret_table(problems), agents_table(agents)]),
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


def _clouds(experiment: Experiment) -> list[Clouds]:
    key = jax.random.key(experiment.seed + 1)
    used = {spec.prior for spec in experiment.specs}
    true = experiment.priors.samples[:NUM_SHOWN]
    return [
        Clouds(
            f"{experiment.name}, {title}",
            true,
            np.asarray(experiment.priors[name].sample(key, NUM_SHOWN)),
        )
        for name, title in SAMPLED.items()
        if name in used
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


def main(
    out: Out = Path("results/synthetic"),
    json: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    problem: Problems = None,
    agent: Agents = None,
    logistic: Annotated[bool, typer.Option("--logistic", help="Rewards of 0 and 1.")] = False,
    fresh: Fresh = False,
    seed: Seed = 0,
) -> None:
    """Regret on the six synthetic problems (Section 6.2 and Appendix C.1)."""
    run = functools.partial(
        run_synthetic,
        out,
        names=tuple(problem or SYNTHETIC),
        agents=tuple(agent or NAMES),
        effort=Effort.of(runs, quick),
        logistic=logistic,
        seed=seed,
    )
    conduct(run, out, json, fresh)


if __name__ == "__main__":
    typer.run(main)
