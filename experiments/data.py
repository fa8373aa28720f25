"""Experiments on data, Section 6.3 and Appendix C.2: regret, and the gain of a learned prior."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import diffprior as dp
from diffprior.evaluate import distance_over_floor, estimate_log_evidence, simulate_tasks
from diffprior.files.cache import array_digest
from diffprior.progress import progress
from diffprior.reporting.page import Block, Heading, SideBySide, Text
from diffprior.reporting.tables import Table, plus_minus

from .agents import CHOSEN, NAMES, SAMPLED, LearnedPriors, agents_table
from .experiment import Effort, Experiment, ProblemResult, beyond_chance, in_words, paired
from .figures import Clouds, embedding_method, figure_of, on_plane
from .report import (
    claims_table,
    cost_table,
    equal_temperature_table,
    findings_table,
    regret_table,
    temperature_table,
    verdict,
)
from .results import Results

AGENTS = tuple(name for name in NAMES if name not in ("EpsilonGreedy", "Exact"))
GAUSSIAN = "Gaussian"
PRIORS = (GAUSSIAN, "mixture of 2", CHOSEN, "paper", "default")
# Whose log evidence can be had: the paper's preset has a network of its own for every stage, whose
# errors are unrelated, so that TwistedSMC's weights vary too much for its log to mean anything.
EXPLAINED = tuple(name for name in PRIORS if name != "paper")
TITLES = {"paper": "diffusion, the paper's preset", "default": "diffusion, default"}
HELD_OUT = 0.2
SPLIT_SEED = 2**28  # apart from the seeds of tasks and runs
NUM_SHOWN = 2000  # points of a picture


@dataclass(frozen=True)
class LogEvidenceNumbers:
    """log p(h) of held-out tasks under one prior, in nats; `values` task by task."""

    mean: float
    standard_error: float
    estimation_error: float
    shortfall: float
    failed: int
    values: list[float]


@dataclass(frozen=True)
class PriorDistance:
    """Earth mover's distance from held-out parameters, over that of parameters seen (floor)."""

    ratio: float
    standard_error: float
    floor: float


@dataclass(frozen=True)
class RewardsResult:
    """One kind of rewards: regret on all tasks and on those held out; log evidence."""

    name: str
    whole: ProblemResult
    held_out: ProblemResult
    log_evidence: dict[str, dict[str, LogEvidenceNumbers]]  # by prior and size of history


@dataclass(frozen=True)
class Data:
    """Parameters of past tasks (n, d), features of actions (m, d), noise of linear rewards."""

    name: str
    title: str
    introduction: str
    parameters: np.ndarray
    actions: np.ndarray
    noise_std: float
    facts: dict[str, str]


@dataclass(frozen=True)
class Measures:
    """How much of what is measured besides regret."""

    sizes: tuple[int, ...] = (20, 100)  # of histories whose log evidence is taken
    num_tasks: int = 200
    num_estimates: int = 8  # of each log evidence
    num_points: int = 1000  # of each earth mover's distance
    num_repeats: int = 8

    @staticmethod
    def of(quick: bool) -> "Measures":
        few = Measures(num_tasks=50, num_estimates=4, num_points=500, num_repeats=4)
        return few if quick else Measures()


def data_effort(num_runs: int | None, quick: bool) -> Effort:
    """As for other experiments, but slow agents play all runs unless it is a quick look."""
    effort = Effort.of(num_runs, quick)
    return effort if quick else dataclasses.replace(effort, slow_share=1.0)


def run_data(
    results: Results,
    data: Data,
    *,
    effort: Effort,
    measures: Measures,
    seed: int,
    agents: tuple[str, ...] = AGENTS,
) -> dict[str, Any]:
    """Run what is missing, draw the figure and write the report.

    Priors do not depend on the rewards, so that one set of them serves all kinds.
    """
    kinds = {"linear": dp.Linear(noise_std=data.noise_std), "logistic": dp.Logistic()}
    problem = dp.RowProblem(data.parameters, data.actions, kinds["linear"])
    seen, held_out = problem.split(jax.random.key(SPLIT_SEED + seed), HELD_OUT)
    every = LearnedPriors("all tasks", problem.parameters, results, seed)
    some = LearnedPriors("four in five", seen.parameters, results, seed)

    def experiment(name: str, rows: Any, kind: Any, priors: LearnedPriors) -> Experiment:
        where = dp.RowProblem(rows, data.actions, kind)
        options: dict[str, Any] = {"effort": effort, "agents": agents, "score_posteriors": False}
        return Experiment(name, where, priors, **options, seed=seed)

    pairs = {
        name: (
            experiment(name, data.parameters, kind, every),
            experiment(f"{name}, held out", held_out.parameters, kind, some),
        )
        for name, kind in kinds.items()
    }
    num_steps = sum(1 + sum(e.num_steps for e in pair) for pair in pairs.values())
    rewards = []
    with progress("", num_steps) as shown:
        for name, pair in pairs.items():
            both = [each.run(shown) for each in pair]
            shown.describe(f"{name}, log evidence")
            explained = {prior: log_evidence(pair[1], prior, measures) for prior in EXPLAINED}
            rewards.append(RewardsResult(name, *both, explained))
            shown.advance()
    distances = {p: distance(some, p, held_out.parameters, measures) for p in PRIORS}
    settings = {**data.facts, **in_words(effort), **in_words(measures), "seed": str(seed)}
    problems = [r.held_out for r in rewards] + [r.whole for r in rewards]
    tables = [log_evidence_table(each) for each in rewards]
    planes = planes_of(every)
    clouds = [
        Clouds(f"{embedding_method()}, {title}", planes["true"], planes[prior])
        for prior, title in SAMPLED.items()
    ]
    row = [*clouds, *(each.whole for each in rewards)]
    blocks: list[Block] = [
        Text(data.introduction),
        Heading("What it says"),
        Text(_HELD_OUT),
        findings_table(problems),
        claims_table(problems),
        results.picture(data.name, _CAPTION, lambda: figure_of([row])),
        Heading("Log evidence of held-out tasks"),
        Text(_LOG_EVIDENCE),
        SideBySide(tables),
        Heading("Regret, and the agents"),
        SideBySide([regret_table(problems), agents_table(agents)]),
        Heading("Temperatures"),
        equal_temperature_table(problems),
        SideBySide([temperature_table(problem) for problem in problems]),
        Heading("Samples of the priors, and cost"),
        SideBySide([distances_table(distances), cost_table(problems)]),
    ]
    summary = [regret_table(problems), *tables, distances_table(distances)]
    results.report(data.title, verdict(problems), blocks, settings, summary)
    found = {"title": data.title, "rewards": rewards, "distances": distances}
    return {**found, "settings": settings}


def log_evidence(
    experiment: Experiment, prior: str, measures: Measures
) -> dict[str, LogEvidenceNumbers]:
    """Log evidence of histories of held-out tasks, by size of history."""
    priors, seed, found = experiment.priors, experiment.seed, {}

    def compute(size: int) -> LogEvidenceNumbers:
        tasks = simulate_tasks(
            experiment.problem,
            num_tasks=measures.num_tasks,
            num_observations=size,
            seed=seed + size,
        )
        about, number = (tasks, experiment.problem.likelihood), measures.num_estimates
        e = estimate_log_evidence(priors[prior], *about, num_estimates=number, seed=seed)
        numbers = (e.mean, e.standard_error, e.estimation_error, e.shortfall, e.failed)
        return LogEvidenceNumbers(*numbers, e.values.tolist())

    for size in measures.sizes:
        settings = {
            **experiment.about(experiment.specs[0]),
            "agent": prior,
            "size": size,
            "tasks": measures.num_tasks,
            "estimates": measures.num_estimates,
        }
        name = f"log evidence, {experiment.name}, {prior}, {size} actions"
        part = functools.partial(compute, size)
        found[str(size)] = priors.results.numbers(LogEvidenceNumbers, name, settings, part)
    return found


def distance(priors: LearnedPriors, name: str, held_out: Any, measures: Measures) -> PriorDistance:
    """Distance of a prior from held-out parameters, over its floor."""

    def compute() -> PriorDistance:
        rng = np.random.default_rng(priors.seed)
        sides = (priors.samples, np.asarray(held_out, np.float64))
        count = min(measures.num_points, *map(len, sides))
        keys = jax.random.split(jax.random.key(priors.seed), measures.num_repeats)
        own, others = (
            np.array([rows[rng.permutation(len(rows))[:count]] for _ in keys]) for rows in sides
        )
        draws = np.array([priors[name].sample(key, count) for key in keys])
        found = distance_over_floor(draws, others, own)
        return PriorDistance(found.ratio, found.standard_error, float(np.mean(found.floors)))

    settings = {"points": measures.num_points, "times": measures.num_repeats}
    settings |= {"seed": priors.seed, "samples": priors.digest}
    return priors.results.numbers(PriorDistance, f"distance, {name}", settings, compute)


def planes_of(priors: LearnedPriors) -> dict[str, np.ndarray]:
    """Samples of the true prior and of learned ones, all on one plane."""
    true, seed = priors.samples, priors.seed
    rows = np.random.default_rng(seed).permutation(len(true))[:NUM_SHOWN]
    points = {"true": true[rows]} | {name: priors.draws(name, len(rows)) for name in SAMPLED}
    together = np.concatenate(list(points.values()))

    def compute() -> dict[str, np.ndarray]:
        return dict(zip(points, np.split(on_plane(together, seed), len(points)), strict=True))

    settings = {"points": array_digest(together), "seed": seed}
    return priors.results.arrays(f"plane by {embedding_method()}", settings, compute)


def log_evidence_table(rewards: RewardsResult) -> Table:
    """Mean log evidence of every prior, and how much more it is than that of the Gaussian."""
    found = rewards.log_evidence
    sizes = list(found[GAUSSIAN])
    rows: list[list[str]] = []
    marked = set()
    for name, by_size in found.items():
        cells = []
        for j, size in enumerate(sizes):
            numbers = by_size[size]
            gain = paired(numbers.values, found[GAUSSIAN][size].values)
            if name != GAUSSIAN and beyond_chance(*gain):
                marked.add((len(rows), 2 + 2 * j))
            estimating = numbers.estimation_error
            cells.append(
                plus_minus(numbers.mean, numbers.standard_error)
                + (f" ({estimating:.3f})" if estimating else "")
            )
            cells.append("" if name == GAUSSIAN else plus_minus(*gain, signed=True))
        rows.append([TITLES.get(name, name), *cells])
    columns = [c for size in sizes for c in (f"log p(h), N = {size}", "over Gaussian")]
    caption = (
        f"{rewards.name}: mean log evidence per task after N random actions with its standard "
        "error over tasks (in brackets, what estimating adds); the difference from the Gaussian, "
        "paired over tasks, bold beyond chance."
    )
    return Table(("prior", *columns), rows, caption, frozenset(marked))


def distances_table(distances: dict[str, PriorDistance]) -> Table:
    """How far samples of each prior are from held-out parameters."""
    rows = [
        [TITLES.get(name, name), plus_minus(row.ratio, row.standard_error)]
        for name, row in distances.items()
    ]
    floor = next(iter(distances.values())).floor
    caption = (
        "Earth mover's distance of samples of a prior from held-out parameters, over that of as "
        f"many parameters not held out, {floor:.3f}: 1 is as good as the parameters themselves."
    )
    return Table(("prior", "distance over floor"), rows, caption)


_HELD_OUT = (
    "Held out means that the priors were learned from four tasks in five and that the agents act "
    "on the others, which is what a user will meet."
)
_CAPTION = (
    "Samples of the true prior (blue) and of learned ones (red), on one plane; regret by round on "
    "all tasks, with bands of one standard error."
)
_LOG_EVIDENCE = (
    "How well a prior explains tasks that it has not seen asks nothing of exploration. It is exact "
    "for linear rewards under Gaussian and mixture, and estimated otherwise. The paper's preset is "
    "left out: each of its stages has a network of its own, whose errors are unrelated, so that "
    "estimates vary by more than what the priors differ in."
)
