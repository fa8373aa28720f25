"""Exponential families: logistic, Poisson, and the linear model as one of them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..checks import positive
from .glm import AbstractFamily


class Logistic(AbstractFamily):
    """Rewards 0 or 1 with mean 1 / (1 + exp(-phi' theta))."""

    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """log(1 + exp(eta))."""
        return jax.nn.softplus(eta)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The sigmoid."""
        return jax.nn.sigmoid(eta)

    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """sigmoid (1 - sigmoid), with no cancellation where it is small."""
        return jax.nn.sigmoid(eta) * jax.nn.sigmoid(-eta)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are 0 or 1."""
        _refuse(rewards, ~np.isin(rewards, (0.0, 1.0)), "0 or 1", "code the outcomes as 0 and 1")


class Poisson(AbstractFamily):
    """Counts with mean exp(phi' theta).

    Beyond eta = 30 the exponential is continued by its second-order expansion, so that nothing
    overflows; no count ever observed lies there.
    """

    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        excess = jnp.maximum(eta - 30.0, 0.0)
        return jnp.exp(jnp.minimum(eta, 30.0)) * (1.0 + excess + 0.5 * excess**2)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        return jnp.exp(jnp.minimum(eta, 30.0)) * (1.0 + jnp.maximum(eta - 30.0, 0.0))

    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        return jnp.exp(jnp.minimum(eta, 30.0))

    def log_base_measure(self, rewards: Float[Array, " n"]) -> Float[Array, " n"]:
        """-log y!."""
        return -jax.scipy.special.gammaln(rewards + 1.0)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are counts."""
        bad = (rewards < 0) | (rewards != np.round(rewards))
        _refuse(rewards, bad, "counts 0, 1, 2, ...", "pass whole numbers")


class Identity(AbstractFamily):
    """The linear model as a generalised linear one, row by row; for testing and comparison."""

    noise_std: Float[Array, ""]

    def __init__(self, noise_std: Any = 1.0) -> None:
        self.noise_std = positive("noise_std", noise_std)

    @property
    def dispersion(self) -> Float[Array, ""]:
        """The noise variance. Algorithm 1 omits it and so holds as printed only for 1."""
        return self.noise_std**2

    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """eta^2 / 2."""
        return 0.5 * eta**2

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The identity."""
        return eta

    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """One."""
        return jnp.ones_like(eta)

    def log_base_measure(self, rewards: Float[Array, " n"]) -> Float[Array, " n"]:
        """-y^2 / (2 sigma^2) - log(2 pi sigma^2) / 2."""
        log_norm = jnp.log(jnp.sqrt(2 * jnp.pi) * self.noise_std)
        return -0.5 * (rewards / self.noise_std) ** 2 - log_norm

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""


def _refuse(rewards: np.ndarray, bad: np.ndarray, expected: str, fix: str) -> None:
    if np.any(bad):
        first = rewards[np.argmax(bad)]
        raise ValueError(f"`rewards`: expected {expected}, got {first:g}; {fix}")
