"""The linear model as a generalized linear one, row by row; for testing and comparison."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Key

from ...checks import positive
from ...gaussian import normal_log_density
from ..glm import AbstractFamily


class Identity(AbstractFamily):
    """y = phi' theta + noise, as rows; for testing and comparison.

    Args:
        noise_std: standard deviation of the noise. Algorithm 1 omits it and so holds as printed
            only for 1.
    """

    noise_std: Float[Array, ""]

    def __init__(self, noise_std: Any = 1.0) -> None:
        self.noise_std = positive("noise_std", noise_std)

    def validate(self) -> None:
        """Refuse a noise that is not positive."""
        super().validate()
        positive("noise_std", self.noise_std)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The identity."""
        return eta

    def log_density(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """log N(y; eta, noise_std^2)."""
        return normal_log_density(y, eta, self.noise_std)

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The mean and noise."""
        return eta + self.noise_std * jax.random.normal(key, eta.shape, eta.dtype)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""
