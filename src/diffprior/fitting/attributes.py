"""How parameters depend on what is known of a task: theta = mean + B'(z - center) + r.

B is a ridge regression whose penalty is estimated too (empirical Bayes), so that many sparse
indicators shrink, and attributes that say nothing vanish.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..checks import real_numbers

MAX_STEPS = 500
TOLERANCE = 1e-6  # change of the tasks' means in residual standard deviations
MIN_SHARE = 1e-8  # of the variance that attributes may explain
Expect = Callable[
    [Float[np.ndarray, "n d"], Float[np.ndarray, "d d"]],
    tuple[Float[np.ndarray, "n d"], Float[np.ndarray, "d d"]],
]


@dataclass(frozen=True, eq=False)
class Regression:
    """What attributes say of the parameters.

    Attributes:
        center: Mean attributes, at which `mean` holds; shape (a,).
        coefficients: B; shape (a, d).
        mean: Of the parameters of the average task; shape (d,).
        cov: Of the residuals; shape (d, d).
    """

    center: Float[np.ndarray, " a"]
    coefficients: Float[np.ndarray, "a d"]
    mean: Float[np.ndarray, " d"]
    cov: Float[np.ndarray, "d d"]

    def offsets(self, attributes: Float[np.ndarray, "n a"]) -> Float[np.ndarray, "n d"]:
        """B'(z - center) of tasks."""
        return np.asarray((attributes - self.center) @ self.coefficients)


def checked_attributes(attributes: ArrayLike, num_tasks: int) -> Float[np.ndarray, "n a"]:
    """Attributes as numbers, one row for each task."""
    fix = "one row of numbers for each task; encode categories as indicators"
    return np.asarray(real_numbers("attributes", attributes, (num_tasks, "a"), fix), np.float64)


def regress_samples(
    samples: Float[np.ndarray, "n d"], attributes: Float[np.ndarray, "n a"]
) -> Regression:
    """From parameters that are known."""
    none = np.zeros((samples.shape[1],) * 2)
    return regress(
        attributes,
        samples.mean(axis=0),
        np.cov(samples.T, ddof=0).reshape(none.shape),
        lambda means, cov: (samples, none),
    )


def regress(
    attributes: Float[np.ndarray, "n a"],
    mean: Float[np.ndarray, " d"],
    cov: Float[np.ndarray, "d d"],
    expect: Expect,
) -> Regression:
    """EM from N(mean, cov), the Gaussian without attributes.

    Rows of B have the prior N(0, strength cov), so that its posterior has a closed form.

    Args:
        attributes: One row per task.
        mean: To begin with.
        cov: To begin with.
        expect: From prior means of the tasks (n, d) and the residuals' covariance to posterior
            means (n, d) and the sum of posterior covariances (d, d).
    """
    center = attributes.mean(axis=0)
    z, scale = _scaled(attributes - center)
    values, vectors = np.linalg.eigh(z.T @ z)
    values, rotated = np.maximum(values, 0.0), z @ vectors
    n, num_attributes = z.shape
    b, strength = np.zeros((num_attributes, len(mean))), 1.0 / n
    for _ in range(MAX_STEPS):
        means, spread = expect(mean + rotated @ b, cov)
        before = rotated @ b
        new_mean = means.mean(axis=0)
        precision = values + 1.0 / strength
        b = (rotated.T @ (means - new_mean)) / precision[:, None]
        residual = means - new_mean - rotated @ b
        explained = b.T @ b / strength
        cov = (spread + residual.T @ residual + explained) / n
        unit = np.linalg.solve(np.linalg.cholesky(cov), (rotated @ b - before + new_mean - mean).T)
        size = np.trace(np.linalg.solve(cov, b.T @ b)) + len(mean) * np.sum(1.0 / precision)
        strength = max(size / (num_attributes * len(mean)), MIN_SHARE / n)
        mean = new_mean
        if np.abs(unit).max() < TOLERANCE:
            break
    return Regression(center, (vectors @ b) / scale[:, None], mean, cov)


def _scaled(
    z: Float[np.ndarray, "n a"],
) -> tuple[Float[np.ndarray, "n a"], Float[np.ndarray, " a"]]:
    """Numbers in standard deviations; indicators and constants as they are."""
    is_number = np.array([len(np.unique(column)) > 2 for column in z.T])
    scale = np.where(is_number, z.std(axis=0), 1.0)
    return z / scale, scale
