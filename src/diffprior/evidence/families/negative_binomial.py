"""Counts that vary more than Poisson's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jaxtyping import Array, Float, Key

from ...checks import positive
from ..glm import AbstractFamily
from .poisson import LARGEST_DRAWN, check_counts, draw_counts

LARGE = 100.0  # dispersion from which Stirling's series is exact to rounding


class NegativeBinomial(AbstractFamily):
    """Counts with mean mu = exp(phi' theta) and variance mu + mu^2 / dispersion.

    A Poisson count whose rate is mu times a gamma variable of mean 1 and variance 1 / dispersion;
    as `dispersion` grows it becomes Poisson's. In SciPy it is
    `nbinom(n=dispersion, p=dispersion / (dispersion + mu))`, in R's `glm.nb` theta = dispersion;
    statsmodels' alpha is 1 / dispersion.

    Args:
        dispersion: positive number; often called the size, or r.
    """

    dispersion: Float[Array, ""]

    def __init__(self, dispersion: Any) -> None:
        self.dispersion = positive(
            "dispersion", dispersion, "the variance is mean + mean^2 / dispersion"
        )

    def validate(self) -> None:
        """Refuse a dispersion that is not positive."""
        super().validate()
        positive("dispersion", self.dispersion)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta), up to exp(80)."""
        return jnp.exp(jnp.minimum(eta, 80.0))

    def log_density(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """y log p + r log(1 - p) + log C(y + r - 1, y), where p = sigmoid(eta - log r)."""
        r = self.dispersion
        logit = eta - jnp.log(r)
        log_choose = _log_rising(r, y) - gammaln(y + 1.0)
        return log_choose - y * jax.nn.softplus(-logit) - r * jax.nn.softplus(logit)

    def score(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """y (1 - p) - r p: what differentiation gives, in far smaller programs."""
        p = jax.nn.sigmoid(eta - jnp.log(self.dispersion))
        return y * (1.0 - p) - self.dispersion * p

    def curvature(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """(y + r) p (1 - p), which depends on y."""
        logit = eta - jnp.log(self.dispersion)
        return (y + self.dispersion) * jax.nn.sigmoid(logit) * jax.nn.sigmoid(-logit)

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """Poisson counts of gamma rates."""
        gamma_key, count_key = jax.random.split(key)
        gammas = jax.random.gamma(gamma_key, self.dispersion, eta.shape, eta.dtype)
        rates = jnp.exp(jnp.minimum(eta, LARGEST_DRAWN)) * gammas / self.dispersion
        return draw_counts(count_key, jnp.minimum(rates, jnp.exp(LARGEST_DRAWN)))

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are counts."""
        check_counts(rewards)


def _log_rising(r: Float[Array, ""], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """log Gamma(r + y) - log Gamma(r); by Stirling's series where r is large and they cancel."""
    large = jnp.maximum(r, LARGE)

    def rest(x: Float[Array, "..."]) -> Float[Array, "..."]:
        return 1.0 / (12.0 * x) - 1.0 / (360.0 * x**3)

    growth = (large + y - 0.5) * jnp.log1p(y / large) + y * (jnp.log(large) - 1.0)
    series = growth + rest(large + y) - rest(large)
    return jnp.where(r < LARGE, gammaln(jnp.minimum(r, LARGE) + y) - gammaln(r), series)
