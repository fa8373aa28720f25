"""How much of a learned prior to trust, from the tasks that came after it was learned."""

import dataclasses

import numpy as np
from jaxtyping import Float

from ..evaluate.comparison import mixture_of
from ..evidence.base import AbstractLikelihood
from ..fitting.attributes import Regression
from ..fitting.em import log_evidence
from ..fitting.rows import blocks_of
from ..logs.logs import Logs
from ..mixture import GaussianMixture, log_normalize
from ..priors.base import AbstractPrior
from ..priors.conditional import ConditionalPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from .scoring import Family, family_of

PRIOR_TASKS = 5.0  # tasks that the shares of `learn` count for
NUM_HEDGES = 2  # components at the end: a wide Gaussian, and the cold start
NUM_STEPS = 100  # of EM, which changes three numbers


def closed_form(prior: AbstractPrior) -> Family:
    """The family of a Gaussian or a mixture, given attributes or not.

    Raises:
        ValueError: The prior has no closed form.
    """
    if isinstance(prior, ConditionalPrior):
        center, coefficients = (np.asarray(a, float) for a in (prior.center, prior.coefficients))
        mean, cov = np.zeros(prior.dim), np.zeros((prior.dim, prior.dim))  # of the residual instead
        ones = np.ones(len(center))
        known = Regression(center, coefficients, mean, cov, 0 * coefficients, ones)
        return dataclasses.replace(closed_form(prior.residual), regression=known)
    if not isinstance(prior, GaussianPrior | MixturePrior):
        raise ValueError(
            f"`prior`: expected a Gaussian or a mixture, got {type(prior).__name__}; learn one "
            "with quick=True, or learn again from all logs"
        )
    return Family("own", prior, mixture_of(prior))


def adapted(
    prior: AbstractPrior, hedge: float, logs: Logs, likelihood: AbstractLikelihood
) -> AbstractPrior:
    """The prior with the weights of its hedges estimated from tasks since it was learned."""
    family = closed_form(prior)
    components = family.components
    assert components is not None
    blocks = blocks_of(logs, likelihood, family.offsets(logs))
    count = components.num_components - NUM_HEDGES
    groups = np.maximum(np.arange(count + NUM_HEDGES) - count + 1, 0)
    parts = []
    for group in range(NUM_HEDGES + 1):
        own = components.select(groups == group)
        weights, _ = log_normalize(own.log_weights)
        parts.append(log_evidence(blocks, GaussianMixture.from_covs(weights, own.means, own.covs)))
    start = np.asarray([1 - hedge, hedge / 2, hedge / 2])
    shares = estimated_shares(np.stack(parts, axis=1), start)
    old = np.bincount(groups, components.weights)
    weights = components.weights * (shares / old)[groups]
    mixture = GaussianMixture.from_covs(weights, components.means, components.covs)
    return family_of(family.name, mixture, family.regression).prior


def estimated_shares(
    log_evidence: Float[np.ndarray, "t g"], start: Float[np.ndarray, " g"]
) -> Float[np.ndarray, " g"]:
    """Shares of groups by EM, where those to start with count for `PRIOR_TASKS` tasks."""
    shares = start
    for _ in range(NUM_STEPS):
        responsibilities, _ = log_normalize(log_evidence + np.log(shares)[None])
        shares = PRIOR_TASKS * start + responsibilities.sum(axis=0)
        shares = shares / shares.sum()
    return shares
