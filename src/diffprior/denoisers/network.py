"""One network for the mean, its derivative for the covariance: the denoiser of version 0.1.

Files of that version hold it; `CorrectedDenoiser` took its place.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..gaussian import Gaussian
from ..linalg import Spectral, bounded_factor, symmetrize
from ..schedule import Schedule
from .base import LARGEST_VARIANCE, VARIANCE_RATIO, AbstractDenoiser, isotropic_evidence
from .corrected import LOG_PRECISION


class NetworkStage(NamedTuple):
    """A stage as the network sees it: isotropic evidence, and what it adds to the first layer."""

    snr: Float[Array, "..."]
    shift_scale: Float[Array, "..."]
    bias: Float[Array, "..."]


class NetworkDenoiser(AbstractDenoiser):
    """One network for all Gaussian evidence (or, if `isotropic`, for all isotropic evidence).

    The mean is that of a Gaussian prior plus a correction, x + (I + P)^(-1/2) F, x = (I + P)^-1 q.
    The network F sees x, in which the true mean is smooth however weak the evidence, and P as log P
    and P (I + P)^-1. Its target has unit variance at every P. The covariance is the derivative of
    the mean in q, symmetrized and bounded.
    """

    weights_in: Float[Array, "inputs width"]
    bias_in: Float[Array, " width"]
    weights_hidden: Float[Array, "depth width width"]
    bias_hidden: Float[Array, "depth width"]
    weights_out: Float[Array, "width d"]
    bias_out: Float[Array, " d"]
    isotropic: bool = eqx.field(static=True)

    @staticmethod
    def initialize(
        key: Key[Array, ""], dim: int, *, width: int, depth: int, isotropic: bool
    ) -> "NetworkDenoiser":
        """Random weights, and F = 0: the denoiser of a Gaussian prior."""
        num_features = 2 if isotropic else dim * (dim + 1)
        first, rest = jax.random.split(key)
        inputs = dim + num_features
        return NetworkDenoiser(
            jax.random.normal(first, (inputs, width), jnp.float32) * (1.5 / inputs**0.5),
            jnp.zeros(width, jnp.float32),
            jax.random.normal(rest, (depth - 1, width, width), jnp.float32) / width**0.5,
            jnp.zeros((depth - 1, width), jnp.float32),
            jnp.zeros((width, dim), jnp.float32),
            jnp.zeros(dim, jnp.float32),
            isotropic,
        )

    def validate(self) -> None:
        """Refuse a first layer of another width."""
        super().validate()
        num_features = 2 if self.isotropic else self.dim * (self.dim + 1)
        if self.weights_in.shape[0] != self.dim + num_features:
            raise ValueError(f"`weights_in`: expected {self.dim + num_features} inputs")

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.bias_out.shape[0]

    @property
    def general(self) -> bool:
        """Any Gaussian evidence, unless the network was built for isotropic evidence."""
        return not self.isotropic

    def evidence_bias(
        self, vectors: Float[Array, "d d"], log_precision: Float[Array, " d"]
    ) -> Float[Array, " width"]:
        """What the precision of the evidence adds to the first layer."""
        log_precision = jnp.clip(log_precision, *LOG_PRECISION)
        columns = jnp.stack([-0.25 * log_precision, jax.nn.sigmoid(log_precision)])
        if self.isotropic:
            features = columns[:, 0]
        else:
            upper = np.triu_indices(self.dim)
            matrices = jnp.einsum("ij,fj,kj->fik", vectors, columns, vectors)
            features = matrices[:, upper[0], upper[1]].reshape(-1)
        return features @ self.weights_in[self.dim :] + self.bias_in

    def correction(
        self, x: Float[Array, " d"], evidence_bias: Float[Array, " width"]
    ) -> Float[Array, " d"]:
        """The network F."""
        h = jax.nn.silu(x @ self.weights_in[: self.dim] + evidence_bias)
        for weights, bias in zip(self.weights_hidden, self.bias_hidden, strict=True):
            h = h + jax.nn.silu(h @ weights + bias)
        return h @ self.weights_out + self.bias_out

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 under exp(-s' precision s / 2 + shift' s)."""
        if self.isotropic:
            raise ValueError(
                "`precision`: expected a stage of the reverse process, got general evidence; a "
                "prior of so many parameters denoises isotropic evidence only. Use TwistedSMC, "
                "LaplaceDPS or DPS with it"
            )
        precision = precision.nonnegative()
        bias = self.evidence_bias(precision.vectors, jnp.log(precision.values))
        return _moments(self, precision, bias, shift)

    def stages(self, schedule: Schedule) -> NetworkStage:
        """Isotropic evidence, and what it adds to the first layer."""
        dtype = self.weights_in.dtype
        snr, shift_scale = (a.astype(dtype) for a in isotropic_evidence(schedule))
        identity = jnp.eye(self.dim, dtype=dtype)
        log_precision = jnp.broadcast_to(jnp.log(snr)[:, None], (len(snr), self.dim))
        bias = jax.vmap(self.evidence_bias, in_axes=(None, 0))(identity, log_precision)
        return NetworkStage(snr, shift_scale, bias)

    def mean_at(self, stage: NetworkStage, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t]."""
        scale = _Scale.of(stage.snr)
        x = scale.linear * stage.shift_scale * s_t
        return x + scale.out * self.correction(x, stage.bias)

    def denoise_at(self, stage: NetworkStage, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t."""
        identity = jnp.eye(self.dim, dtype=s_t.dtype)
        precision = Spectral(identity, stage.snr * jnp.ones_like(s_t))
        return _moments(self, precision, stage.bias, stage.shift_scale * s_t)


class _Scale(NamedTuple):
    """Factors along an eigenvector of the evidence, given its precision p."""

    linear: Array  # of the shift, in the mean under a Gaussian prior: 1 / (1 + p)
    out: Array  # of the network's output

    @staticmethod
    def of(p: Array) -> "_Scale":
        """The correction fades out beyond the strongest evidence trained on, where the likelihood
        alone decides."""
        variance = 1.0 / (1.0 + p)
        strongest = float(np.exp(LOG_PRECISION[1]))
        fade = jnp.sqrt(jnp.minimum(1.0, strongest / jnp.maximum(p, 1.0)))
        return _Scale(variance, jnp.sqrt(variance) * fade)


def _moments(
    network: NetworkDenoiser,
    precision: Spectral,
    bias: Float[Array, " width"],
    shift: Float[Array, " d"],
) -> Gaussian:
    scale = _Scale.of(precision.values)
    vectors = precision.vectors

    def mean(rotated_shift: Float[Array, " d"]) -> Float[Array, " d"]:
        x = scale.linear * rotated_shift
        return x + scale.out * (network.correction(vectors @ x, bias) @ vectors)

    rotated_shift = shift @ vectors
    value, push = jax.linearize(mean, rotated_shift)
    derivative = jax.vmap(push)(jnp.eye(shift.shape[0], dtype=shift.dtype))
    std = jnp.sqrt(scale.linear)
    ratio = symmetrize(derivative) / (std[:, None] * std[None, :])
    lowest = jnp.full_like(std, VARIANCE_RATIO)
    factor = bounded_factor(ratio, lowest, LARGEST_VARIANCE / scale.linear)
    half = vectors @ (std[:, None] * factor)
    return Gaussian(vectors @ value, half @ half.T)
