"""Features learned from logs: a small network, applied by NumPy and saved as arrays."""

import dataclasses
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .checks import real_numbers
from .files.base import Serializable


@dataclass(frozen=True, eq=False)
class FeatureNetwork(Serializable):
    """Features [1, z, tanh(tanh(z A + a) B + b)] C of numbers x, where z = (x - center) / scale.

    Attributes:
        center: (p,).
        scale: (p,).
        inner: A, (p, w).
        inner_bias: a, (w,).
        outer: B, (w, w).
        outer_bias: b, (w,).
        last: C, (1 + p + w, d).
    """

    center: Float[np.ndarray, " p"]
    scale: Float[np.ndarray, " p"]
    inner: Float[np.ndarray, "p w"]
    inner_bias: Float[np.ndarray, " w"]
    outer: Float[np.ndarray, "w w"]
    outer_bias: Float[np.ndarray, " w"]
    last: Float[np.ndarray, "m d"]

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.last.shape[1])

    def first(self, dim: int) -> "FeatureNetwork":
        """The same with the first features alone."""
        return dataclasses.replace(self, last=self.last[:, :dim])

    def __call__(self, x: ArrayLike) -> Float[np.ndarray, "... d"]:
        """Features (..., d) of numbers (..., p)."""
        shape = (*"BK"[3 - np.ndim(x) :], len(self.center))
        numbers = real_numbers("features", x, shape, "pass the columns that were learned from")
        z = (np.asarray(numbers, np.float64) - self.center) / self.scale
        hidden = np.tanh(np.tanh(z @ self.inner + self.inner_bias) @ self.outer + self.outer_bias)
        ones = np.ones((*z.shape[:-1], 1))
        return np.asarray(np.concatenate([ones, z, hidden], axis=-1) @ self.last)

    def validate(self) -> None:
        """Reject what is no network."""
        if len(self.last) != 1 + sum(self.inner.shape) or not np.all(self.scale > 0):
            raise ValueError("`last`, `scale`: expected 1 + p + w rows, and positive numbers")
