"""Multivariate normal distributions: Lemmas 5 and 6, and conditioning in natural parameters."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Key

from .checks import describe, is_traced, plausible_covariance, positive_int, real_array
from .files.base import Serializable
from .linalg import AnyArray, cholesky, log_det_from_tril, numpy_of, solve_lower, symmetrize
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
        """N(0, I) of `dim` parameters, in `dtype` or the default float."""
        return Gaussian(jnp.zeros(dim, dtype), jnp.eye(dim, dtype=dtype))

    @staticmethod
    def point(mean: Float[Array, " d"]) -> "Gaussian":
        """All mass at one point `mean` (d,): zero covariance."""
        return Gaussian(mean, jnp.zeros((mean.shape[0], mean.shape[0]), mean.dtype))

    @eqx.filter_jit
    def sample(self, key: Key[Array, ""]) -> Float[Array, " d"]:
        """One draw (d,) from the random `key`."""
        noise = jax.random.normal(unrolled(key), self.mean.shape, self.mean.dtype)
        return self.mean + cholesky(self.cov) @ noise

    @eqx.filter_jit
    def log_density(self, x: Float[Array, " d"]) -> Float[Array, ""]:
        """Log N(x; mean, cov) of `x` (d,), in nats."""
        tril = cholesky(self.cov)
        standardized = solve_lower(tril, (x - self.mean)[:, None])[:, 0]
        d = self.mean.shape[0]
        return -0.5 * (
            standardized @ standardized + log_det_from_tril(tril) + d * jnp.log(2 * jnp.pi)
        )

    @eqx.filter_jit
    def kl(self, other: "Gaussian") -> Float[Array, ""]:
        """Kullback-Leibler divergence d(self, `other`) in nats.

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
        """The normalized product with `other`, with no covariance inverted alone.

        References:
            Kveton et al. (2024), Lemma 6.
        """
        tril = cholesky(self.cov + other.cov)
        half_gain = solve_lower(tril, self.cov)
        step = solve_lower(tril, (other.mean - self.mean)[:, None])[:, 0]
        mean = self.mean + half_gain.T @ step
        return Gaussian(mean, symmetrize(self.cov - half_gain.T @ half_gain))

    def rescale(self, factor: Float[Array, ""] | float) -> "Gaussian":
        """The distribution of `factor` times a draw: N(factor mean, factor^2 cov)."""
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
        found = tilted(self.mean, cholesky(self.cov), precision, shift, with_factor=True)
        posterior = Gaussian(
            self.mean + found.half_factor.T @ found.half_step,
            found.half_factor.T @ found.half_factor,
        )
        return posterior, found.log_mass()


class Tilted(NamedTuple):
    """N(mean, L L') times exp(-x' P x / 2 + q' x), in units of the Gaussian, x = mean + L z.

    With C the Cholesky factor of I + L' P L, the mean is mean + L C^-T half_step, and a factor of
    the covariance L C^-T = half_factor'. Of one Gaussian in JAX, of any number of them in NumPy.
    """

    mean: Float[AnyArray, "*k d"]
    total: Float[AnyArray, "*k d"]  # of q, and of the gradient at the mean, q - P mean
    tril: Float[AnyArray, "*k d d"]  # C
    half_step: Float[AnyArray, "*k d"]
    half_factor: Float[AnyArray, "*k m d"]  # of no rows, if it was not asked for

    def log_mass(self) -> Float[AnyArray, "*k"]:
        """The log of its integral."""
        numpy = numpy_of(self.mean)
        explained = numpy.sum(self.mean * self.total, -1) + numpy.sum(self.half_step**2, -1)
        diagonals = numpy.diagonal(self.tril, axis1=-2, axis2=-1)
        return 0.5 * explained - numpy.sum(numpy.log(diagonals), -1)


def tilted(
    mean: Float[AnyArray, "*k d"],
    factor: Float[AnyArray, "*f d d"],
    precision: Float[AnyArray, "*n d d"],
    shift: Float[AnyArray, "*n d"],
    *,
    with_factor: bool = False,
) -> Tilted:
    """Condition Gaussians, given by factors of their covariances, on Gaussian evidence.

    NumPy arrays of evidence may have a leading axis over tasks, as `mean` then has: (n, k, d).
    """
    numpy = numpy_of(mean)
    own_precision = precision if precision.ndim == 2 else precision[:, None]
    own_shift = shift if shift.ndim == 1 else shift[:, None]
    transposed, gradient = numpy.swapaxes(factor, -1, -2), own_shift - mean @ precision
    identity = numpy.eye(shift.shape[-1], dtype=shift.dtype)
    tril = cholesky(transposed @ own_precision @ factor + identity)
    rhs = transposed @ gradient[..., None]
    if with_factor:
        rhs = numpy.concatenate([rhs, transposed], axis=-1)
    solved = solve_lower(tril, rhs)
    return Tilted(mean, own_shift + gradient, tril, solved[..., 0], solved[..., 1:])


def normal_log_density(
    y: Float[AnyArray, "..."], mean: Float[AnyArray, "..."], std: Float[AnyArray, ""]
) -> Float[AnyArray, "..."]:
    """As `jax.scipy.stats.norm.logpdf`, which takes long to import."""
    variance = std**2
    return -0.5 * (numpy_of(mean).log(2.0 * math.pi * variance) + (y - mean) ** 2 / variance)
