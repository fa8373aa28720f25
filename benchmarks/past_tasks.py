"""What a learned prior is worth on tasks that it has not seen, by the number of past tasks.

Priors are fitted to the first so many of a source's tasks and judged on others, whose rewards are
simulated: log evidence less that of a Gaussian prior fitted to the same tasks, energy score, and
coverage of 90 % intervals. A source is a law (clusters-16, sheet-16, swirl) with actions from the
unit ball, or MNIST embedded in D dimensions, mnist-D, with digits as actions:
`python -m diffprior.bench.past_tasks mnist-16 --data FOLDER --past-tasks 100 1000 10000`.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.spatial.distance import cdist, pdist

from diffprior.evaluate.calibration import Coverage, interval_coverage
from diffprior.evaluate.draws import draw_posteriors, finite_rows
from diffprior.evaluate.estimates import LogEvidence, estimate_log_evidence
from diffprior.evaluate.tasks import Tasks
from diffprior.priors.base import AbstractPrior
from diffprior.priors.diffusion import DiffusionPrior
from diffprior.priors.gaussian import GaussianPrior
from diffprior.priors.mixture import MixturePrior
from diffprior.problems.rows import RowProblem
from diffprior.reporting.tables import standard_error
from experiments.mnist import embed_digits, load_digits, one_against_rest

from .distributions import LIKELIHOODS, law

PAST_TASKS = (100, 300, 1000, 3000)
HELD_OUT, NUM_JUDGED = 2000, 400  # tasks kept apart, and how many draws of them judge
NUM_ACTIONS = 10_000  # that a source has
NUM_DRAWS = 99  # of each posterior
NUM_ESTIMATES = 8  # of each log evidence without a closed form


class Source(NamedTuple):
    """Parameters of tasks, and feature vectors of actions."""

    name: str
    parameters: Float[np.ndarray, "n d"]
    actions: Float[np.ndarray, "m d"]


@dataclass(frozen=True)
class Worth:
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
    """Tasks of a law, or of MNIST from the folder of its files."""
    kind, _, dim = name.partition("-")
    if kind == "mnist" and dim.isdecimal():
        embedding = embed_digits(*load_digits(folder), dim=int(dim), seed=seed)
        tasks = one_against_rest(embedding.features, embedding.labels, num_tasks, seed=seed)
        return Source(name, tasks, embedding.features[-NUM_ACTIONS:])
    tasks = law(name).sample(seed, num_tasks)
    rng = np.random.default_rng([seed, 3])
    normal = rng.standard_normal((NUM_ACTIONS, tasks.shape[1]))
    radius = rng.random((NUM_ACTIONS, 1)) ** (1 / tasks.shape[1])
    return Source(name, tasks, radius * normal / np.linalg.norm(normal, axis=1, keepdims=True))


def worth(
    of: Source,
    num_past_tasks: int,
    num_observations: Sequence[int],
    *,
    likelihoods: Sequence[str] = ("linear",),
    seed: int = 0,
    on_row: Callable[[Worth], None] = lambda row: None,
) -> list[Worth]:
    """Every prior at every number of observations, on the last tasks of the source."""
    past, held_out = of.parameters[:num_past_tasks], of.parameters[-HELD_OUT:]
    if len(past) + HELD_OUT > len(of.parameters):
        raise ValueError(
            f"`num_past_tasks`: expected at most {len(of.parameters) - HELD_OUT}, the tasks of the "
            f"source less {HELD_OUT} to judge on, got {num_past_tasks}; draw more"
        )
    priors, rows = {name: fit(past, seed) for name, fit in _FITS.items()}, []
    for kind in likelihoods:
        problem = RowProblem(held_out, of.actions, LIKELIHOODS[kind]())
        for size in num_observations:
            tasks = Tasks.simulate(problem, num_tasks=NUM_JUDGED, num_observations=size, seed=seed)
            judged = {name: _Judged.of(prior, tasks, seed) for name, prior in priors.items()}
            for name, found in judged.items():
                about = (of.name, kind, num_past_tasks, size, name, seed, _told(priors[name]))
                rows.append(Worth(*about, found.failed, *found.beside(judged["Gaussian"])))
                on_row(rows[-1])
    return rows


class _Judged(NamedTuple):
    """Log evidence and energy score of every task, and coverage."""

    log_evidence: LogEvidence
    energy: Float[np.ndarray, " n"]
    coverage: Coverage

    @staticmethod
    def of(prior: AbstractPrior, tasks: Tasks, seed: int) -> "_Judged":
        explained = estimate_log_evidence(prior, tasks, num_estimates=NUM_ESTIMATES, seed=seed)
        draws, truths = draw_posteriors(prior, tasks, NUM_DRAWS, seed), tasks.true_parameters()
        pairs = zip(draws.values, truths, strict=True)
        energy = [_energy_score(finite_rows(drawn), theta) for drawn, theta in pairs]
        return _Judged(explained, np.array(energy), interval_coverage(draws.values, truths))

    @property
    def failed(self) -> int:
        return self.log_evidence.failed + self.coverage.failed

    def beside(self, gaussian: "_Judged") -> tuple[float, float, float, float, float, float, float]:
        """Gain, its error and shortfall; energy score and its error; coverage and its error."""
        gains = self.log_evidence.values - gaussian.log_evidence.values
        shortfall = self.log_evidence.shortfall - gaussian.log_evidence.shortfall
        scale = float(np.mean(gaussian.energy))
        ratio = float(np.mean(self.energy)) / scale
        error = standard_error(self.energy - ratio * gaussian.energy) / scale
        gain = (float(np.mean(gains)), standard_error(gains), shortfall)
        return *gain, ratio, error, self.coverage.share, self.coverage.standard_error


def _energy_score(draws: Float[np.ndarray, "m d"], theta: Float[np.ndarray, " d"]) -> float:
    return float(np.mean(cdist(draws, theta[None])) - 0.5 * np.mean(pdist(draws)))


def _told(prior: AbstractPrior) -> str:
    if isinstance(prior, MixturePrior):
        return f"{len(prior.weights)} components"
    report = getattr(prior, "report", None)
    return "" if report is None else str(report.base)


_FITS: dict[str, Callable[[np.ndarray, int], AbstractPrior]] = {
    "Gaussian": lambda samples, seed: GaussianPrior.fit(samples),
    "mixture, K chosen": lambda samples, seed: MixturePrior.fit(samples, seed=seed),
    "diffusion": lambda samples, seed: DiffusionPrior.fit(samples, seed=seed, progress=False),
}


def main() -> None:
    """Judge priors of one source and write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("source", help="a law, or mnist-D")
    parser.add_argument("--data", type=Path, help="folder of MNIST's files")
    parser.add_argument("--likelihoods", nargs="+", choices=tuple(LIKELIHOODS), default=["linear"])
    parser.add_argument("--past-tasks", type=int, nargs="+", default=list(PAST_TASKS))
    parser.add_argument("--observations", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        of = source(given.source, max(given.past_tasks) + HELD_OUT, seed, given.data)
        for number in given.past_tasks:
            how = {"likelihoods": given.likelihoods, "seed": seed}
            rows += worth(of, number, given.observations, **how, on_row=print)
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))


if __name__ == "__main__":
    main()
