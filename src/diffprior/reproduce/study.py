"""Agents compared on one problem: regret, temperatures, and the posteriors behind them."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from ..bandits.agents import AbstractAgent
from ..bandits.simulate import simulate
from ..evaluate.calibration import interval_coverage
from ..evaluate.distances import distance_over_floor
from ..evaluate.draws import draw_posteriors
from ..evaluate.tasks import Tasks
from ..evidence.linear import Linear
from ..problems.base import AbstractProblem
from ..samplers.exact import Exact
from .agents import LEARNED, USUAL, Materials, Recipe, recipes
from .parts import Parts

NUM_SHOWN = 2000  # samples of a prior in a picture
SHOWN = {"paper": "the paper's preset", "default": "default prior"}
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
        small = Effort(num_runs=64, temperature_runs=64, num_tasks=8, coverage_tasks=100)
        usual = small if quick else Effort()
        if num_runs is None:
            return usual
        fewer = min(num_runs, usual.temperature_runs)
        return dataclasses.replace(usual, num_runs=num_runs, temperature_runs=fewer)

    def share(self, recipe: Recipe, count: int) -> int:
        """How many of so many runs or tasks an agent gets."""
        return max(min(2, count), round(self.slow_share * count)) if recipe.slow else count

    def settings(self) -> dict[str, str]:
        """All of it, for a report."""
        return {
            "runs": str(self.num_runs),
            "rounds": str(self.num_rounds),
            "runs at other temperatures": str(self.temperature_runs),
            "share of them for slow agents": f"{self.slow_share:g}",
            "training samples": str(self.num_samples),
            "tasks for distances": f"{self.num_tasks} of each size, {self.num_draws} draws",
            "tasks for coverage": f"{self.coverage_tasks} of each, {self.coverage_draws} draws",
        }


class Study:
    """The agents of some recipes on one problem, with priors learned from samples of it."""

    def __init__(
        self,
        name: str,
        problem: AbstractProblem,
        parts: Parts,
        *,
        effort: Effort,
        names: tuple[str, ...] = USUAL,
        samples: Any = None,
        seed: int = 0,
    ) -> None:
        if samples is None:
            samples = past_tasks(problem, effort.num_samples, seed)
        self.name, self.problem, self.parts = name, problem, parts
        self.effort, self.seed = effort, seed
        self.recipes = recipes(names)
        self.materials = Materials(name, problem, samples, parts, seed)

    def num_parts(self) -> int:
        """How many parts `run` will report."""
        return self.num_learned + len(self.recipes) + len(self.thompson) + 1

    @property
    def num_learned(self) -> int:
        """How many priors its agents have learned."""
        return len({recipe.prior for recipe in self.recipes} & set(LEARNED))

    def run(self) -> dict[str, Any]:
        """All numbers of the study, by agent: plain numbers, lists and dictionaries."""
        agents = {self.materials.label_of(r): self.regret(r) for r in self.recipes}
        for recipe in self.thompson:
            agents[self.materials.label_of(recipe)]["temperatures"] = self.temperatures(recipe)
        for label, quality in self.quality().items():
            agents[label]["posterior"] = quality
        return {"name": self.name, "sizes": list(self.effort.sizes), "agents": agents}

    def panel(self, result: dict[str, Any]) -> dict[str, Any]:
        """What `regret_figure` shows of the numbers of this study."""
        key = jax.random.key(self.seed + 1)
        learned = {
            title: np.asarray(self.materials.prior(name).sample(key, NUM_SHOWN))
            for name, title in SHOWN.items()
            if self.materials.has(name)
        }
        curves = {
            name: {"mean": agent["regret_curve"], "se": agent["standard_error_curve"]}
            for name, agent in result["agents"].items()
        }
        true = self.materials.samples[:NUM_SHOWN]
        return {"name": self.name, "true": true, "learned": learned, "curves": curves}

    def regret(self, recipe: Recipe) -> dict[str, Any]:
        """Regret of one agent: its curve, and where every run ended."""
        num_runs = self.effort.share(recipe, self.effort.num_runs)
        agent = self.materials.agent(recipe)
        return self.parts.numbers(
            f"regret, {self.name}, {recipe.name}",
            self._settings(recipe, {"runs": num_runs}),
            lambda: self._play(agent, num_runs),
        )

    def temperatures(self, recipe: Recipe) -> dict[str, Any]:
        """Regret of one agent at other temperatures than 1."""
        num_runs = self.effort.share(recipe, self.effort.temperature_runs)

        def at(temperature: float) -> dict[str, Any]:
            row = self._play(self.materials.agent(recipe, temperature), num_runs)
            return {key: row[key] for key in ("regret", "standard_error", "final", "failures")}

        return self.parts.numbers(
            f"temperatures, {self.name}, {recipe.name}",
            self._settings(recipe, {"runs": num_runs, "at": list(self.effort.temperatures)}),
            lambda: {f"{t:g}": at(t) for t in self.effort.temperatures},
        )

    def quality(self) -> dict[str, Any]:
        """Distance from the true posterior at each size of history, and coverage, by agent."""
        settings = {
            **self.about(),
            "sizes": list(self.effort.sizes),
            "tasks": [self.effort.num_tasks, self.effort.num_draws],
            "coverage": [self.effort.coverage_tasks, self.effort.coverage_draws],
            "agents": [recipe.name for recipe in self.thompson],
        }
        return self.parts.numbers(f"posteriors, {self.name}", settings, self._quality)

    def _quality(self) -> dict[str, Any]:
        effort = self.effort
        all_tasks = self._tasks(effort.num_tasks + effort.coverage_tasks)
        tasks = [t.select(slice(effort.num_tasks)) for t in all_tasks]
        others = [t.select(slice(effort.num_tasks, None)) for t in all_tasks]
        exact = Exact(self.materials.prior("true"))  # type: ignore[arg-type]
        truths = [
            draw_posteriors(exact, t, 2 * effort.num_draws, self.seed + 1).values for t in tasks
        ]
        return {
            self.materials.label_of(recipe): {
                **self._distance(recipe, tasks, truths),
                **self._coverage(recipe, others),
            }
            for recipe in self.thompson
        }

    def _tasks(self, count: int) -> list[Tasks]:
        """Tasks of every size of history."""
        sizes = self.effort.sizes
        return [
            Tasks.simulate(
                self.problem, num_tasks=count, num_observations=size, seed=self.seed + size
            )
            for size in sizes
        ]

    def _distance(
        self, recipe: Recipe, tasks: list[Tasks], truths: list[np.ndarray]
    ) -> dict[str, list[float]]:
        draws = self._draws(recipe, tasks, self.effort.num_draws)
        num_draws = self.effort.num_draws
        distances = [
            distance_over_floor(d, truth[: len(d), :num_draws], truth[: len(d), num_draws:])
            for truth, d in zip(truths, draws, strict=True)
        ]
        return {
            "ratio": [distance.ratio for distance in distances],
            "ratio_error": [distance.standard_error for distance in distances],
        }

    def _coverage(self, recipe: Recipe, tasks: list[Tasks]) -> dict[str, float]:
        draws = self._draws(recipe, tasks, self.effort.coverage_draws)
        truths = [t.true_parameters()[: len(d)] for t, d in zip(tasks, draws, strict=True)]
        share = interval_coverage(np.concatenate(draws), np.concatenate(truths))
        return {"coverage": share.share, "coverage_error": share.standard_error}

    def _draws(self, recipe: Recipe, tasks: list[Tasks], num_draws: int) -> list[np.ndarray]:
        """Draws for the first tasks of each size: for all, or those that a slow sampler gets."""
        assert recipe.sampler is not None
        sampler = recipe.sampler(self.materials.prior(recipe.prior))
        few = max(FEWEST_TASKS, self.effort.share(recipe, len(tasks[0])))
        return [
            draw_posteriors(sampler, t.select(slice(few)), num_draws, self.seed).values
            for t in tasks
        ]

    @property
    def thompson(self) -> tuple[Recipe, ...]:
        """The recipes that can be tempered."""
        return tuple(recipe for recipe in self.recipes if recipe.sampler is not None)

    def _play(self, agent: AbstractAgent, num_runs: int) -> dict[str, Any]:
        return play(self.problem, agent, num_runs, self.effort.num_rounds, self.seed)

    def about(self) -> dict[str, Any]:
        """What the numbers of this study depend on, whichever agent it is."""
        likelihood = self.problem.likelihood
        noise_std = likelihood.noise_std if isinstance(likelihood, Linear) else None
        return {
            "problem": self.name,
            "likelihood": type(likelihood).__name__,
            "noise": None if noise_std is None else float(noise_std),
            "samples": self.materials.digest,
            "seed": self.seed,
        }

    def _settings(self, recipe: Recipe, more: dict[str, Any]) -> dict[str, Any]:
        return {**self.about(), "agent": recipe.name, "rounds": self.effort.num_rounds, **more}


def play(
    problem: AbstractProblem, agent: AbstractAgent, num_runs: int, num_rounds: int, seed: int
) -> dict[str, Any]:
    """Regret of one agent as plain numbers: curves, times, and where every run ended."""
    agents = {"agent": agent}
    result = simulate(problem, agents, num_runs, num_rounds, seed, progress=False, throw=False)
    row = result.to_dict()["agents"]["agent"]
    return {**row, "final": result.regret["agent"][:, -1].tolist()}


def past_tasks(problem: AbstractProblem, num_samples: int, seed: int) -> np.ndarray:
    """Parameters to learn from, apart from those of the tasks that agents meet."""
    key = jax.random.key(SAMPLES_SEED + seed)
    return np.asarray(problem.sample_parameters(key, num_samples), np.float64)


def paired(first: Iterable[float], second: Iterable[float]) -> tuple[float, float]:
    """Mean of first - second over the runs that both have played, and its standard error."""
    pairs = list(zip(first, second, strict=False))
    difference = np.array([a - b for a, b in pairs])
    if len(difference) < 2:
        return float(difference.mean()), float("nan")
    return float(difference.mean()), float(difference.std(ddof=1) / np.sqrt(len(difference)))
