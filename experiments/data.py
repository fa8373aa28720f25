"""Experiments on data, of Section 6.3 and Appendix C.2: regret, and what the prior is worth."""

import dataclasses
import functools
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from diffprior.evaluate.distances import prior_distances
from diffprior.evaluate.estimates import estimate_log_evidence
from diffprior.evaluate.tasks import Tasks
from diffprior.evidence.base import AbstractLikelihood
from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.executors import AbstractExecutor
from diffprior.files.cache import ResultCache, array_digest
from diffprior.problems.rows import RowProblem
from diffprior.progress import Progress, progress
from diffprior.reporting.tables import Table

from .agents import CHOSEN, NAMES, SAMPLED, LearnedPriors
from .data_report import data_blocks, distances_table, log_evidence_table
from .data_results import DataResult, LogEvidenceNumbers, PriorDistance, RewardsResult
from .embedding import method, on_plane
from .experiment import Effort, Experiment, in_words
from .parts import Part, share_out
from .report import write_report
from .tables import regret_table

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
        problem = RowProblem(data.parameters, data.actions, Linear(noise_std=data.noise_std))
        self.seen, self.held_out = problem.split(jax.random.key(SPLIT_SEED + seed), HELD_OUT)
        self.priors = LearnedPriors("all tasks", problem.parameters, cache, seed)
        self.seen_priors = LearnedPriors("four in five", self.seen.parameters, cache, seed)

    @property
    def num_steps(self) -> int:
        """How many steps of progress there are for one kind of rewards."""
        return 2 * len(self.agents) + 1

    def experiments(
        self, name: str, likelihood: AbstractLikelihood
    ) -> tuple[Experiment, Experiment]:
        """Agents on all tasks, and on those held out with priors that have not seen them."""
        whole, held_out = (
            Experiment(
                label,
                RowProblem(parameters, self.data.actions, likelihood),
                priors,
                effort=self.effort,
                agents=self.agents,
                judge_posteriors=False,
                seed=self.seed,
            )
            for label, parameters, priors in (
                (name, self.data.parameters, self.priors),
                (f"{name}, held out", self.held_out.parameters, self.seen_priors),
            )
        )
        return whole, held_out

    def prior_parts(self) -> list[Part]:
        """What learns the priors, whatever the rewards."""
        every = (self.priors, self.seen_priors)
        return [functools.partial(priors.__getitem__, name) for priors in every for name in PRIORS]

    def parts(self, name: str, likelihood: AbstractLikelihood) -> list[Part]:
        """What computes the numbers of one kind of rewards, and the distances."""
        whole, held_out = self.experiments(name, likelihood)
        explained = [functools.partial(self.log_evidence, held_out, prior) for prior in EXPLAINED]
        return [*whole.parts(), *held_out.parts(), *explained, self.distances]

    def rewards(self, name: str, likelihood: AbstractLikelihood, told: Progress) -> RewardsResult:
        """All numbers of one kind of rewards."""
        whole, held_out = self.experiments(name, likelihood)
        both = whole.run(told), held_out.run(told)
        told.describe(f"{name}, log evidence")
        explained = {prior: self.log_evidence(held_out, prior) for prior in EXPLAINED}
        told.advance()
        return RewardsResult(name, *both, explained)

    def log_evidence(self, experiment: Experiment, prior: str) -> dict[str, LogEvidenceNumbers]:
        """Log evidence of histories of tasks that were held out, by size of history."""
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
        """Distance of each prior from parameters that were held out, over its floor."""
        measures = self.measures
        seen, held_out = (np.asarray(p.parameters, np.float64) for p in (self.seen, self.held_out))

        def compute(prior: str) -> PriorDistance:
            found = prior_distances(
                {prior: self.seen_priors[prior]},
                seen,
                held_out,
                num_points=measures.num_points,
                num_repeats=measures.num_repeats,
                seed=self.seed,
            )[prior]
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
        return self.cache.arrays(f"plane by {method()}", settings, compute)


def run_data(
    out: Path,
    cache: ResultCache,
    data: Data,
    *,
    agents: tuple[str, ...] = AGENTS,
    effort: Effort | None = None,
    measures: Measures | None = None,
    seed: int = 0,
    executor: AbstractExecutor | None = None,
) -> DataResult:
    """Run what is missing, draw the figure and write the report."""
    effort, measures = effort or Effort(), measures or Measures()
    experiment = DataExperiment(
        data, cache, effort=effort, measures=measures, agents=agents, seed=seed
    )
    kinds = {"linear": Linear(noise_std=data.noise_std), "logistic": Logistic()}
    share_out(cache, experiment.prior_parts(), executor, "priors")
    parts = [part for kind in kinds.items() for part in experiment.parts(*kind)]
    share_out(cache, parts, executor, "parts")
    with progress("", 2 * experiment.num_steps) as told:
        rewards = tuple(experiment.rewards(name, kind, told) for name, kind in kinds.items())
    settings = {**data.facts, **in_words(effort), **in_words(measures), "seed": str(seed)}
    result = DataResult(data.title, settings, rewards, experiment.distances())
    blocks = data_blocks(out, data.name, data.introduction, result, experiment.planes())
    write_report(out, data.title, blocks, settings, cache)
    return result


def summary(result: DataResult) -> list[Table]:
    """What a terminal shows."""
    evidence = [log_evidence_table(rewards) for rewards in result.rewards]
    return [regret_table(result.problems), *evidence, distances_table(result)]
