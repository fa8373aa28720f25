"""One network for the mean, its derivative for the covariance: the learned denoiser of 0.2.0 files.

`CorrectedDenoiser` took its place; this one is read, not trained.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from ..gaussian import Gaussian
from ..linalg import Spectral
from ..mixture import gaussian_mean
from .base import AbstractDenoiser, derivative_moments, isotropic_evidence
from .corrected import LOG_PRECISION, correction_scale, evidence_features


class NetworkDenoiser(AbstractDenoiser):
    """One network for all Gaussian evidence (or, if `isotropic`, for all isotropic evidence).

    The mean is that of a Gaussian prior plus a correction, x + (I + P)^(-1/2) F, x = (I + P)^-1 q.
    The network F sees x and P; see `Correction`.
    """

    weights_in: Float[Array, "inputs width"]
    bias_in: Float[Array, " width"]
    weights_hidden: Float[Array, "depth width width"]
    bias_hidden: Float[Array, "depth width"]
    weights_out: Float[Array, "width d"]
    bias_out: Float[Array, " d"]
    isotropic: bool = eqx.field(static=True)

    def validate(self) -> None:
        super().validate()
        num_features = 2 if self.isotropic else self.dim * (self.dim + 1)
        if self.weights_in.shape[0] != self.dim + num_features:
            raise ValueError(f"`weights_in`: expected {self.dim + num_features} inputs")

    @property
    def dim(self) -> int:
        return self.bias_out.shape[0]

    @property
    def general(self) -> bool:
        return not self.isotropic

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        if self.isotropic:
            raise ValueError(
                "`precision`: expected a stage of the reverse process, got general evidence; a "
                "prior of this kind denoises isotropic evidence only. Use TwistedSMC, "
                "LaplaceDPS or DPS with it"
            )
        return self._moments(precision.nonnegative(), shift)

    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        return self._moments(*isotropic_evidence(stage, s_t))

    def _moments(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        bias = self._evidence_bias(precision)

        def mean(shift: Float[Array, " d"]) -> Float[Array, " d"]:
            x = gaussian_mean(precision, shift)
            f = precision.rotate(self._correction(x, bias))
            return x + precision.unrotate(correction_scale(precision.values) * f)

        return derivative_moments(mean, precision, shift)

    def _evidence_bias(self, precision: Spectral) -> Float[Array, " width"]:
        """The first layer's response to the precision of the evidence."""
        if self.isotropic:
            logs = jnp.clip(jnp.log(precision.values[0]), *LOG_PRECISION)
            features = jnp.stack([-0.25 * logs, jax.nn.sigmoid(logs)])
        else:
            features = evidence_features(precision)
        return features @ self.weights_in[self.dim :] + self.bias_in

    def _correction(self, x: Float[Array, " d"], bias: Array) -> Float[Array, " d"]:
        """The network F."""
        h = jax.nn.silu(x @ self.weights_in[: self.dim] + bias)
        for weights, own in zip(self.weights_hidden, self.bias_hidden, strict=True):
            h = h + jax.nn.silu(h @ weights + own)
        return h @ self.weights_out + self.bias_out
