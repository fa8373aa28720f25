"""Learned priors scored against exact posteriors, one distribution at a time.

`python -m benchmarks.judging blocks-16 --observations 8 16 100 --seeds 1 2 3 --json FILE`

Distributions are clusters-D, blocks-D, sheet-D, the shapes of the plane and mixture-H and its like;
`--likelihood logistic` goes with clusters and mixtures. Distances are over 20 tasks, moments over
40, with 300 draws each; coverage is over 900 / d tasks (at least 60) of their own, with 99 draws
each.

Settings of the fit were chosen on blocks-16, sheet-16 and H with seed 0; other distributions and
seeds test them. A seed is that of the past tasks, of the fit, of the tasks and of all draws.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.spatial.distance import cdist

import diffprior as dp
from diffprior.evaluate.calibration import interval_coverage
from diffprior.evaluate.distances import distance_over_floor

from .distributions import LIKELIHOODS, AbstractDistribution, MixtureDistribution, distribution
from .harness import as_numbers, write_json

PAST_TASKS = 10_000
COVERED, FEWEST_COVERED, COVERAGE_DRAWS = 900, 60, 99  # tasks times parameters, tasks, draws
DIRECTIONS = 64  # that draws are projected on
AT_ONCE = 512  # draws side by side
USUAL = ("diffusion", "mixture, K chosen", "Gaussian")


@dataclass(frozen=True)
class Score:
    """A sampler on one distribution at one number of observations.

    1 is as good as exact in `emd` and `trace`, 0 in `excess`, 0.9 in `coverage`.

    Attributes:
        emd: earth mover's distance to exact draws over that of exact draws from each other.
        trace: of the covariance, over that of exact draws.
        excess: half the energy distance to exact draws over the exact energy score, percent.
        coverage: of 90 % intervals along random directions.
        coverage_error: its standard error, from the differences between tasks.
    """

    distribution: str
    likelihood: str
    num_observations: int
    sampler: str
    seed: int
    emd: float
    trace: float
    excess: float
    coverage: float
    coverage_error: float


@dataclass(frozen=True)
class Size:
    """How many tasks, draws per task, and tasks whose earth mover's distance is computed."""

    num_tasks: int = 40
    num_draws: int = 300
    num_distances: int = 20


class Scorer:
    """Tasks of a distribution at one number of observations, with two sets of exact draws each;
    and more tasks for coverage, which needs true parameters alone."""

    def __init__(
        self,
        source: AbstractDistribution,
        num_observations: int,
        seed: int,
        likelihood: str = "linear",
        size: Size | None = None,
    ) -> None:
        self.num_observations, self.likelihood, self.seed = num_observations, likelihood, seed
        self.size = size or Size()
        count, covered = self.size.num_draws, max(FEWEST_COVERED, COVERED // source.dim)
        self.tasks = source.tasks(num_observations, self.size.num_tasks, seed, likelihood)
        self.covered = source.tasks(num_observations, covered, seed + 500, likelihood)
        both = source.posterior(123 + seed, self.tasks, 2 * count)
        order = np.random.default_rng(seed).permutation(2 * count)
        self.exact, self.other = both[:, order[:count]], both[:, order[count:]]
        self.variance = both.var(axis=1, ddof=1)

    def score(self, name: str, sampler: dp.AbstractSampler, label: str) -> Score:
        """Draw from every task's posterior, and compare."""
        key = jax.random.key(self.seed + 1)
        draws = draws_of(sampler, key, self.tasks.evidence, self.size.num_draws)
        few = slice(self.size.num_distances)
        emd = distance_over_floor(draws[few], self.exact[few], self.other[few]).ratio
        trace = draws.var(axis=1, ddof=1).sum(axis=-1).mean() / self.variance.sum(axis=-1).mean()
        key = jax.random.fold_in(key, 1)
        covered = draws_of(sampler, key, self.covered.evidence, COVERAGE_DRAWS)
        directions = np.random.default_rng(0).standard_normal((DIRECTIONS, draws.shape[-1])).T
        inside = interval_coverage(covered @ directions, self.covered.thetas @ directions)
        about = (name, self.likelihood, self.num_observations, label, self.seed)
        error = inside.standard_error
        return Score(*about, emd, float(trace), self._excess(draws), inside.share, error)

    def _excess(self, draws: Float[np.ndarray, "b m d"]) -> float:
        unbiased = self.size.num_draws / (self.size.num_draws - 1)
        own, exact, other = (unbiased * _energy(x, x) for x in (draws, self.exact, self.other))
        gaps = [_energy(draws, self.exact) - 0.5 * (own + exact)]
        gaps += [_energy(draws, self.other) - 0.5 * (own + other)]
        return float(100 * np.mean(gaps) / (0.5 * np.mean(exact)))


def judge(
    name: str,
    observations: Iterable[int],
    *,
    likelihood: str = "linear",
    seeds: Iterable[int] = (1,),
    past_tasks: int = PAST_TASKS,
    methods: Iterable[str] = USUAL,
    size: Size | None = None,
    on_row: Callable[[Any], None] = lambda row: None,
) -> tuple[list[Score], list[dict[str, Any]]]:
    """Every method at every number of observations; and what each fit came to."""
    source = distribution(name, likelihood)
    rows, fits = [], []
    for seed in seeds:
        scorers = [Scorer(source, number, seed, likelihood, size) for number in observations]
        samples = source.sample(77 + seed, past_tasks)
        priors: dict[str, dp.AbstractPrior] = {}
        for method in methods:
            kind, sampler_of = _METHODS[method]
            if kind not in priors:
                begin = time.perf_counter()
                priors[kind] = _PRIORS[kind](source, samples, seed)
                fits.append({"distribution": name, "method": method, "seed": seed})
                fits[-1]["seconds"] = time.perf_counter() - begin
                fits[-1] |= _candidates(priors[kind])
                on_row(fits[-1])
            sampler = sampler_of(priors[kind])
            for scorer in scorers:
                rows.append(scorer.score(name, sampler, method))
                on_row(rows[-1])
    return rows, fits


def _candidates(prior: dp.AbstractPrior) -> dict[str, Any]:
    report = getattr(prior, "report", None)
    if report is None:
        return {}
    candidates = [dataclasses.asdict(candidate) for candidate in report.candidates]
    return {"candidates": candidates, "chosen": report.chosen}


def _known(source: AbstractDistribution, samples: np.ndarray, seed: int) -> dp.AbstractPrior:
    if not isinstance(source, MixtureDistribution):
        raise ValueError(
            "`methods`: expected a learned prior, since the denoiser of this distribution is not "
            "known, got 'exact denoiser'; leave it out"
        )
    return source.prior


def _fit(config: dp.FitConfig, samples: np.ndarray, seed: int) -> dp.AbstractPrior:
    return dp.DiffusionPrior.fit(samples, seed=seed, progress=False, config=config)


_PRIORS: dict[str, Callable[[AbstractDistribution, np.ndarray, int], dp.AbstractPrior]] = {
    "diffusion": lambda _, *data: _fit(dp.FitConfig(), *data),
    "on a mixture": lambda _, *data: _fit(dp.FitConfig(prefer_mixture=True), *data),
    "mixture": lambda _, samples, seed: dp.MixturePrior.fit(samples, seed=seed),
    "Gaussian": lambda _, samples, seed: dp.GaussianPrior.fit(samples),
    "known": _known,
}
_METHODS: dict[str, tuple[str, Callable[[Any], dp.AbstractSampler]]] = {
    "diffusion": ("diffusion", dp.best_sampler),
    "EvidenceDPS": ("diffusion", dp.EvidenceDPS),
    "FewPasses": ("on a mixture", dp.FewPasses),
    "FewPasses, 1 pass": ("on a mixture", lambda prior: dp.FewPasses(prior, passes=1)),
    "FewPasses, 4 passes": ("on a mixture", lambda prior: dp.FewPasses(prior, passes=4)),
    "TwistedSMC": ("diffusion", lambda prior: dp.TwistedSMC(prior, num_particles=32)),
    "mixture, K chosen": ("mixture", dp.best_sampler),
    "Gaussian": ("Gaussian", dp.best_sampler),
    "exact denoiser": ("known", dp.EvidenceDPS),
}


@eqx.filter_jit
def _all_draws(
    sampler: dp.AbstractSampler, keys: Key[Array, "b m"], evidence: dp.AbstractEvidence
) -> Float[Array, "b m d"]:
    def task(inputs: tuple[Key[Array, " m"], dp.AbstractEvidence]) -> Float[Array, "m d"]:
        keys, evidence = inputs
        return jax.vmap(lambda key: sampler.draw(key, evidence)[0])(keys)

    at_once = max(1, AT_ONCE // keys.shape[1])
    return jax.lax.map(task, (keys, evidence), batch_size=at_once)


def draws_of(
    sampler: dp.AbstractSampler, key: Key[Array, ""], evidence: dp.AbstractEvidence, num_draws: int
) -> Float[np.ndarray, "b m d"]:
    keys = jax.random.split(key, (jax.tree.leaves(evidence)[0].shape[0], num_draws))
    drawn = np.asarray(_all_draws(sampler, keys, evidence), np.float64)
    return np.nan_to_num(drawn, nan=1e3, posinf=1e3, neginf=-1e3)


def _energy(first: np.ndarray, second: np.ndarray) -> Float[np.ndarray, " b"]:
    return np.array([np.mean(cdist(a, b)) for a, b in zip(first, second, strict=True)])


def main() -> None:
    """Score the methods on one distribution; print rows as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("distribution")
    parser.add_argument("--likelihood", choices=tuple(LIKELIHOODS), default="linear")
    parser.add_argument("--observations", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--past-tasks", type=int, default=PAST_TASKS)
    parser.add_argument("--methods", nargs="+", choices=tuple(_METHODS), default=list(USUAL))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, fits = judge(
        options.distribution,
        options.observations,
        likelihood=options.likelihood,
        seeds=options.seeds,
        past_tasks=options.past_tasks,
        methods=options.methods,
        on_row=lambda row: print(row, flush=True),
    )
    write_json(options.json, {"rows": as_numbers(rows), "fits": fits})


if __name__ == "__main__":
    main()
