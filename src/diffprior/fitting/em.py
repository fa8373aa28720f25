"""Gaussian mixtures by expectation maximization, the number of components by held-out likelihood.

Samples are in unit coordinates (`whitening`). One program fits every number of components up to
its padding, and every number of samples up to a multiple of `ROWS`.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..mixture import GaussianMixture
from .components import TIED, Components, log_joint, maximize, sufficient_statistics
from .factor_analysis import with_factors
from .k_means import clusters

PADDED = (8, 32, 128, 256)  # numbers of components that programs are compiled for
MOST_FREE = 128  # components with a covariance of their own
MOST_TIED = 32  # components that share a covariance
MANY_COMPONENTS = 32  # from which on covariances of few factors are tried
RANKS = (8, 4, 2)  # parameters for each factor that a component may have
FACTORS_POOLING = 2.0  # points' worth of the pooled covariance in one of few factors
TWO_FROM = 128  # components of few factors, from which on the mean of two mixtures is tried
RUNS = 2
RUNS_POOLING = 0.5  # points' worth in each of them: their mean is smooth without
WORSE = 2  # candidates in a row that may be clearly worse before the search stops
POINTS_EACH = 10  # samples that a component must have on average
ROWS = 1024  # samples are padded to a multiple of this
LARGEST = 20_000  # samples that are looked at
MANY = 5000  # samples from which one held-out part is enough
FOLDS = 5
PLANE = 2  # parameters up to which many samples leave nothing to be gained by tying
BLUR = 0.1  # of the samples' spread: finer detail, of many parameters, is not to be had from them
LONGEST, CONVERGED = 100, 5e-5  # rounds of EM, and gain that ends them


class Kind(NamedTuple):
    """How covariances are estimated: how much is pooled, and how many factors each has (all if
    None); and the mean of how many mixtures is taken, each of so many components."""

    pooling: float
    rank: int | None = None
    runs: int = 1

    def __str__(self) -> str:
        if self.rank is None:
            return " tied" if self.pooling == TIED else ""
        return f" rank {self.rank}" + (f", {self.runs} runs" if self.runs > 1 else "")


ONE = (1, Kind(TIED))


class Choice(NamedTuple):
    """A mixture in unit coordinates and how it was chosen."""

    components: Components
    num_components: int  # of one run
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
    free, tied, or of few factors. Where that takes many components of few factors, the mean of two
    such mixtures is tried too: each cuts a curved sheet into flat pieces elsewhere.

    From `MANY` samples on a tenth is held out; below, each fifth in turn; samples of one group (a
    number from 0) together, and counted as one. A mixture that is not better than one Gaussian by a
    standard error of the difference gives way to it.
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
    chosen = _best_or_two(search, tried, largest)
    if not search.clearly_better(tried[chosen], tried[ONE]):
        chosen = ONE
    scores = {f"{k}{kind}": search.mean(logs) for (k, kind), logs in tried.items()}
    means = search.mean(tried[chosen]), search.mean(tried[ONE])
    return Choice(search.final(*chosen), *chosen, *means, scores)


def _climb(search: "_Search", tried: dict, kind: Kind, k: int, largest: int) -> None:
    """Double the number of components until that is clearly worse, of few twice in a row: one start
    of EM in between may have come out badly."""
    best, worse = tried.get((k // 2, kind), tried[ONE]), 0
    while k <= largest and worse < WORSE:
        logs = tried[k, kind] = search.held_out(k, kind)
        clearly = search.clearly_better(best, logs)
        worse = 0 if not clearly else WORSE if k > MANY_COMPONENTS else worse + 1
        best = max(best, logs, key=search.mean)
        k *= 2


def _best_or_two(search: "_Search", tried: dict, largest: int) -> tuple[int, Kind]:
    """The best case, once means of two mixtures were tried where many components of few factors are
    best: for each number of factors, of a third more components than suit one mixture."""
    k, kind = search.best(tried)
    if kind.rank is None or k < TWO_FROM:
        return k, kind
    for rank in {kind.rank for _, kind in tried} - {None}:
        alike = {case: logs for case, logs in tried.items() if case[1].rank == rank}
        more = min(4 * search.best(alike)[0] // 3, largest)
        two = Kind(RUNS_POOLING, rank, RUNS)
        tried[more, two] = search.held_out(more, two)
    return search.best(tried)


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
    return _Search.over(unit, weights, seed).final(num_components, kind)


def as_base(components: Components) -> GaussianMixture:
    """The components that EM found, in unit coordinates, as the base of a denoiser."""
    log_weights, means, covs = (np.asarray(leaf, np.float64) for leaf in components)
    found = GaussianMixture.from_covs(np.exp(log_weights), means, covs, min_variance=1e-6)
    return found.on_device(jnp.float32)


def _first(components: Components, k: int) -> Components:
    return Components(*(leaf[:k] for leaf in components))


def _mean(mixtures: list[Components]) -> Components:
    """The mixture whose density is the mean of theirs."""
    log_weights, means, covs = (jnp.concatenate(leaves) for leaves in zip(*mixtures, strict=True))
    return Components(log_weights - np.log(len(mixtures)), means, covs)


class _Search(NamedTuple):
    """Padded samples and the parts of them that are held out in turn."""

    statistics: Float[Array, "n p"]
    judged: Float[Array, "n p"]  # of the same samples, seen through noise
    blur: float  # standard deviation of that noise
    rows: Float[Array, "n d"]
    weights: Float[np.ndarray, " n"]
    groups: Int[np.ndarray, " n"]  # numbers of the tasks that samples belong to
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
        num_groups = int(own.max()) + 1
        parts = 10 if num_groups >= MANY else min(FOLDS, num_groups)
        fold = np.pad(own % parts, (0, padding), constant_values=-1)
        padded = np.pad(weights[order] / np.mean(weights[order]), (0, padding))
        folds = 1 if num_groups >= MANY else parts
        blur = 0.0 if x.shape[1] <= PLANE else BLUR
        noise = np.random.default_rng([seed, 2]).standard_normal(x.shape)
        judged = sufficient_statistics(x + blur * jnp.asarray(noise, x.dtype))
        own = np.pad(own, (0, padding))
        return _Search(sufficient_statistics(x), judged, blur, x, padded, own, fold, folds, seed)

    def most_components(self) -> int:
        """Components that there are samples enough for; those of one task are one."""
        different = len(np.unique(self.groups[self.weights > 0]))
        return int(different * (1 - 1 / FOLDS) / POINTS_EACH)

    def held_out(self, k: int, kind: Kind) -> Float[np.ndarray, " n"]:
        """Log density of each sample, seen through noise, under the mixture fitted without it; NaN
        if always seen, minus infinity if EM failed."""
        found = np.full(len(self.fold), np.nan)
        for part in range(self.num_folds):
            seen = np.where(self.fold == part, 0.0, self.weights)
            components = self.fit(seen, k, kind, starts=1)
            logs = np.asarray(_log_density(components, self.judged, self.blur))
            found = np.where(self.fold == part, np.nan_to_num(logs, nan=-np.inf), found)
        return found

    def final(self, k: int, kind: Kind) -> Components:
        """The mixture fitted to all samples; among many components one start is like another."""
        fitted = self.fit(self.weights, k, kind, starts=3 if 1 < k < MANY_COMPONENTS else 1)
        return _first(fitted, kind.runs * k)

    def fit(self, weights: np.ndarray, k: int, kind: Kind, starts: int) -> Components:
        """Of each run the start that comes to the greatest likelihood on the samples it was fitted
        to; one run alone is padded with absent components."""
        keys = jax.random.split(jax.random.key(self.seed), (kind.runs, starts))
        runs = [self._run(weights, k, kind, of_run) for of_run in keys]
        return runs[0] if kind.runs == 1 else _mean([_first(run, k) for run in runs])

    def _run(self, weights: np.ndarray, k: int, kind: Kind, keys: Key[Array, " s"]) -> Components:
        padded = next(size for size in (*PADDED, k) if size >= k)
        counts, pooling = (jnp.asarray(a, self.rows.dtype) for a in (weights, kind.pooling))
        rank = None if kind.rank is None else jnp.asarray(kind.rank)
        size, most = jnp.asarray(k), max(k, PADDED[-1])
        starts_at = (clusters(self.rows, counts, key, size, most) for key in keys)
        how = (size, pooling, rank, padded, self.rows.shape[1])
        found = [_fit(self.statistics, counts, labels, *how) for labels in starts_at]
        return max(found, key=lambda one: np.nan_to_num(float(one[1]), nan=-np.inf))[0]

    def mean(self, logs: np.ndarray) -> float:
        """Mean over the samples that were held out."""
        judged = ~np.isnan(logs)
        return float(np.average(logs[judged], weights=self.weights[judged]))

    def best(self, tried: "dict[tuple[int, Kind], np.ndarray]") -> tuple[int, Kind]:
        """The case of greatest mean."""
        return max(tried, key=lambda case: self.mean(tried[case]))

    def clearly_better(self, logs: np.ndarray, other: np.ndarray) -> bool:
        """Whether the mean difference exceeds its standard error, over groups."""
        failed, other_failed = (np.isneginf(self.mean(one)) for one in (logs, other))
        if failed or other_failed:
            return not failed
        judged = ~np.isnan(logs)
        weights = self.weights[judged] / np.sum(self.weights[judged])
        gain = logs[judged] - other[judged]
        mean = np.sum(weights * gain)
        by_group = np.bincount(self.groups[judged], weights * (gain - mean))
        return bool(mean > np.sqrt(np.sum(by_group**2)) and mean > 0)


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
    """EM from the clusters of k-means, and the mean log density before its last step."""
    dtype, total = statistics.dtype, jnp.sum(weights)

    def step(responsibilities: Float[Array, "n k"], noise: Array | None) -> Any:
        answered = (responsibilities * weights[:, None]).T @ statistics
        free = maximize(answered, dim, pooling)
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
