"""The contract of a prior, and the part of it that closed forms share."""

import abc
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, on_device, real_array, real_numbers
from ..evidence.base import AbstractEvidence
from ..evidence.linear import LinearEvidence
from ..files.base import Serializable
from ..gaussian import Gaussian
from ..reporting.figures import parameter_names, plot_draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class AbstractPrior(eqx.Module, Serializable):
    """p(theta), and the mean and covariance of theta under Gaussian evidence."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    def __repr__(self) -> str:
        return describe(self, dim=self.dim)

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Draws (n, d) from the prior: `num_samples` of them, from the random `key`."""

    @abc.abstractmethod
    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        """Mean and covariance of p(theta) exp(-theta' precision theta / 2 + shift' theta).

        `precision` may be singular. A noisy sample s_t = sqrt(ab) theta + sqrt(1 - ab) z, with ab
        for alpha_bar_t, is the isotropic case: precision ab / (1 - ab) I and shift
        sqrt(ab) / (1 - ab) s_t.

        Args:
            precision: (d, d), symmetric, not negative.
            shift: (d,).

        Returns:
            A Gaussian of that mean and covariance.
        """

    @abc.abstractmethod
    def moments(self) -> Gaussian:
        """The Gaussian of the same mean (d,) and covariance (d, d)."""

    def plot(self, ax: "Axes | None" = None, *, num_draws: int = 1000, seed: int = 0) -> "Axes":
        """Plot `num_draws` draws, from `seed`, in `ax`, by default a new figure: a histogram of one
        parameter, points of two, 90 % intervals of more.
        """
        draws = np.asarray(self.sample(jax.random.key(seed), num_draws))
        return plot_draws(ax, draws, parameter_names(self.dim))

    def moved(self, offset: ArrayLike) -> "AbstractPrior":
        """The distribution of theta + `offset`; of the same kind where that has a place for it."""
        return MovedPrior(self, checked_offset(offset, self.dim))


class MovedPrior(AbstractPrior):
    """The distribution of theta + offset."""

    prior: AbstractPrior
    offset: Float[Array, " d"]

    @property
    def dim(self) -> int:
        return self.prior.dim

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return self.prior.sample(key, num_samples) + self.offset[None]

    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        local = jnp.asarray(shift) - jnp.asarray(precision) @ self.offset
        found = self.prior.denoise(precision, local)
        return Gaussian(found.mean + self.offset, found.cov)

    def moments(self) -> Gaussian:
        found = self.prior.moments()
        return Gaussian(found.mean + self.offset, found.cov)


class AbstractClosedFormPrior(AbstractPrior):
    """A prior whose posterior is of the same kind."""

    @abc.abstractmethod
    def posterior(
        self, evidence: AbstractEvidence
    ) -> tuple["AbstractClosedFormPrior", Float[Array, ""]]:
        """p(theta | h) given `evidence`, in the same kind of prior, and log p(h); approximate where
        `evidence.condition` is.
        """

    @eqx.filter_jit
    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        posterior, _ = self.posterior(natural_evidence(precision, shift, self.dim))
        return posterior.moments()


def checked_offset(offset: ArrayLike, dim: int) -> Float[Array, " d"]:
    """The shift of the parameters."""
    return real_array("offset", offset, (dim,), "pass one number for each parameter")


def natural_evidence(precision: ArrayLike, shift: ArrayLike, dim: int) -> LinearEvidence:
    """Gaussian evidence from its natural parameters, checked against the prior's dimension."""
    precision = real_array(
        "precision", precision, (dim, dim), "pass the inverse covariance of the evidence"
    )
    shift = real_array("shift", shift, (dim,), "pass precision times the mean of the evidence")
    return LinearEvidence.from_natural(precision, shift)


def centered(
    evidence: AbstractEvidence, origin: Float[Array, " d"]
) -> tuple[Float[Array, " d"], AbstractEvidence, Float[Array, ""]]:
    """The origin, the evidence as a function of theta - origin, and log p(h | origin), which that
    leaves out.

    The log likelihood of quadratic evidence is a sum of terms that grow with the square of theta,
    so far from zero its differences between components would be lost to rounding. Other evidence is
    computed row by row, and is left as it is at the origin zero.
    """
    if not evidence.quadratic:
        return jnp.zeros_like(origin), evidence, jnp.zeros_like(origin[0])
    precision, shift = evidence.expand(Gaussian.point(origin))
    local = LinearEvidence.from_natural(precision, shift - precision @ origin)
    return origin, local, evidence.log_likelihood(origin)


def probabilities(weights: ArrayLike, count: int, fix: str) -> Float[Array, " k"]:
    """Checked weights, divided by their sum, which may be beyond the precision."""
    given = np.asarray(real_numbers("weights", weights, (count,), fix), np.float64)
    if np.any(given < 0) or not np.any(given > 0):
        raise ValueError(
            f"`weights`: expected non-negative numbers, not all zero, got {given}; {fix}"
        )
    shares = given / np.max(given)
    return on_device(shares / np.sum(shares))
