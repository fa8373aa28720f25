"""Exact posteriors in two dimensions, by their density on a grid."""

import jax
import numpy as np
from jaxtyping import Float

from ..evidence.base import AbstractEvidence
from ..priors.mixture import MixturePrior


def grid_posterior(
    prior: MixturePrior, evidence: AbstractEvidence, num_draws: int, seed: int, num: int = 400
) -> Float[np.ndarray, "m 2"]:
    """Draws from the exact posterior in two dimensions.

    A coarse grid over the prior finds where the posterior is; a fine one is laid there.

    Args:
        prior: A prior of two parameters.
        evidence: Any evidence of two parameters.
        num_draws: How many draws.
        seed: Of the draws.
        num: Points along each side of the grid.

    Returns:
        Draws (num_draws, 2), uniform within the cells of the fine grid.

    Raises:
        ValueError: If there are other than two parameters.
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
    kept = points[probabilities > 1e-9 * probabilities.max()]
    margin = 2 * half / num
    low, high = kept.min(axis=0) - margin, kept.max(axis=0) + margin
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
    log_density = np.asarray(log_likelihood, np.float64) + _log_prior(prior, points)
    weights = np.exp(log_density - log_density.max())
    return points, weights / weights.sum(), cell


def _log_prior(prior: MixturePrior, points: np.ndarray) -> np.ndarray:
    from scipy.stats import multivariate_normal  # slow to import, and not needed to decide

    components = zip(
        np.asarray(prior.weights), np.asarray(prior.means), np.asarray(prior.covs), strict=True
    )
    densities = [w * multivariate_normal(m, c).pdf(points) for w, m, c in components]
    return np.log(np.sum(densities, axis=0) + 1e-300)
