"""The paper's denoiser: one regressor of the noise for each stage."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from ..gaussian import Gaussian
from ..linalg import Spectral
from ..schedule import Schedule, Stages
from .base import AbstractDenoiser, derivative_moments


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
    def initialize(
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
        super().validate()
        if self.weights_1.shape[0] != self.grid.num_stages:
            raise ValueError(f"`weights_1`: expected {self.grid.num_stages} regressors")

    @property
    def dim(self) -> int:
        return self.weights_1.shape[1]

    @property
    def general(self) -> bool:
        return False

    def denoise(self, precision: Spectral, shift: Float[Array, " d"]) -> Gaussian:
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

    def stages(self, schedule: Schedule) -> PyTree:
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

    def mean_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Float[Array, " d"]:
        """E[s_0 | s_t] = (s_t - sqrt(1 - alpha_bar) eps_t(s_t)) / sqrt(alpha_bar)."""
        regressor, signal, noise = stage
        return (s_t - noise * regressor.noise_at(s_t)) / signal

    def step_at(
        self,
        stage_inputs: PyTree,
        stage: Stages,
        s_t: Float[Array, " d"],
        noise: Float[Array, " d"],
        uniform: Float[Array, ""],
    ) -> Float[Array, " d"]:
        """Eq. (5) with Sigma_t = beta_tilde I, to the letter."""
        mean = stage.weight_clean * self.mean_at(stage_inputs, s_t) + stage.weight_noisy * s_t
        return mean + jnp.sqrt(stage.beta_tilde) * noise

    def denoise_at(self, stage: PyTree, s_t: Float[Array, " d"]) -> Gaussian:
        """The covariance is the derivative of the mean: second-order Tweedie."""
        _, signal, noise = stage
        scale = signal / noise**2  # of the shift that s_t lends to s_0
        identity = jnp.eye(s_t.shape[0], dtype=s_t.dtype)
        precision = Spectral(identity, (signal / noise) ** 2 * jnp.ones_like(s_t))
        mean = lambda shift: self.mean_at(stage, shift / scale)  # noqa: E731
        return derivative_moments(mean, precision, scale * s_t)
