"""Logs of known distributions, and slow twins of what is learned from them; NumPy alone."""

import numpy as np


def blobs(rng: np.random.Generator, n: int) -> np.ndarray:
    return 1.5 * rng.choice([-1.0, 1.0], (n, 1)) + 0.3 * rng.standard_normal((n, 2))


def rows(
    rng: np.random.Generator, thetas: np.ndarray, mean_rows: float, noise_std: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tasks, features in the unit ball and linear rewards; geometric numbers of rows."""
    n, d = thetas.shape
    tasks = np.repeat(np.arange(n), rng.geometric(1 / mean_rows, n))
    x = rng.standard_normal((len(tasks), d))
    x *= rng.random((len(tasks), 1)) ** (1 / d) / np.linalg.norm(x, axis=1, keepdims=True)
    eta = np.sum(x * thetas[tasks], axis=1)
    return tasks, x, eta + noise_std * rng.standard_normal(len(tasks))


def marginal_log_density(
    x: np.ndarray, y: np.ndarray, mean: np.ndarray, cov: np.ndarray, noise_std: float
) -> float:
    """log N(y; X mean, X cov X' + noise^2 I)."""
    full = x @ cov @ x.T + noise_std**2 * np.eye(len(y))
    r = y - x @ mean
    return float(
        -0.5 * r @ np.linalg.solve(full, r)
        - 0.5 * np.linalg.slogdet(full)[1]
        - 0.5 * len(y) * np.log(2 * np.pi)
    )


def deconvolution_step(
    tasks: list[tuple[np.ndarray, np.ndarray]],
    weights: np.ndarray,
    means: np.ndarray,
    covs: np.ndarray,
    noise_std: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """One step of extreme deconvolution (Bovy et al. 2011, Eqs. 14 to 17), with projections X."""
    k, d = means.shape
    mass, first, second = np.zeros(k), np.zeros((k, d)), np.zeros((k, d, d))
    total = 0.0
    for x, y in tasks:
        logs = [
            np.log(weights[j]) + marginal_log_density(x, y, means[j], covs[j], noise_std)
            for j in range(k)
        ]
        log_p = np.logaddexp.reduce(logs)
        total += log_p
        for j in range(k):
            share = np.exp(logs[j] - log_p)
            t = x @ covs[j] @ x.T + noise_std**2 * np.eye(len(y))
            gain = covs[j] @ x.T @ np.linalg.inv(t)
            b = means[j] + gain @ (y - x @ means[j])
            v = covs[j] - gain @ x @ covs[j]
            mass[j] += share
            first[j] += share * b
            second[j] += share * (np.outer(b, b) + v)
    means = first / mass[:, None]
    covs = second / mass[:, None, None] - np.einsum("ki,kj->kij", means, means)
    return mass / mass.sum(), means, covs, total
