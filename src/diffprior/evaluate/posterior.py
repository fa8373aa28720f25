"""Draws from the posterior of every task.

A draw that failed is NaN in every parameter: it is left out and counted, never replaced.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..priors.conditional import ConditionalPrior
from ..samplers.base import AbstractSampler, Info
from ..samplers.choose import best_sampler
from .tasks import Tasks, residuals

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
    """Draws from the posterior of every task; those of a task depend on its number and the seed.

    Under a prior given attributes, those are of the logs.
    """
    if isinstance(sampler, ConditionalPrior):
        sampler, tasks = residuals(sampler, tasks)
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
    if tasks.offsets is not None:
        values += tasks.offsets[:, None]
    return PosteriorDraws(values, log_evidence)


@eqx.filter_jit
def _draw(
    sampler: AbstractSampler, keys: Key[Array, " b"], evidence: AbstractEvidence, num_draws: int
) -> tuple[Float[Array, "b m d"], Info]:
    def one(key: Key[Array, ""], evidence: AbstractEvidence) -> tuple[Float[Array, "m d"], Info]:
        draw_keys = jax.random.split(key, num_draws)
        return jax.vmap(lambda k: sampler.tempered_draw(k, evidence))(draw_keys)

    return jax.vmap(one)(keys, evidence)
