"""Samplers against the exact posterior of a mixture prior, history by history (Appendix C.4)."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import jax
import numpy as np

from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..evidence.linear import Linear
from ..priors.mixture import MixturePrior
from ..samplers.base import AbstractSampler
from ..samplers.exact import Exact
from .distances import Distance, earth_movers_distance


@dataclass(frozen=True)
class Quality:
    """One sampler at one size of history."""

    sampler: str
    num_observations: int
    distance: Distance
    trace_ratio: float  # mean trace of the covariance over that of the exact posterior
    mean_trace_ratio: float  # the mean of the ratio itself, which small posteriors dominate
    failed: int


def random_histories(
    prior: MixturePrior,
    likelihood: AbstractLikelihood,
    num_observations: int,
    count: int,
    seed: int,
) -> tuple[np.ndarray, list[AbstractEvidence]]:
    """Parameters from the prior, and what random actions from the unit ball showed of each."""
    rng = np.random.default_rng([seed, num_observations])
    thetas = np.asarray(prior.sample(jax.random.key(seed), count), np.float64)
    histories = []
    for theta in thetas:
        features = _in_ball(rng, num_observations, prior.dim)
        rewards = _rewards(rng, likelihood, features @ theta)
        empty = likelihood.observe(dim=prior.dim)
        histories.append(empty.extend(features, rewards) if num_observations else empty)
    return thetas, histories


def posterior_quality(
    prior: MixturePrior,
    samplers: dict[str, AbstractSampler],
    sizes: Iterable[int],
    *,
    likelihood: AbstractLikelihood | None = None,
    num_histories: int = 20,
    num_draws: int = 500,
    seed: int = 0,
    on_row: Callable[[Quality], None] = lambda row: None,
) -> list[Quality]:
    """Every sampler at every size of history. The truth is exact: closed form for linear rewards,
    a grid in two dimensions otherwise."""
    likelihood = likelihood or Linear(noise_std=1.0)
    rows = []
    for size in sizes:
        _, histories = random_histories(prior, likelihood, size, num_histories, seed)
        truths = [_exact(prior, h, num_draws, seed + i) for i, h in enumerate(histories)]
        floors = np.array([earth_movers_distance(a, b) for a, b in truths])
        for name, sampler in samplers.items():
            row = _judge(name, sampler, size, histories, truths, floors, num_draws, seed)
            rows.append(row)
            on_row(row)
    return rows


def _judge(
    name: str,
    sampler: AbstractSampler,
    size: int,
    histories: list[AbstractEvidence],
    truths: list[tuple[np.ndarray, np.ndarray]],
    floors: np.ndarray,
    num_draws: int,
    seed: int,
) -> Quality:
    distances, traces, failed = [], [], 0
    for index, (history, (first, second)) in enumerate(zip(histories, truths, strict=True)):
        key = jax.random.fold_in(jax.random.key(seed + 1), index)
        thetas, info = sampler.sample_many(key, history, num_draws, throw=False)
        failed += int(np.sum(info.failed))
        draws = np.nan_to_num(np.asarray(thetas, np.float64), posinf=1e6, neginf=-1e6)
        distances.append(earth_movers_distance(draws, first))
        exact = np.concatenate([first, second])
        traces.append((np.sum(draws.var(axis=0)), np.sum(exact.var(axis=0))))
    ours, true = np.array(traces).T
    distance = Distance(np.array(distances), floors)
    ratios = (float(np.mean(ours) / np.mean(true)), float(np.mean(ours / true)))
    return Quality(name, size, distance, *ratios, failed)


def _exact(
    prior: MixturePrior, history: AbstractEvidence, num_draws: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Two independent samples of the exact posterior."""
    if history.quadratic:
        draws, _ = Exact(prior).sample_many(jax.random.key(1000 + seed), history, 2 * num_draws)
        both = np.asarray(draws, np.float64)
    else:
        both = grid_posterior(prior, history, 2 * num_draws, seed)
    return both[:num_draws], both[num_draws:]


def grid_posterior(
    prior: MixturePrior, history: AbstractEvidence, num_draws: int, seed: int, num: int = 400
) -> np.ndarray:
    """Draws from the exact posterior in two dimensions, by its density on a grid.

    A coarse grid over the prior finds where the posterior is; a fine one is laid there.
    """
    moments = prior.moments()
    centre = np.asarray(moments.mean, np.float64)
    half = 6.0 * np.sqrt(np.diagonal(np.asarray(moments.cov, np.float64)))
    points, probabilities, _ = _grid(prior, history, centre - half, centre + half, num)
    kept = points[probabilities > 1e-9 * probabilities.max()]
    margin = 2 * half / num
    low, high = kept.min(axis=0) - margin, kept.max(axis=0) + margin
    points, probabilities, cell = _grid(prior, history, low, high, num)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(points), size=num_draws, p=probabilities)
    return points[chosen] + cell * (rng.random((num_draws, 2)) - 0.5)


def _grid(
    prior: MixturePrior, history: AbstractEvidence, low: np.ndarray, high: np.ndarray, num: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cell = (high - low) / num
    axes = [low[i] + cell[i] * (np.arange(num) + 0.5) for i in range(2)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 2)
    log_likelihood = jax.lax.map(history.log_likelihood, jax.device_put(points), batch_size=4096)
    log_density = np.asarray(log_likelihood, np.float64) + _log_prior(prior, points)
    weights = np.exp(log_density - log_density.max())
    return points, weights / weights.sum(), cell


def _log_prior(prior: MixturePrior, points: np.ndarray) -> np.ndarray:
    from scipy.stats import multivariate_normal

    parts = zip(
        np.asarray(prior.weights), np.asarray(prior.means), np.asarray(prior.covs), strict=True
    )
    densities = [w * multivariate_normal(m, c).pdf(points) for w, m, c in parts]
    return np.log(np.sum(densities, axis=0) + 1e-300)


def _in_ball(rng: np.random.Generator, n: int, dim: int) -> np.ndarray:
    normal = rng.standard_normal((n, dim))
    radius = rng.random((n, 1)) ** (1 / dim)
    return radius * normal / np.linalg.norm(normal, axis=1, keepdims=True)


def _rewards(
    rng: np.random.Generator, likelihood: AbstractLikelihood, eta: np.ndarray
) -> np.ndarray:
    if isinstance(likelihood, Linear):
        return eta + float(likelihood.noise_std) * rng.standard_normal(eta.shape)
    return (rng.random(eta.shape) < np.asarray(likelihood.mean(jax.device_put(eta)))).astype(float)
