"""Expectation maximization of Gaussian mixtures, from samples or from what tasks have shown.

One E-step and one M-step over the contract `AbstractTasks`. Parameters that are known are tasks
whose evidence leaves no doubt (`Samples`); tasks with rows are in `rows`. All of it is
NumPy: nothing is compiled, and sums over samples are matrix products of sufficient statistics.
"""

import abc
import contextlib
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from jaxtyping import Float, Int

from ..executors import AbstractExecutor, InProcess
from ..mixture import GaussianMixture

HERE = InProcess()
SCORING_DRAWS = 128  # points per task in an estimate of evidence that has no closed form
MIN_MASS = 1e-3  # tasks that a component may be left with
MIN_WEIGHT = 1e-8  # of a component that stays
MIN_VARIANCE = 1e-4  # of a component, as a share of the Gaussian's
MIN_CORRELATION = 1e-4  # smallest eigenvalue of correlations that is left as it is
ROWS_AT_ONCE = 2048  # samples whose responsibilities are computed together, to stay in the cache
CENTERS_FROM = 4096  # points that centers of k-means are sought among
CENTER_TRIALS = 4  # points tried for each center
LLOYD_STEPS = 6
TINY = 1e-300
LONGEST_JUMP = 1.0  # change of log scales by an extrapolated step, where evidence is not exact
Part = TypeVar("Part")


class Additive:
    """A dataclass of arrays and numbers that are summed over tasks."""

    @classmethod
    def total(cls: type[Part], parts: Iterable[Part]) -> Part:
        """All of them added, in their order."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(sum(column) for column in columns))


@dataclass(frozen=True, eq=False)
class Sums(Additive):
    """Sums of an E-step over tasks, in units of each component: theta = mean + F z."""

    mass: Float[np.ndarray, " k"]  # expected number of tasks of each component
    first: Float[np.ndarray, "k d"]  # of E[z]
    second: Float[np.ndarray, "k d d"]  # of E[z z']
    log_evidence: float
    squared_error: float  # expected squared residuals of linear rewards over their variance
    num_rows: float  # or their weights
    num_tasks: float  # or their weights


@dataclass(frozen=True, eq=False)
class PooledRows(Additive):
    """The rows of all tasks as those of one task; `num_rows` is 0 where misfit says nothing."""

    precision: Float[np.ndarray, "d d"]
    shift: Float[np.ndarray, " d"]
    sum_squares: float
    num_rows: float
    num_tasks: float


class AbstractBlock(abc.ABC):
    """Some tasks: in memory, or loaded where and when they are needed.

    `exact` says whether their evidence has a closed form.
    """

    exact: bool = True

    @abc.abstractmethod
    def load(self) -> "Sequence[AbstractTasks]":
        """The tasks, in memory."""


class AbstractTasks(AbstractBlock):
    """Evidence of some tasks about their parameters: all that learning a prior may ask of it.

    Tasks are picklable, and what they return depends on nothing but themselves and the arguments.
    Where evidence has no closed form, it is expanded about a prior, and `num_draws` points per task
    correct what the expansion misses; 0 leaves it as it is. `noise_std` is that of linear rewards.
    """

    noise_std: float | None = None

    @property
    @abc.abstractmethod
    def num_tasks(self) -> int:
        """Number of tasks n."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    @property
    def task_weights(self) -> Float[np.ndarray, " n"]:
        """How many times each task counts."""
        return np.ones(self.num_tasks)

    @abc.abstractmethod
    def pooled(self) -> PooledRows:
        """All rows as one task, for a first guess."""

    @abc.abstractmethod
    def expect(self, mixture: GaussianMixture, round_: int = 0, num_draws: int = 0) -> Sums:
        """One E-step: expected responsibilities and moments, summed over the tasks."""

    @abc.abstractmethod
    def log_evidence(
        self, mixture: GaussianMixture, num_draws: int = SCORING_DRAWS
    ) -> Float[np.ndarray, " n"]:
        """Log p(h) of every task."""

    @abc.abstractmethod
    def draw(
        self, mixture: GaussianMixture, *numbers: int, count: int = 1
    ) -> Float[np.ndarray, "m n d"]:
        """Draws of theta given each task, which `numbers` tell from others."""

    def load(self) -> "Sequence[AbstractTasks]":
        """Themselves."""
        return [self]

    def expanded(self, mixture: GaussianMixture) -> "AbstractTasks":
        """The same evidence in closed form, about where a prior and the rows place theta."""
        return self

    def scoring(self) -> "AbstractTasks":
        """The tasks as models are scored on them."""
        return self

    def with_noise(self, noise_std: float) -> "AbstractTasks":
        """The same rows under another noise."""
        raise NotImplementedError


class Samples(AbstractTasks):
    """Parameters that are known: tasks whose evidence leaves no doubt.

    With the sufficient statistics T(x) = (1, x, upper triangle of x x') the log density of every
    component is linear in T, and an E-step sums T by responsibility. Computed in the precision of
    `x`, which should be in units of its spread; sums are added in double precision. Models are
    scored through noise of standard deviation `blur`, drawn from `seed`: finer detail than that is
    not to be had from samples of many parameters.
    """

    def __init__(
        self,
        x: Float[np.ndarray, "n d"],
        weights: Float[np.ndarray, " n"] | None = None,
        blur: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.x, self.blur, self.seed = x, blur, seed
        self.widened_by = 0.0
        self._weights = np.ones(len(x)) if weights is None else np.asarray(weights, np.float64)
        rows, columns = np.triu_indices(x.shape[1])
        self._rows, self._columns = rows, columns
        parts = (np.ones_like(x[:, :1]), x, x[:, rows] * x[:, columns])
        self._statistics = np.concatenate(parts, axis=1)

    @property
    def num_tasks(self) -> int:
        return len(self.x)

    @property
    def dim(self) -> int:
        return self.x.shape[1]

    @property
    def task_weights(self) -> Float[np.ndarray, " n"]:
        return self._weights

    def scoring(self) -> "Samples":
        if self.blur == 0.0:
            return self
        noise = np.random.default_rng([self.seed, 2]).standard_normal(self.x.shape)
        blurred = Samples((self.x + self.blur * noise).astype(self.x.dtype), self._weights)
        blurred.widened_by = self.blur**2
        return blurred

    def pooled(self) -> PooledRows:
        total = self._weights.sum()
        shift = np.asarray(self._weights @ self.x, np.float64)
        return PooledRows(total * np.eye(self.dim), shift, 0.0, 0.0, total)

    def draw(
        self, mixture: GaussianMixture, *numbers: int, count: int = 1
    ) -> Float[np.ndarray, "m n d"]:
        return np.broadcast_to(np.asarray(self.x, np.float64), (count, *self.x.shape))

    def log_evidence(
        self, mixture: GaussianMixture, num_draws: int = SCORING_DRAWS
    ) -> Float[np.ndarray, " n"]:
        if self.widened_by:
            weights, means = np.asarray(mixture.weights), np.asarray(mixture.means)
            wider = np.asarray(mixture.covs) + self.widened_by * np.eye(self.dim)
            mixture = GaussianMixture.from_covs(weights, means, wider)
        parts = [log_sum for _, log_sum, _ in self._responsibilities(mixture)]
        return np.concatenate(parts).astype(np.float64)

    def expect(self, mixture: GaussianMixture, round_: int = 0, num_draws: int = 0) -> Sums:
        sums, total = np.zeros((mixture.num_components, self._statistics.shape[1])), 0.0
        for shares, log_sum, own in self._responsibilities(mixture):
            weights = self._weights[own]
            shares *= weights.astype(shares.dtype)[:, None]
            sums += shares.T @ self._statistics[own]
            total += float(weights @ log_sum)
        return self.in_units(mixture, sums, total)

    def sums_by(self, mixture: GaussianMixture, shares: Float[np.ndarray, "n k"]) -> Sums:
        """Sums over samples whose responsibilities are given."""
        weighted = shares * self._weights[:, None]
        return self.in_units(mixture, weighted.T @ self._statistics, 0.0)

    def in_units(
        self, mixture: GaussianMixture, sums: Float[np.ndarray, "k p"], log_evidence: float
    ) -> Sums:
        """Sums of T(x) by responsibility in units of each component."""
        d, mass = self.dim, sums[:, 0]
        triangles = np.empty((len(sums), d, d))
        triangles[:, self._rows, self._columns] = sums[:, d + 1 :]
        triangles[:, self._columns, self._rows] = sums[:, d + 1 :]
        means = mixture.means.astype(np.float64)
        first = sums[:, 1 : d + 1] - mass[:, None] * means
        cross = means[:, :, None] * first[:, None]
        second = triangles - cross - cross.swapaxes(1, 2)
        second -= mass[:, None, None] * means[:, :, None] * means[:, None]
        whitening = mixture.vectors / np.sqrt(mixture.variances)[:, None]
        first = np.einsum("ki,kij->kj", first, whitening)
        second = whitening.swapaxes(1, 2) @ second @ whitening
        total = float(self._weights.sum())
        return Sums(mass, first, second, log_evidence, 0.0, 0.0, total)

    def _responsibilities(
        self, mixture: GaussianMixture
    ) -> Iterable[tuple[np.ndarray, np.ndarray, slice]]:
        """Some samples at a time: responsibilities, log density, and which samples."""
        natural = self._natural(mixture).astype(self.x.dtype).T
        for start in range(0, len(self.x), ROWS_AT_ONCE):
            own = slice(start, start + ROWS_AT_ONCE)
            joint = self._statistics[own] @ natural
            top = joint.max(axis=1, keepdims=True)
            joint -= top
            np.exp(joint, out=joint)
            total = joint.sum(axis=1, keepdims=True)
            joint /= total
            yield joint, (top + np.log(total))[:, 0], own

    def _natural(self, mixture: GaussianMixture) -> Float[np.ndarray, "k p"]:
        """Coefficients of T(x) in the log of weight times density of each component."""
        scaled = mixture.vectors / mixture.variances[:, None]
        precision = scaled @ mixture.vectors.swapaxes(1, 2)
        shift = np.einsum("kij,kj->ki", precision, mixture.means)
        log_det = np.sum(np.log(2 * np.pi * mixture.variances), axis=1)
        log_weights = np.maximum(mixture.log_weights, -1e4)  # a weight of zero stays finite
        constant = log_weights - 0.5 * (np.sum(mixture.means * shift, axis=1) + log_det)
        rows, columns = self._rows, self._columns
        quadratic = -np.where(rows == columns, 0.5, 1.0) * precision[:, rows, columns]
        return np.concatenate([constant[:, None], shift, quadratic], axis=1)


@dataclass(frozen=True)
class CovarianceModel:
    """How the covariances of components are estimated."""

    pooling: float  # tasks' worth of the pooled covariance in each one's own; infinity ties all
    rank: int | None = None  # directions in which one may be wider than the noise that all share

    def __str__(self) -> str:
        if self.rank is not None:
            return f" rank {self.rank}"
        return " tied" if self.pooling == np.inf else ""


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """A mixture, the mean log evidence per task before its last step, and the steps taken."""

    mixture: GaussianMixture
    log_evidence: float
    num_steps: int


def expectations(
    blocks: Sequence[AbstractBlock],
    mixture: GaussianMixture,
    round_: int = 0,
    executor: AbstractExecutor = HERE,
    num_draws: int = 0,
) -> Sums:
    """The E-step over all tasks, added in their order: the same wherever they are."""
    return executor.total(Sums, functools.partial(_expect, mixture, round_, num_draws), blocks)


def _expect(mixture: GaussianMixture, round_: int, num_draws: int, block: AbstractBlock) -> Sums:
    return Sums.total(tasks.expect(mixture, round_, num_draws) for tasks in block.load())


def log_evidence(
    blocks: Sequence[AbstractTasks], mixture: GaussianMixture, num_draws: int = SCORING_DRAWS
) -> Float[np.ndarray, " n"]:
    """Log p(h) of every task, in the order of the blocks."""
    return np.concatenate([block.log_evidence(mixture, num_draws) for block in blocks])


def maximize(
    mixture: GaussianMixture,
    sums: Sums,
    model: CovarianceModel | None = None,
    floor: Float[np.ndarray, "d d"] | float = 0.0,
    noise: Float[np.ndarray, "d d"] | None = None,
) -> tuple[GaussianMixture, Float[np.ndarray, "d d"]]:
    """The M-step. A component that no task belongs to stays where it is, with weight zero."""
    model = CovarianceModel(0.0) if model is None else model
    mass = sums.mass
    kept = np.maximum(mass, MIN_MASS)
    move = sums.first / kept[:, None]
    scatter = sums.second - mass[:, None, None] * move[:, :, None] * move[:, None]
    factors = mixture.factors
    means = mixture.means + np.einsum("kij,kj->ki", factors, move)
    scatter = factors @ scatter @ factors.swapaxes(1, 2)
    pooled = scatter.sum(axis=0) / mass.sum()
    if model.pooling == np.inf:
        covs = np.broadcast_to(pooled, scatter.shape)
    else:
        strength = np.maximum(mass + model.pooling, MIN_MASS)[:, None, None]
        covs = (scatter + model.pooling * pooled) / strength
    if model.pooling == 0.0:
        covs = np.where((mass > MIN_MASS)[:, None, None], covs, mixture.covs)
    covs = 0.5 * (covs + covs.swapaxes(1, 2)) + floor
    weights = mass / mass.sum()
    if model.rank is not None:
        noise = np.einsum("k,kij->ij", weights, covs) if noise is None else noise
        covs, loadings, rest = _few_factors(covs, weights, noise, model.rank)
        mixture = GaussianMixture.from_covs(weights, means, covs)
        return mixture.with_factors(noise[None], loadings), rest
    return GaussianMixture.from_covs(weights, means, covs), pooled if noise is None else noise


def _few_factors(
    covs: Float[np.ndarray, "k d d"],
    weights: Float[np.ndarray, " k"],
    noise: Float[np.ndarray, "d d"],
    rank: int,
) -> tuple[Float[np.ndarray, "k d d"], Float[np.ndarray, "k d r"], Float[np.ndarray, "d d"]]:
    """The M-step of mixtures of factor analyzers that share their noise.

    In coordinates in which the noise is I, the covariance of greatest likelihood keeps the `rank`
    largest variances of the component's own that exceed 1. The noise is then the mean over tasks of
    what the factors leave, E[e e'] = C^-1 T C^-1 + I - C^-1, where T is a component's own
    covariance and C what it became. Covariances, what they are made up of beside the noise, and the
    noise of the next step.
    """
    values, axes = np.linalg.eigh(noise)
    root, inverse = ((axes * power) @ axes.T for power in (np.sqrt(values), values**-0.5))
    variances, vectors = np.linalg.eigh(inverse @ covs @ inverse)
    kept = np.ones_like(variances)
    kept[:, -rank:] = np.maximum(variances[:, -rank:], 1.0)
    half = root @ (vectors * np.sqrt(kept)[:, None])
    left = weights[:, None] * (variances / kept**2 + 1.0 - 1.0 / kept)
    rest = np.einsum("kij,kj,klj->il", vectors, left, vectors, optimize=True)
    wider = np.sqrt(kept[:, -rank:] - 1.0)[:, None]
    return half @ half.swapaxes(1, 2), root @ (vectors[:, :, -rank:] * wider), root @ rest @ root


def fit_mixture(
    blocks: Sequence[AbstractBlock],
    start: GaussianMixture,
    model: CovarianceModel,
    floor: Float[np.ndarray, "d d"] | float = 0.0,
    *,
    max_steps: int = 100,
    tolerance: float = 5e-5,
    num_draws: int = 0,
    executor: AbstractExecutor = HERE,
) -> MixtureFit:
    """EM steps from a given mixture until the evidence hardly rises.

    References:
        Bovy, Hogg and Roweis (2011), Extreme deconvolution, for tasks whose evidence leaves doubt.
    """
    mixture, noise, before, value, step = start, None, -np.inf, -np.inf, 0
    for step in range(1, max_steps + 1):
        sums = expectations(blocks, mixture, step - 1, executor, num_draws)
        value = sums.log_evidence / sums.num_tasks
        if not np.isfinite(value):
            break
        mixture, noise = maximize(mixture, sums, model, floor, noise)
        if step > 3 and value - before < tolerance:
            break
        before = value
    alive = np.asarray(mixture.weights) > MIN_WEIGHT
    return MixtureFit(mixture if alive.all() else mixture.select(alive), value, step)


def initial_mixture(
    draws: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    gaussian: GaussianMixture,
    num_components: int,
    model: CovarianceModel,
    rng: np.random.Generator,
) -> GaussianMixture:
    """A mixture to begin with: clusters of draws of the tasks' parameters."""
    mean, factor = np.asarray(gaussian.means[0]), np.asarray(gaussian.factors[0])
    unit = np.linalg.solve(factor, (draws - mean).T).T.astype(np.float32)
    labels = k_means(unit, weights, num_components, rng)
    shares = np.full((len(unit), num_components), 0.02 / num_components, np.float32)
    shares[np.arange(len(unit)), labels] += 0.98
    d = unit.shape[1]
    log_weights = np.full(num_components, -np.log(num_components))
    standard = GaussianMixture.standard(log_weights, d)
    sums = Samples(unit, weights).sums_by(standard, shares)
    return maximize(standard, sums, model, MIN_VARIANCE * np.eye(d))[0].transform(mean, factor)


def k_means(
    x: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    num_clusters: int,
    rng: np.random.Generator,
) -> Int[np.ndarray, " n"]:
    """Clusters by k-means, its centers spread by greedy k-means++ among a few thousand points."""
    if len(x) <= CENTERS_FROM:
        some = rng.permutation(np.flatnonzero(weights > 0))
    else:
        some = rng.choice(len(x), CENTERS_FROM, p=weights / weights.sum())
    centers = _spread_centers(x[some], num_clusters, rng)
    counted = np.concatenate([np.ones_like(x[:, :1]), x], axis=1) * weights[:, None]
    for _ in range(LLOYD_STEPS):
        labels = _nearest(x, centers)
        sums = [np.bincount(labels, column, minlength=num_clusters) for column in counted.T]
        mass = sums[0][:, None]
        moved = np.stack(sums[1:], axis=1) / np.maximum(mass, 1e-6)
        centers = np.where(mass > 0, moved, centers).astype(x.dtype)
    return _nearest(x, centers)


def _nearest(x: np.ndarray, centers: np.ndarray) -> Int[np.ndarray, " n"]:
    return np.argmin(np.sum(centers**2, axis=1) - 2.0 * (x @ centers.T), axis=1)


def _spread_centers(
    points: Float[np.ndarray, "m d"], count: int, rng: np.random.Generator
) -> Float[np.ndarray, "k d"]:
    """Greedy k-means++: of a few points drawn by squared distance, the one that helps most."""
    squares = np.sum(points**2, axis=1)
    centers = [points[0]]
    nearest = np.sum((points - points[0]) ** 2, axis=1)
    for _ in range(count - 1):
        edges = np.cumsum(nearest, dtype=np.float64)
        if edges[-1] <= 0:
            centers.append(points[rng.integers(len(points))])
            continue
        drawn = np.searchsorted(edges, rng.random(CENTER_TRIALS) * edges[-1], side="right")
        drawn = np.minimum(drawn, len(points) - 1)
        away = squares + squares[drawn][:, None] - 2.0 * (points[drawn] @ points.T)
        options = np.minimum(nearest, np.maximum(away, 0.0))
        best = int(np.argmin(options.sum(axis=1)))
        nearest = options[best]
        centers.append(points[drawn[best]])
    return np.stack(centers)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Products of matrices in one thread: they are small, and threads that wait cost more."""
    try:
        import threadpoolctl
    except ImportError:  # only speed depends on it
        yield
        return
    with threadpoolctl.threadpool_limits(1):
        yield


@dataclass(frozen=True, eq=False)
class GaussianFit:
    """One Gaussian, the noise if it was estimated, log evidence over tasks, and how it went."""

    mixture: GaussianMixture
    noise_std: float | None
    log_evidence: float
    converged: bool


def fit_gaussian(
    blocks: Sequence[AbstractBlock],
    *,
    noise_std: float | None = None,
    num_draws: int = 0,
    start: GaussianMixture | None = None,
    tolerance: float = 1e-8,
    min_gain: float = 1e-12,
    max_steps: int = 2000,
    executor: AbstractExecutor = HERE,
) -> GaussianFit:
    """Maximum marginal likelihood of N(mean, cov), and of the noise, if one is given to begin with.

    Closed-form EM, whose steps are extrapolated by SQUAREM: two steps give a direction and a
    length, a third from there; where that lowers the evidence, the plain step is kept. Steps end
    at changes below `tolerance`, or a rise of the mean log evidence below `min_gain`: where the
    likelihood is greatest at a variance of zero, they would go on for ever.

    References:
        Varadhan and Roland (2008), scheme S3, with a fallback instead of backtracking.
    """
    start = guess_gaussian(blocks, executor) if start is None else start
    state = _State.of(start, float(np.log(noise_std or 1.0)))
    longest = np.inf if blocks[0].exact else LONGEST_JUMP
    step = functools.partial(_step, blocks, noise_std is not None, num_draws, executor)
    steps, converged, before = 0, False, -np.inf
    while steps < max_steps and not converged:
        one, _, _ = step(state)
        two, value_one, _ = step(one)
        jump = state.extrapolate(one, two, longest)
        steps += 2
        if jump is not None:
            three, value_jump, _ = step(jump)
            steps += 1
            two = three if value_jump >= value_one else two
        converged = state.distance(one) < tolerance or value_one - before < min_gain
        before = value_one
        state = two
    _, value, num_tasks = step(state)
    noise = None if noise_std is None else float(np.exp(state.log_noise))
    mixture = GaussianMixture.single(state.mean, well_conditioned(state.cov))
    return GaussianFit(mixture, noise, value * num_tasks, converged)


@dataclass(frozen=True, eq=False)
class _State:
    """A Gaussian, and the logarithm of the noise where it is estimated."""

    mean: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]
    log_noise: float

    @staticmethod
    def of(gaussian: GaussianMixture, log_noise: float) -> "_State":
        return _State(np.asarray(gaussian.means[0]), np.asarray(gaussian.covs[0]), log_noise)

    def vector(self) -> Float[np.ndarray, " v"]:
        tril = lower_factor(self.cov)
        below = tril[np.tril_indices(len(tril), -1)]
        return np.concatenate([self.mean, np.log(np.diagonal(tril)), below, [self.log_noise]])

    def at(self, vector: Float[np.ndarray, " v"]) -> "_State":
        dim = len(self.mean)
        tril = np.diag(np.exp(np.clip(vector[dim : 2 * dim], -300, 300)))
        tril[np.tril_indices(dim, -1)] = vector[2 * dim : -1]
        return _State(vector[:dim], tril @ tril.T, float(vector[-1]))

    def extrapolate(self, one: "_State", two: "_State", longest: float) -> "_State | None":
        a, b, c = self.vector(), one.vector(), two.vector()
        r, v = b - a, (c - b) - (b - a)
        size = np.linalg.norm(v)
        if not np.isfinite(size) or size < 1e-14:
            return None
        step = -float(np.linalg.norm(r) / size)
        if step > -1.0:
            return None
        step, scales = max(step, -64.0), slice(len(self.mean), 2 * len(self.mean))
        vector = a - 2 * step * r + step**2 * v
        while np.abs(vector - c)[scales].max() > longest and step < -1.0 - 1e-3:
            step = 0.5 * (step - 1.0)
            vector = a - 2 * step * r + step**2 * v
        return self.at(vector) if np.all(np.isfinite(vector)) else None

    def distance(self, other: "_State") -> float:
        """The largest change, of means in standard deviations, of factors relative, of noise."""
        moved = np.abs(self.mean - other.mean) / np.sqrt(np.diagonal(self.cov))
        ratio = np.linalg.solve(lower_factor(self.cov), lower_factor(other.cov))
        spread = np.abs(ratio - np.eye(len(ratio)))
        return float(max(moved.max(), spread.max(), abs(self.log_noise - other.log_noise)))


def _step(
    blocks: Sequence[AbstractBlock],
    estimate_noise: bool,
    num_draws: int,
    executor: AbstractExecutor,
    state: _State,
) -> tuple[_State, float, float]:
    """One EM step, the mean log evidence per task before it, and the number of tasks."""
    if estimate_noise:
        noise = float(np.exp(state.log_noise))
        blocks = [tasks.with_noise(noise) for block in blocks for tasks in block.load()]
    mixture = GaussianMixture.single(state.mean, state.cov)
    sums = expectations(blocks, mixture, 0, executor, num_draws)
    after, _ = maximize(mixture, sums)
    log_noise = state.log_noise
    if estimate_noise:
        log_noise += 0.5 * float(np.log(max(sums.squared_error, TINY) / sums.num_rows))
    value = sums.log_evidence / sums.num_tasks
    return _State.of(after, log_noise), value, sums.num_tasks


def guess_gaussian(
    blocks: Sequence[AbstractBlock], executor: AbstractExecutor = HERE
) -> GaussianMixture:
    """A Gaussian around the pooled estimate, as wide as one task's own estimate is uncertain."""
    pooled = executor.total(PooledRows, _pooled, blocks)
    scale = np.sqrt(np.maximum(np.diagonal(pooled.precision), TINY))
    unit = pooled.precision / np.outer(scale, scale)
    mean = np.linalg.pinv(unit, rcond=1e-10) @ (pooled.shift / scale) / scale
    left = max(pooled.sum_squares - float(mean @ pooled.shift), 0.0)
    spread = max(left / max(pooled.num_rows, 1.0), 1.0)  # misfit over noise: what tasks differ by
    return GaussianMixture.single(mean, np.diag(spread * pooled.num_tasks / scale**2))


def _pooled(block: AbstractBlock) -> PooledRows:
    return PooledRows.total(tasks.pooled() for tasks in block.load())


def well_conditioned(cov: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """A covariance with a little added where some direction has hardly any spread."""
    std = np.sqrt(np.diagonal(cov))
    smallest = np.linalg.eigvalsh(cov / np.outer(std, std))[0]
    return cov if smallest > MIN_CORRELATION else cov + MIN_CORRELATION * np.diag(std**2)


def lower_factor(matrix: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """A lower factor of a positive semi-definite matrix, a little added where it is singular."""
    scale = np.sqrt(np.maximum(np.diagonal(matrix), TINY))
    correlation = matrix / np.outer(scale, scale)
    for ridge in (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6):
        try:
            tril = np.linalg.cholesky(correlation + ridge * np.eye(len(matrix)))
            return scale[:, None] * tril
        except np.linalg.LinAlgError:
            continue
    raise ValueError(
        "`cov`: expected a covariance matrix, got one that is not positive; check the features"
    )
