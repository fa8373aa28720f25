"""Earth mover's distances of samples, and of samplers from the exact posterior (Appendix C.4)."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..checks import real_numbers, require
from ..evidence.base import AbstractLikelihood
from ..evidence.linear import Linear
from ..priors.base import AbstractPrior
from ..priors.mixture import MixturePrior
from ..reporting.tables import Table, plus_minus, standard_error
from ..samplers.base import AbstractSampler
from .posterior import draw_posteriors, exact_posteriors, finite_rows, nan_where_failed
from .tasks import Tasks

LARGEST = 1e100  # distance, beyond which sums of distances are not to be trusted


@dataclass(frozen=True)
class Distance:
    """Earth mover's distances of draws from exact ones, and of exact ones from each other.

    Args:
        distances: Of each task or repetition (n,); infinite where every draw failed.
        floors: Of as many exact draws from each other (n,).
        failed: Draws that failed, which are left out.
    """

    distances: Float[np.ndarray, " n"]
    floors: Float[np.ndarray, " n"]
    failed: int = 0

    @property
    def ratio(self) -> float:
        """Mean distance over mean floor: 1 is as good as exact."""
        return float(np.mean(self.distances) / np.mean(self.floors))

    @property
    def standard_error(self) -> float:
        """Of the ratio, over the repetitions, which are paired."""
        if not np.isfinite(self.ratio):
            return float("nan")
        residuals = self.distances - self.ratio * self.floors
        return standard_error(residuals) / float(np.mean(self.floors))

    def __str__(self) -> str:
        """Distance, floor and their ratio."""
        row = (
            plus_minus(float(np.mean(self.distances)), standard_error(self.distances)),
            f"{np.mean(self.floors):.4g}",
            plus_minus(self.ratio, self.standard_error),
            str(self.failed),
        )
        return str(Table(("distance", "floor", "over the floor", "failed"), [row]))


def earth_movers_distance(first: ArrayLike, second: ArrayLike) -> float:
    """Mean Euclidean distance that one sample must be moved to become the other.

    Args:
        first: Draws (n, d).
        second: Draws (m, d); every draw of a sample weighs the same.

    Returns:
        The distance, in the units of the parameters. It is not zero for two samples of one
        distribution: see `distance_over_floor`.

    Raises:
        ValueError: If shapes do not agree or a number is not finite.
        ImportError: If POT is not installed.
    """
    require("distances", "ot")
    import ot

    first = real_numbers("first", first, ("n", "d"), "pass one row for each draw")
    dim = first.shape[1]
    second = real_numbers("second", second, ("m", dim), "pass draws of as many parameters")
    if 0 in (*first.shape, len(second)):
        raise ValueError(
            f"`first`: expected draws, got {first.shape} and {second.shape}; draw some"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        costs = ot.dist(np.asarray(first, np.float64), np.asarray(second, np.float64), "euclidean")
    if not np.max(costs, initial=0.0) < LARGEST:
        raise ValueError(
            f"`first`: expected draws less than {LARGEST:g} apart, got farther ones; rescale them"
        )
    return float(ot.emd2([], [], costs))


def distance_over_floor(draws: ArrayLike, exact: ArrayLike, other_exact: ArrayLike) -> Distance:
    """Distance of draws from exact ones, beside that of exact draws from each other.

    Args:
        draws: Draws of n posteriors (n, m, d), or of one (m, d). Those that are not finite have
            failed: they are left out and counted.
        exact: As many exact draws, from the same posteriors.
        other_exact: As many again, independent of `exact`.

    Returns:
        The distances and their floors; `ratio` is 1 for a sampler as good as exact.

    Raises:
        ValueError: If shapes do not agree.
        ImportError: If POT is not installed.
    """
    require("distances", "ot")
    given = {"draws": draws, "exact": exact, "other_exact": other_exact}
    draws, exact, other = (_with_task_axis(name, value) for name, value in given.items())
    if not draws.shape[::2] == exact.shape[::2] == other.shape[::2]:
        raise ValueError(
            f"`exact`: expected draws of {draws.shape[0]} posteriors of {draws.shape[2]} "
            f"parameters, got {exact.shape} and {other.shape}; draw from the same posteriors"
        )
    draws = nan_where_failed(draws)
    return Distance(
        np.array([_distance_of_rest(own, true) for own, true in zip(draws, exact, strict=True)]),
        np.array([earth_movers_distance(a, b) for a, b in zip(exact, other, strict=True)]),
        int(np.sum(np.isnan(draws[..., 0]))),
    )


def prior_distances(
    priors: Mapping[str, AbstractPrior],
    seen: ArrayLike,
    held_out: ArrayLike,
    *,
    num_points: int = 1000,
    num_repeats: int = 5,
    seed: int = 0,
) -> dict[str, Distance]:
    """Distance of samples of each prior from true parameters that were held out.

    Args:
        priors: Priors by name.
        seen: Parameters that the priors were learned from (n, d): they set the floor.
        held_out: Parameters that they were not (m, d).
        num_points: Points compared at a time, at most.
        num_repeats: How often.
        seed: Of the choices and draws.

    Returns:
        For each prior its distance and the floor, that of as many parameters that were seen.

    Raises:
        ImportError: If POT is not installed.
    """
    require("distances", "ot")
    seen, held_out = np.asarray(seen, float), np.asarray(held_out, float)
    rng = np.random.default_rng(seed)
    count = min(num_points, len(seen), len(held_out))
    pairs = [
        (seen[rng.permutation(len(seen))[:count]], held_out[rng.permutation(len(held_out))[:count]])
        for _ in range(num_repeats)
    ]
    floors = np.array([earth_movers_distance(own, other) for own, other in pairs])
    return {
        name: Distance(_prior_distance(prior, [other for _, other in pairs], seed), floors)
        for name, prior in priors.items()
    }


def _prior_distance(
    prior: AbstractPrior, targets: list[np.ndarray], seed: int
) -> Float[np.ndarray, " n"]:
    keys = jax.random.split(jax.random.key(seed), len(targets))
    return np.array(
        [
            earth_movers_distance(np.asarray(prior.sample(key, len(target))), target)
            for key, target in zip(keys, targets, strict=True)
        ]
    )


def _distance_of_rest(draws: Float[np.ndarray, "m d"], exact: Float[np.ndarray, "k d"]) -> float:
    finite = finite_rows(draws)
    return earth_movers_distance(finite, exact) if len(finite) else float("inf")


def _with_task_axis(name: str, value: ArrayLike) -> np.ndarray:
    draws = np.asarray(value)
    if draws.dtype.kind not in "fiub" or draws.ndim not in (2, 3) or 0 in draws.shape:
        raise ValueError(
            f"`{name}`: expected real numbers of shape (n, m, d) or (m, d), got {draws.dtype} of "
            f"shape {draws.shape}; pass draws by rows"
        )
    return np.asarray(draws[None] if draws.ndim == 2 else draws, float)


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
    """Compare samplers with the exact posterior, after several numbers of observations.

    Args:
        prior: The distribution of the true parameters; samplers may use it or one learned from it.
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
    require("distances", "ot")  # before any work
    likelihood = Linear(noise_std=1.0) if likelihood is None else likelihood
    rows = []
    for size in sizes:
        tasks = Tasks.simulate(
            prior, likelihood, num_tasks=num_histories, num_observations=size, seed=seed
        )
        truths = exact_posteriors(prior, tasks, 2 * num_draws, 1000 + seed)
        for name, sampler in samplers.items():
            draws = draw_posteriors(sampler, tasks, num_draws, seed + 1)
            exact = truths[:, :num_draws], truths[:, num_draws:]
            distance = distance_over_floor(draws.values, *exact)
            ours, true = _traces(draws.values), _traces(truths)
            ratios = (float(np.mean(ours) / np.mean(true)), float(np.mean(ours / true)))
            rows.append(PosteriorQuality(name, size, distance, *ratios, draws.failed))
            callback(rows[-1])
    return rows


def _traces(draws: Float[np.ndarray, "n m d"]) -> Float[np.ndarray, " n"]:
    """Trace of the covariance of every posterior, over draws that did not fail."""
    left = np.isfinite(draws[..., 0]).any(axis=1)
    traces = np.full(len(draws), np.nan)
    traces[left] = np.sum(np.nanvar(draws[left], axis=1), axis=-1)
    return traces
