"""Mixtures of Gaussians from what tasks have shown: extreme deconvolution, several starts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from ...executors import AbstractExecutor
from .algebra import lower
from .block import AbstractBlock
from .components import Components
from .em import HERE, Pull, expectations, maximize

MAX_STEPS = 150
TOLERANCE = 2e-5  # nats a task and step
PSEUDO_TASKS = 2.0  # strength of the pull that keeps covariances positive
NARROW = 0.05  # that pull's covariance, as a share of the Gaussian's


@dataclass(frozen=True, eq=False)
class MixtureFit:
    """The components, mean log evidence of the tasks they were fitted to, and the steps taken."""

    components: Components
    log_evidence: float
    num_steps: int


def fit_mixture(
    blocks: Sequence[AbstractBlock],
    gaussian: Components,
    num_components: int,
    *,
    draws: Float[np.ndarray, "n d"],
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    executor: AbstractExecutor = HERE,
) -> MixtureFit:
    """Closed-form EM from k-means on posterior draws under the Gaussian.

    Args:
        blocks: evidence of the tasks.
        gaussian: the Gaussian fitted to them.
        num_components: number of components.
        draws: a draw of theta given each task under the Gaussian.
        seed: of the start.
        max_steps: EM steps at most.
        executor: where to go over the blocks.

    References:
        Bovy, Hogg and Roweis (2011), Extreme deconvolution. Covariances are pulled to a small
        share of the Gaussian's instead of being kept above a bound.
    """
    pull = Pull(PSEUDO_TASKS, NARROW * gaussian.covs[0])
    components = cluster(draws, gaussian, num_components, seed)
    return improve(blocks, components, pull, max_steps=max_steps, executor=executor)


def improve(
    blocks: Sequence[AbstractBlock],
    components: Components,
    pull: Pull,
    *,
    max_steps: int = MAX_STEPS,
    tolerance: float = TOLERANCE,
    executor: AbstractExecutor = HERE,
) -> MixtureFit:
    """EM steps from given components until the evidence hardly rises."""
    before = -np.inf
    for step in range(max_steps):
        sums = expectations(blocks, components, step, executor)
        value = sums.log_evidence / sums.num_tasks
        components = maximize(components, sums, pull)
        if value - before < tolerance:
            break
        before = value
    return MixtureFit(components.pruned(1e-8), value, step + 1)


def cluster(
    draws: Float[np.ndarray, "n d"], gaussian: Components, num_components: int, seed: int
) -> Components:
    """Clusters of draws by k-means++ and a few of Lloyd's steps, in units of the Gaussian."""
    tril = lower(gaussian.covs[0])
    unit = np.linalg.solve(tril, (draws - gaussian.means[0]).T).T
    rng = np.random.default_rng([seed, num_components])
    centers = _spread_out(unit, num_components, rng)
    for _ in range(10):
        own = _nearest(unit, centers)
        for k in range(num_components):
            if np.any(own == k):
                centers[k] = unit[own == k].mean(axis=0)
    own = _nearest(unit, centers)
    weights = np.bincount(own, minlength=num_components) + 1.0
    dim = unit.shape[1]
    covs = []
    for k in range(num_components):
        centered = unit[own == k] - centers[k]
        covs.append(
            (centered.T @ centered + (dim + 1) * 0.1 * np.eye(dim)) / (len(centered) + dim + 1)
        )
    return Components(
        weights / weights.sum(),
        gaussian.means[0] + centers @ tril.T,
        np.einsum("ij,kjl,ml->kim", tril, np.array(covs), tril),
    )


def _spread_out(
    unit: Float[np.ndarray, "n d"], count: int, rng: np.random.Generator
) -> Float[np.ndarray, "k d"]:
    centers = [unit[rng.integers(len(unit))]]
    distance = np.sum((unit - centers[0]) ** 2, axis=1)
    for _ in range(count - 1):
        total = distance.sum()
        place = rng.choice(len(unit), p=distance / total) if total > 0 else rng.integers(len(unit))
        centers.append(unit[place])
        distance = np.minimum(distance, np.sum((unit - centers[-1]) ** 2, axis=1))
    return np.array(centers)


def _nearest(
    unit: Float[np.ndarray, "n d"], centers: Float[np.ndarray, "k d"]
) -> Int[np.ndarray, " n"]:
    squares = np.sum(centers**2, axis=1)
    return np.argmin(squares[None] - 2.0 * unit @ centers.T, axis=1)
