"""Priors on tasks that they have not seen: log evidence, and the distance of their samples."""

from collections.abc import Mapping
from dataclasses import dataclass

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.special import logsumexp

from ..evidence.base import AbstractEvidence
from ..priors.base import AbstractClosedFormPrior, AbstractPrior
from ..samplers.base import AbstractSampler
from .distances import Distance, earth_movers_distance
from .tasks import Tasks, draw_with_info


@dataclass(frozen=True)
class LogEvidence:
    """log p(h) of every task under one prior, and the variance of each where it is estimated."""

    values: np.ndarray
    variances: np.ndarray
    failed: int = 0  # estimates that count as zero because they failed

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float:
        """Of the mean, over tasks."""
        return float(np.std(self.values, ddof=1) / np.sqrt(len(self.values)))

    @property
    def estimation_error(self) -> float:
        """What estimating adds: the standard error of the mean for these very tasks."""
        return float(np.sqrt(np.sum(self.variances)) / len(self.values))

    @property
    def shortfall(self) -> float:
        """How far the mean is low, to second order: the log of an unbiased estimate is not one."""
        return float(np.mean(self.variances) / 2)


def closed_form_log_evidence(prior: AbstractClosedFormPrior, tasks: Tasks) -> LogEvidence:
    """log p(h): exact for linear evidence, Laplace's approximation otherwise."""
    values = np.asarray(_closed_form(prior, tasks.evidence), np.float64)
    return LogEvidence(values, np.zeros_like(values))


def estimated_log_evidence(
    sampler: AbstractSampler, tasks: Tasks, num_estimates: int, seed: int
) -> LogEvidence:
    """The log of the mean of independent estimates of p(h) by a sampler that has unbiased ones."""
    _, info = draw_with_info(sampler, tasks, num_estimates, seed)
    return log_mean(np.asarray(info.log_evidence, np.float64))


def log_mean(logs: Float[np.ndarray, "n m"]) -> LogEvidence:
    """log of the mean over the second axis, its variance by the delta method."""
    failed = ~np.isfinite(logs)
    logs = np.where(failed, -np.inf, logs)
    num_estimates = logs.shape[1]
    values = logsumexp(logs, axis=1) - np.log(num_estimates)
    ratios = np.exp(logs - values[:, None])
    variances = np.var(ratios, axis=1, ddof=1) / num_estimates
    return LogEvidence(values, variances, int(np.sum(failed)))


def sample_distances(
    priors: Mapping[str, AbstractPrior],
    seen: Float[np.ndarray, "n d"],
    held_out: Float[np.ndarray, "m d"],
    *,
    num_points: int,
    num_repeats: int,
    seed: int,
) -> dict[str, Distance]:
    """Earth mover's distance of samples of each prior from parameters that were held out.

    The floor is that of as many parameters that were not.
    """
    rng = np.random.default_rng(seed)
    count = min(num_points, len(seen), len(held_out))
    draws = [[rng.permutation(len(rows))[:count] for rows in (seen, held_out)]
             for _ in range(num_repeats)]  # fmt: skip
    targets = [held_out[other] for _, other in draws]
    floors = np.array([earth_movers_distance(seen[own], held_out[other]) for own, other in draws])
    return {
        name: Distance(_distances(prior, targets, seed), floors) for name, prior in priors.items()
    }


def _distances(prior: AbstractPrior, targets: list[np.ndarray], seed: int) -> np.ndarray:
    keys = jax.random.split(jax.random.key(seed), len(targets))
    return np.array(
        [
            earth_movers_distance(np.asarray(prior.sample(key, len(target))), target)
            for key, target in zip(keys, targets, strict=True)
        ]
    )


@eqx.filter_jit
def _closed_form(prior: AbstractClosedFormPrior, evidence: AbstractEvidence) -> Float[Array, " n"]:
    return jax.lax.map(lambda one: prior.posterior(one)[1], evidence)
