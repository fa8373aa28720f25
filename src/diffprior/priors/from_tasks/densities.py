"""Densities in float64: of rewards, whatever precision JAX is set to, and of mixtures."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ...evidence.glm import AbstractFamily
from .algebra import lower
from .components import Components


def terms(
    family: AbstractFamily, rewards: Float[np.ndarray, " r"], eta: Float[np.ndarray, "r k"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log density, score and curvature of every row at every eta, in float64.

    Rows are padded to few lengths, because each is compiled for.
    """
    rows = len(eta)
    room = max(256, 1 << max(rows - 1, 0).bit_length())
    y = np.pad(rewards, (0, room - rows), mode="edge" if rows else "constant")
    with jax.enable_x64(True):
        padded = np.pad(eta, ((0, room - rows), (0, 0)))
        made = _terms(family, jnp.asarray(y, jnp.float64), jnp.asarray(padded, jnp.float64))
        return tuple(np.asarray(part, np.float64)[:rows] for part in made)  # type: ignore[return-value]


@eqx.filter_jit
def _terms(family: Any, y: Array, eta: Array) -> tuple[Array, Array, Array]:
    exact = jax.tree.map(lambda a: a.astype(jnp.float64) if eqx.is_inexact_array(a) else a, family)
    rewards = jnp.broadcast_to(y[:, None], eta.shape)
    return (
        exact.log_density(rewards, eta),
        exact.score(rewards, eta),
        exact.curvature(rewards, eta),
    )


def log_densities(
    components: Components, theta: Float[np.ndarray, "m n d"]
) -> Float[np.ndarray, "k m n"]:
    """log of weight times density of every component at every theta."""
    parts = []
    dim = components.dim
    for weight, mean, cov in zip(
        components.weights, components.means, components.covs, strict=True
    ):
        tril = lower(cov)
        unit = np.einsum("ij,mnj->mni", np.linalg.inv(tril), theta - mean)
        log_norm = np.sum(np.log(np.diagonal(tril))) + 0.5 * dim * np.log(2 * np.pi)
        parts.append(np.log(max(weight, 1e-300)) - log_norm - 0.5 * np.sum(unit**2, axis=-1))
    return np.stack(parts)


def log_sum(values: Float[np.ndarray, "k m n"]) -> Float[np.ndarray, "1 m n"]:
    """log of the sum of exponentials over the first axis, which stays."""
    top = values.max(axis=0, keepdims=True)
    return top + np.log(np.sum(np.exp(values - top), axis=0, keepdims=True))
