"""Learned priors against exact posteriors, law by law: what `diffprior bench` shows as judging.

Run alone it takes the laws, the numbers of observations and the seeds of the fits, and writes JSON:
`python -m diffprior.bench.judging blocks-16 --observations 8 16 100 --seeds 0 1 2 --out FILE`.
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
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from ..evidence.linear import LinearEvidence
from ..priors.base import AbstractPrior
from ..priors.diffusion import DiffusionPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..problems.judging import AbstractLaw, law
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler

PAST_TASKS = 10_000
NUM_TASKS, NUM_DRAWS, DISTANCES = 40, 300, 20  # tasks, draws of each, tasks whose EMD is computed
DIRECTIONS = 64  # that draws are projected on
AT_ONCE = 512  # draws side by side


@dataclass(frozen=True)
class Judgement:
    """A sampler on one law at one number of observations; 1 is as good as exact in `emd`, `sliced`
    and `trace`, 0 in `excess`, 0.9 in `coverage`.

    Attributes:
        emd: earth mover's distance to exact draws over that of exact draws from each other.
        sliced: the same for the Wasserstein distance of projections on random directions.
        trace: of the covariance, over that of exact draws.
        excess: half the energy distance to exact draws over the exact energy score, percent.
        coverage: of 90 % intervals along random directions.
    """

    law: str
    num_observations: int
    sampler: str
    seed: int
    emd: float
    sliced: float
    trace: float
    excess: float
    coverage: float


class Judge:
    """The tasks of a law at one number of observations, with two sets of exact draws each."""

    def __init__(self, source: AbstractLaw, num_observations: int, seed: int = 0) -> None:
        self.num_observations = num_observations
        self.thetas, self.precision, self.shift = source.tasks(num_observations, NUM_TASKS, seed)
        evidence = (self.precision, self.shift, self.thetas)
        both = source.posterior(123 + seed, *evidence, 2 * NUM_DRAWS)
        order = np.random.default_rng(seed).permutation(2 * NUM_DRAWS)
        self.exact, self.other = both[:, order[:NUM_DRAWS]], both[:, order[NUM_DRAWS:]]
        self.floor = np.mean([_emd(a, b) for a, b in self._pairs(self.exact, self.other)])
        self.sliced_floor = np.mean(_sliced(self.exact, self.other))
        self.trace = np.mean(both.var(axis=1).sum(axis=-1))

    @staticmethod
    def _pairs(first: np.ndarray, second: np.ndarray) -> Iterable[tuple[np.ndarray, np.ndarray]]:
        return zip(first[:DISTANCES], second[:DISTANCES], strict=True)

    def judge(self, name: str, sampler: AbstractSampler, label: str, seed: int) -> Judgement:
        """Draw from every task's posterior, and compare."""
        draws = _draws(sampler, jax.random.key(seed + 1), self.precision, self.shift, NUM_DRAWS)
        emd = np.mean([_emd(a, b) for a, b in self._pairs(draws, self.exact)])
        unbiased = NUM_DRAWS / (NUM_DRAWS - 1)
        own, exact, other = (unbiased * _energy(x, x) for x in (draws, self.exact, self.other))
        gaps = [_energy(draws, self.exact) - 0.5 * (own + exact)]
        gaps += [_energy(draws, self.other) - 0.5 * (own + other)]
        return Judgement(
            name,
            self.num_observations,
            label,
            seed,
            float(emd / self.floor),
            float(np.mean(_sliced(draws, self.exact)) / self.sliced_floor),
            float(np.mean(draws.var(axis=1).sum(axis=-1)) / self.trace),
            float(100 * np.mean(gaps) / (0.5 * np.mean(exact))),
            _coverage(draws, self.thetas),
        )


def judge_law(
    name: str,
    observations: Iterable[int],
    *,
    seeds: Iterable[int] = (0,),
    past_tasks: int = PAST_TASKS,
    methods: Iterable[str] = ("diffusion", "mixture, K chosen", "Gaussian"),
    on_row: Callable[[Any], None] = lambda row: None,
) -> tuple[list[Judgement], list[dict[str, Any]]]:
    """Every method at every number of observations; and what each fit came to."""
    source = law(name)
    judges = [Judge(source, number) for number in observations]
    rows, fits = [], []
    for seed in seeds:
        samples = source.sample(77 + seed, past_tasks)
        for method in methods:
            begin = time.perf_counter()
            prior = _METHODS[method](samples, seed)
            seconds = time.perf_counter() - begin
            fits.append({"law": name, "method": method, "seed": seed, "seconds": seconds})
            report = getattr(prior, "report", None)
            if report is not None:
                fits[-1] |= {"candidates": [asdict(c) for c in report.candidates]}
                fits[-1] |= {"chosen": report.chosen}
            on_row(fits[-1])
            sampler = best_sampler(prior)
            for judge in judges:
                rows.append(judge.judge(name, sampler, method, seed))
                on_row(rows[-1])
    return rows, fits


_METHODS: dict[str, Callable[[np.ndarray, int], AbstractPrior]] = {
    "Gaussian": lambda samples, _: GaussianPrior.fit(samples),
    "mixture, K chosen": lambda samples, seed: MixturePrior.fit(samples, seed=seed),
    "diffusion": lambda samples, seed: DiffusionPrior.fit(samples, seed=seed, progress=False),
}


@eqx.filter_jit
def _all_draws(
    sampler: AbstractSampler, keys: Key[Array, "b m"], precision: Array, shift: Array
) -> Float[Array, "b m d"]:
    def task(inputs: tuple[Array, Array, Array]) -> Float[Array, "m d"]:
        keys, precision, shift = inputs
        evidence = LinearEvidence.from_natural(precision, shift)
        return jax.vmap(lambda key: sampler.draw(key, evidence)[0])(keys)

    at_once = max(1, AT_ONCE // keys.shape[1])
    return jax.lax.map(task, (keys, precision, shift), batch_size=at_once)


def _draws(
    sampler: AbstractSampler, key: Key[Array, ""], precision: Any, shift: Any, num_draws: int
) -> Float[np.ndarray, "b m d"]:
    keys = jax.random.split(key, (len(shift), num_draws))
    floats = (jnp.asarray(part, jnp.result_type(float)) for part in (precision, shift))
    drawn = np.asarray(_all_draws(sampler, keys, *floats), np.float64)
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


def _coverage(draws: np.ndarray, thetas: np.ndarray, level: float = 0.9) -> float:
    directions = _directions(thetas.shape[1])
    below = np.sum(draws @ directions.T < (thetas @ directions.T)[:, None], axis=1)
    uniform = np.random.default_rng(0).random(below.shape)
    rank = (below + uniform) / (draws.shape[1] + 1)
    return float(np.mean((rank > (1 - level) / 2) & (rank < (1 + level) / 2)))


def main() -> None:
    """Judge one law and write JSON."""
    parser = argparse.ArgumentParser(description="Learned priors against exact posteriors.")
    parser.add_argument("law")
    parser.add_argument("--observations", type=int, nargs="+", default=[1, 10, 100])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--past-tasks", type=int, default=PAST_TASKS)
    parser.add_argument("--methods", nargs="+", choices=tuple(_METHODS), default=list(_METHODS))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows, fits = judge_law(
        given.law,
        given.observations,
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
