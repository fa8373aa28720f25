"""The contract of a prior, and any object with its four members as a prior and as a denoiser."""

import abc
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe, on_device, real_array, real_numbers
from ..denoisers.base import AbstractDenoiser
from ..evidence.base import AbstractEvidence
from ..evidence.linear import LinearEvidence
from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import Spectral, cholesky, eigh, solve_lower, symmetrize
from ..reporting.figures import MAX_INTERVALS, html, parameter_names, plot_draws
from ..reporting.tables import Table

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

    def _repr_html_(self) -> str | None:
        """Mean and standard deviation of each parameter, for notebooks."""
        moments = self.moments()
        columns = np.asarray(moments.mean), np.sqrt(np.diagonal(moments.cov))
        rows = [
            (name, f"{mean:.3g}", f"{std:.3g}")
            for name, mean, std in zip(parameter_names(self.dim), *columns, strict=True)
        ]
        return html([Table(("", "mean", "std"), rows[:MAX_INTERVALS], repr(self))])

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


MEMBERS = ("dim", "sample", "denoise", "moments")


class PriorDenoiser(AbstractDenoiser):
    """The denoiser of any prior, through its `denoise` alone.

    Evidence exp(-z' P z / 2 + q' z) about z, where theta = offset + scale z, is evidence about
    theta of precision W' P W and shift W' q + W' P W offset, with W the inverse of scale; and the
    mean and covariance of theta go back through W. The scale need not be that of the prior: it only
    decides which signal-to-noise ratios matter.
    """

    prior: AbstractPrior  # of theta
    offset: Float[Array, " d"]  # about its mean
    inverse_scale: Float[Array, "d d"]  # W, inverse of a factor of about its covariance

    def validate(self) -> None:
        super().validate()
        if self.prior.dim != self.dim:
            raise ValueError(f"`prior`: expected {self.dim} parameters, got {self.prior.dim}")

    @staticmethod
    def of(
        prior: AbstractPrior, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "PriorDenoiser":
        """The denoiser of z, where theta = offset + scale z and `scale` is lower triangular."""
        identity = jnp.eye(offset.shape[0], dtype=scale.dtype)
        return PriorDenoiser(prior, offset, solve_lower(scale, identity))

    @property
    def dim(self) -> int:
        return self.offset.shape[0]

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        inverse = self.inverse_scale
        there = symmetrize(inverse.T @ precision.matrix() @ inverse)
        theta = self.prior.denoise(there, inverse.T @ shift + there @ self.offset)
        mean, cov = (jnp.asarray(x).astype(shift.dtype) for x in (theta.mean, theta.cov))
        return Gaussian(inverse @ (mean - self.offset), symmetrize(inverse @ cov @ inverse.T))


@eqx.filter_jit
def unit_coordinates(moments: Gaussian) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    """Offset and lower triangular scale, so that z in theta = offset + scale z has mean zero and
    unit covariance; less than that along directions in which theta hardly varies.
    """
    mean, cov = _floats(moments.mean), _floats(moments.cov)
    variances = jnp.diagonal(cov)
    varies = variances > 0
    stds = jnp.where(varies, jnp.sqrt(variances), 1e-6 * jnp.maximum(1.0, jnp.abs(mean)))
    correlation = cov / (stds[:, None] * stds[None, :])
    correlation = correlation + jnp.diag(jnp.where(varies, 0.0, 1.0).astype(cov.dtype))
    floor = jnp.sqrt(jnp.finfo(cov.dtype).eps)  # so that no direction drowns the others in rounding
    lack = jnp.maximum(floor - jnp.min(eigh(correlation).values), 0.0)
    identity = jnp.eye(mean.shape[0], dtype=cov.dtype)
    return mean, stds[:, None] * cholesky(correlation + lack * identity)


def as_prior(prior: object) -> AbstractPrior:
    """A prior as it is; another object with its four members, wrapped."""
    if isinstance(prior, AbstractPrior):
        return prior
    missing = [name for name in MEMBERS if not hasattr(prior, name)]
    if isinstance(prior, type) or missing:
        lack = f"the class {prior.__name__}" if isinstance(prior, type) else type(prior).__name__
        without = f" without {', '.join(f'`{name}`' for name in missing)}" if missing else ""
        raise ValueError(
            f"`prior`: expected an object with `dim`, `sample`, `denoise` and `moments`, "
            f"got {lack}{without}; pass a prior such as GaussianPrior(mean, cov), fit one to the "
            "parameters of past tasks, or add what is missing"
        )
    return WrappedPrior.of(prior)


class _Reference:
    """An object compared by what it is, not by what it holds, so that it can be hashed."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __hash__(self) -> int:
        return id(self.target)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reference) and other.target is self.target


class WrappedPrior(AbstractPrior):
    """An object with the four members of a prior that is no `AbstractPrior`.

    A pytree of arrays stays one, so that its numbers may change without compiling anew; those of
    any other object are constants of the programs that it is used in.
    """

    tree: Any
    reference: Any = eqx.field(static=True)

    @staticmethod
    def of(prior: object) -> "WrappedPrior":
        """Wrap an object that has been checked."""
        is_leaf = jax.tree_util.all_leaves([prior])
        return WrappedPrior(None, _Reference(prior)) if is_leaf else WrappedPrior(prior, None)

    def file_fields(self) -> dict[str, object]:
        name = type(self._wrapped).__name__
        raise ValueError(
            f"`save`: expected a prior derived from AbstractPrior, got {name}; derive its class "
            "from it, so that files know its fields"
        )

    def __repr__(self) -> str:
        return describe(self, type(self._wrapped).__name__, dim=self.dim)

    @property
    def _wrapped(self) -> Any:
        """The object itself."""
        return self.reference.target if self.tree is None else self.tree

    @property
    def dim(self) -> int:
        return int(self._wrapped.dim)

    def sample(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return _floats(self._wrapped.sample(key, num_samples))

    def denoise(self, precision: ArrayLike, shift: ArrayLike) -> Gaussian:
        return _gaussian(self._wrapped.denoise(precision, shift))

    def moments(self) -> Gaussian:
        return _gaussian(self._wrapped.moments())


def _gaussian(moments: Any) -> Gaussian:
    return Gaussian(_floats(moments.mean), _floats(moments.cov))


def _floats(numbers: Any) -> Float[Array, "..."]:
    return jnp.asarray(numbers).astype(jnp.result_type(float))
