"""Gaussian evidence at random, of the kinds that chains meet: what denoisers are trained under."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from .correction import LOG_PRECISION

MOST_ROTATIONS, FEWEST_ROTATIONS, ROTATION_NUMBERS = 8192, 256, 2**25
MIDDLE, MIDDLE_SHARE = (-4.0, 4.5), 0.85  # log precisions that are dwelt on unless told


def random_evidence(
    key: Key[Array, ""],
    rotations: Float[Array, "r d d"],
    size: int,
    middle: Float[Array, " 2"] | tuple[float, float] = MIDDLE,
) -> tuple[Float[Array, "b d d"], Float[Array, "b d"]]:
    """Evidence of all strengths and ranks: a noisy sample, plus a task's own in some directions.

    That is what a chain meets: precision snr I + Lam, where the eigenvalues of Lam are of about one
    size (how many observations) or zero (directions not seen yet).
    """
    keys = jax.random.split(key, 6)
    dim = rotations.shape[-1]
    noisy = _log_strength(keys[0], size, middle)
    strength = _log_strength(keys[1], size, middle)
    spread = jax.random.uniform(keys[2], (size, 1), jnp.float32, maxval=2.0)
    task = strength + spread * jax.random.normal(keys[3], (size, dim), jnp.float32)
    num_seen = jax.random.randint(keys[4], (size, 1), 0, dim + 1)
    seen = jnp.arange(dim)[None, :] < num_seen
    log_precision = jnp.where(seen, jnp.logaddexp(noisy, task), noisy)
    which = jax.random.randint(keys[5], (size,), 0, rotations.shape[0])
    return rotations[which], jnp.clip(log_precision, *LOG_PRECISION)


def _log_strength(
    key: Key[Array, ""], size: int, dwelt_on: Float[Array, " 2"] | tuple[float, float]
) -> Float[Array, "b 1"]:
    """Log precisions: most of them where neither the prior nor the evidence decides alone."""
    which_key, key = jax.random.split(key)
    unit = jax.random.uniform(key, (size, 1), jnp.float32)
    middle = jax.random.bernoulli(which_key, MIDDLE_SHARE, (size, 1))
    (low, high), (mid_low, mid_high) = LOG_PRECISION, (dwelt_on[0], dwelt_on[1])
    return jnp.where(middle, mid_low + (mid_high - mid_low) * unit, low + (high - low) * unit)


def random_rotations(dim: int, seed: int) -> Float[Array, "r d d"]:
    """Orthogonal matrices, uniformly at random: as many as there is memory for."""
    number = int(np.clip(ROTATION_NUMBERS // dim**2, FEWEST_ROTATIONS, MOST_ROTATIONS))
    normal = np.random.default_rng(seed).standard_normal((number, dim, dim))
    q, r = np.linalg.qr(normal)
    signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
    return jnp.asarray(q * signs[:, None, :], jnp.float32)
