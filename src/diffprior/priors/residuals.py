"""How far E[s_0 | s_t] is from s_0 at each stage: the variance that the last stage lacks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ..schedule import Schedule, Stages
from .denoisers import AbstractDenoiser

RESIDUAL_DRAWS = 4096  # of held-out samples, for the residuals of a learned denoiser


@eqx.filter_jit
def held_out_residual(
    denoiser: AbstractDenoiser, grid: Schedule, held_out: Float[Array, "m d"], seed: int
) -> Float[Array, " r"]:
    """Mean squared error of E[s_0 | s_t] per coordinate at each stage of the grid."""
    repeats = -(-RESIDUAL_DRAWS // held_out.shape[0])
    s_0 = jnp.tile(held_out.astype(jnp.float32), (repeats, 1))

    def error(stage: Any, stages: Stages, key: Key[Array, ""]) -> Float[Array, ""]:
        s_t = _diffuse(key, s_0, stages.snr)
        means = jax.vmap(lambda s: denoiser.mean_at(stage, s))(s_t)
        return jnp.mean((means - s_0) ** 2)

    return _over_stages(error, denoiser, grid, seed, s_0.dtype)


@eqx.filter_jit
def exact_residual(
    denoiser: AbstractDenoiser, grid: Schedule, s_0: Float[Array, "m d"]
) -> Float[Array, " r"]:
    """Mean variance of s_0 given s_t per coordinate at each stage of the grid."""

    def variance(stage: Any, stages: Stages, key: Key[Array, ""]) -> Float[Array, ""]:
        s_t = _diffuse(key, s_0, stages.snr)
        covs = jax.vmap(lambda s: denoiser.denoise_at(stage, s).cov)(s_t)
        return jnp.mean(jnp.trace(covs, axis1=1, axis2=2)) / s_0.shape[1]

    return _over_stages(variance, denoiser, grid, 0, s_0.dtype)


def _over_stages(
    function: Any, denoiser: AbstractDenoiser, grid: Schedule, seed: int, dtype: jnp.dtype
) -> Float[Array, " r"]:
    stages = grid.stages(dtype)
    keys = jax.random.split(jax.random.key(seed), grid.num_stages)
    stage_inputs = denoiser.stages(grid)
    stage_inputs = jax.tree.map(lambda leaf: leaf.astype(dtype), stage_inputs)
    return jax.lax.map(lambda args: function(*args), (stage_inputs, stages, keys))


def _diffuse(
    key: Key[Array, ""], s_0: Float[Array, "m d"], snr: Float[Array, ""]
) -> Float[Array, "m d"]:
    """s_t given s_0, Eq. (4), from the signal-to-noise ratio of the stage."""
    noise = jax.random.normal(key, s_0.shape, s_0.dtype)
    alpha_bar = snr / (1.0 + snr)
    return jnp.sqrt(alpha_bar) * s_0 + jnp.sqrt(1.0 - alpha_bar) * noise
