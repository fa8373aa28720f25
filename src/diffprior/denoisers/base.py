"""E and Cov of s_0 under Gaussian evidence, where the prior has zero mean and unit covariance.

A denoiser serves two kinds of caller. Samplers that put the evidence inside it call
`denoise(precision, shift)`, or `prepare` once and `denoise_with` or `step` at every stage. Samplers
that follow the reverse process call `mean_at` or `denoise_at` with one element of `stages`, which
holds whatever the denoiser can compute of a stage in advance.
"""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, UInt32

from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import Spectral, bounded_factor, cholesky, eigh, symmetrize
from ..schedule import Schedule, Stages
from ..threefry import unrolled

MIN_VARIANCE_RATIO = 1e-3  # smallest variance allowed, over that under a Gaussian prior
MAX_VARIANCE = 16.0  # largest variance allowed, over the prior's
RESIDUAL_STAGES = 33  # at which the error of a denoiser is tabulated


class AbstractDenoiser(eqx.Module, Serializable):
    """Mean and covariance of s_0 given Gaussian evidence, in unit coordinates."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    @property
    def general(self) -> bool:
        """Whether `denoise` takes any Gaussian evidence, not just isotropic."""
        return True

    @abc.abstractmethod
    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 under exp(-s' precision s / 2 + shift' s)."""

    def prepare(self, precision: Float[Array, "d d"], shift: Float[Array, " d"]) -> PyTree:
        """A task's evidence as `denoise_with` takes it, which stays for all stages."""
        return eigh(precision).nonnegative(), shift

    def denoise_with(
        self, prepared: PyTree, snr: Float[Array, ""], noisy_shift: Float[Array, " d"]
    ) -> Gaussian:
        """Mean and covariance of s_0 under a task's evidence, and a noisy sample of precision
        snr I and this shift.
        """
        precision, shift = prepared
        return self.denoise(precision.shifted(snr), noisy_shift + shift)

    def plan(self, prepared: PyTree, stages: Stages) -> PyTree:
        """All of each stage that `step` can compute before its noisy sample is known, stacked over
        the stages; nothing by default.
        """
        return ()

    def step(
        self,
        prepared: PyTree,
        plan: PyTree,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1} given s_t and a task's evidence, from random numbers; by default of the
        Gaussian with the moments of s_0.
        """
        s_0 = self.denoise_with(prepared, stage.snr, stage.shift_scale * s_t)
        given = reverse_distribution(stage, s_t, s_0)
        return given.mean + cholesky(given.cov) @ noise

    def step_at(
        self,
        stage_inputs: PyTree,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1} given s_t alone."""
        given = reverse_distribution(stage, s_t, self.denoise_at(stage_inputs, s_t))
        return given.mean + cholesky(given.cov) @ noise

    def stages(self, schedule: Schedule) -> PyTree:
        """Inputs of `mean_at` and `denoise_at` at each stage, stacked in the order T, ..., 1; by
        default the coefficients of the schedule.
        """
        return schedule.stages(jnp.result_type(float))

    def mean_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t]."""
        return self.denoise_at(stage, s_t).mean

    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t; by default those under isotropic evidence."""
        return self.denoise(*isotropic_evidence(stage, s_t))


def isotropic_evidence(
    stage: PyTree, s_t: Float[Array, " d"]
) -> tuple[Spectral, Float[Array, " d"]]:
    """Precision and shift that the noisy sample of a stage lends to s_0."""
    identity = jnp.eye(s_t.shape[0], dtype=s_t.dtype)
    return Spectral(identity, stage.snr * jnp.ones_like(s_t)), stage.shift_scale * s_t


def reverse_distribution(stage: Stages, s_t: Float[Array, " d"], s_0: Gaussian) -> Gaussian:
    """p(s_{t-1} | s_t) given the mean and covariance of s_0: Eq. (13) integrated over s_0."""
    identity = jnp.eye(s_t.shape[0], dtype=s_t.dtype)
    return Gaussian(
        stage.weight_clean * s_0.mean + stage.weight_noisy * s_t,
        stage.beta_tilde * identity + stage.weight_clean**2 * s_0.cov,
    )


def derivative_moments(
    mean: Callable[[Float[Array, " d"]], Float[Array, " d"]],
    precision: Spectral,
    shift: Float[Array, " d"],
) -> Gaussian:
    """The mean as a function of the shift, and its derivative as the covariance: second-order
    Tweedie, symmetrized and bounded.
    """
    rotated_mean = lambda rotated: precision.rotate(mean(precision.unrotate(rotated)))  # noqa: E731
    value, push = jax.linearize(rotated_mean, precision.rotate(shift))
    derivative = jax.vmap(push)(jnp.eye(shift.shape[0], dtype=shift.dtype))
    variances = 1.0 / (1.0 + precision.values)
    stds = jnp.sqrt(variances)
    ratio = symmetrize(derivative) / (stds[:, None] * stds[None, :])
    lowest = jnp.full_like(stds, MIN_VARIANCE_RATIO)
    factor = bounded_factor(ratio, lowest, MAX_VARIANCE / variances)
    half = precision.vectors @ (stds[:, None] * factor)
    return Gaussian(precision.unrotate(value), half @ half.T)


def held_out_residual(
    denoiser: AbstractDenoiser,
    grid: Schedule,
    held_out: Float[Array, "m d"],
    weights: Float[Array, " m"] | None,
    num_draws: int,
    seed: int,
) -> Float[np.ndarray, " r"]:
    """Mean squared error of E[s_0 | s_t] per coordinate at each stage of the grid, over held-out
    samples of these weights.
    """
    repeats = -(-num_draws // len(held_out))
    share = np.ones(len(held_out)) if weights is None else np.asarray(weights)
    tiled = (np.tile(held_out, (repeats, 1)), np.tile(share / np.sum(share), repeats) / repeats)
    s_0, shares = (jax.device_put(part.astype(np.float32)) for part in tiled)
    return np.asarray(_residual(denoiser, grid, s_0, shares, jax.device_put(np.uint32(seed))))


def exact_residual(
    denoiser: AbstractDenoiser, grid: Schedule, s_0: Float[Array, "m d"]
) -> Float[Array, " r"]:
    """Mean variance of s_0 given s_t per coordinate at each stage of the grid."""
    return _residual(denoiser, grid, s_0, None, jax.device_put(np.uint32(0)))


@eqx.filter_jit
def _residual(
    denoiser: AbstractDenoiser,
    grid: Schedule,
    s_0: Float[Array, "m d"],
    shares: Float[Array, " m"] | None,
    seed: UInt32[Array, ""],
) -> Float[Array, " r"]:
    """Over s_t given s_0, Eq. (4): errors of the mean by these shares, or variances."""
    dtype = s_0.dtype
    keys = jax.random.split(unrolled(jax.random.key(seed)), grid.num_stages)
    stage_inputs = jax.tree.map(lambda leaf: leaf.astype(dtype), denoiser.stages(grid))

    def one(inputs: PyTree) -> Float[Array, ""]:
        stage, snr, key = inputs
        noise = jax.random.normal(key, s_0.shape, dtype)
        alpha_bar = snr / (1.0 + snr)
        s_t = jnp.sqrt(alpha_bar) * s_0 + jnp.sqrt(1.0 - alpha_bar) * noise
        if shares is None:
            covs = jax.vmap(lambda s: denoiser.denoise_at(stage, s).cov)(s_t)
            return jnp.mean(jnp.trace(covs, axis1=1, axis2=2)) / s_0.shape[1]
        means = jax.vmap(lambda s: denoiser.mean_at(stage, s))(s_t)
        return shares @ jnp.mean((means - s_0) ** 2, axis=1)

    return jax.lax.map(one, (stage_inputs, grid.stages(dtype).snr, keys))
