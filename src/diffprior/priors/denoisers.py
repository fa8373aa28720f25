"""E and Cov of s_0 under Gaussian evidence, where the prior has zero mean and unit covariance.

A denoiser serves two kinds of caller. Samplers that put the evidence inside it call
`denoise(precision, shift)`, or `prepare` once and `denoise_with` or `step` at every stage. Samplers
that follow the reverse process call `mean_at` or `denoise_at` with one element of `stages`, which
holds whatever the denoiser wants to know of a stage in advance.
"""

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import Spectral, cholesky, eigh
from ..schedule import Schedule, Stages

VARIANCE_RATIO = 1e-3  # smallest variance allowed, over that under a Gaussian prior
LARGEST_VARIANCE = 16.0  # largest variance allowed, over the prior's


class AbstractDenoiser(eqx.Module, Serializable):
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

    def prepare(self, precision: Float[Array, "d d"], shift: Float[Array, " d"]) -> Any:
        """What `denoise_with` wants to know of a task's evidence, which stays for all stages."""
        return eigh(precision).nonnegative(), shift

    def denoise_with(
        self, prepared: Any, snr: Float[Array, ""], noisy_shift: Float[Array, " d"]
    ) -> Gaussian:
        """Mean and covariance of s_0 under a task's evidence, and a noisy sample of precision
        snr I and this shift."""
        precision, shift = prepared
        return self.denoise(precision.shifted(snr), noisy_shift + shift)

    def plan(self, prepared: Any, stages: Stages) -> Any:
        """What `step` wants to know of each stage and a task's evidence, stacked over the stages;
        nothing, unless a denoiser can compute something in advance."""
        return ()

    def step(
        self,
        prepared: Any,
        plan: Any,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1} given s_t and a task's evidence, from random numbers; a Gaussian of the
        mean and covariance that s_0 has, unless a denoiser knows better."""
        s_0 = self.denoise_with(prepared, stage.snr, stage.shift_scale * s_t)
        law = reverse_law(stage, s_t, s_0)
        return law.mean + cholesky(law.cov) @ noise

    def step_at(
        self,
        stage_inputs: Any,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1} given s_t alone."""
        law = reverse_law(stage, s_t, self.denoise_at(stage_inputs, s_t))
        return law.mean + cholesky(law.cov) @ noise

    @abc.abstractmethod
    def stages(self, schedule: Schedule) -> Any:
        """What `mean_at` wants to know of each stage, stacked in the order T, ..., 1."""

    @abc.abstractmethod
    def mean_at(self, stage: Any, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t]."""

    @abc.abstractmethod
    def denoise_at(self, stage: Any, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t."""


def reverse_law(stage: Stages, s_t: Float[Array, " d"], s_0: Gaussian) -> Gaussian:
    """p(s_{t-1} | s_t) given the mean and covariance of s_0: Eq. (13) integrated over s_0."""
    identity = jnp.eye(s_t.shape[0], dtype=s_t.dtype)
    return Gaussian(
        stage.weight_clean * s_0.mean + stage.weight_noisy * s_t,
        stage.beta_tilde * identity + stage.weight_clean**2 * s_0.cov,
    )


def isotropic_evidence(schedule: Schedule) -> tuple[Float[Array, " t"], Float[Array, " t"]]:
    """Precision and shift per unit of s_t at each stage, T first."""
    stages = schedule.stages(jnp.result_type(float))
    return stages.snr, stages.shift_scale
