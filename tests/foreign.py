"""Priors as strangers write them: the four members and nothing else."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import diffprior as dp


class TwelveLines(dp.AbstractPrior):
    """A Gaussian with the four members only."""

    mean: jax.Array
    cov: jax.Array

    @property
    def dim(self) -> int:
        return len(self.mean)

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        return jax.random.multivariate_normal(key, self.mean, self.cov, (num_samples,))

    def denoise(self, precision: jax.Array, shift: jax.Array) -> dp.Gaussian:
        cov = jnp.linalg.inv(jnp.linalg.inv(self.cov) + precision)
        return dp.Gaussian(cov @ (jnp.linalg.solve(self.cov, self.mean) + shift), cov)

    def moments(self) -> dp.Gaussian:
        return dp.Gaussian(self.mean, self.cov)


class Moments(NamedTuple):
    """A mean and a covariance of one's own."""

    mean: Any
    cov: Any


class Stranger:
    """The same, of an object that knows nothing of the package, and cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, mean: np.ndarray, cov: np.ndarray) -> None:
        self.inner = TwelveLines(jnp.asarray(mean), jnp.asarray(cov))
        self.dim = len(mean)
        self.calls: list[str] = []

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared by value")

    def sample(self, key: jax.Array, num_samples: int) -> np.ndarray:
        self.calls.append("sample")
        return np.asarray(self.inner.sample(key, num_samples))

    def denoise(self, precision: jax.Array, shift: jax.Array) -> Moments:
        self.calls.append("denoise")
        found = self.inner.denoise(precision, shift)
        return Moments(found.mean, found.cov)

    def moments(self) -> Moments:
        return Moments(np.asarray(self.inner.mean), np.asarray(self.inner.cov))
