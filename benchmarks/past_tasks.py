"""Gain of a learned prior on tasks that it has not seen, by the number of past tasks.

`python -m benchmarks.past_tasks mnist-16 --data FOLDER --past-tasks 100 1000 10000`

Priors are fitted to the first so many of a source's tasks and scored on others, whose rewards are
simulated: log evidence less that of a Gaussian prior fitted to the same tasks, energy score, and
coverage of 90 % intervals. A source is a distribution (clusters-16, sheet-16, swirl) with actions
from the unit ball, or MNIST embedded in D dimensions, mnist-D, with digits as actions.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist, pdist

import diffprior as dp
from diffprior.evaluate.calibration import interval_coverage
from diffprior.evaluate.posterior import draw_posteriors, finite_rows

from .distributions import LIKELIHOODS, distribution, unit_ball
from .harness import as_numbers, write_json

PAST_TASKS = (100, 300, 1000, 3000)
HELD_OUT = 2000  # tasks that nothing is learned from
NUM_SCORED = 400  # tasks drawn from them
NUM_ACTIONS = 10_000  # of a source
NUM_DRAWS = 99  # of each posterior
NUM_ESTIMATES = 8  # of each log evidence without a closed form


class Source(NamedTuple):
    """Parameters of tasks, and feature vectors of actions."""

    name: str
    parameters: Float[np.ndarray, "n d"]
    actions: Float[np.ndarray, "m d"]


@dataclass(frozen=True)
class Gain:
    """One prior on tasks that it has not seen.

    Attributes:
        chosen: what the fit came to.
        failed: draws that failed, which are left out, and estimates, which count as zero.
        gain: log evidence of a task less that under the Gaussian prior, in nats, mean over tasks.
        gain_error: its standard error, over tasks.
        shortfall: how far `gain` is low because log evidence is estimated, to second order; of no
            use where it nears half a nat, as far as eight estimates can tell.
        energy: energy score over that of the Gaussian prior; below 1 is better.
        energy_error: its standard error, over tasks.
        coverage: of 90 % intervals of single parameters.
        coverage_error: its standard error, over tasks.
    """

    source: str
    likelihood: str
    num_past_tasks: int
    num_observations: int
    prior: str
    seed: int
    chosen: str
    failed: int
    gain: float
    gain_error: float
    shortfall: float
    energy: float
    energy_error: float
    coverage: float
    coverage_error: float


def source(name: str, num_tasks: int, seed: int = 0, folder: Path | None = None) -> Source:
    """Tasks of a distribution, or of MNIST from the folder of its files."""
    kind, _, dim = name.partition("-")
    if kind == "mnist" and dim.isdecimal():
        from experiments.mnist import embed_digits, load_digits, one_against_rest

        embedding = embed_digits(*load_digits(folder), dim=int(dim), seed=seed)
        tasks = one_against_rest(embedding.features, embedding.labels, num_tasks, seed=seed)
        return Source(name, tasks, embedding.features[-NUM_ACTIONS:])
    tasks = distribution(name).sample(seed, num_tasks)
    actions = unit_ball(np.random.default_rng([seed, 3]), (NUM_ACTIONS,), tasks.shape[1])
    return Source(name, tasks, actions)


def gains(
    of: Source,
    num_past_tasks: int,
    num_observations: Sequence[int],
    *,
    likelihoods: Sequence[str] = ("linear",),
    seed: int = 0,
    num_scored: int = NUM_SCORED,
    fits: "dict[str, Fit] | None" = None,
    on_row: Callable[[Gain], None] = lambda row: None,
) -> list[Gain]:
    """Every prior at every number of observations, on the last tasks of the source."""
    past, held_out = of.parameters[:num_past_tasks], of.parameters[-HELD_OUT:]
    if len(past) + HELD_OUT > len(of.parameters):
        raise ValueError(
            f"`num_past_tasks`: expected at most {len(of.parameters) - HELD_OUT}, the tasks of the "
            f"source less {HELD_OUT} to score on, got {num_past_tasks}; draw more"
        )
    priors, rows = {name: fit(past, seed) for name, fit in (fits or FITS).items()}, []
    for kind in likelihoods:
        problem = dp.RowProblem(held_out, of.actions, LIKELIHOODS[kind]())
        for size in num_observations:
            tasks = dp.evaluate.Tasks.simulate(
                problem, num_tasks=num_scored, num_observations=size, seed=seed
            )
            scored = {name: Scores.of(prior, tasks, seed) for name, prior in priors.items()}
            for name, found in scored.items():
                about = (of.name, kind, num_past_tasks, size, name, seed, _chosen(priors[name]))
                rows.append(Gain(*about, found.failed, *found.beside(scored["Gaussian"])))
                on_row(rows[-1])
    return rows


class Scores(NamedTuple):
    """Log evidence and energy score of every task, and coverage."""

    log_evidence: dp.evaluate.LogEvidence
    energy: Float[np.ndarray, " n"]
    coverage: dp.evaluate.Coverage

    @staticmethod
    def of(prior: dp.AbstractPrior, tasks: dp.evaluate.Tasks, seed: int) -> "Scores":
        """Score one prior."""
        explained = dp.evaluate.estimate_log_evidence(
            prior, tasks, num_estimates=NUM_ESTIMATES, seed=seed
        )
        draws, truths = draw_posteriors(prior, tasks, NUM_DRAWS, seed), tasks.true_parameters()
        pairs = zip(draws.values, truths, strict=True)
        energy = [energy_score(finite_rows(drawn), theta) for drawn, theta in pairs]
        return Scores(explained, np.array(energy), interval_coverage(draws.values, truths))

    @property
    def failed(self) -> int:
        """Estimates and draws that failed."""
        return self.log_evidence.failed + self.coverage.failed

    def beside(self, gaussian: "Scores") -> tuple[float, float, float, float, float, float, float]:
        """Gain, its error and shortfall; energy score and its error; coverage and its error."""
        gains = self.log_evidence.values - gaussian.log_evidence.values
        shortfall = self.log_evidence.shortfall - gaussian.log_evidence.shortfall
        scale = float(np.mean(gaussian.energy))
        ratio = float(np.mean(self.energy)) / scale
        error = _standard_error(self.energy - ratio * gaussian.energy) / scale
        gain = (float(np.mean(gains)), _standard_error(gains), shortfall)
        return *gain, ratio, error, self.coverage.share, self.coverage.standard_error


def energy_score(draws: Float[np.ndarray, "m d"], theta: Float[np.ndarray, " d"]) -> float:
    """Mean distance from the truth, less half the mean distance of draws from each other."""
    return float(np.mean(cdist(draws, theta[None])) - 0.5 * np.mean(pdist(draws)))


def _standard_error(values: Float[np.ndarray, " n"]) -> float:
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _chosen(prior: dp.AbstractPrior) -> str:
    if isinstance(prior, dp.MixturePrior):
        return f"{len(prior.weights)} components"
    report = getattr(prior, "report", None)
    return "" if report is None else str(report.base)


Fit = Callable[[np.ndarray, int], dp.AbstractPrior]
FITS: dict[str, Fit] = {
    "Gaussian": lambda samples, seed: dp.GaussianPrior.fit(samples),
    "mixture, K chosen": lambda samples, seed: dp.MixturePrior.fit(samples, seed=seed),
    "diffusion": lambda samples, seed: dp.DiffusionPrior.fit(samples, seed=seed, progress=False),
}


def main() -> None:
    """Score priors of one source; print rows as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="a distribution, or mnist-D")
    parser.add_argument("--data", type=Path, help="folder of MNIST's files")
    parser.add_argument("--likelihoods", nargs="+", choices=tuple(LIKELIHOODS), default=["linear"])
    parser.add_argument("--past-tasks", type=int, nargs="+", default=list(PAST_TASKS))
    parser.add_argument("--observations", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        of = source(options.source, max(options.past_tasks) + HELD_OUT, seed, options.data)
        for number in options.past_tasks:
            how = {"likelihoods": options.likelihoods, "seed": seed}
            rows += gains(of, number, options.observations, **how, on_row=print)
    write_json(options.json, as_numbers(rows))


if __name__ == "__main__":
    main()
