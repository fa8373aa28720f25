"""E and Cov of s_0 under Gaussian evidence, where the prior has zero mean and unit covariance.

A denoiser serves two kinds of caller. Samplers that put the evidence inside it call
`denoise(precision, shift)`. Samplers that follow the reverse process call `mean_at` or `denoise_at`
with one element of `stages`, which holds whatever the denoiser wants to know of a stage in advance.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..files.base import Serialisable
from ..gaussian import Gaussian
from ..linalg import Spectral, bounded_factor, symmetrise
from ..schedule import Schedule

LOG_PRECISION = (-7.0, 9.0)  # the evidence that a network is trained on
VARIANCE_RATIO = 1e-3  # smallest variance allowed, over that under a Gaussian prior
LARGEST_VARIANCE = 16.0  # largest variance allowed, over the prior's


class AbstractDenoiser(eqx.Module, Serialisable):
    """Mean and covariance of s_0 given Gaussian evidence, in unit coordinates."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    @property
    @abc.abstractmethod
    def general(self) -> bool:
        """Whether `denoise` takes any Gaussian evidence, not just isotropic."""

    @property
    def has_own_grid(self) -> bool:
        """Whether only the stages that it was learned for can be denoised."""
        return False

    @abc.abstractmethod
    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 under exp(-s' precision s / 2 + shift' s)."""

    @abc.abstractmethod
    def stages(self, schedule: Schedule) -> Any:
        """What `mean_at` wants to know of each stage, stacked in the order T, ..., 1."""

    @abc.abstractmethod
    def mean_at(self, stage: Any, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t]."""

    @abc.abstractmethod
    def denoise_at(self, stage: Any, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t."""


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
    the mean in q, symmetrised and bounded.
    """

    weights_in: Float[Array, "inputs width"]
    bias_in: Float[Array, " width"]
    weights_hidden: Float[Array, "depth width width"]
    bias_hidden: Float[Array, "depth width"]
    weights_out: Float[Array, "width d"]
    bias_out: Float[Array, " d"]
    isotropic: bool = eqx.field(static=True)

    @staticmethod
    def initialise(
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
    ratio = symmetrise(derivative) / (std[:, None] * std[None, :])
    lowest = jnp.full_like(std, VARIANCE_RATIO)
    factor = bounded_factor(ratio, lowest, LARGEST_VARIANCE / scale.linear)
    half = vectors @ (std[:, None] * factor)
    return Gaussian(vectors @ value, half @ half.T)


class StagewiseDenoiser(AbstractDenoiser):
    """The paper's: one two-layer ReLU regressor of the noise for each stage of a grid (Eq. 15)."""

    weights_1: Float[Array, "t d width"]
    bias_1: Float[Array, "t width"]
    weights_2: Float[Array, "t width width"]
    bias_2: Float[Array, "t width"]
    weights_3: Float[Array, "t width d"]
    bias_3: Float[Array, "t d"]
    grid: Schedule = eqx.field(static=True)

    @staticmethod
    def initialise(
        key: Key[Array, ""], dim: int, grid: Schedule, *, width: int = 100
    ) -> "StagewiseDenoiser":
        """Random weights; the noise predicted at first is zero."""
        t = grid.num_stages
        first, second = jax.random.split(key)
        zeros = jnp.zeros((t, width), jnp.float32)
        return StagewiseDenoiser(
            jax.random.normal(first, (t, dim, width), jnp.float32) * (2 / dim) ** 0.5,
            zeros,
            jax.random.normal(second, (t, width, width), jnp.float32) * (2 / width) ** 0.5,
            zeros,
            jnp.zeros((t, width, dim), jnp.float32),
            jnp.zeros((t, dim), jnp.float32),
            grid,
        )

    def validate(self) -> None:
        """Refuse more or fewer regressors than stages."""
        super().validate()
        if self.weights_1.shape[0] != self.grid.num_stages:
            raise ValueError(f"`weights_1`: expected {self.grid.num_stages} regressors")

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.weights_1.shape[1]

    @property
    def general(self) -> bool:
        """Only isotropic evidence, on its own grid."""
        return False

    @property
    def has_own_grid(self) -> bool:
        """There is a regressor for each of its stages, and none between them."""
        return True

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        """Refused: there is a regressor for each stage, and none for other evidence."""
        raise ValueError(
            "`precision`: expected a stage of the prior's own grid, got general evidence; a prior "
            'fitted with preset="paper" denoises only that grid. Fit without the preset, or use '
            "LaplaceDPS, TwistedSMC or DPS"
        )

    def noise_at(self, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """eps_t(s_t), where self is one stage of the stack."""
        h = jax.nn.relu(s_t @ self.weights_1 + self.bias_1)
        h = jax.nn.relu(h @ self.weights_2 + self.bias_2)
        return h @ self.weights_3 + self.bias_3

    def stages(self, schedule: Schedule) -> Any:
        """The regressors of the kept stages, with the size of signal and noise."""
        alpha_bar = np.asarray(schedule.alpha_bar[:0:-1])
        own = self.grid.alpha_bar
        if not set(schedule.alpha_bar) <= set(own):
            raise ValueError(
                "`schedule`: expected stages of the prior's own grid, got others; "
                "take them with `prior.schedule.stride(steps)`"
            )
        index = np.asarray([own.index(a) for a in schedule.alpha_bar[:0:-1]]) - 1
        regressors = jax.tree.map(lambda leaf: leaf[index], eqx.filter(self, eqx.is_array))
        dtype = self.weights_1.dtype
        signal, noise = np.sqrt(alpha_bar), np.sqrt(1 - alpha_bar)
        return regressors, jnp.asarray(signal, dtype), jnp.asarray(noise, dtype)

    def mean_at(self, stage: Any, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t] = (s_t - sqrt(1 - alpha_bar) eps_t(s_t)) / sqrt(alpha_bar)."""
        regressor, signal, noise = stage
        return (s_t - noise * regressor.noise_at(s_t)) / signal

    def denoise_at(self, stage: Any, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t; the covariance is the symmetrised derivative."""
        _, signal, noise = stage
        value, push = jax.linearize(lambda s: self.mean_at(stage, s), s_t)
        derivative = jax.vmap(push)(jnp.eye(s_t.shape[0], dtype=s_t.dtype))
        cov = symmetrise(derivative) * noise**2 / signal
        variance = noise**2 * jnp.ones_like(s_t)  # under a unit Gaussian prior
        factor = bounded_factor(
            cov, VARIANCE_RATIO * variance, LARGEST_VARIANCE * jnp.ones_like(s_t)
        )
        return Gaussian(value, factor @ factor.T)


def isotropic_evidence(schedule: Schedule) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    """Precision and shift per unit of s_t at each stage, T first."""
    stages = schedule.stages(jnp.result_type(float))
    return stages.snr, stages.shift_scale
