"""The rungs of the ladder as priors: components in NumPy on one side, priors on the other."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..executors import AbstractExecutor
from ..priors.base import AbstractPrior
from ..priors.from_tasks.block import AbstractBlock
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.em import HERE
from ..priors.from_tasks.gaussian import guess, positive
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior

RIDGE = 0.1  # of plug-in estimates, as a share of what an average task says
WIDE = 3.0  # standard deviations of the hedge over the prior's own


@dataclass(frozen=True, eq=False)
class Family:
    """A prior of one kind, learned from logs; `components` where it is a closed form."""

    name: str
    prior: AbstractPrior
    components: Components | None


def closed_form(name: str, components: Components) -> Family:
    """A family whose prior is a Gaussian or a mixture."""
    return Family(name, as_prior(components), components)


def as_prior(components: Components) -> GaussianPrior | MixturePrior:
    """Components as a prior of the package."""
    if len(components) == 1:
        return GaussianPrior(components.means[0], components.covs[0])
    return MixturePrior(components.weights, components.means, components.covs)


def hedged(components: Components, share: float) -> Components:
    """The components, and a share of a wide Gaussian around them all.

    Wide in every direction: parameters that went together in all past tasks need not in the next.
    A task unlike any before is then learned instead of denied; it costs a task like the others at
    most -log(1 - share) nats.
    """
    if share == 0.0:
        return components
    mean, cov = components.moments()
    return Components(
        np.concatenate([(1 - share) * components.weights, [share]]),
        np.concatenate([components.means, mean[None]]),
        np.concatenate([components.covs, WIDE**2 * np.diag(np.diagonal(cov))[None]]),
    )


@dataclass(frozen=True, eq=False)
class _Estimates:
    """Sums over tasks of several rows, and over all, of estimates in units of a Gaussian."""

    count: Float[np.ndarray, " 2"]
    first: Float[np.ndarray, "2 d"]
    second: Float[np.ndarray, "2 d d"]

    @staticmethod
    def of(start: Components, block: AbstractBlock) -> "_Estimates":
        z = block.condition(start).mean_z[:, 0].T
        groups = (z[block.task_rows >= 2], z)
        return _Estimates(
            np.array([len(group) for group in groups], float),
            np.stack([group.sum(axis=0) for group in groups]),
            np.stack([group.T @ group for group in groups]),
        )

    @staticmethod
    def total(parts: Iterable["_Estimates"]) -> "_Estimates":
        every = list(parts)
        return _Estimates(
            np.sum([part.count for part in every], axis=0),
            np.sum([part.first for part in every], axis=0),
            np.sum([part.second for part in every], axis=0),
        )


def naive(blocks: Sequence[AbstractBlock], executor: AbstractExecutor = HERE) -> Components:
    """What plug-in estimates give: the mean and covariance of a ridge regression for each task.

    For generalized linear models, of one Newton step from the pooled estimate. Tasks of one row are
    left out. Much too wide, since it counts the noise of the estimates as differences of tasks.
    """
    start = guess(blocks, executor)
    start = Components.one(start.means[0], start.covs[0] / RIDGE)
    sums = executor.total(_Estimates, functools.partial(_Estimates.of, start), blocks)
    which = 0 if sums.count[0] > 2 * start.dim else 1
    count, mean_z = sums.count[which], sums.first[which] / sums.count[which]
    cov_z = (sums.second[which] - count * np.outer(mean_z, mean_z)) / (count - 1)
    scale = np.sqrt(np.diagonal(start.covs[0]))
    cov = np.outer(scale, scale) * cov_z
    return Components.one(start.means[0] + mean_z * scale, positive(cov))
