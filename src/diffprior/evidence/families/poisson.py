"""Counts whose variance is their mean."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..base import refuse_rewards
from ..glm import AbstractFamily

LARGEST = 30.0  # eta beyond which the exponential is continued
LARGEST_DRAWN = 20.0  # eta beyond which counts are not drawn: they would not fit 32 bits


class Poisson(AbstractFamily):
    """Counts with mean exp(phi' theta).

    Beyond eta = 30 the exponential is continued by its second-order expansion, so that nothing
    overflows; no count ever observed lies there.
    """

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        return jnp.exp(jnp.minimum(eta, LARGEST)) * (1.0 + jnp.clip(eta - LARGEST, 0.0, 1e3))

    def log_density(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """y eta - exp(eta) - log y!."""
        excess = jnp.maximum(eta - LARGEST, 0.0)
        total = jnp.exp(jnp.minimum(eta, LARGEST)) * (1.0 + excess + 0.5 * excess**2)
        return y * eta - total - jax.scipy.special.gammaln(y + 1.0)

    def score(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """y - exp(eta)."""
        return y - self.mean(eta)

    def curvature(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        return jnp.exp(jnp.minimum(eta, LARGEST))

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """Counts, as floats."""
        return draw_counts(key, jnp.exp(jnp.minimum(eta, LARGEST_DRAWN)))

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are counts."""
        check_counts(rewards)


def draw_counts(key: Key[Array, ""], rates: Float[Array, "..."]) -> Float[Array, "..."]:
    """Poisson counts of these rates, as floats."""
    return jax.random.poisson(key, rates).astype(rates.dtype)


def check_counts(rewards: np.ndarray) -> None:
    """Refuse what is no count."""
    bad = (rewards < 0) | (rewards != np.round(rewards))
    refuse_rewards(rewards, bad, "counts 0, 1, 2, ...", "pass whole numbers")
