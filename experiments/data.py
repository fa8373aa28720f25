"""Experiments on data, Section 6.3 and Appendix C.2: regret, and the gain of a learned prior."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

import diffprior as dp
from diffprior.evaluate import Tasks, distance_over_floor, estimate_log_evidence
from diffprior.files.cache import array_digest
from diffprior.progress import Progress, progress
from diffprior.reporting.page import Block, Heading, SideBySide, Text
from diffprior.reporting.tables import Table, plus_minus

from .agents import CHOSEN, NAMES, SAMPLED, LearnedPriors, agents_table
from .cache import ResultCache
from .experiment import (
    Effort,
    Experiment,
    ProblemResult,
    beyond_chance,
    in_words,
    paired,
)
from .figures import Clouds, data_figure, embedding_method, on_plane
from .report import (
    claims_table,
    cost_table,
    equal_temperature_table,
    findings_table,
    picture,
    regret_table,
    temperature_table,
    verdict,
    write_report,
)


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
class DataResult:
    """All kinds of rewards on one data set, and the distances of its priors."""

    title: str
    settings: dict[str, str]
    rewards: tuple[RewardsResult, ...]
    distances: dict[str, PriorDistance]

    @property
    def problems(self) -> list[ProblemResult]:
        """Those of held-out tasks, then those of all tasks."""
        return [r.held_out for r in self.rewards] + [r.whole for r in self.rewards]

    @property
    def summary(self) -> list[Table]:
        """Tables for a terminal."""
        evidence = [log_evidence_table(rewards) for rewards in self.rewards]
        return [regret_table(self.problems), *evidence, distances_table(self)]


AGENTS = tuple(name for name in NAMES if name not in ("EpsilonGreedy", "Exact"))
PRIORS = ("Gaussian", "mixture of 2", CHOSEN, "paper", "default")
# Whose log evidence can be had: the paper's preset has a network of its own for every stage, whose
# errors are unrelated, so that TwistedSMC's weights vary too much for its log to mean anything.
EXPLAINED = tuple(name for name in PRIORS if name != "paper")
HELD_OUT = 0.2
SPLIT_SEED = 2**28  # apart from the seeds of tasks and runs
NUM_SHOWN = 2000  # points of a picture


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
        """All of it, or a quick look."""
        few = Measures(num_tasks=50, num_estimates=4, num_points=500, num_repeats=4)
        return few if quick else Measures()


def read_and_run(
    out: Path,
    read: Callable[[ResultCache], Data],
    cache: ResultCache,
    *,
    runs: int | None,
    quick: bool,
    seed: int,
) -> DataResult:
    """Read a data set and run the experiment on it, as a command line says."""
    effort, measures = data_effort(runs, quick), Measures.of(quick)
    return run_data(out, read(cache), cache, effort=effort, measures=measures, seed=seed)


def data_effort(num_runs: int | None, quick: bool) -> Effort:
    """As for other experiments, but slow agents play all runs unless it is a quick look."""
    effort = Effort.of(num_runs, quick)
    return effort if quick else dataclasses.replace(effort, slow_share=1.0)


class DataExperiment:
    """One data set: its tasks, those held out, and the priors learned from either.

    Priors do not depend on the rewards, so that one set of them serves all kinds.
    """

    def __init__(
        self,
        data: Data,
        cache: ResultCache,
        *,
        effort: Effort,
        measures: Measures,
        agents: tuple[str, ...] = AGENTS,
        seed: int = 0,
    ) -> None:
        self.data, self.cache, self.measures, self.seed = data, cache, measures, seed
        self.effort, self.agents = effort, agents
        problem = dp.RowProblem(data.parameters, data.actions, dp.Linear(noise_std=data.noise_std))
        self.seen, self.held_out = problem.split(jax.random.key(SPLIT_SEED + seed), HELD_OUT)
        self.priors = LearnedPriors("all tasks", problem.parameters, cache, seed)
        self.seen_priors = LearnedPriors("four in five", self.seen.parameters, cache, seed)

    @property
    def num_steps(self) -> int:
        """How many steps of progress there are for one kind of rewards."""
        return 1 + sum(e.num_steps for e in self.experiments("", dp.Linear(noise_std=1.0)))

    def experiments(
        self, name: str, likelihood: dp.AbstractLikelihood
    ) -> tuple[Experiment, Experiment]:
        """Agents on all tasks, and on those held out with priors that have not seen them."""
        whole, held_out = (
            Experiment(
                label,
                dp.RowProblem(parameters, self.data.actions, likelihood),
                priors,
                effort=self.effort,
                agents=self.agents,
                score_posteriors=False,
                seed=self.seed,
            )
            for label, parameters, priors in (
                (name, self.data.parameters, self.priors),
                (f"{name}, held out", self.held_out.parameters, self.seen_priors),
            )
        )
        return whole, held_out

    def rewards(
        self, name: str, likelihood: dp.AbstractLikelihood, shown: Progress
    ) -> RewardsResult:
        """All numbers of one kind of rewards."""
        whole, held_out = self.experiments(name, likelihood)
        both = whole.run(shown), held_out.run(shown)
        shown.describe(f"{name}, log evidence")
        explained = {prior: self.log_evidence(held_out, prior) for prior in EXPLAINED}
        shown.advance()
        return RewardsResult(name, *both, explained)

    def log_evidence(self, experiment: Experiment, prior: str) -> dict[str, LogEvidenceNumbers]:
        """Log evidence of histories of held-out tasks, by size of history."""
        measures, found = self.measures, {}
        for size in measures.sizes:
            settings = {
                **experiment.about(experiment.specs[0]),
                "agent": prior,
                "size": size,
                "tasks": measures.num_tasks,
                "estimates": measures.num_estimates,
            }
            found[str(size)] = self.cache.numbers(
                LogEvidenceNumbers,
                f"log evidence, {experiment.name}, {prior}, {size} actions",
                settings,
                functools.partial(self._log_evidence, experiment, prior, size),
            )
        return found

    def _log_evidence(self, experiment: Experiment, prior: str, size: int) -> LogEvidenceNumbers:
        tasks = Tasks.simulate(
            experiment.problem,
            num_tasks=self.measures.num_tasks,
            num_observations=size,
            seed=self.seed + size,
        )
        found = estimate_log_evidence(
            self.seen_priors[prior],
            tasks,
            num_estimates=self.measures.num_estimates,
            seed=self.seed,
        )
        return LogEvidenceNumbers(
            found.mean,
            found.standard_error,
            found.estimation_error,
            found.shortfall,
            found.failed,
            found.values.tolist(),
        )

    def distances(self) -> dict[str, PriorDistance]:
        """Distance of each prior from held-out parameters, over its floor."""
        measures = self.measures
        seen, held_out = (np.asarray(p.parameters, np.float64) for p in (self.seen, self.held_out))
        rng = np.random.default_rng(self.seed)
        count = min(measures.num_points, len(seen), len(held_out))
        keys = jax.random.split(jax.random.key(self.seed), measures.num_repeats)
        own, others = (
            np.array([rows[rng.permutation(len(rows))[:count]] for _ in keys])
            for rows in (seen, held_out)
        )

        def compute(prior: str) -> PriorDistance:
            draws = np.array([self.seen_priors[prior].sample(key, count) for key in keys])
            found = distance_over_floor(draws, others, own)
            return PriorDistance(found.ratio, found.standard_error, float(np.mean(found.floors)))

        settings = {
            "points": measures.num_points,
            "times": measures.num_repeats,
            "seed": self.seed,
            "samples": self.seen_priors.digest,
        }
        return {
            prior: self.cache.numbers(
                PriorDistance, f"distance, {prior}", settings, functools.partial(compute, prior)
            )
            for prior in PRIORS
        }

    def planes(self) -> dict[str, np.ndarray]:
        """Samples of the true prior and of learned ones, all on one plane."""
        true = self.priors.samples
        rows = np.random.default_rng(self.seed).permutation(len(true))[:NUM_SHOWN]
        key = jax.random.key(self.seed + 1)
        points = {"true": true[rows]} | {
            name: np.asarray(self.priors[name].sample(key, len(rows)), np.float64)
            for name in SAMPLED
        }
        together = np.concatenate(list(points.values()))

        def compute() -> dict[str, np.ndarray]:
            pieces = np.split(on_plane(together, self.seed), len(points))
            return dict(zip(points, pieces, strict=True))

        settings = {"points": array_digest(together), "seed": self.seed}
        return self.cache.arrays(f"plane by {embedding_method()}", settings, compute)


def run_data(
    out: Path,
    data: Data,
    cache: ResultCache,
    *,
    agents: tuple[str, ...] = AGENTS,
    effort: Effort | None = None,
    measures: Measures | None = None,
    seed: int = 0,
) -> DataResult:
    """Run what is missing, draw the figure and write the report."""
    effort, measures = effort or Effort(), measures or Measures()
    experiment = DataExperiment(
        data, cache, effort=effort, measures=measures, agents=agents, seed=seed
    )
    kinds = {"linear": dp.Linear(noise_std=data.noise_std), "logistic": dp.Logistic()}
    with progress("", 2 * experiment.num_steps) as shown:
        rewards = tuple(experiment.rewards(name, kind, shown) for name, kind in kinds.items())
    settings = {**data.facts, **in_words(effort), **in_words(measures), "seed": str(seed)}
    result = DataResult(data.title, settings, rewards, experiment.distances())
    blocks = data_blocks(out, data.name, data.introduction, result, experiment.planes())
    write_report(out, data.title, verdict(result.problems), blocks, settings, cache)
    return result


GAUSSIAN = "Gaussian"
TITLES = {"paper": "diffusion, the paper's preset", "default": "diffusion, default"}


def data_blocks(
    out: Path, name: str, introduction: str, result: DataResult, planes: dict[str, np.ndarray]
) -> list[Block]:
    """All that the report says."""
    clouds = [
        Clouds(f"{embedding_method()}, {title}", planes["true"], planes[prior])
        for prior, title in SAMPLED.items()
    ]
    wholes = [rewards.whole for rewards in result.rewards]
    agents = tuple(dict.fromkeys(agent for r in result.problems for agent in r.agents))
    return [
        Text(introduction),
        Heading("What it says"),
        Text(_HELD_OUT),
        findings_table(result.problems),
        claims_table(result.problems),
        picture(out, name, _CAPTION, lambda: data_figure(clouds, wholes)),
        Heading("Log evidence of held-out tasks"),
        Text(_LOG_EVIDENCE),
        SideBySide([log_evidence_table(rewards) for rewards in result.rewards]),
        Heading("Regret, and the agents"),
        SideBySide([regret_table(result.problems), agents_table(agents)]),
        Heading("Temperatures"),
        equal_temperature_table(result.problems),
        SideBySide([temperature_table(problem) for problem in result.problems]),
        Heading("Samples of the priors, and cost"),
        SideBySide([distances_table(result), cost_table(result.problems)]),
    ]


def log_evidence_table(rewards: RewardsResult) -> Table:
    """Mean log evidence of every prior, and how much more it is than that of the Gaussian."""
    found = rewards.log_evidence
    sizes = list(found[GAUSSIAN])
    rows: list[list[str]] = []
    marked = set()
    for name, by_size in found.items():
        cells = []
        for j, size in enumerate(sizes):
            gain = paired(by_size[size].values, found[GAUSSIAN][size].values)
            if name != GAUSSIAN and beyond_chance(*gain):
                marked.add((len(rows), 2 + 2 * j))
            more = "" if name == GAUSSIAN else plus_minus(*gain, signed=True)
            cells += [_with_estimation(by_size[size]), more]
        rows.append([TITLES.get(name, name), *cells])
    columns = [c for size in sizes for c in (f"log p(h), N = {size}", "over Gaussian")]
    caption = (
        f"{rewards.name}: mean log evidence per task after N random actions with its standard "
        "error over tasks (in brackets, what estimating adds); the difference from the Gaussian, "
        "paired over tasks, bold beyond chance."
    )
    return Table(("prior", *columns), rows, caption, frozenset(marked))


def distances_table(result: DataResult) -> Table:
    """How far samples of each prior are from held-out parameters."""
    rows = [
        [TITLES.get(name, name), plus_minus(row.ratio, row.standard_error)]
        for name, row in result.distances.items()
    ]
    floor = next(iter(result.distances.values())).floor
    caption = (
        "Earth mover's distance of samples of a prior from held-out parameters, over that of as "
        f"many parameters not held out, {floor:.3f}: 1 is as good as the parameters themselves."
    )
    return Table(("prior", "distance over floor"), rows, caption)


def _with_estimation(numbers: LogEvidenceNumbers) -> str:
    text = plus_minus(numbers.mean, numbers.standard_error)
    return f"{text} ({numbers.estimation_error:.3f})" if numbers.estimation_error else text


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
