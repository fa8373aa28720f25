"""Tasks of generalized linear models: evidence and E-steps against quadrature on a grid."""

import numpy as np
import pytest

import diffprior as dp
from diffprior.fitting.em import expectations, log_evidence, maximize
from diffprior.fitting.rows import row_blocks
from diffprior.mixture import GaussianMixture

MIXTURE = GaussianMixture.from_covs(
    np.array([0.4, 0.6]),
    np.array([[-1.0, 0.5], [1.5, 0.0]]),
    np.array([[[0.8, 0.2], [0.2, 0.5]], [[0.3, 0.0], [0.0, 1.0]]]),
)


def logs_of(kind: str, n: int = 12) -> tuple[dp.Logs, dp.AbstractFamily]:
    rng = np.random.default_rng(0)
    tasks = np.repeat(np.arange(n), rng.integers(1, 8, n))
    x = rng.standard_normal((len(tasks), 2))
    eta = np.sum(x * rng.standard_normal((n, 2))[tasks], axis=1)
    if kind == "logistic":
        return dp.Logs(tasks, x, rng.random(len(x)) < 1 / (1 + np.exp(-eta))), dp.Logistic()
    return dp.Logs(tasks, 0.5 * x, rng.poisson(np.exp(0.5 * eta))), dp.Poisson()


def quadrature(logs: dp.Logs, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """log p(h) of every task, and the exact M-step, on a fine grid; tasks by their hashes."""
    axis = np.linspace(-7, 7, 281)
    theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    parts = []
    for w, m, c in zip(MIXTURE.weights, MIXTURE.means, MIXTURE.covs, strict=True):
        e = theta - m
        quad = np.einsum("ni,ij,nj->n", e, np.linalg.inv(c), e)
        parts.append(w * np.exp(-0.5 * quad) / (2 * np.pi * np.sqrt(np.linalg.det(c))))
    prior, cell = np.array(parts), (axis[1] - axis[0]) ** 2
    logs_p, mass = [], np.zeros(2)
    first, second = np.zeros((2, 2)), np.zeros((2, 2, 2))
    for i in np.argsort(logs.hashes, kind="stable"):
        rows = slice(logs.starts[i], logs.starts[i + 1])
        eta, y = theta @ logs.features[rows].T, logs.rewards[rows]
        if kind == "logistic":
            density = np.prod(np.where(y == 1, 1 / (1 + np.exp(-eta)), 1 / (1 + np.exp(eta))), 1)
        else:
            factorial = np.array([float(np.prod(np.arange(1, v + 1))) for v in y])
            density = np.prod(np.exp(y * eta - np.exp(eta)) / factorial, axis=1)
        joint = prior * density
        logs_p.append(np.log(joint.sum() * cell))
        shares = joint / joint.sum()
        mass += shares.sum(axis=1)
        first += shares @ theta
        second += np.einsum("kn,ni,nj->kij", shares, theta, theta)
    means = first / mass[:, None]
    covs = second / mass[:, None, None] - np.einsum("ki,kj->kij", means, means)
    return np.array(logs_p), mass / mass.sum(), means, covs


@pytest.mark.parametrize("kind", ["logistic", "poisson"])
def test_importance_corrects_a_quadratic_to_the_integral(kind: str) -> None:
    logs, family = logs_of(kind)
    exact, weights, means, covs = quadrature(logs, kind)
    blocks = row_blocks(logs, family, tasks_at_once=5)
    np.testing.assert_allclose(log_evidence(blocks, MIXTURE, 4000), exact, atol=0.02)
    quadratic = log_evidence(row_blocks(logs, family), MIXTURE, 0)
    np.testing.assert_allclose(quadratic, exact, atol=0.5)
    made, _ = maximize(MIXTURE, expectations(blocks, MIXTURE, num_draws=4000))
    np.testing.assert_allclose(made.weights, weights, atol=0.01)
    np.testing.assert_allclose(made.means, means, atol=0.05)
    np.testing.assert_allclose(made.covs, covs, atol=0.05)


def test_draws_do_not_depend_on_the_block_a_task_is_in() -> None:
    logs, family = logs_of("logistic")
    one = np.concatenate([b.draw(MIXTURE, 2)[0] for b in row_blocks(logs, family)])
    many = np.concatenate(
        [b.draw(MIXTURE, 2)[0] for b in row_blocks(logs, family, tasks_at_once=3)]
    )
    np.testing.assert_allclose(one, many, rtol=1e-6, atol=1e-8)
