"""Components of a mixture of Gaussians, as NumPy arrays, and sums of what tasks say about them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Components:
    """sum_k weights_k N(means_k, covs_k), in float64."""

    weights: Float[np.ndarray, " k"]
    means: Float[np.ndarray, "k d"]
    covs: Float[np.ndarray, "k d d"]

    @staticmethod
    def one(mean: Float[np.ndarray, " d"], cov: Float[np.ndarray, "d d"]) -> "Components":
        """A single Gaussian."""
        return Components(np.ones(1), mean[None], cov[None])

    def __len__(self) -> int:
        return len(self.weights)

    def part(self, start: int, stop: int) -> "Components":
        """Some components, with their weights as they are."""
        own = slice(start, stop)
        return Components(self.weights[own], self.means[own], self.covs[own])

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.means.shape[1]

    def moments(self) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, "d d"]]:
        """Mean and covariance of the mixture."""
        mean = self.weights @ self.means
        centered = self.means - mean
        within = np.einsum("k,kij->ij", self.weights, self.covs)
        return mean, within + (centered * self.weights[:, None]).T @ centered

    def pruned(self, below: float) -> "Components":
        """Without components of less weight."""
        kept = self.weights > below
        weights = self.weights[kept]
        return Components(weights / weights.sum(), self.means[kept], self.covs[kept])


@dataclass(frozen=True, eq=False)
class Conditioned:
    """Components given each task: theta = mean + L z with z ~ N(mean_z, cov_z)."""

    log_evidence: Float[np.ndarray, "k n"]
    mean_z: Float[np.ndarray, "d k n"]
    cov_z: Float[np.ndarray, "p k n"]
    squared_error: Float[np.ndarray, "k n"]


@dataclass(frozen=True, eq=False)
class Sums:
    """What an E-step adds up over tasks, in units of each component: theta = mean + L z.

    Attributes:
        mass: expected number of tasks of each component, (k,).
        first: sums of E[z], (k, d).
        second: sums of E[z z'], (k, d, d).
        log_evidence: sum of log p(h).
        squared_error: sum of the expected squared residuals of linear rewards over sigma^2.
        num_rows: rows, or their weights.
        num_tasks: tasks.
    """

    mass: Float[np.ndarray, " k"]
    first: Float[np.ndarray, "k d"]
    second: Float[np.ndarray, "k d d"]
    log_evidence: float
    squared_error: float
    num_rows: float
    num_tasks: int

    @staticmethod
    def total(parts: Iterable["Sums"]) -> "Sums":
        """All of them added, in their order."""
        everything = list(parts)
        return Sums(
            np.sum([s.mass for s in everything], axis=0),
            np.sum([s.first for s in everything], axis=0),
            np.sum([s.second for s in everything], axis=0),
            float(np.sum([s.log_evidence for s in everything])),
            float(np.sum([s.squared_error for s in everything])),
            float(np.sum([s.num_rows for s in everything])),
            sum(s.num_tasks for s in everything),
        )


def memberships(
    weights: Float[np.ndarray, " k"], log_evidence: Float[np.ndarray, "k n"]
) -> tuple[Float[np.ndarray, "k n"], Float[np.ndarray, " n"]]:
    """The probability of each component given each task, and log p(h) under the mixture."""
    with np.errstate(divide="ignore"):
        joint = log_evidence + np.log(weights)[:, None]
    top = joint.max(axis=0)
    shares = np.exp(joint - top)
    total = shares.sum(axis=0)
    return shares / total, top + np.log(total)
