"""Tasks with rows: linear rewards, generalized linear models, and files read on demand.

Many small symmetric matrices are handled at once, in float64, with the batch as the last axis. A
symmetric matrix is stored as its lower triangle, row by row. NumPy loops over rows and columns and
works on whole batches, which for small matrices is several times faster than LAPACK one by one, and
needs neither compilation nor the precision that JAX was set to.
"""

import abc
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt64

from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..executors import AbstractExecutor
from ..fitting.em import HERE, AbstractTasks, PooledRows, Sums, fit_gaussian
from ..fitting.search import Search, SearchConfig, Splits, gaussian_of, refined, search
from ..logs.labels import Selection, folds, normals, uniforms
from ..logs.logs import Logs
from ..logs.shards import Shard
from ..logs.statistics import TaskStatistics, segment_sums, unpacked
from ..mixture import GaussianMixture

UNROLLED_UP_TO = 16  # largest dimension factorized by loops over rows and columns
LINEAR_TASKS_AT_ONCE = 1024
PAIRS_AT_ONCE = 8192  # tasks times components, so that their matrices stay in the cache
TASKS_AT_ONCE, ROWS_AT_ONCE = 256, 4096  # of generalized linear models
POINTS_AT_ONCE = 2_000_000  # rows times points whose likelihood is computed together
MAX_NEWTON = 50
MODE_TOLERANCE = 1e-7  # step in prior standard deviations at which the mode is found
POSTERIOR_SHARE = 0.95  # points by probability given the task; the others by the prior's weights
WIDENING = 1.1  # standard deviations of the points over Laplace's
CACHED_BYTES = 2**31  # of tasks that a process keeps for the next round
MIN_RESIDUAL_FREEDOM = 200  # degrees of freedom from which pooled residuals are trusted alone
MAX_NOISE_TASKS = 100_000
MIN_EIGENVALUE = 1e-9  # of a task's design, over its largest
TINY = 1e-300

LOGS_SEARCH = SearchConfig(
    num_components=(2, 5, 10, 20),
    pooling_per_parameter=0.5,
    tasks_per_component=20.0,
    num_folds=3,
    stack=True,
)
AnyLogs = Logs | TaskStatistics


@functools.lru_cache(maxsize=32)
def triangle_places(dim: int) -> Int[np.ndarray, "d d"]:
    """Where each entry of a symmetric matrix is in its lower triangle."""
    rows, columns = np.tril_indices(dim)
    index = np.zeros((dim, dim), np.int64)
    index[rows, columns] = index[columns, rows] = np.arange(len(rows))
    return index


def congruence(factor: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "p p"]:
    """The matrix that takes the triangle of P to that of factor' P factor."""
    dim = len(factor)
    rows, columns = np.tril_indices(dim)
    outer = factor[rows][:, :, None] * factor[columns][:, None, :]  # basis element, then the result
    both = outer + np.swapaxes(outer, 1, 2)
    both[rows == columns] *= 0.5
    return np.asarray(both[:, rows, columns].T)


def inverse_factor(
    triangles: Float[np.ndarray, " p *n"],
) -> tuple[Float[np.ndarray, "d d *n"], Float[np.ndarray, " *n"]]:
    """W with W A W' = I, lower triangular, and log det A, of positive definite matrices A."""
    full = symmetric(triangles.reshape(len(triangles), -1))
    dim = len(full)
    if dim > UNROLLED_UP_TO:
        by_lapack = np.linalg.inv(np.linalg.cholesky(np.moveaxis(full, -1, 0)))
        inverse = np.ascontiguousarray(np.moveaxis(by_lapack, 0, -1))
    else:
        tril, inverse = np.zeros_like(full), np.zeros_like(full)
        for i in range(dim):
            column = full[i:, i] - np.einsum("ikn,kn->in", tril[i:, :i], tril[i, :i])
            tril[i:, i] = column / np.sqrt(np.maximum(column[0], TINY))
            inverse[i, i] = 1.0 / tril[i, i]
            for j in range(i):
                known = np.einsum("kn,kn->n", tril[i, j:i], inverse[j:i, j])
                inverse[i, j] = -known * inverse[i, i]
    log_det = -2.0 * np.log(inverse[np.arange(dim), np.arange(dim)]).sum(axis=0)
    shape = triangles.shape[1:]
    return inverse.reshape(dim, dim, *shape), log_det.reshape(shape)


def gram(inverse: Float[np.ndarray, "d d *n"]) -> Float[np.ndarray, " p *n"]:
    """Triangles of W' W: the inverses, from `inverse_factor`."""
    rows, columns = np.tril_indices(len(inverse))
    pairs = zip(rows, columns, strict=True)
    return np.stack([np.einsum("k...,k...->...", inverse[i:, i], inverse[i:, j]) for i, j in pairs])


def symmetric(triangles: Float[np.ndarray, " p *n"]) -> Float[np.ndarray, "d d *n"]:
    """Symmetric matrices from their lower triangles."""
    dim = int((np.sqrt(8 * len(triangles) + 1) - 1) / 2)
    return np.asarray(triangles[triangle_places(dim)])


def diagonal(dim: int) -> Int[np.ndarray, " d"]:
    """Places of the diagonal in a triangle."""
    return np.cumsum(np.arange(dim) + 1) - 1


@dataclass(frozen=True, eq=False)
class TaskPosteriors:
    """Components given each task, in units of the component: theta = mean + F z."""

    log_evidence: Float[np.ndarray, "k n"]
    mean_z: Float[np.ndarray, "d k n"]
    cov_z: Float[np.ndarray, "p k n"]
    squared_error: Float[np.ndarray, "k n"]

    @staticmethod
    def concatenate(parts: "Sequence[TaskPosteriors]", axis: int) -> "TaskPosteriors":
        """Those of several components, along axis -2, or of several tasks, along axis -1."""
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return TaskPosteriors(*(np.concatenate(column, axis) for column in columns))

    def responsibilities(
        self, mixture: GaussianMixture
    ) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, " n"]]:
        """The probability of each component given each task, and log p(h) under the mixture."""
        joint = self.log_evidence + mixture.log_weights[:, None]
        top = joint.max(axis=0)
        shares = np.exp(joint - top)
        total = shares.sum(axis=0)
        return shares / total, top + np.log(total)

    def sums(self, mixture: GaussianMixture, num_rows: float) -> Sums:
        """Those of an E-step."""
        shares, log_evidence = self.responsibilities(mixture)
        second = np.einsum("pkn,kn->kp", self.cov_z, shares)[:, triangle_places(mixture.dim)]
        weighted = self.mean_z * shares[None]
        second += np.einsum("ikn,jkn->kij", weighted, self.mean_z)
        return Sums(
            shares.sum(axis=1),
            weighted.sum(axis=2).T,
            second,
            float(np.sum(log_evidence)),
            float(np.sum(shares * self.squared_error)),
            num_rows,
            float(shares.shape[1]),
        )


class RowTasks(AbstractTasks):
    """Tasks with rows, each known by the hash of its label."""

    hashes: UInt64[np.ndarray, " n"]

    @property
    def num_tasks(self) -> int:
        return len(self.hashes)

    @property
    @abc.abstractmethod
    def task_rows(self) -> Float[np.ndarray, " n"]:
        """Rows of every task."""

    @property
    def num_rows(self) -> float:
        """Rows of all tasks, or their weights."""
        return float(self.task_rows.sum())

    @abc.abstractmethod
    def condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        """Every component given each task, in units of the component."""

    @abc.abstractmethod
    def log_likelihood(self, thetas: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """Log p(h | theta) of every task at every theta, constants included."""

    def expect(self, mixture: GaussianMixture, round_: int = 0) -> Sums:
        return self.condition(mixture).sums(mixture, self.num_rows)

    def log_evidence(self, mixture: GaussianMixture) -> Float[np.ndarray, " n"]:
        return self.condition(mixture).responsibilities(mixture)[1]

    def corrected(self, num_draws: int) -> "RowTasks":
        return self


@dataclass(frozen=True, eq=False)
class LinearTasks(RowTasks):
    """Evidence of some tasks with linear rewards; triangles and vectors have tasks last."""

    hashes: UInt64[np.ndarray, " n"]
    precision: Float[np.ndarray, "p n"]
    shift: Float[np.ndarray, "d n"]
    sum_squares: Float[np.ndarray, " n"]
    counts: Float[np.ndarray, " n"]
    noise_std: float

    @property
    def dim(self) -> int:
        return len(self.shift)

    @property
    def task_rows(self) -> Float[np.ndarray, " n"]:
        return self.counts

    def with_noise(self, noise_std: float) -> "LinearTasks":
        factor = (self.noise_std / noise_std) ** 2
        scaled = {
            name: getattr(self, name) * factor for name in ("precision", "shift", "sum_squares")
        }
        return dataclasses.replace(self, noise_std=noise_std, **scaled)

    def condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        """Every component given each task, exactly, and log p(h): Eq. (3) in units of the prior.

        With cov = L L' and B = I + L' P L, z has covariance B^-1 and mean B^-1 L' (s - P mean).
        """
        step = max(1, PAIRS_AT_ONCE // max(self.num_tasks, 1))
        starts = range(0, mixture.num_components, step)
        parts = [self._condition(mixture.select(slice(k, k + step))) for k in starts]
        return TaskPosteriors.concatenate(parts, axis=-2)

    def _condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        inverse, log_det, pull, at_mean = self._in_prior_units(mixture)
        half = np.sum(inverse * pull[None], axis=1)
        log_mass = 0.5 * (at_mean + np.sum(half**2, axis=0) - log_det)
        mean_z = np.sum(inverse * half[:, None], axis=0)
        cov_z = gram(inverse)
        residual = self.sum_squares - at_mean - np.sum(pull * mean_z, axis=0)
        left = self.dim - np.sum(cov_z[diagonal(self.dim)], axis=0) - np.sum(mean_z**2, axis=0)
        return TaskPosteriors(log_mass + self.at_zero(), mean_z, cov_z, residual + left)

    def _in_prior_units(self, mixture: GaussianMixture) -> tuple[np.ndarray, ...]:
        """W with W B W' = I, log det B, L' (s - P mean), and mean' (2 s - P mean).

        The last axes are components and tasks.
        """
        trils, means = np.asarray(mixture.factors), np.asarray(mixture.means)
        maps = np.stack([congruence(tril) for tril in trils], axis=1)
        ratio = (maps.reshape(-1, maps.shape[-1]) @ self.precision).reshape(*maps.shape[:2], -1)
        ratio[diagonal(self.dim)] += 1.0
        flat = symmetric(self.precision).reshape(self.dim, -1)
        moved = (means @ flat).reshape(*means.shape, -1)  # P mean (k, d, n)
        pull = np.stack(trils.swapaxes(1, 2) @ (self.shift - moved), axis=1)
        at_mean = np.sum(means[:, :, None] * (2.0 * self.shift - moved), axis=1)
        return *inverse_factor(ratio), pull, at_mean

    def pooled(self) -> PooledRows:
        precision, shift = symmetric(self.precision.sum(axis=1)), self.shift.sum(axis=1)
        squares = float(self.sum_squares.sum())
        return PooledRows(precision, shift, squares, self.num_rows, float(self.num_tasks))

    def at_zero(self) -> Float[np.ndarray, " n"]:
        """Log p(h | theta = 0)."""
        log_norm = np.log(np.sqrt(2 * np.pi) * self.noise_std)
        return np.asarray(-0.5 * self.sum_squares - self.counts * log_norm)

    def log_likelihood(self, thetas: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        rows, columns = np.tril_indices(self.dim)
        products = thetas[:, rows] * thetas[:, columns] * np.where(rows == columns, 0.5, 1.0)
        made = thetas @ self.shift - products @ self.precision + self.at_zero()[None]
        return np.asarray(made.T)

    def draw(self, mixture: GaussianMixture, *numbers: int) -> Float[np.ndarray, "n d"]:
        normal = normals(self.hashes, self.dim, 1, *numbers)
        uniform = uniforms(self.hashes, 1, 2, *numbers)[:, 0]
        shares, _ = self.condition(mixture).responsibilities(mixture)
        edges = np.cumsum(shares, axis=0)
        chosen = np.sum(uniform[None] * edges[-1:] > edges[:-1], axis=0)
        draws = np.empty_like(normal)
        for k in np.unique(chosen).tolist():
            own = chosen == k
            component = mixture.select(slice(k, k + 1))
            inverse, _, pull, _ = self.select(own)._in_prior_units(component)
            half = np.sum(inverse * pull[None], axis=1)[:, 0] + normal[own].T
            z = np.sum(inverse[:, :, 0] * half[:, None], axis=0)
            draws[own] = mixture.means[k] + (mixture.factors[k] @ z).T
        return draws

    def select(self, tasks: np.ndarray) -> "LinearTasks":
        """The evidence of some tasks: positions, or a mask."""
        names = ("hashes", "precision", "shift", "sum_squares", "counts")
        return dataclasses.replace(self, **{n: getattr(self, n)[..., tasks] for n in names})


def linear_blocks(
    statistics: TaskStatistics, noise_std: float, tasks_at_once: int = LINEAR_TASKS_AT_ONCE
) -> list[LinearTasks]:
    """Blocks of tasks in the order of their hashes, so that the same tasks make the same blocks."""
    order = block_order(statistics)
    scale = 1.0 / noise_std**2
    blocks = []
    for start in range(0, max(len(order), 1), tasks_at_once):
        own = order[start : start + tasks_at_once]
        xx, xy = (
            np.ascontiguousarray(a[own].T, np.float64) for a in (statistics.xx, statistics.xy)
        )
        squares, counts = statistics.yy[own] * scale, statistics.counts[own]
        hashes = statistics.hashes[own]
        blocks.append(LinearTasks(hashes, xx * scale, xy * scale, squares, counts, noise_std))
    return blocks


@dataclass(frozen=True, eq=False)
class GlmTasks(RowTasks):
    """Rows of some tasks, grouped by task, and the family that their rewards follow.

    Every component given every task is Laplace's approximation, and its correction by importance.

    `num_draws` points per task correct moments and evidence by importance; 0 leaves them Laplace's.
    """

    exact = False

    family: AbstractFamily
    hashes: UInt64[np.ndarray, " n"]
    starts: Int[np.ndarray, " s"]
    features: Float[np.ndarray, "r d"]
    rewards: Float[np.ndarray, " r"]
    weights: Float[np.ndarray, " r"]
    num_draws: int = 0
    modes: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)  # where to search next

    @property
    def dim(self) -> int:
        return int(self.features.shape[1])

    @property
    def task_rows(self) -> Float[np.ndarray, " n"]:
        return np.diff(self.starts).astype(np.float64)

    @property
    def num_rows(self) -> float:
        return float(self.weights.sum())

    def corrected(self, num_draws: int) -> "GlmTasks":
        return dataclasses.replace(self, num_draws=num_draws, modes=dict(self.modes))

    def condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        """Laplace's approximation, at modes found by damped Newton steps from the last ones."""
        k = mixture.num_components
        z = self.modes.get(k, np.zeros((self.dim, k, self.num_tasks)))
        damping = np.zeros(z.shape[1:])
        value, gradient, precision = self._in_prior_units(mixture, z)
        for _ in range(MAX_NEWTON):
            ratio = precision.copy()
            ratio[diagonal(self.dim)] += damping
            inverse, _ = inverse_factor(ratio)
            half = np.sum(inverse * gradient[None], axis=1)
            step = np.sum(inverse * half[:, None], axis=0)
            trial = self._in_prior_units(mixture, z + step)
            better = trial[0] >= value - 1e-9
            z = np.where(better, z + step, z)
            value, gradient, precision = (
                np.where(better, a, b)
                for a, b in zip(trial, (value, gradient, precision), strict=True)
            )
            damping = np.where(better, damping * 0.1, np.maximum(10.0 * damping, 1.0))
            damping[damping < 1e-2] = 0.0
            if np.all(np.max(np.abs(step), axis=0) < MODE_TOLERANCE):
                break
        self.modes[k] = z
        inverse, log_det = inverse_factor(precision)
        return TaskPosteriors(value - 0.5 * log_det, z, gram(inverse), np.zeros(z.shape[1:]))

    def _in_prior_units(
        self, mixture: GaussianMixture, z: Float[np.ndarray, "d k n"]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log p(h | z) - z' z / 2, its gradient and minus its second derivative, of every pair."""
        trils = np.asarray(mixture.factors)
        theta = mixture.means[:, None] + np.einsum("kij,jkn->kni", trils, z)
        value, score, precision = self.at(theta)
        maps = np.stack([congruence(tril) for tril in trils])
        moved = np.ascontiguousarray(np.einsum("kqp,kpn->qkn", maps, precision))
        moved[diagonal(self.dim)] += 1.0
        gradient = np.einsum("kji,kjn->ikn", trils, score) - z
        return value - 0.5 * np.sum(z**2, axis=0), gradient, moved

    def at(
        self, theta: Float[np.ndarray, "k n d"]
    ) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k d n"], Float[np.ndarray, "k p n"]]:
        """Log p(h | theta), score and triangle of the precision, at some thetas of each task."""
        eta = np.einsum("ri,kri->rk", self.features, theta[:, self.row_tasks])
        value, score, curvature = (
            self.weights[:, None] * part for part in terms(self.family, self.rewards, eta)
        )
        rows, columns = np.tril_indices(self.dim)
        products = self.features[:, rows] * self.features[:, columns]
        num, d, p = eta.shape[1], self.dim, len(rows)
        parts = (
            value,
            (score[:, :, None] * self.features[:, None]).reshape(-1, num * d),
            (curvature[:, :, None] * products[:, None]).reshape(-1, num * p),
        )
        sums = segment_sums(np.concatenate(parts, axis=1), self.starts).T
        values, scores, curvatures = np.split(sums, [num, num * (1 + d)])
        return values, scores.reshape(num, d, -1), curvatures.reshape(num, p, -1)

    def pooled(self) -> PooledRows:
        _, score, precision = self.at(np.zeros((1, self.num_tasks, self.dim)))
        total = symmetric(precision[0].sum(axis=1))
        return PooledRows(total, score[0].sum(axis=1), 0.0, 0.0, float(self.num_tasks))

    @property
    def row_tasks(self) -> Int[np.ndarray, " r"]:
        """The task of every row."""
        return np.repeat(np.arange(self.num_tasks), np.diff(self.starts))

    def log_likelihood(self, thetas: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        step = max(1, POINTS_AT_ONCE // max(len(self.rewards), 1))
        parts = (thetas[start : start + step] for start in range(0, len(thetas), step))
        return np.concatenate([self._summed(self.features @ some.T) for some in parts], axis=1)

    def _summed(self, eta: Float[np.ndarray, "r m"]) -> Float[np.ndarray, "n m"]:
        """Log p(h | theta), from eta of every row."""
        value, _, _ = terms(self.family, self.rewards, eta)
        return segment_sums(self.weights[:, None] * value, self.starts)

    def log_evidence(self, mixture: GaussianMixture) -> Float[np.ndarray, " n"]:
        """The log of the mean weight of importance, or Laplace's."""
        if self.num_draws == 0:
            return super().log_evidence(mixture)
        return self._weigh(mixture, 0, self.num_draws)[2]

    def expect(self, mixture: GaussianMixture, round_: int = 0) -> Sums:
        """One E-step: by Laplace's approximation, or with `num_draws` corrected by importance."""
        if self.num_draws == 0:
            return super().expect(mixture, round_)
        theta, weights, log_evidence = self._weigh(mixture, round_, self.num_draws)
        log_parts = _log_joint(mixture, theta)
        shares = np.exp(log_parts - np.logaddexp.reduce(log_parts, axis=0)) * weights  # (k, m, n)
        first, second, inverses = [], [], np.linalg.inv(mixture.factors)
        for k in range(mixture.num_components):
            z = np.einsum("ij,mnj->imn", inverses[k], theta - mixture.means[k])
            weighted = z * shares[k]
            first.append(weighted.sum(axis=(1, 2)))
            second.append(np.einsum("imn,jmn->ij", weighted, z))
        return Sums(
            shares.sum(axis=(1, 2)),
            np.array(first),
            np.array(second),
            float(log_evidence.sum()),
            0.0,
            self.num_rows,
            float(self.num_tasks),
        )

    def draw(self, mixture: GaussianMixture, *numbers: int) -> Float[np.ndarray, "n d"]:
        """One draw of theta given each task: one of 32 points, chosen by importance."""
        theta, weights, _ = self._weigh(mixture, sum(numbers) + 7919, 32)
        edges = np.cumsum(weights, axis=0)
        uniform = uniforms(self.hashes, 1, 3, *numbers)[:, 0]
        chosen = np.sum(uniform[None] * edges[-1:] > edges[:-1], axis=0)
        return np.asarray(theta[chosen, np.arange(self.num_tasks)])

    def _weigh(
        self, mixture: GaussianMixture, round_: int, num_draws: int
    ) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, "m n"], Float[np.ndarray, " n"]]:
        """Points from Laplace's mixture, widened a little, their normalized weights, and log p(h).

        Components are taken in proportion to their probability, by systematic resampling.
        """
        given = self.condition(mixture)
        shares, _ = given.responsibilities(mixture)
        wide = POSTERIOR_SHARE * shares + (1 - POSTERIOR_SHARE) * mixture.weights[:, None]
        normal, uniform = _points(self.hashes, self.dim, num_draws, round_)
        edges = np.cumsum(wide, axis=0)
        places_ = (np.arange(num_draws)[:, None] + uniform[None]) / num_draws
        chosen = np.sum(places_[None] > edges[:-1, None] / edges[-1:, None], axis=0)  # (m, n)
        inverse, _ = inverse_factor(gram(inverse_factor(given.cov_z)[0]))  # W, and cov_z = W' W
        tasks = np.arange(self.num_tasks)[None]
        roots = inverse[:, :, chosen, tasks]  # (d, d, m, n)
        z = given.mean_z[:, chosen, tasks] + WIDENING * np.einsum("ijmn,mni->jmn", roots, normal)
        theta = mixture.means[chosen] + np.einsum("mnij,jmn->mni", mixture.factors[chosen], z)
        log_weight = (
            self._summed(np.einsum("ri,mri->rm", self.features, theta[:, self.row_tasks])).T
            + np.logaddexp.reduce(_log_joint(mixture, theta), axis=0)
            - self._log_proposal(mixture, given.mean_z, inverse, wide, theta)
        )
        top = log_weight.max(axis=0)
        weights = np.exp(log_weight - top)
        total = weights.sum(axis=0)
        return theta, weights / total, top + np.log(total / num_draws)

    def _log_proposal(
        self,
        mixture: GaussianMixture,
        mean_z: Float[np.ndarray, "d k n"],
        inverse: Float[np.ndarray, "d d k n"],
        wide: Float[np.ndarray, "k n"],
        theta: Float[np.ndarray, "m n d"],
    ) -> Float[np.ndarray, "m n"]:
        parts, norm = [], self.dim * np.log(np.sqrt(2 * np.pi) * WIDENING)
        for k, factor in enumerate(np.linalg.inv(mixture.factors)):
            off = np.einsum("ij,mnj->imn", factor, theta - mixture.means[k]) - mean_z[:, k][:, None]
            root = np.linalg.inv(np.moveaxis(inverse[:, :, k], -1, 0))  # W^-1, so z = m + W' e
            unit = np.einsum("nji,jmn->imn", root, off) / WIDENING
            log_det = np.sum(np.log(np.abs(np.diagonal(root, axis1=1, axis2=2))), axis=1)
            log_det -= 0.5 * np.sum(np.log(mixture.variances[k])) + norm
            with np.errstate(divide="ignore"):
                parts.append(np.log(wide[k]) + log_det - 0.5 * np.sum(unit**2, axis=0))
        return np.asarray(np.logaddexp.reduce(parts, axis=0))


def _log_joint(
    mixture: GaussianMixture, theta: Float[np.ndarray, "m n d"]
) -> Float[np.ndarray, "k m n"]:
    """Log of weight times density of every component at every theta."""
    flat = mixture.log_joint(theta.reshape(-1, theta.shape[-1]))
    return np.moveaxis(np.asarray(flat).reshape(*theta.shape[:2], -1), -1, 0)


def row_blocks(
    logs: Logs,
    family: AbstractFamily,
    tasks_at_once: int = TASKS_AT_ONCE,
    rows_at_once: int = ROWS_AT_ONCE,
) -> list[GlmTasks]:
    """Blocks of tasks in the order of their hashes, each of few tasks and rows."""
    order = block_order(logs)
    ends = np.cumsum(logs.counts[order])
    blocks: list[GlmTasks] = []
    start = 0
    while start < len(order) or not blocks:
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + rows_at_once, side="right"))
        stop = max(start + 1, min(stop, start + tasks_at_once))
        part = logs.select(order[start:stop])
        columns = (part.hashes, part.starts, part.features, part.rewards, part.weights)
        blocks.append(GlmTasks(family, *columns))
        start = stop
    return blocks


def _points(
    hashes: UInt64[np.ndarray, " n"], dim: int, num_draws: int, round_: int
) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, " n"]]:
    """Normal points of every task, mirrored in pairs, and a uniform number."""
    half = -(-num_draws // 2)
    flat = normals(hashes, half * dim, 4, round_)
    points = np.moveaxis(flat.reshape(len(hashes), half, dim), 1, 0)
    both = np.concatenate([points, -points])[:num_draws]
    return both, uniforms(hashes, 1, 5, round_)[:, 0]


def terms(
    family: AbstractFamily, rewards: Float[np.ndarray, " r"], eta: Float[np.ndarray, "r k"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log density, score and curvature of every row at every eta, in float64.

    Rows are padded to few lengths, because each is compiled for.
    """
    rows = len(eta)
    room = max(256, 1 << max(rows - 1, 0).bit_length())
    y = np.pad(rewards, (0, room - rows), mode="edge" if rows else "constant")
    with jax.enable_x64(True):
        padded = np.pad(eta, ((0, room - rows), (0, 0)))
        made = _terms(family, jnp.asarray(y, jnp.float64), jnp.asarray(padded, jnp.float64))
        value, score, curvature = (np.asarray(part, np.float64)[:rows] for part in made)
    return value, score, curvature


@eqx.filter_jit
def _terms(family: AbstractFamily, y: Array, eta: Array) -> tuple[Array, Array, Array]:
    exact = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, family)
    rewards = jnp.broadcast_to(y[:, None], eta.shape)
    return (
        exact.log_density(rewards, eta),
        exact.score(rewards, eta),
        exact.curvature(rewards, eta),
    )


@dataclass(frozen=True, eq=False)
class ShardTasks(RowTasks):
    """The chosen tasks of one file, as one block; a process that has read it keeps it if it can."""

    shard: Shard
    selection: Selection
    likelihood: AbstractLikelihood
    likelihood_digest: str
    exact: bool
    num_draws: int = 0

    @property
    def dim(self) -> int:
        return len(self.shard.columns.features) + self.shard.intercept

    @property
    def num_tasks(self) -> int:
        return sum(block.num_tasks for block in self.blocks())

    @property
    def task_rows(self) -> Float[np.ndarray, " n"]:
        return np.concatenate([block.task_rows for block in self.blocks()])

    def corrected(self, num_draws: int) -> "ShardTasks":
        return dataclasses.replace(self, num_draws=num_draws)

    def blocks(self) -> list[RowTasks]:
        """The blocks of the file, read now or cached in an earlier round."""
        about = (self.shard.columns, self.selection, self.likelihood_digest)
        found = CACHE.get(about, self.shard, self._read)
        return [block.corrected(self.num_draws) for block in found]

    def _read(self) -> list[RowTasks]:
        logs = self.shard.read()
        return blocks_of(logs.select(self.selection.mask(logs.hashes)), self.likelihood)

    def pooled(self) -> PooledRows:
        return PooledRows.total(block.pooled() for block in self.blocks())

    def expect(self, mixture: GaussianMixture, round_: int = 0) -> Sums:
        return Sums.total(block.expect(mixture, round_) for block in self.blocks())

    def condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        parts = [block.condition(mixture) for block in self.blocks()]
        return TaskPosteriors.concatenate(parts, axis=-1)

    def draw(self, mixture: GaussianMixture, *numbers: int) -> Float[np.ndarray, "n d"]:
        return np.concatenate([block.draw(mixture, *numbers) for block in self.blocks()])

    def log_evidence(self, mixture: GaussianMixture) -> Float[np.ndarray, " n"]:
        return np.concatenate([block.log_evidence(mixture) for block in self.blocks()])

    def log_likelihood(self, thetas: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        return np.concatenate([block.log_likelihood(thetas) for block in self.blocks()])

    def __str__(self) -> str:
        return str(self.shard)

    def __repr__(self) -> str:
        return f"{self.shard!r} {self.selection!r} {self.likelihood_digest} {self.num_draws}"


class _Cache:
    """Blocks of shards, as many as fit; what does not is read again every time.

    They are all about the same: other columns, tasks or likelihoods put an end to those before.
    """

    def __init__(self) -> None:
        self.about: object = None
        self.found: dict[Shard, list[RowTasks]] = {}
        self.num_bytes, self.lock = 0, threading.Lock()

    def get(
        self, about: object, shard: Shard, read: Callable[[], list[RowTasks]]
    ) -> list[RowTasks]:
        """The blocks of a shard, cached or read."""
        with self.lock:
            if about != self.about:
                self.about, self.found, self.num_bytes = about, {}, 0
            if shard in self.found:
                return self.found[shard]
        blocks = read()
        arrays = (value for block in blocks for value in vars(block).values())
        size = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        with self.lock:
            if about == self.about and self.num_bytes + size <= CACHED_BYTES:
                self.found[shard] = blocks
                self.num_bytes += size
        return blocks

    def clear(self) -> None:
        """Let go of all."""
        with self.lock:
            self.about, self.found, self.num_bytes = None, {}, 0


CACHE = _Cache()


@dataclass(frozen=True)
class Noise:
    """The noise, and where it came from."""

    noise_std: float
    degrees_of_freedom: float
    how: str  # "given", "pooled" residuals or "joint" with a Gaussian prior


def estimate_noise(statistics: TaskStatistics) -> Noise:
    """Pooled residuals within tasks, sum RSS / sum (N - rank); unbiased whatever the prior is.

    With fewer than 200 degrees of freedom, jointly with a Gaussian prior by maximum likelihood.
    """
    if statistics.num_tasks > MAX_NOISE_TASKS:
        statistics = statistics.select(block_order(statistics)[:MAX_NOISE_TASKS])
    residual, freedom = residuals(statistics)
    if freedom >= MIN_RESIDUAL_FREEDOM:
        return Noise(float(np.sqrt(residual / freedom)), freedom, "pooled")
    start = max(residual / freedom, 0.0) if freedom >= 1 and residual > 0 else 0.0
    if start == 0.0:
        start = max(float(statistics.yy.sum()) / max(float(statistics.counts.sum()), 1.0), 1e-300)
    fit = fit_gaussian(linear_blocks(statistics, float(np.sqrt(start))), estimate_noise=True)
    return Noise(float(fit.noise_std or np.sqrt(start)), freedom, "joint")


def residuals(statistics: TaskStatistics) -> tuple[float, float]:
    """Summed squares of residuals of each task's own regression, and their degrees of freedom."""
    total, freedom = 0.0, 0.0
    for start in range(0, statistics.num_tasks, 8192):
        part = statistics.select(np.arange(start, min(start + 8192, statistics.num_tasks)))
        scale = np.sqrt(np.maximum(part.xx.sum(axis=0)[diagonal(part.dim)], 1e-300))
        values, vectors = np.linalg.eigh(unpacked(part.xx) / np.outer(scale, scale))
        used = values > MIN_EIGENVALUE * np.maximum(values[:, -1:], 1e-300)
        along = np.einsum("nij,ni->nj", vectors, part.xy / scale)
        explained = np.sum(np.where(used, along**2 / np.where(used, values, 1.0), 0.0), axis=1)
        spare = part.counts - used.sum(axis=1)
        left = np.where(spare > 0, part.yy - explained, 0.0)
        total += float(np.sum(np.maximum(left, 0.0)))
        freedom += float(np.sum(np.maximum(spare, 0.0)))
    return total, freedom


def resolve(logs: AnyLogs, likelihood: object) -> tuple[AbstractLikelihood, Noise | None]:
    """The likelihood with its noise, estimated where it is linear and unknown."""
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(
            f"`likelihood`: expected how rewards arise, got {type(likelihood).__name__}; "
            "pass dp.Linear(), dp.Logistic(), dp.Poisson() or another"
        )
    if isinstance(likelihood, Linear):
        if likelihood.noise_std is not None:
            return likelihood, Noise(float(likelihood.noise_std), 0.0, "given")
        found = estimate_noise(logs.statistics())
        return Linear(noise_std=found.noise_std), found
    if not isinstance(logs, Logs):
        raise ValueError(
            f"`logs`: expected rows for {type(likelihood).__name__} rewards, got statistics, which "
            "serve linear rewards alone; pass dp.Logs"
        )
    if not isinstance(likelihood, AbstractFamily):
        raise ValueError(
            f"`likelihood`: expected Linear or a family of rewards, got "
            f"{type(likelihood).__name__}; derive it from dp.AbstractFamily"
        )
    likelihood.check_rewards(logs.rewards)
    return likelihood, None


def blocks_of(logs: AnyLogs, likelihood: AbstractLikelihood) -> list[RowTasks]:
    """Blocks of the tasks, in the order of their labels' hashes; at least one, if of no tasks."""
    if isinstance(likelihood, Linear):
        assert likelihood.noise_std is not None
        return [*linear_blocks(logs.statistics(), float(likelihood.noise_std))]
    assert isinstance(logs, Logs)
    assert isinstance(likelihood, AbstractFamily)
    return [*row_blocks(logs, likelihood)]


def block_order(logs: AnyLogs) -> np.ndarray:
    """The order of tasks in blocks, as positions in the logs."""
    return np.argsort(logs.hashes, kind="stable")


def search_logs(
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    *,
    config: SearchConfig = LOGS_SEARCH,
    seed: int = 0,
    executor: AbstractExecutor = HERE,
    everything: Sequence[AbstractTasks] | None = None,
    advance: Callable[[str], None] = lambda name: None,
) -> Search:
    """The mixture that explains tasks held out in turn best; whole tasks are held out, by label.

    Where `logs` are a part of `everything`, what is found is refined on all tasks.
    """
    few = logs
    if logs.num_tasks > config.max_tasks:
        few = logs.select(np.sort(block_order(logs)[: config.max_tasks]))
    blocks = blocks_of(few, likelihood)
    gaussian, exact = gaussian_of(blocks), blocks[0].exact
    room = few.num_tasks / config.tasks_per_component
    counts = config.num_components or ()
    counts = tuple(k for k in counts if k <= room and (exact or k < max(counts)))
    config = dataclasses.replace(config, num_components=counts)
    advance("mixtures")
    in_turn = few.num_tasks <= config.one_fold_from and exact
    num_folds, num_turns = (config.num_folds, config.num_folds) if in_turn else (4, 1)
    which = folds(few.hashes, num_folds, salt=11)

    def subset(mask: np.ndarray) -> list[RowTasks]:
        return list(blocks_of(few.select(mask), likelihood))

    splits = Splits.of(subset, which, num_turns, start=gaussian)
    found = search(
        blocks, splits, config, seed=seed, executor=executor, gaussian=gaussian, advance=advance
    )
    if everything is None and few.num_tasks < logs.num_tasks:
        everything = blocks_of(logs, likelihood)
    if everything is None:
        return found
    gaussian, mixture = refined(everything, gaussian, found.mixture, executor, config)
    return dataclasses.replace(found, gaussian=gaussian, mixture=mixture)
