"""Linear rewards with Gaussian noise: sufficient statistics and exact conditioning (Eq. 3)."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, is_traced, plausible_covariance, positive, positive_int, real_array
from ..gaussian import Gaussian, normal_log_density
from .base import AbstractEvidence, AbstractLikelihood, Rows, inverse_temperature


class LinearEvidence(AbstractEvidence):
    """A history of a linear model: its precision and shift, which N does not enlarge.

    precision = sum phi phi' / sigma^2 and shift = sum phi y / sigma^2 exist at N = 0 and N < d,
    where the paper's covariance and mean do not. Two numbers more, the sum of squared rewards over
    sigma^2 and the count, give the log likelihood its constants.

    Attributes:
        precision: (d, d); may be singular.
        shift: (d,).
        sum_squares: Of the rewards, over sigma^2.
        count: Number of rows.
        noise_std: Sigma, in units of the reward.
    """

    precision: Float[Array, "d d"]
    shift: Float[Array, " d"]
    sum_squares: Float[Array, ""]
    count: Float[Array, ""]
    noise_std: Float[Array, ""]

    @staticmethod
    def from_natural(precision: ArrayLike, shift: ArrayLike) -> "LinearEvidence":
        """The evidence exp(-theta' precision theta / 2 + shift' theta).

        Args:
            precision: (d, d), symmetric, with no negative eigenvalue; it may be singular.
            shift: (d,), precision times the mean of the evidence.

        Returns:
            Evidence with that log likelihood, up to a constant.

        Raises:
            ValueError: numbers that are not finite, other shapes, or a negative precision.
        """
        shift = real_array("shift", shift, ("d",), "pass precision times the mean of the evidence")
        dim = positive_int("shift", shift.shape[0], "pass one number for each parameter")
        fix = "pass the inverse covariance of the evidence"
        precision = real_array("precision", precision, (dim, dim), fix)
        if not is_traced(precision):
            plausible_covariance("precision", precision)
        zero = jnp.zeros_like(shift[0])
        return LinearEvidence(precision, shift, zero, zero, jnp.ones_like(shift[0]))

    def validate(self) -> None:
        super().validate()
        plausible_covariance("precision", self.precision)
        if not (float(self.count) >= 0 and float(self.noise_std) > 0):
            raise ValueError("`count`: expected no negative count, and positive `noise_std`")

    @property
    def dim(self) -> int:
        return self.shift.shape[0]

    def __repr__(self) -> str:
        return describe(self, dim=self.dim, count=self.count, noise_std=self.noise_std)

    @property
    def quadratic(self) -> bool:
        return True

    @eqx.filter_jit
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        posterior, log_mass = gaussian.tilt(self.precision, self.shift)
        return posterior, log_mass + self.log_likelihood_at_zero()

    def expand(self, belief: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        return self.precision, self.shift

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return theta @ (self.shift - 0.5 * self.precision @ theta) + self.log_likelihood_at_zero()

    @eqx.filter_jit
    def expected_log_likelihood(self, belief: Gaussian) -> Float[Array, ""]:
        return self.log_likelihood(belief.mean) - 0.5 * jnp.sum(self.precision * belief.cov)

    @eqx.filter_jit
    def squared_error(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        pull = self.precision @ theta - self.shift
        scaled = self.sum_squares + theta @ (pull - self.shift)
        variance = self.noise_std**2
        return variance * jnp.maximum(scaled, 0.0), 2.0 * variance * pull

    def log_likelihood_at_zero(self) -> Float[Array, ""]:
        """Log p(h | 0)."""
        log_norm = jnp.log(jnp.sqrt(2 * jnp.pi) * self.noise_std)
        return -0.5 * self.sum_squares - self.count * log_norm

    def temper(self, temperature: ArrayLike) -> "LinearEvidence":
        factor = inverse_temperature(temperature)
        precision, shift, sum_squares, count = (
            factor * part for part in (self.precision, self.shift, self.sum_squares, self.count)
        )
        return LinearEvidence(precision, shift, sum_squares, count, self.noise_std)

    def reparameterize(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "LinearEvidence":
        residual_shift = self.shift - self.precision @ offset
        return LinearEvidence(
            scale.T @ self.precision @ scale,
            scale.T @ residual_shift,
            self.sum_squares - offset @ (self.shift + residual_shift),
            self.count,
            self.noise_std,
        )

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""

    def add(
        self, features: Float[Rows, "n d"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "LinearEvidence":
        if not is_traced(self.shift, features, rewards, weights):
            self._reject_extreme(features, rewards)
        return _with_rows(self, features, rewards, weights)

    def _reject_extreme(self, features: Rows, rewards: Rows) -> None:
        """Raise for numbers whose squares, in units of the noise, are beyond the precision."""
        limit = float(jnp.finfo(self.shift.dtype).max) ** 0.5 / (1e3 + self.dim)
        limit *= min(float(self.noise_std), 1.0)
        for name, numbers in (("features", features), ("rewards", rewards)):
            largest = float(np.max(np.abs(numbers), initial=0.0))
            if not largest < limit:
                raise ValueError(
                    f"`{name}`: expected numbers below {limit:.2g}, whose squares can be summed in "
                    f"{self.shift.dtype}, got {largest:.3g}; rescale them, or set jax_enable_x64"
                )


@jax.jit
def _with_rows(
    old: LinearEvidence,
    features: Float[Rows, "n d"],
    rewards: Float[Rows, " n"],
    weights: Float[Rows, " n"],
) -> LinearEvidence:
    """Evidence with rows added. Plain `jit`, since all leaves are arrays: it is called quickly."""
    noise_std = old.noise_std
    features, rewards, weights = (
        jnp.asarray(a, old.shift.dtype) for a in (features, rewards, weights)
    )
    scaled = features * (weights / noise_std**2)[:, None]
    return LinearEvidence(
        old.precision + scaled.T @ features,
        old.shift + scaled.T @ rewards,
        old.sum_squares + weights @ (rewards / noise_std) ** 2,
        old.count + jnp.sum(weights),
        noise_std,
    )


class Linear(AbstractLikelihood):
    """y = phi' theta + noise, noise ~ N(0, noise_std^2): Assumption 1.

    Args:
        noise_std: standard deviation of the rewards around their mean, in units of the reward.
            None, the default, says that it is not known: no evidence can be made with it, but it
            can be estimated from logs.
    """

    noise_std: Float[Array, ""] | None

    def __init__(self, noise_std: ArrayLike | None = None) -> None:
        self.noise_std = None if noise_std is None else positive("noise_std", noise_std, _NOISE)

    def validate(self) -> None:
        super().validate()
        if self.noise_std is not None:
            positive("noise_std", self.noise_std)

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return eta

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return normal_log_density(y, eta, self._known_noise())

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return eta + self._known_noise() * jax.random.normal(key, eta.shape, eta.dtype)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""

    def empty(self, dim: int, capacity: int = 0) -> LinearEvidence:
        positive_int("dim", dim)
        noise_std = self._known_noise()
        zeros = functools.partial(np.zeros, dtype=noise_std.dtype)
        sums = map(jax.device_put, (zeros((dim, dim)), zeros(dim), zeros(()), zeros(())))
        precision, shift, sum_squares, count = sums  # compiles nothing
        return LinearEvidence(precision, shift, sum_squares, count, noise_std)

    def _known_noise(self) -> Float[Array, ""]:
        if self.noise_std is None:
            raise ValueError(
                "`noise_std`: expected the noise of the rewards, got None; pass "
                f"Linear(noise_std=...), {_NOISE[5:]}, or learn it from logs with `learn`"
            )
        return self.noise_std


_NOISE = "pass the standard deviation of the rewards around their mean"
