"""Blocks of tasks with linear rewards: exact conditioning and log evidence, all at once."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt64

from ...logs.labels import normals, uniforms
from ...logs.statistics import TaskStatistics
from .algebra import applied_to, congruence, gram, inverse_factor, lower, places
from .block import AbstractBlock
from .components import Components, Conditioned, Sums, memberships

TASKS_AT_ONCE = 1024
PAIRS_AT_ONCE = 8192  # tasks times components, so that their matrices stay in the cache


@dataclass(frozen=True, eq=False)
class LinearBlock(AbstractBlock):
    """Evidence of some tasks with linear rewards; triangles and vectors have tasks last."""

    hashes: UInt64[np.ndarray, " n"]
    precision: Float[np.ndarray, "p n"]
    shift: Float[np.ndarray, "d n"]
    sum_squares: Float[np.ndarray, " n"]
    counts: Float[np.ndarray, " n"]
    noise_std: float

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.hashes)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return len(self.shift)

    @property
    def task_rows(self) -> Float[np.ndarray, " n"]:
        """Rows of every task."""
        return self.counts

    @property
    def num_rows(self) -> float:
        """Rows of all tasks."""
        return float(self.counts.sum())

    @property
    def exact(self) -> bool:
        """Yes."""
        return True

    def corrected(self, num_draws: int) -> "LinearBlock":
        """Itself: there is nothing to correct."""
        return self

    def with_noise(self, noise_std: float) -> "LinearBlock":
        """The same rows under another noise."""
        factor = (self.noise_std / noise_std) ** 2
        return LinearBlock(
            self.hashes,
            self.precision * factor,
            self.shift * factor,
            self.sum_squares * factor,
            self.counts,
            noise_std,
        )

    def condition(self, components: Components) -> Conditioned:
        """Every component given each task, exactly, and log p(h): Eq. (3) in units of the prior.

        With cov = L L' and B = I + L' P L, z has covariance B^-1 and mean B^-1 L' (s - P mean).
        """
        step = max(1, PAIRS_AT_ONCE // max(self.num_tasks, 1))
        parts = [
            self._condition(components.part(k, k + step)) for k in range(0, len(components), step)
        ]
        return Conditioned(
            np.concatenate([part.log_evidence for part in parts]),
            np.concatenate([part.mean_z for part in parts], axis=1),
            np.concatenate([part.cov_z for part in parts], axis=1),
            np.concatenate([part.squared_error for part in parts]),
        )

    def _condition(self, components: Components) -> Conditioned:
        inverse, log_det, pull, at_mean = self._in_prior_units(components)
        half = np.sum(inverse * pull[None], axis=1)
        log_mass = 0.5 * (at_mean + np.sum(half**2, axis=0) - log_det)
        mean_z = np.sum(inverse * half[:, None], axis=0)
        cov_z = gram(inverse)
        residual = self.sum_squares - at_mean - np.sum(pull * mean_z, axis=0)
        left = self.dim - np.sum(cov_z[diagonal(self.dim)], axis=0) - np.sum(mean_z**2, axis=0)
        return Conditioned(log_mass + self.at_zero(), mean_z, cov_z, residual + left)

    def _in_prior_units(self, components: Components) -> tuple[np.ndarray, ...]:
        """W with W B W' = I, log det B, L' (s - P mean), and mean' (2 s - P mean): the last axes
        are components and tasks."""
        trils = [lower(cov) for cov in components.covs]
        maps = np.stack([congruence(tril) for tril in trils], axis=1)
        ratio = (maps.reshape(-1, maps.shape[-1]) @ self.precision).reshape(*maps.shape[:2], -1)
        ratio[diagonal(self.dim)] += 1.0
        inverse, log_det = inverse_factor(ratio.reshape(len(ratio), -1))
        pulls = [_pulls(mean, tril) for mean, tril in zip(components.means, trils, strict=True)]
        both = np.stack(pulls, axis=1)  # L' P mean and mean' P mean, as maps of the triangle of P
        moved = (both.reshape(-1, both.shape[-1]) @ self.precision).reshape(*both.shape[:2], -1)
        straight = np.stack([tril.T for tril in trils], axis=1) @ self.shift
        pull = straight - moved[:-1]
        at_mean = 2.0 * components.means @ self.shift - moved[-1]
        shape = (*pull.shape[1:],)
        return inverse.reshape(self.dim, self.dim, *shape), log_det.reshape(shape), pull, at_mean

    def pooled(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " d"], float]:
        """Precision and shift of all rows together, and their sum of squares."""
        return self.precision.sum(axis=1), self.shift.sum(axis=1), float(self.sum_squares.sum())

    def log_evidence(self, components: Components) -> Float[np.ndarray, "n k"]:
        """log p(h) of every task under every component."""
        return self.condition(components).log_evidence.T

    def at_zero(self) -> Float[np.ndarray, " n"]:
        """log p(h | theta = 0)."""
        log_norm = np.log(np.sqrt(2 * np.pi) * self.noise_std)
        return -0.5 * self.sum_squares - self.counts * log_norm

    def log_likelihood(self, thetas: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "n m"]:
        """log p(h | theta) of every task at every theta, constants included."""
        rows, columns = np.tril_indices(self.dim)
        products = thetas[:, rows] * thetas[:, columns] * np.where(rows == columns, 0.5, 1.0)
        return (thetas @ self.shift - products @ self.precision + self.at_zero()[None]).T

    def kernel_log_evidence(
        self, atoms: Float[np.ndarray, "m d"], cov: Float[np.ndarray, "d d"]
    ) -> Float[np.ndarray, "n m"]:
        """log p(h) of every task under N(atom, cov), for every atom.

        With B as in `condition`, the log evidence is a quadratic in the atom: that of the
        likelihood, P - P L B^-1 L' P for P and s - P L B^-1 L' s for s.
        """
        tril = lower(cov)
        ratio = congruence(tril) @ self.precision
        ratio[diagonal(self.dim)] += 1.0
        inverse, log_det = inverse_factor(ratio)
        half_cov = np.einsum("ijn,kj->ikn", inverse, tril)  # W L', and V = L W' W L'
        full = self.precision[places(self.dim)]
        step = np.einsum("ikn,kjn->ijn", half_cov, full)
        shift_step = np.einsum("ikn,kn->in", half_cov, self.shift)
        precision = full - np.einsum("ikn,iln->kln", step, step)
        shift = self.shift - np.einsum("ikn,in->kn", step, shift_step)
        constant = 0.5 * (np.sum(shift_step**2, axis=0) - log_det) + self.at_zero()
        rows, columns = np.tril_indices(self.dim)
        products = atoms[:, rows] * atoms[:, columns] * np.where(rows == columns, 0.5, 1.0)
        return (atoms @ shift - products @ precision[rows, columns] + constant[None]).T

    def expect(self, components: Components, round_: int = 0) -> Sums:
        """One E-step: expected memberships and moments of z, summed over the tasks."""
        return expect_given(components, self.condition(components), self.num_rows)

    def mixed_log_evidence(self, components: Components) -> Float[np.ndarray, " n"]:
        """log p(h) of every task under the mixture."""
        return memberships(components.weights, self.condition(components).log_evidence)[1]

    def draw(self, components: Components, *numbers: int) -> Float[np.ndarray, "n d"]:
        """One draw of theta given each task, whose randomness its label and `numbers` decide."""
        normal = normals(self.hashes, self.dim, 1, *numbers)
        uniform = uniforms(self.hashes, 1, 2, *numbers)[:, 0]
        shares, _ = memberships(components.weights, self.condition(components).log_evidence)
        edges = np.cumsum(shares, axis=0)
        chosen = np.sum(uniform[None] * edges[-1:] > edges[:-1], axis=0)
        draws = np.empty_like(normal)
        for k in np.unique(chosen).tolist():
            own = chosen == k
            component = components.part(k, k + 1)
            inverse, _, pull, _ = self.select(own)._in_prior_units(component)
            half = np.sum(inverse * pull[None], axis=1)[:, 0] + normal[own].T
            z = np.sum(inverse[:, :, 0] * half[:, None], axis=0)
            draws[own] = components.means[k] + (lower(components.covs[k]) @ z).T
        return draws

    def select(self, tasks: np.ndarray) -> "LinearBlock":
        """The evidence of some tasks: positions, or a mask."""
        return LinearBlock(
            self.hashes[tasks],
            self.precision[:, tasks],
            self.shift[:, tasks],
            self.sum_squares[tasks],
            self.counts[tasks],
            self.noise_std,
        )


def expect_given(components: Components, given: Conditioned, num_rows: float) -> Sums:
    """Sums of an E-step from components given each task."""
    shares, log_evidence = memberships(components.weights, given.log_evidence)
    second = np.einsum("pkn,kn->kp", given.cov_z, shares)[:, places(components.dim)]
    weighted = given.mean_z * shares[None]
    second += np.einsum("ikn,jkn->kij", weighted, given.mean_z)
    return Sums(
        shares.sum(axis=1),
        weighted.sum(axis=2).T,
        second,
        float(np.sum(log_evidence)),
        float(np.sum(shares * given.squared_error)),
        num_rows,
        shares.shape[1],
    )


def diagonal(dim: int) -> np.ndarray:
    """Places of the diagonal in a triangle."""
    return np.cumsum(np.arange(dim) + 1) - 1


def _pulls(mean: Float[np.ndarray, " d"], tril: Float[np.ndarray, "d d"]) -> np.ndarray:
    applied = applied_to(mean)
    return np.vstack([tril.T @ applied, mean @ applied])


def linear_blocks(
    statistics: TaskStatistics, noise_std: float, tasks_at_once: int = TASKS_AT_ONCE
) -> list[LinearBlock]:
    """Blocks of tasks in the order of their hashes, so that the same tasks make the same blocks."""
    return list(_blocks(statistics, noise_std, tasks_at_once))


def _blocks(
    statistics: TaskStatistics, noise_std: float, tasks_at_once: int
) -> Iterator[LinearBlock]:
    order = np.argsort(statistics.hashes, kind="stable")
    scale = 1.0 / noise_std**2
    for start in range(0, len(order), tasks_at_once):
        own = order[start : start + tasks_at_once]
        yield LinearBlock(
            statistics.hashes[own],
            np.ascontiguousarray(statistics.xx[own].T, np.float64) * scale,
            np.ascontiguousarray(statistics.xy[own].T, np.float64) * scale,
            statistics.yy[own] * scale,
            statistics.counts[own],
            noise_std,
        )
