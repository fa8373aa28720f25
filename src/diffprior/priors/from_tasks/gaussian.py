"""A Gaussian prior, and the noise with it, by accelerated expectation maximization."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ...executors import AbstractExecutor
from .algebra import TINY, lower, symmetric
from .block import AbstractBlock
from .components import Components
from .em import HERE, expectations, maximize
from .linear import LinearBlock

MAX_STEPS = 2000
LEAST = 1e-4  # smallest eigenvalue of the correlations that is left as it is


@dataclass(frozen=True, eq=False)
class GaussianFit:
    """The Gaussian, the noise if it was estimated, log evidence over tasks, and how it went."""

    components: Components
    noise_std: float | None
    log_evidence: float
    num_steps: int
    converged: bool


def fit_gaussian(
    blocks: Sequence[AbstractBlock],
    *,
    estimate_noise: bool = False,
    start: Components | None = None,
    tolerance: float = 1e-8,
    least_gain: float = 1e-12,
    max_steps: int = MAX_STEPS,
    executor: AbstractExecutor = HERE,
) -> GaussianFit:
    """Maximum marginal likelihood of N(mean, cov), of the noise too with `estimate_noise`.

    Closed-form EM, whose steps are extrapolated by SQUAREM: two steps give a direction and a
    length, a third from there; where that lowers the evidence, the plain step is kept.

    Args:
        blocks: evidence of the tasks.
        estimate_noise: estimate the noise of linear rewards jointly.
        start: where to begin; a wide guess from the tasks' own estimates by default.
        tolerance: change in one step, of means in standard deviations and of spreads relative,
            at which to stop.
        least_gain: rise of mean log evidence in nats a task, in two steps, at which to stop; where
            the likelihood is greatest at a variance of zero, steps go on for ever.
        max_steps: E-steps at most.
        executor: where to go over the blocks.

    References:
        Varadhan and Roland (2008), scheme S3, with a fallback instead of backtracking.
    """
    state = _State.first(blocks, start, executor)
    steps, converged, before = 0, False, -np.inf
    while steps < max_steps and not converged:
        one, _, _ = _step(blocks, state, estimate_noise, executor)
        two, value_one, _ = _step(blocks, one, estimate_noise, executor)
        jump = _extrapolate(state, one, two)
        steps += 2
        if jump is not None:
            three, value_jump, _ = _step(blocks, jump, estimate_noise, executor)
            steps += 1
            two = three if value_jump >= value_one else two
        converged = _distance(state, one) < tolerance or value_one - before < least_gain
        before = value_one
        state = two
    _, value, num_tasks = _step(blocks, state, estimate_noise, executor)
    noise = float(np.exp(state.log_noise)) if estimate_noise else None
    mean, cov = state.components.means[0], state.components.covs[0]
    state = _State(Components.one(mean, positive(cov)), state.log_noise)
    return GaussianFit(state.components, noise, value * num_tasks, steps, converged)


@dataclass(frozen=True, eq=False)
class _State:
    components: Components
    log_noise: float  # of noise over that of the blocks where it is estimated

    @staticmethod
    def first(
        blocks: Sequence[AbstractBlock], start: Components | None, executor: AbstractExecutor
    ) -> "_State":
        first = blocks[0]
        noise = np.log(first.noise_std) if isinstance(first, LinearBlock) else 0.0
        if start is None:
            start = guess(blocks, executor)
        return _State(start, float(noise))

    def vector(self) -> Float[np.ndarray, " v"]:
        tril = lower(self.components.covs[0])
        diagonal = np.log(np.diagonal(tril))
        below = tril[np.tril_indices(len(tril), -1)]
        return np.concatenate([self.components.means[0], diagonal, below, [self.log_noise]])

    def at(self, vector: Float[np.ndarray, " v"]) -> "_State":
        dim = self.components.dim
        tril = np.diag(np.exp(np.clip(vector[dim : 2 * dim], -300, 300)))
        tril[np.tril_indices(dim, -1)] = vector[2 * dim : -1]
        return _State(Components.one(vector[:dim], tril @ tril.T), float(vector[-1]))


def _step(
    blocks: Sequence[AbstractBlock], state: _State, estimate_noise: bool, executor: AbstractExecutor
) -> tuple[_State, float, int]:
    """One EM step, the mean log evidence a task before it, and the number of tasks."""
    if estimate_noise:
        noise = float(np.exp(state.log_noise))
        blocks = [b.with_noise(noise) for b in blocks if isinstance(b, LinearBlock)]
    sums = expectations(blocks, state.components, 0, executor)
    after = maximize(state.components, sums)
    log_noise = state.log_noise
    if estimate_noise:
        ratio = max(sums.squared_error, 1e-300) / sums.num_rows
        log_noise = log_noise + 0.5 * float(np.log(ratio))
    return _State(after, log_noise), sums.log_evidence / sums.num_tasks, sums.num_tasks


def positive(cov: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """A covariance with a little added where some direction has hardly any spread."""
    std = np.sqrt(np.diagonal(cov))
    smallest = np.linalg.eigvalsh(cov / np.outer(std, std))[0]
    return cov if smallest > LEAST else cov + LEAST * np.diag(std**2)


def _extrapolate(zero: _State, one: _State, two: _State) -> _State | None:
    a, b, c = zero.vector(), one.vector(), two.vector()
    r, v = b - a, (c - b) - (b - a)
    size = np.linalg.norm(v)
    if not np.isfinite(size) or size < 1e-14:
        return None
    step = -float(np.linalg.norm(r) / size)
    if step > -1.0:
        return None
    step = max(step, -64.0)
    vector = a - 2 * step * r + step**2 * v
    return zero.at(vector) if np.all(np.isfinite(vector)) else None


def _distance(one: _State, two: _State) -> float:
    """The largest change, of means in standard deviations, of factors relative, of log noise."""
    scale = np.sqrt(np.diagonal(one.components.covs[0]))
    moved = np.abs(one.components.means[0] - two.components.means[0]) / scale
    tril = np.linalg.solve(lower(one.components.covs[0]), lower(two.components.covs[0]))
    spread = np.abs(tril - np.eye(len(tril)))
    return float(max(moved.max(), spread.max(), abs(one.log_noise - two.log_noise)))


@dataclass(frozen=True, eq=False)
class _Pooled:
    """All rows as one task: precision (lower triangle), shift, sum of squares, rows and tasks."""

    precision: Float[np.ndarray, " p"]
    shift: Float[np.ndarray, " d"]
    sum_squares: float
    num_rows: float
    num_tasks: int

    @staticmethod
    def of(block: AbstractBlock) -> "_Pooled":
        rows = block.num_rows if block.exact else 0.0
        return _Pooled(*block.pooled(), rows, block.num_tasks)

    @staticmethod
    def total(parts: Iterable["_Pooled"]) -> "_Pooled":
        everything = list(parts)
        return _Pooled(
            np.sum([p.precision for p in everything], axis=0),
            np.sum([p.shift for p in everything], axis=0),
            sum(p.sum_squares for p in everything),
            sum(p.num_rows for p in everything),
            sum(p.num_tasks for p in everything),
        )


def guess(blocks: Sequence[AbstractBlock], executor: AbstractExecutor = HERE) -> Components:
    """A Gaussian around the pooled estimate, as wide as one task's own estimate is uncertain."""
    pooled = executor.total(_Pooled, _Pooled.of, blocks)
    precision = symmetric(pooled.precision)
    scale = np.sqrt(np.maximum(np.diagonal(precision), TINY))
    unit = precision / np.outer(scale, scale)
    mean = np.linalg.pinv(unit, rcond=1e-10) @ (pooled.shift / scale) / scale
    left = max(pooled.sum_squares - float(mean @ pooled.shift), 0.0)
    spread = max(left / max(pooled.num_rows, 1.0), 1.0)  # misfit over noise: what tasks differ by
    return Components.one(mean, np.diag(spread * pooled.num_tasks / scale**2))
