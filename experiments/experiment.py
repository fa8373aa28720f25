"""Agents compared on one problem: regret, temperatures, and the posteriors behind them."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from diffprior.bandits.agents import AbstractAgent
from diffprior.bandits.simulate import simulate
from diffprior.evaluate.calibration import interval_coverage
from diffprior.evaluate.distances import distance_over_floor
from diffprior.evaluate.draws import draw_posteriors
from diffprior.evaluate.tasks import Tasks
from diffprior.priors.base import AbstractClosedFormPrior, AbstractPrior
from diffprior.problems.base import AbstractProblem
from diffprior.progress import Progress
from diffprior.samplers.exact import Exact

from .agents import NAMES, TRUE, AgentSpec, LearnedPriors, agent_specs, true_prior
from .parts import Part
from .results import AgentResult, PosteriorError, ProblemResult, Regret

FEWEST_TASKS = 8  # that a slow sampler is judged on
SAMPLES_SEED = 2**29  # of past tasks, apart from those that agents meet


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much of everything."""

    num_runs: int = 512
    num_rounds: int = 200
    temperatures: tuple[float, ...] = (0.5, 0.25, 0.1)  # besides 1
    temperature_runs: int = 128
    slow_share: float = 1 / 8  # of runs and tasks that slow agents get
    num_samples: int = 10_000  # of past tasks
    sizes: tuple[int, ...] = (5, 20, 100)  # of histories
    num_tasks: int = 16  # for distances
    num_draws: int = 199
    coverage_tasks: int = 200
    coverage_draws: int = 19

    @staticmethod
    def of(num_runs: int | None, quick: bool) -> "Effort":
        """The paper's effort, or a quick look; `num_runs` overrides the runs of either."""
        small = Effort(
            num_runs=64,
            temperatures=(0.25,),
            temperature_runs=64,
            sizes=(5, 20),
            num_tasks=8,
            num_draws=99,
            coverage_tasks=50,
        )
        usual = small if quick else Effort()
        if num_runs is None:
            return usual
        fewer = min(num_runs, usual.temperature_runs)
        return dataclasses.replace(usual, num_runs=num_runs, temperature_runs=fewer)

    def share(self, spec: AgentSpec, count: int) -> int:
        """How many of so many runs or tasks an agent gets."""
        return max(min(2, count), round(self.slow_share * count)) if spec.slow else count


def in_words(settings: Any) -> dict[str, str]:
    """The fields of a dataclass of settings, for a report."""
    fields = dataclasses.asdict(settings).items()
    return {name.replace("_", " "): str(value).strip("()") for name, value in fields}


class Experiment:
    """Agents on one problem, with priors learned from samples of its parameters.

    Args:
        name: Of the problem, as in tables.
        problem: Where the agents act.
        priors: What they have learned from past tasks.
        effort: How much of everything.
        agents: Their names.
        judge_posteriors: Whether the true prior is known, so that posteriors can be judged.
        seed: Of everything random.
    """

    def __init__(
        self,
        name: str,
        problem: AbstractProblem,
        priors: LearnedPriors,
        *,
        effort: Effort,
        agents: tuple[str, ...] = NAMES,
        judge_posteriors: bool = True,
        seed: int = 0,
    ) -> None:
        self.name, self.problem, self.priors = name, problem, priors
        self.effort, self.seed, self.judge_posteriors = effort, seed, judge_posteriors
        self.specs = agent_specs(agents)
        self.cache = priors.cache

    def prior_parts(self) -> list[Part]:
        """What learns the priors that its agents need; each asks the cache for one."""
        names = dict.fromkeys(spec.prior for spec in self.specs if spec.prior != TRUE)
        return [functools.partial(self.priors.__getitem__, name) for name in names]

    def parts(self) -> list[Part]:
        """Every regret and every posterior, as functions that ask the cache for one."""
        effort, found = self.effort, list[Part]()
        for spec in self.specs:
            found.append(functools.partial(self.regret, spec, effort.num_runs))
            if spec.sampler is not None:
                runs = effort.temperature_runs
                for t in effort.temperatures:
                    found.append(functools.partial(self.regret, spec, runs, t))
                found.append(functools.partial(self.posterior, spec))
        return found

    def run(self, progress: Progress) -> ProblemResult:
        """All agents; `progress` is told of each."""
        agents = {}
        for spec in self.specs:
            progress.describe(f"{self.name}, {spec.name}")
            agents[spec.name] = self.result(spec)
            progress.advance()
        return ProblemResult(self.name, self.effort.sizes, agents)

    def result(self, spec: AgentSpec) -> AgentResult:
        """One agent: regret at every temperature, and its posterior."""
        regret = self.regret(spec, self.effort.num_runs)
        if spec.sampler is None:
            return AgentResult(regret)
        runs = self.effort.temperature_runs
        tempered = {f"{t:g}": self.regret(spec, runs, t) for t in self.effort.temperatures}
        return AgentResult(regret, tempered, self.posterior(spec))

    def regret(self, spec: AgentSpec, num_runs: int, temperature: float = 1.0) -> Regret:
        """Regret of one agent at one temperature."""
        num_runs, rounds = self.effort.share(spec, num_runs), self.effort.num_rounds
        at = "" if temperature == 1 else f", temperature {temperature:g}"
        settings = {**self.about(spec), "runs": num_runs, "rounds": rounds, "at": temperature}

        def compute() -> Regret:
            agent = spec.agent(self.prior(spec), self.problem.likelihood, temperature)
            return play(self.problem, agent, num_runs, rounds, self.seed)

        name = f"regret, {self.name}, {spec.name}{at}"
        return self.cache.numbers(Regret, name, settings, compute)

    def posterior(self, spec: AgentSpec) -> PosteriorError | None:
        """Distance from the true posterior at each size of history, and coverage."""
        if not self.judge_posteriors:
            return None
        effort = dataclasses.asdict(self.effort)
        judged = ("sizes", "num_tasks", "num_draws", "coverage_tasks", "coverage_draws")
        settings = {**self.about(spec), **{key: effort[key] for key in judged}}
        name = f"posterior, {self.name}, {spec.name}"
        return self.cache.numbers(PosteriorError, name, settings, lambda: self._posterior(spec))

    def prior(self, spec: AgentSpec) -> AbstractPrior:
        """The prior of an agent."""
        return self.truth if spec.prior == TRUE else self.priors[spec.prior]

    @functools.cached_property
    def truth(self) -> AbstractClosedFormPrior:
        """The true prior, or samples that stand for it."""
        return true_prior(self.problem, self.seed)

    def about(self, spec: AgentSpec) -> dict[str, Any]:
        """What the numbers of an agent depend on."""
        likelihood = self.problem.likelihood
        noise = getattr(likelihood, "noise_std", None)
        return {
            "problem": self.name,
            "agent": spec.name,
            "likelihood": type(likelihood).__name__,
            "noise": None if noise is None else float(noise),
            "samples": self.priors.digest,
            "seed": self.seed,
        }

    def _posterior(self, spec: AgentSpec) -> PosteriorError:
        assert spec.sampler is not None
        sampler, effort = spec.sampler(self.prior(spec)), self.effort
        ratios, errors, draws, truths = [], [], [], []
        for tasks, true in self._judged:
            few = max(FEWEST_TASKS, effort.share(spec, effort.num_tasks))
            near = tasks.select(slice(min(few, effort.num_tasks)))
            ours = draw_posteriors(sampler, near, effort.num_draws, self.seed).values
            exact = true[: len(near)]
            distance = distance_over_floor(
                ours, exact[:, : effort.num_draws], exact[:, effort.num_draws :]
            )
            ratios.append(distance.ratio)
            errors.append(distance.standard_error)
            few = max(FEWEST_TASKS, effort.share(spec, effort.coverage_tasks))
            others = tasks.select(slice(effort.num_tasks, effort.num_tasks + few))
            draws.append(draw_posteriors(sampler, others, effort.coverage_draws, self.seed).values)
            truths.append(others.true_parameters())
        covered = interval_coverage(np.concatenate(draws), np.concatenate(truths))
        return PosteriorError(ratios, errors, covered.share, covered.standard_error)

    @functools.cached_property
    def _judged(self) -> list[tuple[Tasks, np.ndarray]]:
        """Tasks of every size of history, and exact draws from the posteriors of the first."""
        effort = self.effort
        found = []
        for size in effort.sizes:
            tasks = Tasks.simulate(
                self.problem,
                num_tasks=effort.num_tasks + effort.coverage_tasks,
                num_observations=size,
                seed=self.seed + size,
            )
            first = tasks.select(slice(effort.num_tasks))
            exact = Exact(self.truth)
            draws = draw_posteriors(exact, first, 2 * effort.num_draws, self.seed + 1)
            found.append((tasks, draws.values))
        return found


def play(
    problem: AbstractProblem, agent: AbstractAgent, num_runs: int, num_rounds: int, seed: int
) -> Regret:
    """Regret of one agent."""
    result = simulate(
        problem, {"agent": agent}, num_runs, num_rounds, seed, progress=False, throw=False
    )
    mean, error = result.mean("agent"), result.standard_error("agent")
    return Regret(
        mean=float(mean[-1]),
        standard_error=float(error[-1]),
        final=result.regret["agent"][:, -1].tolist(),
        curve=mean.tolist(),
        curve_error=error.tolist(),
        seconds=result.seconds["agent"],
        compile_seconds=result.compile_seconds["agent"],
        failures=result.failures["agent"],
    )


def past_tasks(problem: AbstractProblem, num_samples: int, seed: int) -> np.ndarray:
    """Parameters to learn from, apart from those of the tasks that agents meet."""
    key = jax.random.key(SAMPLES_SEED + seed)
    return np.asarray(problem.sample_parameters(key, num_samples), np.float64)
