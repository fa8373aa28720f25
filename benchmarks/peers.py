"""What a user would run instead: Gaussian Thompson sampling in NumPy, and a library's."""

from collections.abc import Callable

import numpy as np


def numpy_thompson_sampling(
    theta: np.ndarray, features: np.ndarray, noise: np.ndarray, seed: int
) -> np.ndarray:
    """Regret (runs, rounds) of exact Thompson sampling under N(0, I), all runs in one batch.

    `theta` (runs, d), `features` (runs, K, d), `noise` (runs, rounds) of standard deviation 1.
    """
    rng = np.random.default_rng(seed)
    runs, _, dim = features.shape
    means = np.einsum("rkd,rd->rk", features, theta)
    best = means.max(axis=1)
    precision, shift = np.tile(np.eye(dim), (runs, 1, 1)), np.zeros((runs, dim))
    regret, every = np.empty(noise.shape), np.arange(runs)
    for round_ in range(noise.shape[1]):
        cov = np.linalg.inv(precision)
        tril = np.linalg.cholesky(cov)
        draw = np.einsum("rij,rj->ri", cov, shift)
        draw += np.einsum("rij,rj->ri", tril, rng.standard_normal((runs, dim)))
        action = np.argmax(np.einsum("rkd,rd->rk", features, draw), axis=1)
        phi, mean = features[every, action], means[every, action]
        precision += phi[:, :, None] * phi[:, None, :]
        shift += phi * (mean + noise[:, round_])[:, None]
        regret[:, round_] = best - mean
    return regret


def library_decision(features: np.ndarray, seed: int) -> Callable[[], object]:
    """One decision of bayesianbandits' Gaussian regressor, by the shortest way: a draw of every
    action's mean, and the largest."""
    from bayesianbandits import NormalRegressor

    rng = np.random.default_rng(seed)
    model = NormalRegressor(alpha=1.0, beta=1.0, random_state=seed)
    model.partial_fit(rng.standard_normal((50, features.shape[1])), rng.standard_normal(50))
    return lambda: int(np.argmax(model.sample(features)[0]))
