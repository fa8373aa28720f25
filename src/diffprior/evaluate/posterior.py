"""Draws from the posterior of every task, by a sampler or exactly.

A draw that failed is NaN in every parameter: it is left out and counted, never replaced.
"""

import operator
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..mixture import GaussianMixture
from ..priors.mixture import MixturePrior
from ..samplers.base import AbstractSampler, Info
from ..samplers.choose import best_sampler
from ..samplers.exact import Exact
from .tasks import Tasks

AT_ONCE = 1024  # draws side by side, which bounds the memory


class PosteriorDraws(NamedTuple):
    """Draws (n, m, d) of n posteriors; one that failed is NaN in every parameter."""

    values: Float[np.ndarray, "n m d"]
    log_evidence: Float[np.ndarray, "n m"]

    @property
    def failed(self) -> int:
        """Number of draws that failed."""
        return int(np.sum(np.isnan(self.values).any(axis=-1)))


def nan_where_failed(
    values: Float[np.ndarray, "*n d"], failed: np.ndarray | None = None
) -> Float[np.ndarray, "*n d"]:
    """Draws as float64, NaN in every parameter where one is not finite or is marked failed."""
    values = np.asarray(values, np.float64)
    broken = ~np.isfinite(values).all(axis=-1)
    broken = broken if failed is None else broken | np.asarray(failed)
    return np.where(broken[..., None], np.nan, values)


def finite_rows(draws: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "k d"]:
    """The draws that did not fail."""
    return np.asarray(draws[np.isfinite(draws).all(axis=-1)])


def as_sampler(sampler: object) -> AbstractSampler:
    """The sampler, or the best one for a prior or an object with its four members."""
    return sampler if isinstance(sampler, AbstractSampler) else best_sampler(sampler)


def draw_posteriors(sampler: object, tasks: Tasks, num_draws: int, seed: int) -> PosteriorDraws:
    """Draws from the posterior of every task; those of a task depend on its number and the seed."""
    sampler, num_draws = as_sampler(sampler), positive_int("num_draws", num_draws)
    tasks.check_dim(sampler.prior)
    keys = jax.random.split(jax.random.key(seed), len(tasks))
    shape = (len(tasks), num_draws)
    values = np.empty((*shape, tasks.dim))
    log_evidence = np.empty(shape)
    for which, evidence in tasks.batches(max(1, AT_ONCE // num_draws)):
        thetas, info = _draw(sampler, keys[which], evidence, num_draws)
        values[which] = nan_where_failed(np.asarray(thetas), np.asarray(info.failed))
        log_evidence[which] = np.asarray(info.log_evidence, np.float64)
    return PosteriorDraws(values, log_evidence)


@eqx.filter_jit
def _draw(
    sampler: AbstractSampler, keys: Key[Array, " b"], evidence: AbstractEvidence, num_draws: int
) -> tuple[Float[Array, "b m d"], Info]:
    def one(key: Key[Array, ""], evidence: AbstractEvidence) -> tuple[Float[Array, "m d"], Info]:
        draw_keys = jax.random.split(key, num_draws)
        return jax.vmap(lambda k: sampler.tempered_draw(k, evidence))(draw_keys)

    return jax.vmap(one)(keys, evidence)


def exact_posteriors(
    prior: MixturePrior, tasks: Tasks, num_draws: int, seed: int
) -> Float[np.ndarray, "n m d"]:
    """Draws from the exact posterior of every task: closed form, or a grid of two dimensions."""
    if tasks.likelihood.empty(tasks.dim).quadratic:
        return draw_posteriors(Exact(prior), tasks, num_draws, seed).values
    found = np.empty((len(tasks), num_draws, tasks.dim))
    for which, evidence in tasks.batches(len(tasks)):
        for place, number in enumerate(which):
            own = jax.tree.map(operator.itemgetter(place), evidence)
            found[number] = _grid_posterior(prior, own, num_draws, seed + int(number))
    return found


def _grid_posterior(
    prior: MixturePrior, evidence: AbstractEvidence, num_draws: int, seed: int, num: int = 400
) -> Float[np.ndarray, "m 2"]:
    """Draws that are uniform within the cells of a grid of `num` by `num`.

    A coarse grid over the prior finds where the posterior is; a fine one is laid there.
    """
    if prior.dim != 2:
        raise ValueError(
            f"`prior`: expected two parameters for a grid, got {prior.dim}; "
            "use linear rewards, whose posterior has a closed form"
        )
    moments = prior.moments()
    center = np.asarray(moments.mean, np.float64)
    half = 6.0 * np.sqrt(np.diagonal(np.asarray(moments.cov, np.float64)))
    points, probabilities, _ = _grid(prior, evidence, center - half, center + half, num)
    likely = points[probabilities > 1e-9 * probabilities.max()]
    margin = 2 * half / num
    low, high = likely.min(axis=0) - margin, likely.max(axis=0) + margin
    points, probabilities, cell = _grid(prior, evidence, low, high, num)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(points), size=num_draws, p=probabilities)
    return points[chosen] + cell * (rng.random((num_draws, 2)) - 0.5)


def _grid(
    prior: MixturePrior, evidence: AbstractEvidence, low: np.ndarray, high: np.ndarray, num: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cell = (high - low) / num
    axes = [low[i] + cell[i] * (np.arange(num) + 0.5) for i in range(2)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_likelihood = jax.lax.map(evidence.log_likelihood, jax.device_put(points), batch_size=4096)
    weights, means, covs = (np.asarray(a, float) for a in (prior.weights, prior.means, prior.covs))
    log_prior = GaussianMixture.from_covs(weights, means, covs).log_density(points)
    log_density = np.asarray(log_likelihood, np.float64) + log_prior
    weights = np.exp(log_density - log_density.max())
    return points, weights / weights.sum(), cell
