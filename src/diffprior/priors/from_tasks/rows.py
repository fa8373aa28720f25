"""Blocks of tasks with rows of a generalized linear model: Laplace's approximation of every
component given every task, and its correction by importance."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, UInt64

from ...evidence.glm import AbstractFamily
from ...logs.labels import normals, uniforms
from ...logs.logs import Logs
from ...logs.statistics import segment_sums
from .algebra import congruence, gram, inverse_factor, lower
from .block import AbstractBlock
from .components import Components, Conditioned, Sums, memberships
from .densities import log_densities, log_sum, terms
from .linear import diagonal, expect_given

TASKS_AT_ONCE = 256
ROWS_AT_ONCE = 4096
MAX_NEWTON = 50
CLOSE = 1e-7  # step in prior standard deviations at which the mode is found


@dataclass(frozen=True, eq=False)
class RowsBlock(AbstractBlock):
    """Rows of some tasks, grouped by task, and the family that their rewards follow.

    `num_draws` points a task correct moments and evidence by importance; 0 leaves them Laplace's.
    """

    family: AbstractFamily
    hashes: UInt64[np.ndarray, " n"]
    starts: Int[np.ndarray, " s"]
    features: Float[np.ndarray, "r d"]
    rewards: Float[np.ndarray, " r"]
    weights: Float[np.ndarray, " r"]
    num_draws: int = 0
    modes: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)  # where to search next

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return len(self.hashes)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.features.shape[1]

    @property
    def task_rows(self) -> Float[np.ndarray, " n"]:
        """Rows of every task."""
        return np.diff(self.starts).astype(np.float64)

    @property
    def num_rows(self) -> float:
        """Summed weights of all rows."""
        return float(self.weights.sum())

    @property
    def exact(self) -> bool:
        """No: Laplace's approximation, or corrected by importance."""
        return False

    def corrected(self, num_draws: int) -> "RowsBlock":
        """The same rows, with so many points a task for the correction."""
        return dataclasses.replace(self, num_draws=num_draws, modes=dict(self.modes))

    def condition(self, components: Components) -> Conditioned:
        """Laplace's approximation of each component given each task, in units of the component."""
        trils = np.stack([lower(cov) for cov in components.covs])
        z = self._modes(components.means, trils)
        value, _, precision = self._in_prior_units(components.means, trils, z)
        shape = z.shape[1:]
        precision[diagonal(self.dim)] += 1.0
        inverse, log_det = inverse_factor(precision.reshape(len(precision), -1))
        log_evidence = value - 0.5 * np.sum(z**2, axis=0) - 0.5 * log_det.reshape(shape)
        cov_z = gram(inverse).reshape(-1, *shape)
        return Conditioned(log_evidence, z, cov_z, np.zeros(shape))

    def _modes(
        self, means: Float[np.ndarray, "k d"], trils: Float[np.ndarray, "k d d"]
    ) -> Float[np.ndarray, "d k n"]:
        """The modes of z by damped Newton steps, from where they were found last."""
        shape = (self.dim, len(means), self.num_tasks)
        z = self.modes.get(len(means), np.zeros(shape)).copy()
        damping = np.zeros(shape[1:])
        value, score, precision = self._in_prior_units(means, trils, z)
        for _ in range(MAX_NEWTON):
            gradient = score - z
            ratio = precision.copy()
            ratio[diagonal(self.dim)] += 1.0 + damping
            inverse, _ = inverse_factor(ratio.reshape(len(ratio), -1))
            inverse = inverse.reshape(self.dim, self.dim, *shape[1:])
            half = np.sum(inverse * gradient[None], axis=1)
            step = np.sum(inverse * half[:, None], axis=0)
            new = z + step
            trial = self._in_prior_units(means, trils, new)
            better = _objective(trial[0], new) >= _objective(value, z) - 1e-9
            z = np.where(better, new, z)
            value, score, precision = (
                np.where(better, a, b)
                for a, b in zip(trial, (value, score, precision), strict=True)
            )
            damping = np.where(better, damping * 0.1, np.maximum(10.0 * damping, 1.0))
            damping[damping < 1e-2] = 0.0
            if np.all(np.max(np.abs(step), axis=0) < CLOSE):
                break
        self.modes[len(means)] = z
        return z

    def _in_prior_units(
        self,
        means: Float[np.ndarray, "k d"],
        trils: Float[np.ndarray, "k d d"],
        z: Float[np.ndarray, "d k n"],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """log p(h | z), its gradient and minus its second derivative, for z of every pair."""
        theta = means[:, None] + np.einsum("kij,jkn->kni", trils, z)
        value, score, precision = self.at(theta)
        maps = np.stack([congruence(tril) for tril in trils])
        return (
            value,
            np.einsum("kji,kjn->ikn", trils, score),
            np.ascontiguousarray(np.einsum("kqp,kpn->qkn", maps, precision)),
        )

    def at(
        self, theta: Float[np.ndarray, "k n d"]
    ) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, "k d n"], Float[np.ndarray, "k p n"]]:
        """log p(h | theta), score and triangle of the precision, at some thetas of each task."""
        own = self.row_tasks
        eta = np.einsum("ri,kri->rk", self.features, theta[:, own])
        value, score, curvature = terms(self.family, self.rewards, eta)
        w = self.weights[:, None]
        rows, columns = np.tril_indices(self.dim)
        products = self.features[:, rows] * self.features[:, columns]
        num = eta.shape[1]
        sums = segment_sums(
            np.concatenate(
                [
                    w * value,
                    ((w * score)[:, :, None] * self.features[:, None]).reshape(len(own), -1),
                    ((w * curvature)[:, :, None] * products[:, None]).reshape(len(own), -1),
                ],
                axis=1,
            ),
            self.starts,
        )
        first, second = num, num * (1 + self.dim)
        return (
            sums[:, :first].T,
            np.moveaxis(sums[:, first:second].reshape(-1, num, self.dim), 0, -1),
            np.moveaxis(sums[:, second:].reshape(-1, num, len(rows)), 0, -1),
        )

    def pooled(self) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " d"], float]:
        """Precision and shift of all rows, expanded at zero, and 0 for their misfit."""
        _, score, precision = self.at(np.zeros((1, self.num_tasks, self.dim)))
        return precision[0].sum(axis=1), score[0].sum(axis=1), 0.0

    @property
    def row_tasks(self) -> Int[np.ndarray, " r"]:
        """The task of every row."""
        return np.repeat(np.arange(self.num_tasks), np.diff(self.starts))

    def log_likelihood_at(self, theta: Float[np.ndarray, "k n d"]) -> Float[np.ndarray, "k n"]:
        """log p(h | theta) at some thetas of each task."""
        eta = np.einsum("ri,kri->rk", self.features, theta[:, self.row_tasks])
        value, _, _ = terms(self.family, self.rewards, eta)
        return segment_sums(self.weights[:, None] * value, self.starts).T

    def log_evidence(self, components: Components) -> Float[np.ndarray, "n k"]:
        """log p(h) of every task under every component, by Laplace's approximation."""
        return self.condition(components).log_evidence.T

    def mixed_log_evidence(self, components: Components) -> Float[np.ndarray, " n"]:
        """log p(h) under the mixture: the log of the mean weight of importance, or Laplace's."""
        given = self.condition(components)
        _, laplace = memberships(components.weights, given.log_evidence)
        if self.num_draws == 0:
            return laplace
        return self._weigh(components, given, 0, self.num_draws)[2]

    def expect(self, components: Components, round_: int = 0) -> Sums:
        """One E-step: by Laplace's approximation, or with `num_draws` corrected by importance."""
        given = self.condition(components)
        if self.num_draws == 0:
            return expect_given(components, given, self.num_rows)
        theta, weights, log_evidence = self._weigh(components, given, round_, self.num_draws)
        log_parts = log_densities(components, theta)
        shares = np.exp(log_parts - log_sum(log_parts)) * weights  # (k, m, n)
        first, second = [], []
        for k in range(len(components)):
            tril = lower(components.covs[k])
            z = np.einsum("ij,mnj->imn", np.linalg.inv(tril), theta - components.means[k])
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
            self.num_tasks,
        )

    def draw(self, components: Components, *numbers: int) -> Float[np.ndarray, "n d"]:
        """One draw of theta given each task: one of 32 points, chosen by importance."""
        given = self.condition(components)
        theta, weights, _ = self._weigh(components, given, sum(numbers) + 7919, 32)
        edges = np.cumsum(weights, axis=0)
        uniform = uniforms(self.hashes, 1, 3, *numbers)[:, 0]
        chosen = np.sum(uniform[None] * edges[-1:] > edges[:-1], axis=0)
        return theta[chosen, np.arange(self.num_tasks)]

    def _weigh(
        self, components: Components, given: Conditioned, round_: int, num_draws: int
    ) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, "m n"], Float[np.ndarray, " n"]]:
        """Points from Laplace's mixture, widened a little, their normalized weights, and log p(h).

        Components are taken in proportion to their probability, by systematic resampling.
        """
        shares, _ = memberships(components.weights, given.log_evidence)
        wide = WIDER * shares + (1 - WIDER) * components.weights[:, None]
        normal, uniform = _points(self.hashes, self.dim, num_draws, round_)
        edges = np.cumsum(wide, axis=0)
        places_ = (np.arange(num_draws)[:, None] + uniform[None]) / num_draws
        chosen = np.sum(places_[None] > edges[:-1, None] / edges[-1:, None], axis=0)  # (m, n)
        inverse, _ = inverse_factor(_precisions(given))
        inverse = inverse.reshape(self.dim, self.dim, *given.log_evidence.shape)
        tasks = np.arange(self.num_tasks)[None]
        trils = np.stack([lower(cov) for cov in components.covs])
        roots = inverse[:, :, chosen, tasks]  # (d, d, m, n): W, and cov_z = W' W
        z = given.mean_z[:, chosen, tasks] + SPREAD * np.einsum("ijmn,mni->jmn", roots, normal)
        theta = components.means[chosen] + np.einsum("mnij,jmn->mni", trils[chosen], z)
        log_weight = (
            self.log_likelihood_at(theta)
            + log_sum(log_densities(components, theta))[0]
            - self._log_proposal(components, given, trils, inverse, wide, theta)
        )
        top = log_weight.max(axis=0)
        weights = np.exp(log_weight - top)
        total = weights.sum(axis=0)
        return theta, weights / total, top + np.log(total / num_draws)

    def _log_proposal(
        self,
        components: Components,
        given: Conditioned,
        trils: Float[np.ndarray, "k d d"],
        inverse: Float[np.ndarray, "d d k n"],
        wide: Float[np.ndarray, "k n"],
        theta: Float[np.ndarray, "m n d"],
    ) -> Float[np.ndarray, "m n"]:
        parts = []
        for k in range(len(components)):
            z = np.einsum("ij,mnj->imn", np.linalg.inv(trils[k]), theta - components.means[k])
            off = z - given.mean_z[:, k][:, None]
            root = np.linalg.inv(np.moveaxis(inverse[:, :, k], -1, 0))  # W^-1, so z = m + W' e
            unit = np.einsum("nji,jmn->imn", root, off) / SPREAD
            log_det = np.sum(np.log(np.abs(np.diagonal(root, axis1=1, axis2=2))), axis=1)
            log_det = log_det - np.sum(np.log(np.diagonal(trils[k]))) - self.dim * np.log(SPREAD)
            norm = 0.5 * self.dim * np.log(2 * np.pi)
            with np.errstate(divide="ignore"):
                parts.append(np.log(wide[k]) + log_det[None] - norm - 0.5 * np.sum(unit**2, axis=0))
        return log_sum(np.stack(parts))[0]

    def kernel_log_evidence(
        self, atoms: Float[np.ndarray, "m d"], cov: Float[np.ndarray, "d d"]
    ) -> Float[np.ndarray, "n m"]:
        """log p(h) of every task under N(atom, cov), by the second-order expansion at the atom."""
        tril = lower(cov)
        step = max(1, 2_000_000 // max(len(self.rewards), 1))
        made = []
        for start in range(0, len(atoms), step):
            part = atoms[start : start + step]
            theta = np.broadcast_to(part[:, None], (len(part), self.num_tasks, self.dim))
            value, score, precision = self.at(theta)
            ratio = np.einsum("qp,kpn->qkn", congruence(tril), precision)
            ratio[diagonal(self.dim)] += 1.0
            inverse, log_det = inverse_factor(ratio.reshape(len(ratio), -1))
            pull = np.einsum("ji,kjn->ikn", tril, score).reshape(self.dim, -1)
            half = np.sum(inverse * pull[None], axis=1)
            gain = 0.5 * (np.sum(half**2, axis=0) - log_det)
            made.append(value + gain.reshape(value.shape))
        return np.concatenate(made).T


WIDER = 0.95  # share of points by probability given the task; the others by the prior's weights
SPREAD = 1.1  # standard deviations of the points over Laplace's


def row_blocks(
    logs: Logs,
    family: AbstractFamily,
    tasks_at_once: int = TASKS_AT_ONCE,
    rows_at_once: int = ROWS_AT_ONCE,
) -> list[RowsBlock]:
    """Blocks of tasks in the order of their hashes, each of few tasks and rows."""
    return list(_blocks(logs, family, tasks_at_once, rows_at_once))


def _blocks(
    logs: Logs, family: AbstractFamily, tasks_at_once: int, rows_at_once: int
) -> Iterator[RowsBlock]:
    order = np.argsort(logs.hashes, kind="stable")
    ends = np.cumsum(logs.counts[order])
    start = 0
    while start < len(order):
        before = ends[start - 1] if start else 0
        stop = int(np.searchsorted(ends, before + rows_at_once, side="right"))
        stop = max(start + 1, min(stop, start + tasks_at_once))
        part = logs.select(order[start:stop])
        yield RowsBlock(family, part.hashes, part.starts, part.features, part.rewards, part.weights)
        start = stop


def _precisions(given: Conditioned) -> Float[np.ndarray, "p q"]:
    """Triangles of the precision of z, from those of its covariance."""
    triangles = given.cov_z.reshape(len(given.cov_z), -1)
    inverse, _ = inverse_factor(triangles)
    return gram(inverse)


def _points(
    hashes: UInt64[np.ndarray, " n"], dim: int, num_draws: int, round_: int
) -> tuple[Float[np.ndarray, "m n d"], Float[np.ndarray, " n"]]:
    """Normal points of every task, mirrored in pairs, and a uniform number."""
    half = -(-num_draws // 2)
    flat = normals(hashes, half * dim, 4, round_)
    points = np.moveaxis(flat.reshape(len(hashes), half, dim), 1, 0)
    both = np.concatenate([points, -points])[:num_draws]
    return both, uniforms(hashes, 1, 5, round_)[:, 0]


def _objective(
    value: Float[np.ndarray, "k n"], z: Float[np.ndarray, "d k n"]
) -> Float[np.ndarray, "k n"]:
    return value - 0.5 * np.sum(z**2, axis=0)
