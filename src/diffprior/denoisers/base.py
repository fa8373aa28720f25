"""E and Cov of s_0 under Gaussian evidence, where the prior has zero mean and unit covariance.

A sampler follows the reverse process by `mean_at`, `denoise_at` or `step_at`, each with one element
of `stages`, which holds whatever the denoiser can compute of a stage in advance. One that puts a
task's evidence inside the denoiser follows that of `condition(precision, shift)` in the same way.
"""

import abc
import functools
from collections.abc import Callable
from typing import TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..files.base import Serializable
from ..gaussian import Gaussian
from ..linalg import AnyArray, Spectral, bounded_factor, cholesky, eigh, symmetrize
from ..schedule import Schedule, Stages

MIN_VARIANCE_RATIO = 1e-3  # smallest variance allowed, over that under a Gaussian prior
MAX_VARIANCE = 16.0  # largest variance allowed, over the prior's
Function = TypeVar("Function", bound=Callable[..., object])
Tree = TypeVar("Tree")
RESIDUAL_STAGES = 33  # at which the error of a denoiser is tabulated


class AbstractChain(eqx.Module):
    """Mean and covariance of s_0 given s_t, with or without a task's evidence, and reverse steps.

    Methods take one element of `stages`; by default these are the coefficients of the schedule.
    """

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    @abc.abstractmethod
    def moments(self) -> Gaussian:
        """Mean and covariance of s_0."""

    @abc.abstractmethod
    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 given s_t."""

    def stages(self, schedule: Schedule) -> PyTree:
        """All of each stage that is known before s_t is, stacked in the order T, ..., 1."""
        return schedule.stages(jnp.result_type(float))

    def mean_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t]."""
        return self.denoise_at(stage, s_t).mean

    def step_at(
        self,
        stage_inputs: PyTree,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """A draw of s_{t-1} given s_t, from random numbers; by default of the Gaussian with the
        moments of s_0.
        """
        given = reverse_distribution(stage, s_t, self.denoise_at(stage_inputs, s_t))
        return given.mean + cholesky(given.cov) @ noise


def jit_once(function: Function) -> Function:
    """As `eqx.filter_jit`, compiled with little optimization: for what runs once or twice."""
    options = {"xla_backend_optimization_level": 0}
    jitted: Function = eqx.filter_jit(function, compiler_options=options)  # type: ignore[call-overload]
    return jitted


class AbstractDenoiser(AbstractChain, Serializable):
    """Mean and covariance of s_0 given Gaussian evidence, in unit coordinates."""

    @property
    def takes_attributes(self) -> bool:
        """Whether the distribution depends on what is known of a task."""
        return False

    def with_attributes(self, attributes: Float[Array, " a"]) -> "AbstractDenoiser":
        """The denoiser of a task with these attributes, standardized."""
        return self

    @property
    def general(self) -> bool:
        """Whether `denoise` takes any Gaussian evidence, not just isotropic."""
        return True

    @abc.abstractmethod
    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
        """Mean and covariance of s_0 under exp(-s' precision s / 2 + shift' s)."""

    def condition(self, precision: Float[Array, "d d"], shift: Float[Array, " d"]) -> AbstractChain:
        """The same given a task's evidence, which stays for all stages."""
        return GivenEvidence(self, eigh(precision).nonnegative(), shift)

    def moments(self) -> Gaussian:
        return Gaussian.standard(self.dim)

    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        return self.denoise(*isotropic_evidence(stage, s_t))


def for_task(tree: Tree, attributes: Float[Array, " a"]) -> Tree:
    """A prior, sampler or agent whose denoiser is that of a task with these attributes."""

    def given(node: object) -> object:
        return node.with_attributes(attributes) if isinstance(node, AbstractDenoiser) else node

    found: Tree = jax.tree.map(given, tree, is_leaf=lambda node: isinstance(node, AbstractDenoiser))
    return found


class GivenEvidence(AbstractChain):
    """Any denoiser given a task's evidence."""

    denoiser: AbstractDenoiser
    precision: Spectral
    shift: Float[Array, " d"]

    @property
    def dim(self) -> int:
        return self.denoiser.dim

    def moments(self) -> Gaussian:
        return self.denoiser.denoise(self.precision, self.shift)

    def denoise_at(self, stage: Stages, s_t: Float[Array, " d"]) -> Gaussian:
        precision, shift = self.precision.shifted(stage.snr), stage.shift_scale * s_t
        return self.denoiser.denoise(precision, shift + self.shift)


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
    attributes: Float[Array, "m a"] | None,
    num_draws: int,
    seed: int,
) -> Float[np.ndarray, " r"]:
    """Mean squared error of E[s_0 | s_t] per coordinate at each stage of the grid, over held-out
    samples of these weights and attributes.
    """
    repeats = -(-num_draws // len(held_out))
    share = np.ones(len(held_out)) if weights is None else np.asarray(weights)
    tiled = (np.tile(held_out, (repeats, 1)), np.tile(share / np.sum(share), repeats) / repeats)
    s_0, shares = (part.astype(np.float32) for part in tiled)
    known = None
    if attributes is not None and denoiser.takes_attributes:
        known = np.tile(attributes, (repeats, 1))
    return np.asarray(_residual(denoiser, grid, s_0, shares, _noise(seed, grid, s_0), known))


def exact_residual(
    denoiser: AbstractDenoiser, grid: Schedule, s_0: Float[Array, "m d"]
) -> Float[Array, " r"]:
    """Mean variance of s_0 given s_t per coordinate at each stage of the grid."""
    return _residual(denoiser, grid, s_0, None, _noise(0, grid, s_0))


def _noise(seed: int, grid: Schedule, s_0: Float[AnyArray, "m d"]) -> Float[np.ndarray, "t m d"]:
    shape = (grid.num_stages, *np.shape(s_0))
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(s_0.dtype)


@jit_once
def _residual(
    denoiser: AbstractDenoiser,
    grid: Schedule,
    s_0: Float[AnyArray, "m d"],
    shares: Float[AnyArray, " m"] | None,
    noise: Float[AnyArray, "r m d"],
    attributes: Float[AnyArray, "m a"] | None = None,
) -> Float[Array, " r"]:
    """Over s_t given s_0, Eq. (4): errors of the mean by these shares, or variances."""

    def mean_given(stages: Stages, s: Array, attributes: Array) -> Array:
        evidence = isotropic_evidence(stages, s)
        return denoiser.with_attributes(attributes).denoise(*evidence).mean

    dtype = s_0.dtype
    stage_inputs = jax.tree.map(lambda leaf: leaf.astype(dtype), denoiser.stages(grid))

    def one(inputs: PyTree) -> Float[Array, ""]:
        stage, stages, noise = inputs
        alpha_bar = stages.snr / (1.0 + stages.snr)
        s_t = jnp.sqrt(alpha_bar) * s_0 + jnp.sqrt(1.0 - alpha_bar) * noise
        if shares is None:
            covs = jax.vmap(lambda s: denoiser.denoise_at(stage, s).cov)(s_t)
            return jnp.mean(jnp.trace(covs, axis1=1, axis2=2)) / s_0.shape[1]
        if attributes is None:
            means = jax.vmap(lambda s: denoiser.mean_at(stage, s))(s_t)
        else:
            means = jax.vmap(functools.partial(mean_given, stages))(s_t, attributes)
        return shares @ jnp.mean((means - s_0) ** 2, axis=1)

    return jax.lax.map(one, (stage_inputs, grid.stages(dtype), noise))
