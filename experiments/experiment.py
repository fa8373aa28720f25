"""Running, caching and comparing agents: what the experiments share."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import numpy as np
from scipy.stats import sem

import diffprior as dp
from diffprior.evaluate import distance_over_floor, simulate_tasks
from diffprior.evaluate.calibration import interval_coverage
from diffprior.evaluate.tasks import draw_posteriors
from diffprior.executors import InProcess
from diffprior.progress import Progress

from .agents import NAMES, TRUE, AgentSpec, LearnedPriors, agent_specs, true_prior

Part = TypeVar("Part")
CHANCE = 2.0  # standard errors that a difference must exceed
REFERENCE = "Exact"  # knows the true prior, and so competes with nobody
FEWEST_TASKS = 8  # that a slow sampler is scored on
SAMPLES_SEED = 2**29  # of past tasks, apart from those that agents meet


@dataclass(frozen=True)
class Regret:
    """Regret of one agent, Eq. (9), over runs: after the last round, and after every round."""

    mean: float
    standard_error: float
    final: list[float]  # of every run
    curve: list[float]
    curve_error: list[float]
    seconds: float
    compile_seconds: float
    failures: int


@dataclass(frozen=True)
class PosteriorError:
    """Earth mover's distance from the true posterior over its floor, by size; 90 % coverage."""

    ratio: list[float]
    ratio_error: list[float]
    coverage: float
    coverage_error: float


@dataclass(frozen=True)
class AgentResult:
    """One agent on one problem; `tempered` by temperature, for Thompson sampling."""

    regret: Regret
    tempered: dict[str, Regret] = field(default_factory=dict)
    posterior: PosteriorError | None = None


@dataclass(frozen=True)
class ProblemResult:
    """All agents on one problem, and the sizes of histories that posteriors were scored after."""

    name: str
    sizes: tuple[int, ...]
    agents: dict[str, AgentResult]

    def saved(self, agent: str, baseline: str, temperature: str = "1") -> tuple[float, float]:
        """Regret that an agent saves over a baseline at one temperature, and its standard error."""
        ours, theirs = (
            found.regret if temperature == "1" else found.tempered[temperature]
            for found in (self.agents[agent], self.agents[baseline])
        )
        return paired(theirs.final, ours.final)

    @property
    def competitors(self) -> list[str]:
        """Agents that one can have: all but the reference, unless there is no other."""
        return [name for name in self.agents if name != REFERENCE] or list(self.agents)

    @property
    def lowest(self) -> str:
        """The competitor of the lowest mean regret, of those that have played the most runs."""
        most = max(len(self.agents[name].regret.final) for name in self.competitors)
        whole = [n for n in self.competitors if len(self.agents[n].regret.final) == most]
        return min(whole, key=lambda name: self.agents[name].regret.mean)

    @property
    def winner(self) -> str | None:
        """The lowest competitor, if it is ahead of every other beyond chance; or nobody."""
        best = self.lowest
        others = [name for name in self.competitors if name != best]
        ahead = all(beyond_chance(*self.saved(best, name)) for name in others)
        return best if others and ahead else None


def paired(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """Mean of first - second over the runs that both have played, and its standard error."""
    count = min(len(first), len(second))
    difference = np.subtract(first[:count], second[:count])
    return float(difference.mean()), float(sem(difference)) if count > 1 else float("nan")


def beyond_chance(gain: float, error: float) -> bool:
    """Whether a gain is more than two standard errors; of one run nothing is known."""
    return gain > CHANCE * error


@dataclass(frozen=True)
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
    at_once: int = 1  # priors or agents; with more, seconds say less of each

    @staticmethod
    def of(num_runs: int | None, quick: bool) -> "Effort":
        """The paper's effort, or a quick look, whose parts are of the same shapes, so that they
        share their programs; `num_runs` overrides the runs of either.
        """
        small = Effort(
            num_runs=256,
            temperatures=(0.25,),
            temperature_runs=256,
            sizes=(4, 16),
            num_tasks=10,
            num_draws=99,
            coverage_tasks=50,
            coverage_draws=99,
            at_once=2,
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
        score_posteriors: Whether the true prior is known, so that posteriors can be scored.
        seed: Of everything random.
    """

    def __init__(
        self,
        name: str,
        problem: dp.AbstractProblem,
        priors: LearnedPriors,
        *,
        effort: Effort,
        agents: Sequence[str] = NAMES,
        score_posteriors: bool = True,
        seed: int = 0,
    ) -> None:
        self.name, self.problem, self.priors = name, problem, priors
        self.effort, self.seed, self.score_posteriors = effort, seed, score_posteriors
        self.specs = agent_specs(agents)
        self.learned = [*dict.fromkeys(s.prior for s in self.specs if s.prior != TRUE)]

    @property
    def num_steps(self) -> int:
        """Steps of `run`: priors, regrets and posteriors."""
        more = 1 + len(self.effort.temperatures)
        return len(self.learned) + sum(1 + more * bool(spec.sampler) for spec in self.specs)

    def run(self, progress: Progress) -> ProblemResult:
        """All agents; the first plays while priors are learned: it compiles what others share."""

        def step(what: str, part: Callable[[], Part]) -> Part:
            progress.describe(f"{self.name}, {what}")
            found = part()
            progress.advance()
            return found

        def agent(spec: AgentSpec) -> AgentResult:
            of = functools.partial(step, spec.name)
            regret = of(lambda: self.regret(spec, self.effort.num_runs))
            if spec.sampler is None:
                return AgentResult(regret)
            tempered = {
                f"{t:g}": of(lambda t=t: self.regret(spec, self.effort.temperature_runs, t))
                for t in self.effort.temperatures
            }
            return AgentResult(regret, tempered, of(lambda: self.posterior(spec)))

        priors = [
            functools.partial(step, "priors", functools.partial(self.priors.__getitem__, name))
            for name in self.learned
        ]
        executor, (one, *others) = InProcess(self.effort.at_once), self.specs
        first, *_ = executor.map(lambda part: part(), [lambda: agent(one), *priors])
        found = [first, *reversed(list(executor.map(agent, others[::-1])))]
        names = (spec.name for spec in self.specs)
        return ProblemResult(self.name, self.effort.sizes, dict(zip(names, found, strict=True)))

    def regret(self, spec: AgentSpec, num_runs: int, temperature: float = 1.0) -> Regret:
        """Regret of one agent at one temperature."""
        num_runs, rounds = self.effort.share(spec, num_runs), self.effort.num_rounds
        at = "" if temperature == 1 else f", temperature {temperature:g}"
        settings = {**self.about(spec), "runs": num_runs, "rounds": rounds, "at": temperature}

        def compute() -> Regret:
            agent = spec.agent(self.prior(spec), self.problem.likelihood, temperature)
            return play(self.problem, agent, num_runs, rounds, self.seed)

        name = f"regret, {self.name}, {spec.name}{at}"
        return self.priors.results.numbers(Regret, name, settings, compute)

    def posterior(self, spec: AgentSpec) -> PosteriorError | None:
        """Distance from the true posterior at each size of history, and coverage."""
        if not self.score_posteriors:
            return None
        effort = dataclasses.asdict(self.effort)
        fields = ("sizes", "num_tasks", "num_draws", "coverage_tasks", "coverage_draws")
        settings = {**self.about(spec), **{key: effort[key] for key in fields}}
        compute = functools.partial(self._posterior, spec)
        name = f"posterior, {self.name}, {spec.name}"
        return self.priors.results.numbers(PosteriorError, name, settings, compute)

    def prior(self, spec: AgentSpec) -> dp.AbstractPrior:
        return self.truth if spec.prior == TRUE else self.priors[spec.prior]

    @functools.cached_property
    def truth(self) -> dp.AbstractClosedFormPrior:
        """The true prior, or samples that stand for it."""
        return true_prior(self.problem, self.seed)

    def about(self, spec: AgentSpec) -> dict[str, Any]:
        """Settings that the numbers of an agent depend on."""
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
        few, covered = (
            max(FEWEST_TASKS, effort.share(spec, n))
            for n in (effort.num_tasks, effort.coverage_tasks)
        )
        distances, draws, truths = [], [], []
        rewards, num_draws = self.problem.likelihood, effort.coverage_draws
        for tasks, true in self._scored_tasks:
            near = tasks.select(slice(min(few, effort.num_tasks)))
            ours = draw_posteriors(sampler, near, rewards, effort.num_draws, self.seed).values
            exact = np.split(true[: near.num_tasks], 2, axis=1)
            distances.append(distance_over_floor(ours, *exact))
            others = tasks.select(slice(effort.num_tasks, effort.num_tasks + covered))
            draws.append(draw_posteriors(sampler, others, rewards, num_draws, self.seed).values)
            truths.append(others.parameters)
        inside = interval_coverage(np.concatenate(draws), np.concatenate(truths))
        ratios, errors = [d.ratio for d in distances], [d.standard_error for d in distances]
        return PosteriorError(ratios, errors, inside.share, inside.standard_error)

    @functools.cached_property
    def _scored_tasks(self) -> list[tuple[dp.Logs, np.ndarray]]:
        """Tasks of every size of history, and exact draws from the posteriors of the first."""
        effort = self.effort
        found = []
        for size in effort.sizes:
            tasks = simulate_tasks(
                self.problem,
                num_tasks=effort.num_tasks + effort.coverage_tasks,
                num_observations=size,
                seed=self.seed + size,
            )
            first, exact = tasks.select(slice(effort.num_tasks)), dp.Exact(self.truth)
            draws = draw_posteriors(
                exact, first, self.problem.likelihood, 2 * effort.num_draws, self.seed + 1
            )
            found.append((tasks, draws.values))
        return found


def play(
    problem: dp.AbstractProblem, agent: dp.AbstractAgent, num_runs: int, num_rounds: int, seed: int
) -> Regret:
    """Regret of one agent."""
    result = dp.simulate(
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


def past_tasks(problem: dp.AbstractProblem, num_samples: int, seed: int) -> np.ndarray:
    """Parameters to learn from, apart from those of the tasks that agents meet."""
    key = jax.random.key(SAMPLES_SEED + seed)
    return np.asarray(problem.sample_parameters(key, num_samples), np.float64)
