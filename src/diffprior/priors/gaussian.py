"""A Gaussian prior: TS with N(0, I), TunedTS when fitted."""

from typing import ClassVar, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import (
    covariance,
    in_default_precision,
    plausible_covariance,
    positive_int,
    random_key,
    real_array,
)
from ..evidence.base import AbstractEvidence
from ..fitting.samples import checked_samples
from ..gaussian import Gaussian
from ..linalg import cholesky
from ..threefry import unrolled
from .base import AbstractClosedFormPrior, checked_offset
from .conditional import ConditionalPrior


class GaussianPrior(AbstractClosedFormPrior):
    """N(mean, cov).

    Args:
        mean: (d,).
        cov: Covariance (d, d), positive definite.
    """

    max_bytes: ClassVar[int] = 2**27

    mean: Float[Array, " d"]
    cov: Float[Array, "d d"]

    def __init__(self, mean: ArrayLike, cov: ArrayLike) -> None:
        self.mean = real_array("mean", mean, ("d",), "pass one number for each parameter")
        d = self.mean.shape[0]
        self.cov = covariance("cov", cov, (d, d))

    @overload
    @staticmethod
    def fit(samples: ArrayLike, *, attributes: None = None) -> "GaussianPrior": ...

    @overload
    @staticmethod
    def fit(samples: ArrayLike, *, attributes: ArrayLike) -> ConditionalPrior: ...

    @staticmethod
    def fit(
        samples: ArrayLike, *, attributes: ArrayLike | None = None
    ) -> "GaussianPrior | ConditionalPrior":
        """Maximum likelihood: the mean and covariance of the samples (Section 6.1).

        Args:
            samples: Parameters of past tasks (n, d), at least two rows.
            attributes: What is known of each task (n, a), for a prior given attributes.

        Returns:
            The prior; with attributes a `ConditionalPrior`, whose `given` returns one.

        Raises:
            ValueError: Samples that are too few, constant, dependent or not finite.
        """
        if attributes is not None:
            return ConditionalPrior.fit(
                samples, attributes, lambda rest, _: GaussianPrior.fit(rest)
            )
        array = checked_samples(samples, at_least=2)
        with np.errstate(over="ignore", invalid="ignore"):  # rejected below
            mean = array.mean(axis=0)
            cov = np.cov(array, rowvar=False, ddof=0).reshape(2 * array.shape[1:])
            finite = np.all(np.isfinite(in_default_precision(cov)))
        if not finite:
            raise ValueError(
                "`samples`: expected parameters whose squares are finite in the default precision, "
                f"got numbers up to {np.max(np.abs(array)):g}; rescale them, or drop broken rows"
            )
        try:
            return GaussianPrior(mean, cov)
        except ValueError as error:
            raise ValueError(
                "`samples`: expected parameters that vary independently, got a singular "
                "covariance; drop constant or dependent columns, or collect more samples"
            ) from error

    def moved(self, offset: ArrayLike) -> "GaussianPrior":
        return GaussianPrior(self.mean + checked_offset(offset, self.dim), self.cov)

    def validate(self) -> None:
        super().validate()
        plausible_covariance("cov", self.cov)

    @property
    def dim(self) -> int:
        return self.mean.shape[0]

    def moments(self) -> Gaussian:
        return Gaussian(self.mean, self.cov)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return _sample(self, random_key(key), positive_int("num_samples", num_samples))

    @eqx.filter_jit
    def posterior(self, evidence: AbstractEvidence) -> tuple["GaussianPrior", Float[Array, ""]]:
        """N(theta_hat, Sigma_hat) of Eq. (3), or of Algorithm 1, and log p(h).

        Args:
            evidence: What the task has shown so far.

        References:
            Kveton et al. (2024), Eq. (3) and Algorithm 1.
        """
        gaussian, log_evidence = evidence.condition(self.moments())
        moments = (gaussian.mean, gaussian.cov)
        return eqx.tree_at(lambda p: (p.mean, p.cov), self, moments), log_evidence


@eqx.filter_jit
def _sample(prior: GaussianPrior, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
    noise = jax.random.normal(unrolled(key), (num_samples, prior.dim), prior.mean.dtype)
    return prior.mean[None] + noise @ jnp.tril(cholesky(prior.cov)).T
