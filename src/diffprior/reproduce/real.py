"""The experiments on data of Section 6.3 and Appendix C.2: regret, and what the prior is worth."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ..evaluate.distances import prior_distances
from ..evaluate.estimates import LogEvidence, estimate_log_evidence
from ..evaluate.tasks import Tasks
from ..evidence.base import AbstractLikelihood
from ..evidence.families import Logistic
from ..evidence.linear import Linear
from ..priors.base import AbstractPrior
from ..problems.rows import RowProblem
from .agents import LEARNED, Recipe
from .claims import RealResult, priors_table, sections
from .data import Data
from .output import save_figure, write_report
from .overlap import AXES, MISSING, method, on_plane
from .parts import Parts, digest
from .plots import overlap_figure, real_figure
from .report import Block, Figure, Text, plain
from .study import NUM_SHOWN, SHOWN, Effort, Study, play
from .verdicts import regret_table

AGENTS = (
    "TS",
    "TunedTS",
    "MixTS",
    "MixTS(10)",
    "LinUCB",
    "DPS",
    "DiffTS",
    "DiffTS fitted",
    "EvidenceDPS",
    "TwistedSMC",
)
PRIORS = ("Gaussian", "mixture of 2", "mixture of 10", "paper", "default")
# Whose log evidence can be had: the paper's preset has a network of its own for every stage, whose
# errors are unrelated, so that TwistedSMC's weights vary too much for its log to mean anything.
EXPLAINED = tuple(name for name in PRIORS if name != "paper")
HELD_OUT = 0.2
SPLIT_SEED = 2**28  # apart from the seeds of tasks and runs


@dataclasses.dataclass(frozen=True)
class Measures:
    """How much of what is measured besides regret."""

    sizes: tuple[int, ...] = (20, 100)  # of histories whose log evidence is taken
    num_tasks: int = 200
    num_estimates: int = 8  # of each log evidence
    num_points: int = 1000  # of each earth mover's distance
    num_repeats: int = 8
    long_rounds: int = 1000
    long_runs: int = 8

    @staticmethod
    def of(quick: bool) -> "Measures":
        """All of it, or a quick look."""
        few = Measures(num_tasks=50, num_estimates=4, num_points=500, num_repeats=4, long_runs=2)
        return few if quick else Measures()

    def settings(self) -> dict[str, str]:
        """All of it, for a report."""
        return {
            "tasks for log evidence": f"{self.num_tasks}, {self.num_estimates} estimates of each",
            "points for distances": f"{self.num_points}, {self.num_repeats} times",
            "long run": f"{self.long_rounds} rounds, {self.long_runs} runs",
        }


def real_effort(num_runs: int | None, quick: bool) -> Effort:
    """As for other experiments, but slow agents play all runs unless it is a quick look."""
    effort = Effort.of(num_runs, quick)
    return effort if quick else dataclasses.replace(effort, slow_share=1.0)


class Rewards:
    """One data set under one kind of rewards: studies of all its tasks, and of those held out.

    Priors do not depend on the rewards, so that those of a `lender` serve both.
    """

    def __init__(
        self,
        data: Data,
        likelihood: AbstractLikelihood,
        parts: Parts,
        *,
        effort: Effort,
        measures: Measures,
        agents: tuple[str, ...] = AGENTS,
        seed: int = 0,
        lender: "Rewards | None" = None,
    ) -> None:
        name = "linear" if isinstance(likelihood, Linear) else "logistic"
        problem = RowProblem(data.parameters, data.actions, likelihood)
        seen, held_out = problem.split(jax.random.key(SPLIT_SEED + seed), HELD_OUT)
        self.name, self.parts, self.measures, self.seed = name, parts, measures, seed
        self.all = Study(
            name,
            problem,
            parts,
            effort=effort,
            names=agents,
            samples=problem.parameters,
            seed=seed,
        )
        self.held_out = Study(
            f"{name}, held out",
            held_out,
            parts,
            effort=effort,
            names=agents,
            samples=seen.parameters,
            seed=seed,
        )
        self.all.materials.label, self.held_out.materials.label = "all tasks", "four in five"
        self.lender = lender
        if lender is not None:
            self.all.materials.share(lender.all.materials)
            self.held_out.materials.share(lender.held_out.materials)

    def num_parts(self) -> int:
        """How many parts `run` will report."""
        agents = (2 + (self.name == "logistic")) * len(self.all.recipes)
        agents += 2 * len(self.all.thompson)
        held_out = {recipe.prior for recipe in self.held_out.recipes} | set(EXPLAINED)
        learned = self.all.num_learned + len(held_out & set(LEARNED))
        return (learned if self.lender is None else 0) + agents + len(EXPLAINED)

    def run(self) -> dict[str, Any]:
        """All numbers: regret, temperatures, regret held out, log evidence, and a long run."""
        result = {
            "name": self.name,
            "all": _played(self.all),
            "held_out": _played(self.held_out),
            "log_evidence": {name: self.log_evidence(name) for name in EXPLAINED},
        }
        if self.name == "logistic":
            result["long"] = {recipe.name: self.long(recipe) for recipe in self.all.recipes}
        return result

    def log_evidence(self, name: str) -> dict[str, Any]:
        """Log evidence of histories of tasks that were held out, by size of history."""
        measures = self.measures
        settings = {
            **self.held_out.about(),
            "prior": name,
            "sizes": list(measures.sizes),
            "tasks": measures.num_tasks,
            "estimates": measures.num_estimates,
        }
        prior = self.held_out.materials.prior(name)
        return self.parts.numbers(
            f"log evidence, {self.name}, {name}",
            settings,
            lambda: {str(size): self._log_evidence(prior, size) for size in measures.sizes},
        )

    def _log_evidence(self, prior: AbstractPrior, size: int) -> dict[str, Any]:
        """Exact for closed forms of linear rewards; otherwise estimated."""
        tasks = Tasks.simulate(
            self.held_out.problem,
            num_tasks=self.measures.num_tasks,
            num_observations=size,
            seed=self.seed + size,
        )
        num_estimates = self.measures.num_estimates
        return _plain(
            estimate_log_evidence(prior, tasks, num_estimates=num_estimates, seed=self.seed)
        )

    def long(self, recipe: Recipe) -> dict[str, Any]:
        """Regret and cost of many rounds."""
        study, rounds = self.all, self.measures.long_rounds
        num_runs = study.effort.share(recipe, self.measures.long_runs)
        agent = study.materials.agent(recipe)
        settings = {**study.about(), "agent": recipe.name, "rounds": rounds, "runs": num_runs}

        def run() -> dict[str, Any]:
            row = play(study.problem, agent, num_runs, rounds, self.seed)
            del row["regret_curve"], row["standard_error_curve"]
            return {**row, "milliseconds": 1e3 * row["seconds"] / (num_runs * rounds)}

        return self.parts.numbers(f"{rounds} rounds, {study.name}, {recipe.name}", settings, run)

    def distances(self) -> dict[str, Any]:
        """Distance of each prior from parameters that were held out, over its floor."""
        measures, study = self.measures, self.held_out
        settings = {**study.about(), "points": measures.num_points, "times": measures.num_repeats}

        def run() -> dict[str, Any]:
            found = prior_distances(
                {name: study.materials.prior(name) for name in PRIORS},
                study.materials.samples,
                np.asarray(study.problem.parameters, np.float64),  # type: ignore[attr-defined]
                num_points=measures.num_points,
                num_repeats=measures.num_repeats,
                seed=self.seed,
            )
            return {
                name: {
                    "ratio": distance.ratio,
                    "standard_error": distance.standard_error,
                    "floor": float(np.mean(distance.floors)),
                }
                for name, distance in found.items()
            }

        return self.parts.numbers("distances of priors", settings, run)

    def overlap(self) -> dict[str, np.ndarray]:
        """Samples of the true prior and of learned ones, all on one plane."""
        true = self.all.materials.samples
        rows = np.random.default_rng(self.seed).permutation(len(true))[:NUM_SHOWN]
        key = jax.random.key(self.seed + 1)
        points = {"true": true[rows]} | {
            name: np.asarray(self.all.materials.prior(name).sample(key, len(rows)), np.float64)
            for name in SHOWN
        }
        together = np.concatenate(list(points.values()))
        return self.parts.arrays(
            f"overlap by {method()}",
            {"points": digest(together), "seed": self.seed},
            lambda: dict(
                zip(points, np.split(on_plane(together, self.seed), len(points)), strict=True)
            ),
        )


def real_experiment(
    out: Path,
    parts: Parts,
    data: Data,
    *,
    agents: tuple[str, ...] = AGENTS,
    effort: Effort | None = None,
    measures: Measures | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Run what is missing, draw the figures, write the report, and return the numbers."""
    effort, measures = effort or Effort(), measures or Measures()
    both: list[Rewards] = []
    for likelihood in (Linear(noise_std=data.noise_std), Logistic()):
        lender = both[0] if both else None
        both.append(
            Rewards(
                data,
                likelihood,
                parts,
                effort=effort,
                measures=measures,
                agents=agents,
                seed=seed,
                lender=lender,
            )
        )
    parts.watch.plan(1 + 2 + sum(rewards.num_parts() for rewards in both))
    results = [rewards.run() for rewards in both]
    distances, overlap = both[0].distances(), both[0].overlap()
    figures = draw(out, data.name, results, overlap)
    found = RealResult(data.title, results, distances)
    settings = {
        **data.facts,
        **_regret_settings(effort),
        **measures.settings(),
        "agents": ", ".join(agents),
        "seed": str(seed),
        "peak memory": peak_memory(),
    }
    notes = [Text(MISSING)] if method() == AXES else []
    blocks: list[Block] = [Text(data.introduction), *notes, *figures, *sections(found)]
    write_report(out, data.title, blocks, settings, parts)
    tables = [regret_table(found.studies), priors_table(found)]
    return {
        "experiment": data.name,
        "settings": settings,
        "rewards": results,
        "distances": distances,
        "summary": "\n\n".join([*(note.text for note in notes), *map(plain, tables)]),
    }


def draw(
    out: Path, name: str, results: list[dict[str, Any]], overlap: dict[str, np.ndarray]
) -> list[Block]:
    """The figure of the paper, and one that compares the learned priors."""
    curves = [
        {
            "name": f"{result['name']} rewards",
            "curves": {
                agent: {"mean": row["regret_curve"], "se": row["standard_error_curve"]}
                for agent, row in result["all"]["agents"].items()
            },
        }
        for result in results
    ]
    planes = [
        {"name": f"{method()}, {title}", "true": overlap["true"], "learned": overlap[prior]}
        for prior, title in SHOWN.items()
    ]
    figure = save_figure(out, name, real_figure, [planes[0], *curves])
    priors = save_figure(out, f"{name}-priors", overlap_figure, planes)
    return [
        Figure(
            figure,
            "Samples of the true prior (blue) and of one learned with the paper's preset (red); "
            "regret with linear and with logistic rewards, with bands of one standard error.",
        ),
        Figure(priors, "Samples of the true prior (blue) and of learned ones (red)."),
    ]


def peak_memory() -> str:
    """The most memory that this process has held, where the system tells it."""
    try:
        import resource
    except ImportError:
        return "unknown"
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return f"{peak / 2**30:.2f} GiB, without parts kept from before"


def _played(study: Study) -> dict[str, Any]:
    """Regret of every agent, at other temperatures too."""
    agents = {recipe.name: study.regret(recipe) for recipe in study.recipes}
    for recipe in study.thompson:
        agents[recipe.name]["temperatures"] = study.temperatures(recipe)
    return {"name": study.name, "agents": agents}


def _regret_settings(effort: Effort) -> dict[str, str]:
    return {
        "runs": str(effort.num_runs),
        "rounds": str(effort.num_rounds),
        "runs at other temperatures": str(effort.temperature_runs),
        "share of them for slow agents": f"{effort.slow_share:g}",
    }


def _plain(found: LogEvidence) -> dict[str, Any]:
    return {
        "mean": found.mean,
        "standard_error": found.standard_error,
        "estimation_error": found.estimation_error,
        "shortfall": found.shortfall,
        "failed": found.failed,
        "values": found.values.tolist(),
    }
