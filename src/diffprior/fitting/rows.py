"""Tasks with rows: what the rows of each say about its parameters, as a quadratic.

The log likelihood of a task is c + s' theta - theta' P theta / 2: exactly for linear rewards, and
for a generalized linear model expanded once about where a prior and the rows place theta. So EM and
the search for a mixture are the same for both; where it matters, points drawn from a task's
posterior correct by importance what the quadratic misses.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt64

from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..logs.logs import Logs
from ..logs.statistics import TaskStatistics, normals, segment_sums, triangle_places, uniforms
from ..mixture import GaussianMixture
from .em import SCORING_DRAWS, TINY, AbstractTasks, PooledRows, Sums


def symmetric(triangles: Float[np.ndarray, " p *n"]) -> Float[np.ndarray, "d d *n"]:
    """Symmetric matrices from their lower triangles."""
    dim = int((np.sqrt(8 * len(triangles) + 1) - 1) / 2)
    return np.asarray(triangles[triangle_places(dim)])


def diagonal_places(dim: int) -> Int[np.ndarray, " d"]:
    """Places of the diagonal in a triangle."""
    return np.cumsum(np.arange(dim) + 1) - 1


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


LINEAR_TASKS_AT_ONCE = 1024
NUMBERS_AT_ONCE = 2**19  # in matrices of tasks and components, so that they stay in the cache
TASKS_AT_ONCE, ROWS_AT_ONCE = 1024, 2**14  # of generalized linear models
TERMS_AT_ONCE = 4**9  # rows times points whose likelihood is computed by one program
MAX_NEWTON = 50
MODE_TOLERANCE = 1e-7  # step in prior standard deviations at which the mode is found
NODES, NODE_WEIGHTS = np.sqrt(3.0) * np.array([-1.0, 0.0, 1.0]), np.array([1.0, 4.0, 1.0]) / 6
BELIEF_STEPS = 2  # expansions about the belief that the one before gave
RESAMPLED_FROM = 32  # points that a draw is taken from
POSTERIOR_SHARE = 0.95  # points by probability given the task; the others by the prior's weights
WIDENING = 1.1  # standard deviations of the points over those of the quadratic's posterior

AnyLogs = Logs | TaskStatistics


@dataclass(frozen=True, eq=False)
class TaskPosteriors:
    """Components given each task, in units of the component: theta = mean + F z.

    z has mean `mean_z` and covariance W' W with W the `roots`.
    """

    log_evidence: Float[np.ndarray, "k n"]
    mean_z: Float[np.ndarray, "d k n"]
    roots: Float[np.ndarray, "d d k n"]
    squared_error: Float[np.ndarray, "k n"]

    @property
    def cov_z(self) -> Float[np.ndarray, "p k n"]:
        """Triangles of the covariances."""
        return gram(self.roots)

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

    def points(
        self,
        mixture: GaussianMixture,
        shares: Float[np.ndarray, "k n"],
        normal: Float[np.ndarray, "m n d"],
        uniform: Float[np.ndarray, " n"],
    ) -> Float[np.ndarray, "m n d"]:
        """Points of each task that normal numbers give, components in proportion to `shares`.

        Components are resampled systematically.
        """
        edges = np.cumsum(shares, axis=0)
        places = (np.arange(len(normal))[:, None] + uniform[None]) / len(normal)
        chosen = np.sum(places[None] > edges[:-1, None] / edges[-1:, None], axis=0)  # (m, n)
        tasks = np.arange(shares.shape[1])[None]
        z = self.mean_z[:, chosen, tasks]
        z = z + np.einsum("ijmn,mni->jmn", self.roots[:, :, chosen, tasks], normal)
        return mixture.means[chosen] + np.einsum("mnij,jmn->mni", mixture.factors[chosen], z)


@dataclass(frozen=True, eq=False)
class RowTasks(AbstractTasks):
    """Tasks with rows, each known by the hash of its label; arrays have tasks last."""

    hashes: UInt64[np.ndarray, " n"]
    precision: Float[np.ndarray, "p n"]  # triangles of P
    shift: Float[np.ndarray, "d n"]  # s
    constant: Float[np.ndarray, " n"]  # c
    counts: Float[np.ndarray, " n"]  # rows, or their weights
    squares: Float[np.ndarray, " n"]  # of linear rewards, summed, over the noise variance
    noise_std: float | None = None  # of linear rewards
    rows: "GlmRows | None" = None  # of a generalized linear model, which this is an expansion of
    is_expanded: bool = False  # about a belief, not about zero, which is only a first guess

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether the quadratic is the likelihood."""
        return self.rows is None

    @property
    def num_tasks(self) -> int:
        return len(self.hashes)

    @property
    def dim(self) -> int:
        return len(self.shift)

    def with_noise(self, noise_std: float) -> "RowTasks":
        assert self.noise_std is not None
        factor = (self.noise_std / noise_std) ** 2
        scaled = {name: getattr(self, name) * factor for name in ("precision", "shift", "squares")}
        constant = log_norm(scaled["squares"], self.counts, noise_std)
        return dataclasses.replace(self, noise_std=noise_std, constant=constant, **scaled)

    def pooled(self) -> PooledRows:
        precision, shift = symmetric(self.precision.sum(axis=1)), self.shift.sum(axis=1)
        squares, num_rows = float(self.squares.sum()), float(self.counts.sum())
        return PooledRows(
            precision, shift, squares, num_rows if self.exact else 0.0, float(self.num_tasks)
        )

    def expanded(self, mixture: GaussianMixture) -> "RowTasks":
        if self.rows is None or self.is_expanded:
            return self
        mean, cov = mixture.moments()
        gaussian = GaussianMixture.single(mean, cov)
        modes, value, score, precision = self.rows.modes(gaussian)
        found = self._about(modes, value, score, precision)
        for _ in range(BELIEF_STEPS):
            given = found.condition(gaussian)
            theta = (mean[:, None] + gaussian.factors[0] @ given.mean_z[:, 0]).T
            spread = np.einsum("ijn,kj->ikn", given.roots[:, :, 0], gaussian.factors[0])
            found = found._about(theta, *self.rows.at(theta, spread))
        return found

    def shifted(self, offsets: Float[np.ndarray, "n d"]) -> "RowTasks":
        """The same evidence about theta - offset, which each task has its own of."""
        moved = np.einsum("ijn,nj->in", symmetric(self.precision), offsets)
        along = np.einsum("in,ni->n", self.shift, offsets)
        square = np.einsum("in,ni->n", moved, offsets)
        return dataclasses.replace(
            self,
            shift=self.shift - moved,
            constant=self.constant + along - 0.5 * square,
            squares=self.squares - 2.0 * along + square if self.exact else self.squares,
            rows=None if self.rows is None else self.rows.shifted(offsets),
            is_expanded=False,
        )

    def _about(
        self,
        theta: Float[np.ndarray, "n d"],
        value: Float[np.ndarray, " n"],
        score: Float[np.ndarray, "d n"],
        precision: Float[np.ndarray, "p n"],
    ) -> "RowTasks":
        """The quadratic of this value, score and precision at theta."""
        moved = np.einsum("ijn,nj->in", symmetric(precision), theta)
        shift = moved + score
        constant = value - np.sum((shift - 0.5 * moved) * theta.T, axis=0)
        arrays = {"precision": precision, "shift": shift, "constant": constant}
        return dataclasses.replace(self, is_expanded=True, **arrays)

    def condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        """Every component given each task, and log p(h): Eq. (3) in units of the prior.

        With cov = L L' and B = I + L' P L, z has covariance B^-1 and mean B^-1 L' (s - P mean).
        """
        if not (self.exact or self.is_expanded):
            return self.expanded(mixture).condition(mixture)
        step = max(1, NUMBERS_AT_ONCE // max(self.num_tasks * self.dim**2, 1))
        starts = range(0, mixture.num_components, step)
        parts = [self._condition(mixture.select(slice(k, k + step))) for k in starts]
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        return TaskPosteriors(*(np.concatenate(column, axis=-2) for column in columns))

    def _condition(self, mixture: GaussianMixture) -> TaskPosteriors:
        trils, means = np.asarray(mixture.factors), np.asarray(mixture.means)
        maps = np.stack([congruence(tril) for tril in trils], axis=1)
        ratio = (maps.reshape(-1, maps.shape[-1]) @ self.precision).reshape(*maps.shape[:2], -1)
        ratio[diagonal_places(self.dim)] += 1.0
        flat = symmetric(self.precision).reshape(self.dim, -1)
        moved = (means @ flat).reshape(*means.shape, -1)  # P mean (k, d, n)
        pull = np.stack(trils.swapaxes(1, 2) @ (self.shift - moved), axis=1)
        at_mean = np.sum(means[:, :, None] * (2.0 * self.shift - moved), axis=1)
        roots, log_det = inverse_factor(ratio)
        half = np.sum(roots * pull[None], axis=1)
        log_mass = 0.5 * (at_mean + np.sum(half**2, axis=0) - log_det)
        mean_z = np.sum(roots * half[:, None], axis=0)
        residual = self.squares - at_mean - np.sum(pull * mean_z, axis=0)
        left = self.dim - np.einsum("ijkn,ijkn->kn", roots, roots) - np.sum(mean_z**2, axis=0)
        return TaskPosteriors(log_mass + self.constant, mean_z, roots, residual + left)

    def expect(self, mixture: GaussianMixture, round_: int = 0, num_draws: int = 0) -> Sums:
        num_rows = float(self.counts.sum())
        if self.exact or num_draws == 0:
            return self.condition(mixture).sums(mixture, num_rows)
        theta, weights, log_evidence = self._weigh(mixture, round_, num_draws)
        log_parts = _log_joint(mixture, theta)
        shares = np.exp(log_parts - np.logaddexp.reduce(log_parts, axis=0)) * weights  # (k, m, n)
        first, second = [], []
        for k, inverse in enumerate(np.linalg.inv(mixture.factors)):
            z = np.einsum("ij,mnj->imn", inverse, theta - mixture.means[k])
            weighted = z * shares[k]
            first.append(weighted.sum(axis=(1, 2)))
            second.append(np.einsum("imn,jmn->ij", weighted, z))
        mass, total = shares.sum(axis=(1, 2)), float(log_evidence.sum())
        sums = (np.array(first), np.array(second))
        return Sums(mass, *sums, total, 0.0, num_rows, float(self.num_tasks))

    def log_evidence(
        self, mixture: GaussianMixture, num_draws: int = SCORING_DRAWS
    ) -> Float[np.ndarray, " n"]:
        return self.estimate(mixture, num_draws)[0]

    def estimate(
        self, mixture: GaussianMixture, num_draws: int, round_: int = 0
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Log p(h) and its variance, which is zero where there is a closed form.

        Where the quadratic is the likelihood, a weight is the quadratic's posterior density over
        that of the points: this ratio, whose mean is 1, is the control variate.
        """
        if self.exact or num_draws == 0:
            values = self.condition(mixture).responsibilities(mixture)[1]
            return values, np.zeros_like(values)
        _, log_weight, log_ratio = self._weighed(mixture, round_, num_draws)
        top = log_weight.max(axis=0)
        weights, control = np.exp(log_weight - top), np.exp(log_ratio)
        mean, centered = weights.mean(axis=0), control - control.mean(axis=0)
        slope = np.sum(weights * centered, axis=0)
        slope /= np.maximum(np.sum(centered**2, axis=0), np.finfo(np.float64).tiny)
        estimate = mean - slope * (control.mean(axis=0) - 1.0)
        estimate = np.where(estimate > 0, estimate, mean)
        residuals = weights - mean - slope * centered
        variance = np.sum(residuals**2, axis=0) / (max(num_draws - 2, 1) * num_draws)
        return top + np.log(estimate), variance / estimate**2

    def draw(
        self, mixture: GaussianMixture, *numbers: int, count: int = 1
    ) -> Float[np.ndarray, "m n d"]:
        if not self.exact:
            theta, weights, _ = self._weigh(mixture, sum(numbers) + 7919, RESAMPLED_FROM * count)
            edges = np.cumsum(weights, axis=0)
            places = uniforms(self.hashes, count, 3, *numbers).T
            chosen = [np.sum(place[None] * edges[-1:] > edges[:-1], axis=0) for place in places]
            return np.asarray(theta[np.array(chosen), np.arange(self.num_tasks)])
        normal = normals(self.hashes, count * self.dim, 1, *numbers)
        uniform = uniforms(self.hashes, 1, 2, *numbers)[:, 0]
        given = self.condition(mixture)
        shares, _ = given.responsibilities(mixture)
        normal = np.moveaxis(normal.reshape(self.num_tasks, count, self.dim), 1, 0)
        return given.points(mixture, shares, normal, uniform)

    def _weigh(
        self, mixture: GaussianMixture, round_: int, num_draws: int
    ) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, "m n"], Float[np.ndarray, " n"]]:
        """Points of each task's posterior, their normalized weights, and log p(h)."""
        theta, log_weight, _ = self._weighed(mixture, round_, num_draws)
        top = log_weight.max(axis=0)
        weights = np.exp(log_weight - top)
        total = weights.sum(axis=0)
        return theta, weights / total, top + np.log(total / num_draws)

    def _weighed(
        self, mixture: GaussianMixture, round_: int, num_draws: int
    ) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, "m n"], Float[np.ndarray, "m n"]]:
        """Points of each task's posterior, widened a little; the logs of their weights, and of what
        the quadratic's own posterior weighs them by.

        By Bayes' rule a component's posterior density is its density times the quadratic, over its
        evidence.
        """
        assert self.rows is not None
        tasks = self.expanded(mixture)
        given = tasks.condition(mixture)
        shares, log_evidence = given.responsibilities(mixture)
        wide = POSTERIOR_SHARE * shares + (1 - POSTERIOR_SHARE) * mixture.weights[:, None]
        normal, uniform = _points(self.hashes, self.dim, num_draws, round_)
        theta = given.points(mixture, wide, WIDENING * normal, uniform)
        log_joint = _log_joint(mixture, theta)
        places = np.arange(self.dim)
        peak = np.sum(np.log(np.abs(given.roots[places, places])), axis=0)  # of the posteriors
        peak = -peak - 0.5 * np.sum(np.log(2 * np.pi * mixture.variances), axis=1)[:, None]
        log_weights = np.maximum(mixture.log_weights, -1e4)  # a weight of zero stays finite
        quadratic = tasks._quadratic(theta)
        own = log_joint - log_weights[:, None, None] + quadratic
        below = peak[:, None] - (own - given.log_evidence[:, None])
        proposed = peak[:, None] - self.dim * np.log(WIDENING) - below / WIDENING**2
        with np.errstate(divide="ignore"):
            proposed += np.log(wide)[:, None]
        log_ratio = np.logaddexp.reduce(log_joint, axis=0) - np.logaddexp.reduce(proposed, axis=0)
        log_weight = self.rows.log_likelihood(theta) + log_ratio
        return theta, log_weight, quadratic + log_ratio - log_evidence

    def _quadratic(self, theta: Float[np.ndarray, "m n d"]) -> Float[np.ndarray, "m n"]:
        moved = np.einsum("ijn,mnj->imn", symmetric(self.precision), theta)
        linear = np.einsum("imn,mni->mn", self.shift[:, None] - 0.5 * moved, theta)
        return np.asarray(self.constant + linear)


def _log_joint(
    mixture: GaussianMixture, theta: Float[np.ndarray, "m n d"]
) -> Float[np.ndarray, "k m n"]:
    """Log of weight times density of every component at every theta."""
    flat = mixture.log_joint(theta.reshape(-1, theta.shape[-1]))
    return np.moveaxis(np.asarray(flat).reshape(*theta.shape[:2], -1), -1, 0)


def _points(
    hashes: UInt64[np.ndarray, " n"], dim: int, num_draws: int, round_: int
) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, " n"]]:
    """Normal points of every task, mirrored in pairs, and a uniform number."""
    half = -(-num_draws // 2)
    flat = normals(hashes, half * dim, 4, round_)
    points = np.moveaxis(flat.reshape(len(hashes), half, dim), 1, 0)
    both = np.concatenate([points, -points])[:num_draws]
    return both, uniforms(hashes, 1, 5, round_)[:, 0]


@dataclass(frozen=True, eq=False)
class GlmRows:
    """Rows of some tasks, grouped by task, and the family that their rewards follow."""

    family: AbstractFamily
    starts: Int[np.ndarray, " s"]
    features: Float[np.ndarray, "r d"]
    rewards: Float[np.ndarray, " r"]
    weights: Float[np.ndarray, " r"]
    last_modes: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # search from there
    offsets: Float[np.ndarray, " r"] | None = None  # added to the predictors

    @property
    def row_tasks(self) -> Int[np.ndarray, " r"]:
        """The task of every row."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def shifted(self, offsets: Float[np.ndarray, "n d"]) -> "GlmRows":
        """The same rows about theta - offset, which each task has its own of."""
        more = np.einsum("ri,ri->r", self.features, offsets[self.row_tasks])
        before = 0.0 if self.offsets is None else self.offsets
        return dataclasses.replace(self, offsets=before + more, last_modes={})

    def at(
        self, theta: Float[np.ndarray, "n d"], spread: Float[np.ndarray, "d d n"] | None = None
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "d n"], Float[np.ndarray, "p n"]]:
        """Log p(h | theta), score and triangle of the precision of each task at its theta.

        With `spread`, which has S' S = Cov(theta), a quadratic fitted to the whole belief: score
        and precision are means over it, and so is the value.
        """
        own, x = self.row_tasks, self.features
        eta = np.einsum("ri,ri->r", x, theta[own])
        eta = eta if self.offsets is None else eta + self.offsets
        if spread is None:
            value, score, curvature = terms(self.family, self.rewards, eta)
        else:
            variance = np.sum(np.einsum("ijr,rj->ir", spread[:, :, own], x) ** 2, axis=0)
            etas = eta + NODES[:, None] * np.sqrt(variance)
            found = terms(self.family, np.tile(self.rewards, 3), etas.ravel())
            value, score, curvature = (
                NODE_WEIGHTS @ np.reshape(part, etas.shape) for part in found
            )
            value = value + 0.5 * curvature * variance
        rows, columns = np.tril_indices(x.shape[1])
        weighted = self.weights[:, None]
        parts = (
            value[:, None],
            score[:, None] * x,
            curvature[:, None] * (x[:, rows] * x[:, columns]),
        )
        sums = segment_sums(weighted * np.concatenate(parts, axis=1), self.starts).T
        return sums[0], sums[1 : 1 + x.shape[1]], sums[1 + x.shape[1] :]

    def modes(
        self, gaussian: GaussianMixture
    ) -> tuple[Float[np.ndarray, "n d"], np.ndarray, np.ndarray, np.ndarray]:
        """Mode of each task's posterior, by damped Newton steps from the last one, and `at` it."""
        factor, mean = np.asarray(gaussian.factors[0]), np.asarray(gaussian.means[0])
        outer, places = congruence(factor), diagonal_places(len(mean))
        num_tasks = len(self.starts) - 1
        start = self.last_modes.get("theta")
        z = np.zeros((len(mean), num_tasks))
        if start is not None:
            z = np.linalg.solve(factor, (start - mean).T)
        damping = np.zeros(num_tasks)
        found = self.at((mean[:, None] + factor @ z).T)
        for _ in range(MAX_NEWTON):
            ratio = outer @ found[2]
            ratio[places] += 1.0 + damping
            roots, _ = inverse_factor(ratio)
            half = np.sum(roots * (factor.T @ found[1] - z)[None], axis=1)
            step = np.sum(roots * half[:, None], axis=0)
            trial = self.at((mean[:, None] + factor @ (z + step)).T)
            rise = trial[0] - found[0] - np.sum(step * (z + 0.5 * step), axis=0)
            better = rise >= -1e-9
            z = np.where(better, z + step, z)
            value, score, precision = (
                np.where(better, a, b) for a, b in zip(trial, found, strict=True)
            )
            found = (value, score, precision)
            damping = np.where(better, damping * 0.1, np.maximum(10.0 * damping, 1.0))
            damping[damping < 1e-2] = 0.0
            if np.all(np.abs(step) < MODE_TOLERANCE):
                break
        theta = (mean[:, None] + factor @ z).T
        self.last_modes["theta"] = theta
        return theta, *found

    def log_likelihood(self, theta: Float[np.ndarray, "m n d"]) -> Float[np.ndarray, "m n"]:
        """Log p(h | theta) of each task at several of its own."""
        step = max(1, TERMS_AT_ONCE // max(len(self.rewards), 1))
        parts = []
        for start in range(0, len(theta), step):
            eta = np.einsum(
                "ri,mri->mr", self.features, theta[start : start + step, self.row_tasks]
            )
            eta = eta if self.offsets is None else eta + self.offsets
            value = terms(self.family, np.tile(self.rewards, len(eta)), eta.ravel())[0]
            parts.append(self.weights[:, None] * value.reshape(eta.shape).T)
        return segment_sums(np.concatenate(parts, axis=1), self.starts).T


def terms(
    family: AbstractFamily, rewards: Float[np.ndarray, " r"], eta: Float[np.ndarray, " r"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log density, score and curvature at every eta, in float64.

    Padded to few lengths, because each is compiled for.
    """
    room = 1024
    while room < len(eta):
        room *= 4
    filling = rewards[:1] if len(eta) else np.zeros(1)  # a reward that the family can have
    y = np.concatenate([rewards, np.repeat(filling, room - len(eta))])
    x = np.concatenate([eta, np.zeros(room - len(eta))])
    with jax.enable_x64(True):
        made = _terms(family, jnp.asarray(y, jnp.float64), jnp.asarray(x, jnp.float64))
        value, score, curvature = (np.asarray(part, np.float64)[: len(eta)] for part in made)
    return value, score, curvature


@eqx.filter_jit
def _terms(family: AbstractFamily, y: Array, eta: Array) -> tuple[Array, Array, Array]:
    exact = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, family)
    return exact.log_density(y, eta), *exact.slopes(y, eta)


def blocks_of(
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    offsets: Float[np.ndarray, "t d"] | None = None,
) -> list[RowTasks]:
    """Blocks of the tasks, in the order of their labels' hashes; at least one, if of no tasks.

    With `offsets`, in the order of the logs, the evidence is about theta - offset.
    """
    if isinstance(likelihood, Linear):
        assert likelihood.noise_std is not None
        blocks = linear_blocks(logs.statistics(), float(likelihood.noise_std))
    else:
        assert isinstance(logs, Logs)
        assert isinstance(likelihood, AbstractFamily)
        blocks = row_blocks(logs, likelihood)
    return blocks if offsets is None else shifted(blocks, offsets[block_order(logs)])


def shifted(blocks: Sequence[RowTasks], offsets: Float[np.ndarray, "n d"]) -> list[RowTasks]:
    """The same evidence about theta - offset; tasks in the order of the blocks."""
    ends = np.cumsum([block.num_tasks for block in blocks])
    parts = zip(blocks, ends, strict=True)
    return [block.shifted(offsets[end - block.num_tasks : end]) for block, end in parts]


def block_order(logs: AnyLogs) -> np.ndarray:
    """The order of tasks in blocks, as positions in the logs."""
    return np.argsort(logs.hashes, kind="stable")


def linear_blocks(
    statistics: TaskStatistics, noise_std: float, tasks_at_once: int = LINEAR_TASKS_AT_ONCE
) -> list[RowTasks]:
    """Blocks of tasks in the order of their hashes, so that the same tasks make the same blocks."""
    order, scale = block_order(statistics), 1.0 / noise_std**2
    blocks = []
    for start in range(0, max(len(order), 1), tasks_at_once):
        own = statistics.select(order[start : start + tasks_at_once])
        xx, xy = (np.ascontiguousarray(a.T, np.float64) * scale for a in (own.xx, own.xy))
        squares, counts = own.yy * scale, own.counts
        constant = log_norm(squares, counts, noise_std)
        blocks.append(RowTasks(own.hashes, xx, xy, constant, counts, squares, noise_std))
    return blocks


def log_norm(
    squares: Float[np.ndarray, " n"], counts: Float[np.ndarray, " n"], noise_std: float
) -> Float[np.ndarray, " n"]:
    """Log p(h | theta = 0) of linear rewards."""
    return np.asarray(-0.5 * squares - counts * np.log(np.sqrt(2 * np.pi) * noise_std))


def row_blocks(
    logs: Logs,
    family: AbstractFamily,
    tasks_at_once: int = TASKS_AT_ONCE,
    rows_at_once: int = ROWS_AT_ONCE,
) -> list[RowTasks]:
    """Blocks of tasks in the order of their hashes, each of few tasks and rows."""
    order = block_order(logs)
    ends = np.cumsum(logs.counts[order])
    blocks: list[RowTasks] = []
    start = 0
    while start < len(order) or not blocks:
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + rows_at_once, side="right"))
        stop = max(start + 1, min(stop, start + tasks_at_once))
        part = logs.select(order[start:stop])
        rows = GlmRows(family, part.starts, part.features, part.rewards, part.weights)
        value, score, precision = rows.at(np.zeros((part.num_tasks, logs.dim)))
        counts = segment_sums(part.weights[:, None], part.starts)[:, 0]
        squares = np.zeros(part.num_tasks)
        blocks.append(RowTasks(part.hashes, precision, score, value, counts, squares, rows=rows))
        start = stop
    return blocks
