"""The rungs of the ladder as priors: components in NumPy on one side, priors on the other."""

from dataclasses import dataclass

import numpy as np

from ..evidence.base import AbstractLikelihood
from ..priors.base import AbstractPrior
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.data import AnyLogs, blocks_of
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


def naive(logs: AnyLogs, likelihood: AbstractLikelihood) -> Components:
    """What plug-in estimates give: the mean and covariance of a ridge regression for each task.

    For generalised linear models, of one Newton step from the pooled estimate. Tasks of one row are
    left out. Much too wide, since it counts the noise of the estimates as differences of tasks.
    """
    start = guess(blocks_of(logs, likelihood))
    start = Components.one(start.means[0], start.covs[0] / RIDGE)
    scale = np.sqrt(np.diagonal(start.covs[0]))
    estimates = []
    for block in blocks_of(logs, likelihood):
        given = block.condition(start)
        estimates.append(start.means[0] + given.mean_z[:, 0].T * scale)
    points = np.concatenate(estimates)
    counts = np.asarray(logs.counts)[np.argsort(logs.hashes, kind="stable")]
    points = points[counts >= 2] if np.sum(counts >= 2) > 2 * logs.dim else points
    cov = np.cov(points, rowvar=False).reshape(logs.dim, logs.dim)
    return Components.one(points.mean(axis=0), positive(cov))
