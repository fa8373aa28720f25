"""Multivariate normal distributions: Lemmas 5 and 6, and conditioning in natural parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Key

from .checks import describe, is_traced, plausible_covariance, positive_int, real_array
from .files.base import Serializable
from .linalg import cholesky, log_det_from_tril, solve_lower, symmetrize
from .threefry import unrolled


class Gaussian(eqx.Module, Serializable):
    """N(mean, cov).

    Args:
        mean: (d,), finite.
        cov: (d, d), symmetric, with no negative eigenvalue; zero is a point mass.

    Raises:
        ValueError: numbers that are not finite, other shapes, or no covariance. Inside compiled
            programs only shapes are looked at.
    """

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]

    def __init__(self, mean: ArrayLike, cov: ArrayLike) -> None:
        self.mean = real_array("mean", mean, ("d",), "pass one number for each parameter")
        dim = positive_int("mean", self.mean.shape[0], "pass one number for each parameter")
        self.cov = real_array("cov", cov, (dim, dim), "pass one row for each parameter")
        if not is_traced(self.cov):
            plausible_covariance("cov", self.cov)

    def __repr__(self) -> str:
        return describe(self, dim=self.mean.shape[-1])

    def validate(self) -> None:
        """Raise if the covariance is not one."""
        super().validate()
        plausible_covariance("cov", self.cov)

    @staticmethod
    def standard(dim: int, dtype: jnp.dtype | None = None) -> "Gaussian":
        """N(0, I).

        Args:
            dim: Number of parameters d.
            dtype: Of the numbers; the default float.

        Returns:
            N(0, I).
        """
        return Gaussian(jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype))

    @staticmethod
    def point(mean: Float[Array, " d"]) -> "Gaussian":
        """All mass at one point: zero covariance.

        Args:
            mean: (d,).

        Returns:
            A point, as a Gaussian of zero covariance.
        """
        return Gaussian(mean, jnp.zeros((mean.shape[0], mean.shape[0]), mean.dtype))

    @eqx.filter_jit
    def sample(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        """One draw.

        Args:
            key: Of the random numbers.

        Returns:
            One draw (d,).
        """
        noise = jax.random.normal(unrolled(key), self.mean.shape, self.mean.dtype)
        return self.mean + cholesky(self.cov) @ noise

    @eqx.filter_jit
    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Log N(x; mean, cov).

        Args:
            x: (d,).

        Returns:
            In nats.
        """
        tril = cholesky(self.cov)
        standardized = solve_lower(tril, (x - self.mean)[:, None])[:, 0]
        d = self.mean.shape[0]
        return -0.5 * (
            standardized @ standardized + log_det_from_tril(tril) + d * jnp.log(2 * jnp.pi)
        )

    @eqx.filter_jit
    def kl(self, other: "Gaussian") -> Float[Array, ""]:
        """Kullback-Leibler divergence d(self, other): Lemma 5.

        Args:
            other: Of as many parameters.

        Returns:
            In nats.

        References:
            Kveton et al. (2024), Lemma 5.
        """
        tril, other_tril = cholesky(self.cov), cholesky(other.cov)
        difference = solve_lower(other_tril, (other.mean - self.mean)[:, None])
        ratio = solve_lower(other_tril, tril)
        log_ratio = log_det_from_tril(other_tril) - log_det_from_tril(tril)
        d = self.mean.shape[0]
        return 0.5 * (jnp.sum(difference**2) + jnp.sum(ratio**2) + log_ratio - d)

    @eqx.filter_jit
    def product(self, other: "Gaussian") -> "Gaussian":
        """The normalized product of two densities: Lemma 6, with no covariance inverted alone.

        Args:
            other: Of as many parameters.

        Returns:
            The product, normalized.

        References:
            Kveton et al. (2024), Lemma 6.
        """
        tril = cholesky(self.cov + other.cov)
        half_gain = solve_lower(tril, self.cov)
        step = solve_lower(tril, (other.mean - self.mean)[:, None])[:, 0]
        mean = self.mean + half_gain.T @ step
        return Gaussian(mean, symmetrize(self.cov - half_gain.T @ half_gain))

    def rescale(self, factor: Float[Array, ""] | float) -> "Gaussian":
        """The distribution of `factor` times a draw: N(factor mean, factor^2 cov).

        Args:
            factor: A number.

        Returns:
            The distribution of factor x.
        """
        return Gaussian(factor * self.mean, factor**2 * self.cov)

    def tilt(
        self, precision: Float[Array, "d d"], shift: Float[Array, " d"]
    ) -> tuple["Gaussian", Float[Array, ""]]:
        """Multiply by exp(-x' precision x / 2 + shift' x): the result, and log its mass.

        Neither `cov` nor `precision` is inverted, so either may be singular: with cov = L L',
        the new covariance is L (I + L' precision L)^-1 L'.

        Args:
            precision: (d, d), not negative; may be singular.
            shift: (d,).

        Returns:
            The Gaussian that results, and the log of its mass.
        """
        prior_tril = cholesky(self.cov)
        identity = jnp.eye(self.mean.shape[0], dtype=self.mean.dtype)
        tril = cholesky(identity + prior_tril.T @ precision @ prior_tril)
        half_cov = solve_lower(tril, prior_tril.T)
        gradient = shift - precision @ self.mean
        half_step = half_cov @ gradient
        posterior = Gaussian(self.mean + half_cov.T @ half_step, half_cov.T @ half_cov)
        log_mass = 0.5 * (
            self.mean @ (shift + gradient) + half_step @ half_step - log_det_from_tril(tril)
        )
        return posterior, log_mass


def normal_log_density(
    y: Float[Array, "..."], mean: Float[Array, "..."], std: Float[Array, ""]
) -> Float[Array, "..."]:
    """As `jax.scipy.stats.norm.logpdf`, which takes long to import."""
    variance = std**2
    return -0.5 * (jnp.log(2.0 * jnp.pi * variance) + (y - mean) ** 2 / variance)
