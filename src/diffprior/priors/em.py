"""Gaussian mixtures by expectation maximisation, the number of components by held-out likelihood.

Samples are in unit coordinates (`whitening`). One program serves every number of components up to
its padding, and every number of samples up to a multiple of `ROWS`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..threefry import written_out
from .base import pick
from .components import TIED, Components, log_joint, maximise, sufficient_statistics
from .factor_analysis import with_factors

PADDED = (8, 32, 128, 256)  # numbers of components that programs are compiled for
MOST_FREE = 128  # components with a covariance of their own
MOST_TIED = 32  # components that share a covariance
MANY_COMPONENTS = 32  # from which on covariances of few factors are tried
RANKS = (8, 4, 2)  # parameters for each factor that a component may have
FACTORS_POOLING = 2.0  # points' worth of the pooled covariance in one of few factors
WORSE = 2  # candidates in a row that may be worse before the search stops
POINTS_EACH = 10  # samples that a component must have on average
ROWS = 1024  # samples are padded to a multiple of this
LARGEST = 20_000  # samples that are looked at
MANY = 5000  # samples from which one held-out part is enough
FOLDS = 5
PLANE = 2  # parameters up to which many samples leave nothing to be gained by tying
BLUR = 0.1  # of the samples' spread: finer detail, of many parameters, is not to be had from them
SEEDED_FROM = 4096  # samples that starts are sought among
TRIALS = 4  # places tried for each start of a component
LLOYD, LONGEST, CONVERGED = 6, 100, 5e-5  # rounds of k-means, of EM, and gain that ends them


class Kind(NamedTuple):
    """How covariances are estimated: how much is pooled, and how many factors each has (all if
    None)."""

    pooling: float
    rank: int | None = None

    def __str__(self) -> str:
        return (
            " tied" if self.pooling == TIED else "" if self.rank is None else f" rank {self.rank}"
        )


ONE = (1, Kind(TIED))


class Choice(NamedTuple):
    """A mixture in unit coordinates and how it was chosen."""

    components: Components
    num_components: int
    kind: Kind
    score: float  # mean log density of samples not seen, in unit coordinates, through noise
    gaussian_score: float  # that of a single Gaussian
    scores: dict[str, float]  # of every candidate tried


def choose_components(
    unit: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None = None,
    *,
    seed: int = 0,
    largest: int = PADDED[-1],
    groups: Int[np.ndarray, " n"] | None = None,
) -> Choice:
    """The mixture of greatest likelihood on samples not seen: its K, and whether covariances are
    free, tied, or of few factors.

    From `MANY` samples on a tenth is held out; below, each fifth in turn; samples of one group (a
    number from 0) together. A mixture that is not better than one Gaussian by a standard error of
    the difference gives way to it.
    """
    search = _Search.over(unit, weights, seed, groups)
    dim, tried = unit.shape[1], {ONE: search.held_out(*ONE)}
    largest = min(largest, search.most_components())
    most_free = min(largest, MOST_FREE)
    _climb(search, tried, Kind(float(dim)), 2, most_free)
    if dim > PLANE or len(unit) < MANY:
        _climb(search, tried, Kind(TIED), 2, min(largest, MOST_TIED))
    k, kind = search.best(tried)
    if k >= MANY_COMPONENTS and dim > PLANE:
        for rank in {dim // each for each in RANKS} - {0}:
            _climb(search, tried, Kind(FACTORS_POOLING, rank), k, largest)
        k, kind = search.best(tried)
    for between in (3 * k // 4, 3 * k // 2):
        if 1 < between <= (most_free if kind.rank is None else largest):
            tried[between, kind] = search.held_out(between, kind)
    chosen = search.best(tried)
    if not search.clearly_better(tried[chosen], tried[ONE]):
        chosen = ONE
    scores = {f"{k}{kind}": search.mean(logs) for (k, kind), logs in tried.items()}
    means = search.mean(tried[chosen]), search.mean(tried[ONE])
    return Choice(_first(search.final(*chosen), chosen[0]), *chosen, *means, scores)


def _climb(search: "_Search", tried: dict, kind: Kind, k: int, largest: int) -> None:
    """Double the number of components while that helps; of many, until it clearly does not."""
    best, worse = tried.get((k // 2, kind), tried[ONE]), 0
    while k <= largest and worse < WORSE:
        logs = tried[k, kind] = search.held_out(k, kind)
        if search.mean(logs) > search.mean(best):
            best, worse = logs, 0
        else:
            too_many = k > MANY_COMPONENTS and search.clearly_better(best, logs)
            worse = WORSE if too_many else worse + 1
        k *= 2


def fit_components(
    unit: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None,
    num_components: int,
    *,
    seed: int = 0,
    starts: int = 5,
) -> Components:
    """The mixture of so many components, the best of several starts."""
    search = _Search.over(unit, weights, seed)
    fitted = search.fit(search.weights, num_components, Kind(float(unit.shape[1])), starts)
    return _first(fitted, num_components)


def fit_kind(
    unit: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None,
    num_components: int,
    kind: Kind,
    *,
    seed: int = 0,
) -> Components:
    """The mixture that `choose_components` chose, of other samples."""
    return _first(_Search.over(unit, weights, seed).final(num_components, kind), num_components)


def _first(components: Components, k: int) -> Components:
    return Components(*(leaf[:k] for leaf in components))


class _Search(NamedTuple):
    """Padded samples and the parts of them that are held out in turn."""

    statistics: Float[Array, "n p"]
    judged: Float[Array, "n p"]  # of the same samples, seen through noise
    blur: float  # standard deviation of that noise
    rows: Float[Array, "n d"]
    weights: Float[np.ndarray, " n"]
    fold: Int[np.ndarray, " n"]
    num_folds: int
    seed: int

    @staticmethod
    def over(
        unit: np.ndarray,
        weights: np.ndarray | None,
        seed: int,
        groups: np.ndarray | None = None,
    ) -> "_Search":
        weights = np.ones(len(unit)) if weights is None else np.asarray(weights, float)
        order = np.random.default_rng(seed).permutation(len(unit))[:LARGEST]
        n = len(order)
        padding = -n % ROWS
        x = jnp.asarray(np.pad(unit[order], ((0, padding), (0, 0))), jnp.result_type(float))
        own = np.arange(n) if groups is None else _in_random_order(groups[order], seed)
        parts = 10 if n >= MANY else min(FOLDS, int(own.max()) + 1)
        fold = np.pad(own % parts, (0, padding), constant_values=-1)
        padded = np.pad(weights[order] / np.mean(weights[order]), (0, padding))
        folds = 1 if n >= MANY else parts
        blur = 0.0 if x.shape[1] <= PLANE else BLUR
        noise = np.random.default_rng([seed, 2]).standard_normal(x.shape)
        judged = sufficient_statistics(x + blur * jnp.asarray(noise, x.dtype))
        return _Search(sufficient_statistics(x), judged, blur, x, padded, fold, folds, seed)

    def most_components(self) -> int:
        """Components that there are samples enough for."""
        return int(np.sum(self.weights > 0) * (1 - 1 / FOLDS) / POINTS_EACH)

    def held_out(self, k: int, kind: Kind) -> Float[np.ndarray, " n"]:
        """Log density of each sample, seen through noise, under the mixture fitted without it; NaN
        if always seen."""
        found = np.full(len(self.fold), np.nan)
        for part in range(self.num_folds):
            seen = np.where(self.fold == part, 0.0, self.weights)
            components = self.fit(seen, k, kind, starts=1)
            logs = np.asarray(_log_density(components, self.judged, self.blur))
            found = np.where(self.fold == part, logs, found)
        return found

    def final(self, k: int, kind: Kind) -> Components:
        """The mixture fitted to all samples; among many components one start is like another."""
        return self.fit(self.weights, k, kind, starts=3 if 1 < k < MANY_COMPONENTS else 1)

    def fit(self, weights: np.ndarray, k: int, kind: Kind, starts: int) -> Components:
        """The start that comes to the greatest likelihood on the samples it was fitted to, padded
        with absent components."""
        padded = next(size for size in (*PADDED, k) if size >= k)
        keys = jax.random.split(jax.random.key(self.seed), starts)
        counts, pooling = (jnp.asarray(a, self.rows.dtype) for a in (weights, kind.pooling))
        rank = None if kind.rank is None else jnp.asarray(kind.rank)
        size, most = jnp.asarray(k), max(k, PADDED[-1])
        starts_at = (_start(self.rows, counts, key, size, most) for key in keys)
        how = (size, pooling, rank, padded, self.rows.shape[1])
        runs = [_fit(self.statistics, counts, labels, *how) for labels in starts_at]
        return max(runs, key=lambda run: float(run[1]))[0]

    def mean(self, logs: np.ndarray) -> float:
        """Mean over the samples that were held out."""
        judged = ~np.isnan(logs)
        return float(np.average(logs[judged], weights=self.weights[judged]))

    def best(self, tried: "dict[tuple[int, Kind], np.ndarray]") -> tuple[int, Kind]:
        """The case of greatest mean."""
        return max(tried, key=lambda case: self.mean(tried[case]))

    def clearly_better(self, logs: np.ndarray, other: np.ndarray) -> bool:
        """Whether the mean difference exceeds its standard error."""
        judged = ~np.isnan(logs)
        weights = self.weights[judged] / np.sum(self.weights[judged])
        gain = logs[judged] - other[judged]
        mean = np.sum(weights * gain)
        return bool(mean > np.sqrt(np.sum(weights**2 * (gain - mean) ** 2)) and mean > 0)


def _in_random_order(groups: Int[np.ndarray, " n"], seed: int) -> Int[np.ndarray, " n"]:
    """Groups numbered anew: from 0, without gaps, at random."""
    labels, numbers = np.unique(groups, return_inverse=True)
    return np.random.default_rng([seed, 1]).permutation(len(labels))[numbers]


@eqx.filter_jit
def _log_density(
    components: Components, statistics: Float[Array, "n p"], blur: float
) -> Float[Array, " n"]:
    """Under noise of standard deviation `blur`."""
    wider = components.covs + blur**2 * jnp.eye(components.covs.shape[1])[None]
    return jax.nn.logsumexp(log_joint(components._replace(covs=wider), statistics), axis=1)


@eqx.filter_jit
def _fit(
    statistics: Float[Array, "n p"],
    weights: Float[Array, " n"],
    labels: Int[Array, " n"],
    k: Int[Array, ""],
    pooling: Float[Array, ""],
    rank: Int[Array, ""] | None,
    padded: int,
    dim: int,
) -> tuple[Components, Float[Array, ""]]:
    """EM from the clusters of k-means, and the mean log density that it comes to."""
    dtype, total = statistics.dtype, jnp.sum(weights)

    def step(responsibilities: Float[Array, "n k"], noise: Array | None) -> Any:
        answered = (responsibilities * weights[:, None]).T @ statistics
        free = maximise(answered, dim, pooling)
        if rank is None:
            return free, None
        counts = answered[:, 0]
        pooled = jnp.einsum("k,kij->ij", counts / total, free.covs)
        return with_factors(free, counts, pooled if noise is None else noise, rank)

    def improve(state: Any) -> Any:
        index, (components, noise), value, _ = state
        joint = log_joint(components, statistics)
        logs = jax.nn.logsumexp(joint, axis=1, keepdims=True)
        after = step(jnp.exp(joint - logs), noise)
        return index + 1, after, jnp.sum(weights * logs[:, 0]) / total, value

    def improving(state: Any) -> Any:
        index, _, value, before = state
        return (index < 3) | ((index < LONGEST) & (value > before + CONVERGED))

    even = (jnp.arange(padded) < k).astype(dtype) / k.astype(dtype)
    hard = jax.nn.one_hot(labels, padded, dtype=dtype)
    first = step(0.98 * hard + 0.02 * even[None], None)
    low = jnp.full((), -jnp.inf, dtype)
    _, (components, _), value, _ = jax.lax.while_loop(improving, improve, (0, first, low, low))
    return components, value


@eqx.filter_jit
def _start(
    rows: Float[Array, "n d"],
    weights: Float[Array, " n"],
    key: Key[Array, ""],
    k: Int[Array, ""],
    most: int,
) -> Int[Array, " n"]:
    """Clusters by k-means, its centres spread by greedy k-means++. It takes longer to compile than
    EM and runs quickly, so one program serves every number of components."""
    numbers = jnp.arange(most)
    alive = numbers < k
    counted = weights[:, None] * jnp.concatenate([jnp.ones_like(rows[:, :1]), rows], axis=1)
    place_key, subset_key = jax.random.split(written_out(key))
    size = min(SEEDED_FROM, rows.shape[0])
    chosen = pick(weights, jax.random.uniform(subset_key, (size,), rows.dtype))
    centres = _spread(place_key, rows[chosen], k, most)

    def nearest(centres: Float[Array, "k d"]) -> Int[Array, " n"]:
        squares = jnp.sum(centres**2, axis=1)[None] - 2.0 * rows @ centres.T
        squares = jnp.where(alive[None], squares, jnp.inf)
        least = jnp.min(squares, axis=1, keepdims=True)  # quicker than `argmin`
        return jnp.min(jnp.where(squares == least, numbers[None], most - 1), axis=1)

    def lloyd(_: Any, centres: Float[Array, "k d"]) -> Float[Array, "k d"]:
        sums = jax.ops.segment_sum(counted, nearest(centres), most)
        count = sums[:, :1]
        return jnp.where(count > 0, sums[:, 1:] / jnp.maximum(count, 1e-6), centres)

    return nearest(jax.lax.fori_loop(0, LLOYD, lloyd, centres))


def _spread(
    key: Key[Array, ""], points: Float[Array, "m d"], k: Int[Array, ""], padded: int
) -> Float[Array, "k d"]:
    """Greedy k-means++: of a few points drawn by squared distance, the one that helps most."""

    def distances(place: Float[Array, " d"]) -> Float[Array, " m"]:
        return jnp.sum((points - place[None]) ** 2, axis=1)

    def add(index: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        centres, nearest = state
        uniforms = jax.random.uniform(jax.random.fold_in(key, index), (TRIALS,), points.dtype)
        drawn = pick(nearest + 1e-30, uniforms)
        options = jnp.minimum(nearest[None], jax.vmap(distances)(points[drawn]))
        best = jnp.argmin(jnp.sum(options, axis=1))
        return centres.at[index].set(points[drawn[best]]), options[best]

    centres = jnp.zeros((padded, points.shape[1]), points.dtype).at[0].set(points[0])
    return jax.lax.fori_loop(1, k, add, (centres, distances(points[0])))[0]
