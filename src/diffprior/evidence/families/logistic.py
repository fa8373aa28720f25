"""Outcomes that happen or do not."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..base import refuse_rewards
from ..glm import AbstractFamily


class Logistic(AbstractFamily):
    """Rewards 0 or 1 with mean 1 / (1 + exp(-phi' theta))."""

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The sigmoid."""
        return jax.nn.sigmoid(eta)

    def log_density(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """y eta - log(1 + exp(eta))."""
        return y * eta - jax.nn.softplus(eta)

    def score(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """y - sigmoid, by the exponential that the curvature needs too."""
        small = jnp.exp(-jnp.abs(eta))
        return y - jnp.where(eta > 0, 1.0, small) / (1.0 + small)

    def curvature(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """sigmoid (1 - sigmoid), with no cancellation where it is small."""
        small = jnp.exp(-jnp.abs(eta))
        return small / (1.0 + small) ** 2

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """1 where a uniform number lies below the mean."""
        return (jax.random.uniform(key, eta.shape, eta.dtype) < self.mean(eta)).astype(eta.dtype)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are 0 or 1."""
        bad = (rewards != 0) & (rewards != 1)
        refuse_rewards(rewards, bad, "0 or 1", "code the outcomes as 0 and 1")
