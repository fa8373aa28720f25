"""Logs of known distributions, and slow twins of what is learned; NumPy and SciPy alone."""

import functools

import numpy as np
from scipy.optimize import minimize


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


def repeated_measures(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eighteen subjects, ten days each: subject, day and a linear reward."""
    rng = np.random.default_rng(seed)
    subjects, days = np.repeat(np.arange(18), 10), np.tile(np.arange(10.0), 18)
    thetas = [250.0, 10.0] + rng.standard_normal((18, 2)) * [24.0, 6.0]
    rewards = thetas[subjects, 0] + thetas[subjects, 1] * days + 26.0 * rng.standard_normal(180)
    return subjects, days, rewards


def mixed_model(
    tasks: np.ndarray, x: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float, float]:
    """Maximum likelihood of y = x' theta + noise, theta Gaussian per task, by Nelder-Mead.

    Returns the mean, the covariance and the noise variance, and the log likelihood there; the mean
    is the generalized least squares one, so that the search is over covariance and noise alone.
    """
    rows = [tasks == task for task in np.unique(tasks)]
    scale = float(np.std(y))

    def parts(free: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        tril = np.zeros((x.shape[1],) * 2)
        tril[np.tril_indices(x.shape[1])] = scale * free[:-1]
        cov, noise_std = tril @ tril.T, scale * np.exp(free[-1])
        full = [np.linalg.inv(x[r] @ cov @ x[r].T + noise_std**2 * np.eye(r.sum())) for r in rows]
        precision = sum(x[r].T @ w @ x[r] for r, w in zip(rows, full, strict=True))
        shift = sum(x[r].T @ w @ y[r] for r, w in zip(rows, full, strict=True))
        return np.linalg.solve(precision, shift), cov, noise_std

    def loss(free: np.ndarray) -> float:
        mean, cov, noise_std = parts(free)
        return -sum(marginal_log_density(x[r], y[r], mean, cov, noise_std) for r in rows)

    found = np.append(0.3 * np.eye(x.shape[1])[np.tril_indices(x.shape[1])], -1.0)
    for _ in range(3):  # restarts, which Nelder-Mead needs to be exact
        options = {"xatol": 1e-9, "fatol": 1e-9, "maxiter": 4000}
        found = minimize(loss, found, method="Nelder-Mead", options=options).x
    mean, cov, noise_std = parts(found)
    return mean, cov, noise_std**2, -loss(found)


@functools.cache
def mixed_model_of_repeated_measures() -> tuple[np.ndarray, np.ndarray, float, float]:
    """Levels and slopes of the eighteen subjects."""
    tasks, days, rewards = repeated_measures()
    return mixed_model(tasks, np.column_stack([np.ones_like(days), days]), rewards)
