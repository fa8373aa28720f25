"""How far E[s_0 | s_t] is from s_0 at each stage: the variance that the last stage lacks."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..schedule import Schedule, Stages
from ..threefry import written_out
from .denoisers import AbstractDenoiser

PRIOR_STAGES = 64  # of the chain that draws from a prior
RESIDUAL_STAGES = 33  # at which the error of a denoiser is tabulated
RESIDUAL_DRAWS = 4096  # of held-out samples, for the residuals of a learned denoiser


def held_out_residual(
    denoiser: AbstractDenoiser,
    grid: Schedule,
    held_out: Float[np.ndarray, "m d"],
    weights: Float[np.ndarray, " m"] | None,
    seed: int,
) -> Float[Array, " r"]:
    """Mean squared error of E[s_0 | s_t] per coordinate at each stage of the grid, over held-out
    samples of these weights."""
    repeats = -(-RESIDUAL_DRAWS // len(held_out))
    share = np.ones(len(held_out)) if weights is None else weights
    tiled = (np.tile(held_out, (repeats, 1)), np.tile(share / np.sum(share), repeats) / repeats)
    s_0, shares = (jnp.asarray(part, jnp.float32) for part in tiled)
    return _mean_squared_error(denoiser, grid, s_0, shares, jax.random.key(seed))


@eqx.filter_jit
def _mean_squared_error(
    denoiser: AbstractDenoiser,
    grid: Schedule,
    s_0: Float[Array, "m d"],
    shares: Float[Array, " m"],
    key: Key[Array, ""],
) -> Float[Array, " r"]:

    def error(stage: Any, stages: Stages, key: Key[Array, ""]) -> Float[Array, ""]:
        s_t = _diffuse(key, s_0, stages.snr)
        means = jax.vmap(lambda s: denoiser.mean_at(stage, s))(s_t)
        return shares @ jnp.mean((means - s_0) ** 2, axis=1)

    return _over_stages(error, denoiser, grid, key, s_0.dtype)


@eqx.filter_jit
def exact_residual(
    denoiser: AbstractDenoiser, grid: Schedule, s_0: Float[Array, "m d"]
) -> Float[Array, " r"]:
    """Mean variance of s_0 given s_t per coordinate at each stage of the grid."""

    def variance(stage: Any, stages: Stages, key: Key[Array, ""]) -> Float[Array, ""]:
        s_t = _diffuse(key, s_0, stages.snr)
        covs = jax.vmap(lambda s: denoiser.denoise_at(stage, s).cov)(s_t)
        return jnp.mean(jnp.trace(covs, axis1=1, axis2=2)) / s_0.shape[1]

    return _over_stages(variance, denoiser, grid, jax.random.key(0), s_0.dtype)


def _over_stages(
    function: Any,
    denoiser: AbstractDenoiser,
    grid: Schedule,
    key: Key[Array, ""],
    dtype: jnp.dtype,
) -> Float[Array, " r"]:
    stages = grid.stages(dtype)
    keys = jax.random.split(written_out(key), grid.num_stages)
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
