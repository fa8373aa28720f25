"""Linear rewards with Gaussian noise: sufficient statistics and exact conditioning (Eq. 3)."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..checks import positive, positive_int
from ..gaussian import Gaussian
from .base import AbstractEvidence, AbstractLikelihood, inverse_temperature


class LinearEvidence(AbstractEvidence):
    """A history of a linear model: its precision and shift, which N does not enlarge.

    precision = sum phi phi' / sigma^2 and shift = sum phi y / sigma^2 exist at N = 0 and N < d,
    where the paper's covariance and mean do not. Two numbers more, the sum of squared rewards over
    sigma^2 and the count, give the log likelihood its constants.
    """

    precision: Float[Array, "d d"]
    shift: Float[Array, " d"]
    sum_squares: Float[Array, ""]
    count: Float[Array, ""]
    noise_std: Float[Array, ""]

    @staticmethod
    def from_natural(precision: Float[Array, "d d"], shift: Float[Array, " d"]) -> "LinearEvidence":
        """The evidence exp(-theta' precision theta / 2 + shift' theta)."""
        zero = jnp.zeros_like(shift[0])
        return LinearEvidence(precision, shift, zero, zero, jnp.ones_like(shift[0]))

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.shift.shape[0]

    @property
    def quadratic(self) -> bool:
        """The log likelihood is quadratic."""
        return True

    @eqx.filter_jit
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        """The exact posterior, Eq. (3), and log p(h); there is no search, so `start` is unused."""
        posterior, log_mass = gaussian.tilt(self.precision, self.shift)
        return posterior, log_mass + self._log_likelihood_at_zero()

    def expand(self, theta: Float[Array, " d"]) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Precision and shift; the log likelihood is quadratic, so `theta` does not matter."""
        return self.precision, self.shift

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(h | theta) of Assumption 1, constants included."""
        return theta @ (self.shift - 0.5 * self.precision @ theta) + self._log_likelihood_at_zero()

    @eqx.filter_jit
    def squared_error(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """sum (y - phi' theta)^2 over the history."""
        scaled = self.sum_squares + theta @ (self.precision @ theta - 2.0 * self.shift)
        return self.noise_std**2 * jnp.maximum(scaled, 0.0)

    def _log_likelihood_at_zero(self) -> Float[Array, ""]:
        log_norm = jnp.log(jnp.sqrt(2 * jnp.pi) * self.noise_std)
        return -0.5 * self.sum_squares - self.count * log_norm

    def temper(self, temperature: Float[Array, ""] | float) -> "LinearEvidence":
        """The evidence counted 1 / temperature times."""
        factor = inverse_temperature(temperature)
        statistics = (self.precision, self.shift, self.sum_squares, self.count)
        return self._with(*(factor * statistic for statistic in statistics))

    def reparameterise(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "LinearEvidence":
        """The same evidence as a function of z, where theta = offset + scale z."""
        residual_shift = self.shift - self.precision @ offset
        return self._with(
            scale.T @ self.precision @ scale,
            scale.T @ residual_shift,
            self.sum_squares - offset @ (self.shift + residual_shift),
            self.count,
        )

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""

    @eqx.filter_jit
    def add(
        self,
        features: Float[Array, "n d"],
        rewards: Float[Array, " n"],
        weights: Float[Array, " n"],
    ) -> "LinearEvidence":
        """Evidence with rows added; the arguments have been checked."""
        dtype = self.precision.dtype
        features, rewards, weights = (a.astype(dtype) for a in (features, rewards, weights))
        scaled = features * (weights / self.noise_std**2)[:, None]
        return self._with(
            self.precision + scaled.T @ features,
            self.shift + scaled.T @ rewards,
            self.sum_squares + weights @ (rewards / self.noise_std) ** 2,
            self.count + jnp.sum(weights),
        )

    def _with(
        self,
        precision: Float[Array, "d d"],
        shift: Float[Array, " d"],
        sum_squares: Float[Array, ""],
        count: Float[Array, ""],
    ) -> "LinearEvidence":
        return LinearEvidence(precision, shift, sum_squares, count, self.noise_std)


class Linear(AbstractLikelihood):
    """y = phi' theta + noise, noise ~ N(0, noise_std^2): Assumption 1."""

    noise_std: Float[Array, ""]

    def __init__(self, noise_std: Any = 1.0) -> None:
        self.noise_std = positive(
            "noise_std", noise_std, "pass the standard deviation of the rewards around their mean"
        )

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The identity."""
        return eta

    def empty(self, dim: int, capacity: int = 0) -> LinearEvidence:
        """Evidence of no observations; statistics need no room, so `capacity` has no effect."""
        positive_int("dim", dim)
        dtype = self.noise_std.dtype
        zero = jnp.zeros((), dtype)
        return LinearEvidence(
            jnp.zeros((dim, dim), dtype), jnp.zeros(dim, dtype), zero, zero, self.noise_std
        )
