"""Samplers against the exact posterior of a mixture prior, by length of history (Appendix C.4)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..evidence.linear import Linear
from ..priors.mixture import MixturePrior
from ..reporting.tables import Table, plus_minus
from ..samplers.base import AbstractSampler
from ..samplers.exact import Exact
from .distances import Distance, distance_over_floor, pot
from .draws import draw_posteriors
from .grid import grid_posterior
from .tasks import Tasks


@dataclass(frozen=True)
class PosteriorQuality:
    """One sampler after one number of observations.

    Args:
        sampler: Its name.
        num_observations: Rows of each history.
        distance: From the exact posterior, beside that of exact draws from each other.
        trace_ratio: Mean trace of the covariance over that of the exact posterior.
        mean_trace_ratio: The mean of the ratio itself, which small posteriors dominate.
        failed: Draws that failed, which are left out.
    """

    sampler: str
    num_observations: int
    distance: Distance
    trace_ratio: float
    mean_trace_ratio: float
    failed: int

    def __str__(self) -> str:
        """Distance over its floor, and the trace ratio."""
        row = (
            self.sampler,
            str(self.num_observations),
            plus_minus(self.distance.ratio, self.distance.standard_error),
            f"{self.trace_ratio:.2f}",
            str(self.failed),
        )
        columns = ("sampler", "rows", "distance over floor", "trace over exact", "failed")
        return str(Table(columns, [row]))


def posterior_quality(
    prior: MixturePrior,
    samplers: Mapping[str, AbstractSampler],
    sizes: Iterable[int],
    *,
    likelihood: AbstractLikelihood | None = None,
    num_histories: int = 20,
    num_draws: int = 500,
    seed: int = 0,
    callback: Callable[[PosteriorQuality], None] = lambda row: None,
) -> list[PosteriorQuality]:
    """Judge samplers against the exact posterior, after several numbers of observations.

    Args:
        prior: The law of the true parameters; samplers may use it or one learned from it.
        samplers: Samplers by name.
        sizes: Numbers of observations.
        likelihood: How rewards arise; linear with noise of standard deviation 1 by default.
            For others the exact posterior is computed on a grid, in two dimensions only.
        num_histories: Histories of each size.
        num_draws: Draws from each posterior.
        seed: Of everything random.
        callback: Called with each row as it is done.

    Returns:
        One row for each size and sampler.

    Raises:
        ValueError: If the exact posterior cannot be computed.
        ImportError: If POT is not installed.

    References:
        Kveton et al. (2024), Appendix C.4; here the distance is given over its floor.
    """
    pot()  # before any work
    likelihood = Linear(noise_std=1.0) if likelihood is None else likelihood
    rows = []
    for size in sizes:
        tasks = Tasks.simulate(
            prior, likelihood, num_tasks=num_histories, num_observations=size, seed=seed
        )
        truths = exact_posteriors(prior, tasks, 2 * num_draws, 1000 + seed)
        for name, sampler in samplers.items():
            row = _judge(name, sampler, tasks, truths, num_draws, seed + 1)
            rows.append(row)
            callback(row)
    return rows


def exact_posteriors(
    prior: MixturePrior, tasks: Tasks, num_draws: int, seed: int
) -> Float[np.ndarray, "n m d"]:
    """Draws from the exact posterior of every task (n, num_draws, d).

    Args:
        prior: The law of the parameters.
        tasks: Tasks; two parameters at most, unless their rewards are linear.
        num_draws: Draws from each posterior.
        seed: Of the draws.

    Returns:
        Exact draws: closed form for linear rewards, by a grid otherwise.

    Raises:
        ValueError: If a grid is needed and there are more than two parameters.
    """
    if tasks.likelihood.empty(tasks.dim).quadratic:
        return draw_posteriors(Exact(prior), tasks, num_draws, seed).values
    found = np.empty((len(tasks), num_draws, tasks.dim))
    for which, evidence in tasks.batches(len(tasks)):
        for place, number in enumerate(which):
            found[number] = grid_posterior(
                prior, _one(evidence, place), num_draws, seed + int(number)
            )
    return found


def _one(evidence: AbstractEvidence, place: int) -> AbstractEvidence:
    return jax.tree.map(lambda leaf: leaf[place], evidence)


def _judge(
    name: str,
    sampler: AbstractSampler,
    tasks: Tasks,
    truths: Float[np.ndarray, "n m d"],
    num_draws: int,
    seed: int,
) -> PosteriorQuality:
    draws = draw_posteriors(sampler, tasks, num_draws, seed)
    distance = distance_over_floor(draws.values, truths[:, :num_draws], truths[:, num_draws:])
    ours, true = _traces(draws.values), _traces(truths)
    ratios = (float(np.mean(ours) / np.mean(true)), float(np.mean(ours / true)))
    return PosteriorQuality(name, _size(tasks), distance, *ratios, draws.failed)


def _traces(draws: Float[np.ndarray, "n m d"]) -> Float[np.ndarray, " n"]:
    """Trace of the covariance of every posterior, over draws that did not fail."""
    left = np.isfinite(draws[..., 0]).any(axis=1)
    traces = np.full(len(draws), np.nan)
    traces[left] = np.sum(np.nanvar(draws[left], axis=1), axis=-1)
    return traces


def _size(tasks: Tasks) -> int:
    return int(tasks.num_observations[0])
