"""Samples brought to zero mean and unit covariance, and split into training and held-out rows."""

import numpy as np


def whitening(
    samples: np.ndarray, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and lower factor of the covariance, with a little added where it is singular; of rows
    that count `weights` times, by default once."""
    share = np.ones(len(samples)) if weights is None else np.asarray(weights, np.float64)
    share = share / np.sum(share)
    offset = share @ samples
    stds = np.sqrt(share @ (samples - offset) ** 2)
    stds = np.where(stds > 0, stds, 1e-6 * np.maximum(1.0, np.abs(offset)))
    standard = (samples - offset) / stds
    correlation = standard.T @ (share[:, None] * standard)
    ridge = np.maximum(1e-6, 1.0 - np.diagonal(correlation))
    return offset, stds[:, None] * np.linalg.cholesky(correlation + np.diag(ridge))


def split(unit: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out rows: a tenth, a fifth of fewer than 1,000, at most 5,000."""
    n = len(unit)
    num_held_out = min(n // 10 if n >= 1000 else n // 5, 5000)
    order = np.random.default_rng(seed).permutation(n)
    return unit[order[num_held_out:]], unit[order[:num_held_out]]
