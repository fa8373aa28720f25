"""Learned priors against exact posteriors, law by law: what `diffprior bench` shows as judging.

Settings of the fit were chosen on blocks-16, sheet-16 and H with seed 0; other laws and other seeds
judge them. A seed is that of the past tasks, of the fit, of the tasks and of all draws. Run alone
it takes a law, the numbers of observations and the seeds, and writes JSON:
`python -m diffprior.bench.judging blocks-16 --observations 8 16 100 --seeds 1 2 3 --out FILE`.

The laws are clusters-D, blocks-D, sheet-D, modes-D, wide-D, the shapes of the plane and mixture-H
and its like; `--likelihood logistic` goes with blocks, and with clusters, modes and wide as
`poisson` and `negative-binomial` do. Distances are over 20 tasks, moments over 40, with 300 draws
each; coverage is over 900 / d tasks (at least 60) of their own, with 99 draws each.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from diffprior.evidence.base import AbstractEvidence
from diffprior.fitting.config import FitConfig
from diffprior.priors.base import AbstractPrior
from diffprior.priors.diffusion import DiffusionPrior
from diffprior.priors.gaussian import GaussianPrior
from diffprior.priors.mixture import MixturePrior
from diffprior.samplers.base import AbstractSampler
from diffprior.samplers.choose import best_sampler
from diffprior.samplers.evidence_dps import EvidenceDPS
from diffprior.samplers.few_passes import FewPasses
from diffprior.samplers.twisted_smc import TwistedSMC

from .distributions import LIKELIHOODS, AbstractLaw, MixtureLaw, law
from .section import Bench, Measurement

PAST_TASKS = 10_000
NUM_TASKS, NUM_DRAWS, DISTANCES = 40, 300, 20  # tasks, draws of each, tasks whose EMD is computed
COVERED, FEWEST_COVERED, COVERAGE_DRAWS = 900, 60, 99  # tasks times parameters, tasks, draws
DIRECTIONS = 64  # that draws are projected on
AT_ONCE = 512  # draws side by side
USUAL = ("diffusion", "mixture, K chosen", "Gaussian")


@dataclass(frozen=True)
class Judgment:
    """A sampler on one law at one number of observations; 1 is as good as exact in `emd`, `sliced`
    and `trace`, 0 in `excess` and `means_off`, 0.9 in `coverage`.

    Attributes:
        emd: earth mover's distance to exact draws over that of exact draws from each other.
        sliced: the same for the Wasserstein distance of projections on random directions.
        trace: of the covariance, over that of exact draws.
        means_off: root mean square error of posterior means in posterior standard deviations, less
            what the number of draws explains.
        excess: half the energy distance to exact draws over the exact energy score, percent.
        coverage: of 90 % intervals along random directions.
        coverage_error: its standard error, from the differences between tasks.
    """

    law: str
    likelihood: str
    num_observations: int
    sampler: str
    seed: int
    emd: float
    sliced: float
    trace: float
    means_off: float
    excess: float
    coverage: float
    coverage_error: float


class Judge:
    """Tasks of a law at one number of observations, with two sets of exact draws each; and more
    tasks for coverage, which needs true parameters alone."""

    def __init__(
        self, source: AbstractLaw, num_observations: int, seed: int, likelihood: str = "linear"
    ) -> None:
        self.num_observations, self.likelihood, self.seed = num_observations, likelihood, seed
        covered = max(FEWEST_COVERED, COVERED // source.dim)
        self.tasks = source.tasks(num_observations, NUM_TASKS, seed, likelihood)
        self.covered = source.tasks(num_observations, covered, seed + 500, likelihood)
        both = source.posterior(123 + seed, self.tasks, 2 * NUM_DRAWS)
        order = np.random.default_rng(seed).permutation(2 * NUM_DRAWS)
        self.exact, self.other = both[:, order[:NUM_DRAWS]], both[:, order[NUM_DRAWS:]]
        self.floor = np.mean([_emd(a, b) for a, b in self._pairs(self.exact, self.other)])
        self.sliced_floor = np.mean(_sliced(self.exact, self.other))
        self.mean, self.variance = both.mean(axis=1), both.var(axis=1, ddof=1)

    @staticmethod
    def _pairs(first: np.ndarray, second: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        return zip(first[:DISTANCES], second[:DISTANCES], strict=True)

    def judge(self, name: str, sampler: AbstractSampler, label: str) -> Judgment:
        """Draw from every task's posterior, and compare."""
        key = jax.random.key(self.seed + 1)
        draws = _draws(sampler, key, self.tasks.evidence, NUM_DRAWS)
        emd = np.mean([_emd(a, b) for a, b in self._pairs(draws, self.exact)])
        trace = draws.var(axis=1, ddof=1).sum(axis=-1).mean() / self.variance.sum(axis=-1).mean()
        covered = _draws(sampler, jax.random.fold_in(key, 1), self.covered.evidence, COVERAGE_DRAWS)
        return Judgment(
            name,
            self.likelihood,
            self.num_observations,
            label,
            self.seed,
            float(emd / self.floor),
            float(np.mean(_sliced(draws, self.exact)) / self.sliced_floor),
            float(trace),
            self._means_off(draws),
            self._excess(draws),
            *_coverage(covered, self.covered.thetas),
        )

    def _means_off(self, draws: Float[np.ndarray, "b m d"]) -> float:
        squares = (draws.mean(axis=1) - self.mean) ** 2 / self.variance
        own = draws.var(axis=1, ddof=1) / self.variance / NUM_DRAWS
        return float(np.sqrt(max(np.mean(squares - own) - 0.5 / NUM_DRAWS, 0.0)))

    def _excess(self, draws: Float[np.ndarray, "b m d"]) -> float:
        unbiased = NUM_DRAWS / (NUM_DRAWS - 1)
        own, exact, other = (unbiased * _energy(x, x) for x in (draws, self.exact, self.other))
        gaps = [_energy(draws, self.exact) - 0.5 * (own + exact)]
        gaps += [_energy(draws, self.other) - 0.5 * (own + other)]
        return float(100 * np.mean(gaps) / (0.5 * np.mean(exact)))


def judge_law(
    name: str,
    observations: Iterable[int],
    *,
    likelihood: str = "linear",
    seeds: Iterable[int] = (1,),
    past_tasks: int = PAST_TASKS,
    methods: Iterable[str] = USUAL,
    on_row: Callable[[Any], None] = lambda row: None,
) -> tuple[list[Judgment], list[dict[str, Any]]]:
    """Every method at every number of observations; and what each fit came to."""
    source = law(name, likelihood)
    rows, fits = [], []
    for seed in seeds:
        judges = [Judge(source, number, seed, likelihood) for number in observations]
        samples = source.sample(77 + seed, past_tasks)
        priors: dict[Callable, AbstractPrior] = {}
        for method in methods:
            fit, sampler_of = _METHODS[method]
            if fit not in priors:
                begin = time.perf_counter()
                priors[fit] = fit(source, samples, seed)
                seconds = time.perf_counter() - begin
                fits.append({"law": name, "method": method, "seed": seed, "seconds": seconds})
                fits[-1] |= _told(priors[fit])
                on_row(fits[-1])
            sampler = sampler_of(priors[fit])
            for judge in judges:
                rows.append(judge.judge(name, sampler, method))
                on_row(rows[-1])
    return rows, fits


def _told(prior: AbstractPrior) -> dict[str, Any]:
    report = getattr(prior, "report", None)
    if report is None:
        return {}
    return {"candidates": [asdict(c) for c in report.candidates], "chosen": report.chosen}


def _fit_diffusion(source: AbstractLaw, samples: np.ndarray, seed: int) -> AbstractPrior:
    return DiffusionPrior.fit(samples, seed=seed, progress=False)


def _fit_fast(source: AbstractLaw, samples: np.ndarray, seed: int) -> AbstractPrior:
    config = FitConfig(prefer_mixture=True)
    return DiffusionPrior.fit(samples, seed=seed, progress=False, config=config)


def _fit_mixture(source: AbstractLaw, samples: np.ndarray, seed: int) -> AbstractPrior:
    return MixturePrior.fit(samples, seed=seed)


def _fit_gaussian(source: AbstractLaw, samples: np.ndarray, seed: int) -> AbstractPrior:
    return GaussianPrior.fit(samples)


def _known(source: AbstractLaw, samples: np.ndarray, seed: int) -> AbstractPrior:
    if not isinstance(source, MixtureLaw):
        raise ValueError(
            "`methods`: expected a learned prior, since the denoiser of this law is not known, got "
            "'exact denoiser'; leave it out"
        )
    return source.prior


_METHODS: dict[str, tuple[Callable[..., AbstractPrior], Callable[[Any], AbstractSampler]]] = {
    "diffusion": (_fit_diffusion, best_sampler),
    "EvidenceDPS": (_fit_diffusion, EvidenceDPS),
    "FewPasses": (_fit_fast, FewPasses),
    "FewPasses, 1 pass": (_fit_fast, lambda prior: FewPasses(prior, passes=1)),
    "FewPasses, 4 passes": (_fit_fast, lambda prior: FewPasses(prior, passes=4)),
    "TwistedSMC": (_fit_diffusion, lambda prior: TwistedSMC(prior, num_particles=32)),
    "mixture, K chosen": (_fit_mixture, best_sampler),
    "Gaussian": (_fit_gaussian, best_sampler),
    "exact denoiser": (_known, EvidenceDPS),
}


def judging(bench: Bench) -> list[Measurement]:
    """EMD and other distances from exact posteriors, over those of exact draws; 1 is exact."""
    cases = {"H": (20, 100)} if bench.quick else {"H": (20, 100, 1000), "clusters-8": (1, 5, 20)}
    rows = [row for name, sizes in cases.items() for row in judge_law(name, sizes)[0]]
    columns = ("emd", "sliced", "trace", "excess", "coverage")
    return [
        Measurement(
            f"{row.law}, {row.sampler}, N = {row.num_observations}",
            {column: getattr(row, column) for column in columns},
        )
        for row in rows
    ]


@eqx.filter_jit
def _all_draws(
    sampler: AbstractSampler, keys: Key[Array, "b m"], evidence: AbstractEvidence
) -> Float[Array, "b m d"]:
    def task(inputs: tuple[Key[Array, " m"], AbstractEvidence]) -> Float[Array, "m d"]:
        keys, evidence = inputs
        return jax.vmap(lambda key: sampler.draw(key, evidence)[0])(keys)

    at_once = max(1, AT_ONCE // keys.shape[1])
    return jax.lax.map(task, (keys, evidence), batch_size=at_once)


def _draws(
    sampler: AbstractSampler, key: Key[Array, ""], evidence: AbstractEvidence, num_draws: int
) -> Float[np.ndarray, "b m d"]:
    keys = jax.random.split(key, (jax.tree.leaves(evidence)[0].shape[0], num_draws))
    drawn = np.asarray(_all_draws(sampler, keys, evidence), np.float64)
    return np.nan_to_num(drawn, nan=1e3, posinf=1e3, neginf=-1e3)


def _emd(first: np.ndarray, second: np.ndarray) -> float:
    """Samples of one size are matched one to one."""
    costs = cdist(first, second)
    return float(np.mean(costs[linear_sum_assignment(costs)]))


def _directions(dim: int) -> Float[np.ndarray, "k d"]:
    normal = np.random.default_rng(0).standard_normal((DIRECTIONS, dim))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _sliced(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, " b"]:
    sides = (np.sort(x @ _directions(x.shape[-1]).T, axis=1) for x in (first, second))
    return np.mean(np.abs(np.subtract(*sides)), axis=(1, 2))


def _energy(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, " b"]:
    return np.array([np.mean(cdist(a, b)) for a, b in zip(first, second, strict=True)])


def _coverage(draws: np.ndarray, thetas: np.ndarray, level: float = 0.9) -> tuple[float, float]:
    """The share of intervals that hold the true parameters, and its standard error."""
    directions = _directions(thetas.shape[1])
    below = np.sum(draws @ directions.T < (thetas @ directions.T)[:, None], axis=1)
    uniform = np.random.default_rng(0).random(below.shape)
    rank = (below + uniform) / (draws.shape[1] + 1)
    shares = np.mean((rank > (1 - level) / 2) & (rank < (1 + level) / 2), axis=1)
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(len(shares)))


def main() -> None:
    """Judge one law and write JSON."""
    parser = argparse.ArgumentParser(description="Learned priors against exact posteriors.")
    parser.add_argument("law")
    parser.add_argument("--likelihood", choices=tuple(LIKELIHOODS), default="linear")
    parser.add_argument("--observations", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--past-tasks", type=int, default=PAST_TASKS)
    parser.add_argument("--methods", nargs="+", choices=tuple(_METHODS), default=list(USUAL))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows, fits = judge_law(
        given.law,
        given.observations,
        likelihood=given.likelihood,
        seeds=given.seeds,
        past_tasks=given.past_tasks,
        methods=given.methods,
        on_row=lambda row: print(row, flush=True),
    )
    found = {"rows": [asdict(row) for row in rows], "fits": fits}
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
