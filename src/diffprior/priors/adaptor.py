"""Any prior as a denoiser in unit coordinates, and any object with four members as a prior."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from numpy.typing import ArrayLike

from ..checks import describe
from ..denoisers.base import AbstractDenoiser
from ..gaussian import Gaussian
from ..linalg import Spectral, cholesky, eigh, solve_lower, symmetrize
from .base import AbstractPrior

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
