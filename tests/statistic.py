"""Statistical assertions: standard errors computed from the draws, five of them allowed."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

Z = 5.0  # false alarms below one in a million for each number compared


def assert_mean(draws: ArrayLike, expected: ArrayLike) -> None:
    """The mean over the first axis of independent draws is `expected`."""
    values = np.asarray(draws, dtype=np.float64)
    error = values.mean(axis=0) - np.asarray(expected)
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    worst = np.max(np.abs(error) / standard_error)
    assert worst <= Z, f"{worst:.1f} standard errors away"


def assert_moments(draws: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> None:
    """Independent draws (n, d) have this mean and this covariance."""
    centered = np.asarray(draws, dtype=np.float64) - np.asarray(mean)
    assert_mean(centered, np.zeros_like(mean))
    assert_mean(np.einsum("ni,nj->nij", centered, centered), cov)


def assert_distribution(uniforms: ArrayLike) -> None:
    """Values of a distribution function at its own draws are uniform (Kolmogorov and Smirnov)."""
    values = np.sort(np.asarray(uniforms, dtype=np.float64))
    n = len(values)
    steps = np.arange(n + 1) / n
    distance = max(np.max(steps[1:] - values), np.max(values - steps[:-1]))
    p_value = special.kolmogorov(np.sqrt(n) * distance)
    assert p_value > 1e-6, f"distance {distance:.4f} for {n} draws"
