"""Likelihoods by name. A new one is a class here and a line in `LIKELIHOODS`."""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from ..checks import is_traced, on_device, positive, real_numbers
from ..gaussian import normal_log_density
from ..linalg import AnyArray, numpy_of
from .base import AbstractLikelihood, Rows, reject_rewards
from .glm import AbstractFamily
from .linear import Linear

LARGEST = 30.0  # eta beyond which the exponential is continued
LARGEST_DRAWN = 20.0  # eta beyond which counts are not drawn: they would not fit 32 bits
LARGE_DISPERSION = 100.0  # from which Stirling's series is exact to rounding


class Identity(AbstractFamily):
    """y = phi' theta + noise, as rows; for testing and comparison.

    Args:
        noise_std: standard deviation of the noise. Algorithm 1 omits it and so holds as printed
            only for 1.
    """

    noise_std: Float[Array, ""]

    def __init__(self, noise_std: ArrayLike = 1.0) -> None:
        self.noise_std = positive("noise_std", noise_std)

    def validate(self) -> None:
        super().validate()
        positive("noise_std", self.noise_std)

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return eta

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return normal_log_density(y, eta, self.noise_std)

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return eta + self.noise_std * jax.random.normal(key, eta.shape, eta.dtype)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""


class Logistic(AbstractFamily):
    """Rewards 0 or 1 with mean 1 / (1 + exp(-phi' theta))."""

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        on_host = isinstance(eta, np.ndarray)
        return 0.5 + 0.5 * np.tanh(0.5 * eta) if on_host else jax.nn.sigmoid(eta)

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return y * eta - _softplus(eta)

    def slopes(
        self, y: Float[Rows, "..."], eta: Float[Rows, "..."]
    ) -> tuple[Float[Rows, "..."], Float[Rows, "..."]]:
        xp = numpy_of(eta)
        small = xp.exp(-xp.abs(eta))
        share = 1.0 / (1.0 + small)
        other = small * share
        return y - xp.where(eta > 0, share, other), share * other

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return (jax.random.uniform(key, eta.shape, eta.dtype) < self.mean(eta)).astype(eta.dtype)

    def check_rewards(self, rewards: np.ndarray) -> None:
        bad = (rewards != 0) & (rewards != 1)
        reject_rewards(rewards, bad, "0 or 1", "code the outcomes as 0 and 1")


class Poisson(AbstractFamily):
    """Counts with mean exp(phi' theta).

    Beyond eta = 30 the exponential is continued by its second-order expansion, so that nothing
    overflows; no count ever observed lies there.
    """

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return _growth(eta)

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        xp = numpy_of(eta)
        excess = xp.maximum(eta - LARGEST, 0.0)
        total = xp.exp(xp.minimum(eta, LARGEST)) * (1.0 + excess + 0.5 * excess**2)
        return y * eta - total - _log_gamma(y + 1.0)

    def slopes(
        self, y: Float[Rows, "..."], eta: Float[Rows, "..."]
    ) -> tuple[Float[Rows, "..."], Float[Rows, "..."]]:
        xp = numpy_of(eta)
        return y - _growth(eta), xp.exp(xp.minimum(eta, LARGEST))

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return draw_counts(key, jnp.exp(jnp.minimum(eta, LARGEST_DRAWN)))

    def check_rewards(self, rewards: np.ndarray) -> None:
        check_counts(rewards)


def _growth(eta: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """The exponential, beyond 30 continued by a straight line."""
    xp = numpy_of(eta)
    return xp.exp(xp.minimum(eta, LARGEST)) * (1.0 + xp.clip(eta - LARGEST, 0.0, 1e3))


def draw_counts(key: Key[Array, ""], rates: Float[Array, "..."]) -> Float[Array, "..."]:
    """Poisson counts of these rates, as floats."""
    return jax.random.poisson(key, rates).astype(rates.dtype)


def check_counts(rewards: np.ndarray) -> None:
    """Raise for rewards that are not counts."""
    bad = (rewards < 0) | (rewards != np.round(rewards))
    reject_rewards(rewards, bad, "counts 0, 1, 2, ...", "pass whole numbers")


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

    def __init__(self, dispersion: ArrayLike) -> None:
        self.dispersion = positive(
            "dispersion", dispersion, "the variance is mean + mean^2 / dispersion"
        )

    def validate(self) -> None:
        super().validate()
        positive("dispersion", self.dispersion)

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        numpy = numpy_of(eta)
        return numpy.exp(numpy.minimum(eta, 80.0))

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        r, logit = self.dispersion, _logit(eta, self.dispersion)
        log_choose = _log_rising(r, y) - _log_gamma(y + 1.0)
        return log_choose - y * _softplus(-logit) - r * _softplus(logit)

    def slopes(
        self, y: Float[Rows, "..."], eta: Float[Rows, "..."]
    ) -> tuple[Float[Rows, "..."], Float[Rows, "..."]]:
        r, logit = self.dispersion, _logit(eta, self.dispersion)
        p = _sigmoid(logit)
        return y * (1.0 - p) - r * p, (y + r) * _logistic_curvature(logit)

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        gamma_key, count_key = jax.random.split(key)
        gammas = jax.random.gamma(gamma_key, self.dispersion, eta.shape, eta.dtype)
        rates = jnp.exp(jnp.minimum(eta, LARGEST_DRAWN)) * gammas / self.dispersion
        return draw_counts(count_key, jnp.minimum(rates, jnp.exp(LARGEST_DRAWN)))

    def check_rewards(self, rewards: np.ndarray) -> None:
        check_counts(rewards)


def _log_rising(r: Float[AnyArray, ""], y: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """Log Gamma(r + y) - log Gamma(r); by Stirling's series where r is large and they cancel."""
    xp = numpy_of(y)
    large = xp.maximum(r, LARGE_DISPERSION)

    def rest(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
        return 1.0 / (12.0 * x) - 1.0 / (360.0 * x**3)

    growth = (large + y - 0.5) * xp.log1p(y / large) + y * (xp.log(large) - 1.0)
    series = growth + rest(large + y) - rest(large)
    exact = _log_gamma(xp.minimum(r, LARGE_DISPERSION) + y) - _log_gamma(r)
    return xp.where(r < LARGE_DISPERSION, exact, series)


def _softplus(eta: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    return numpy_of(eta).logaddexp(eta, 0.0)


def _sigmoid(eta: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    xp = numpy_of(eta)
    small = xp.exp(-xp.abs(eta))
    return xp.where(eta > 0, 1.0, small) / (1.0 + small)


def _logistic_curvature(eta: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    xp = numpy_of(eta)
    small = xp.exp(-xp.abs(eta))
    return small / (1.0 + small) ** 2


def _logit(eta: Float[AnyArray, "..."], dispersion: Float[AnyArray, ""]) -> Float[AnyArray, "..."]:
    """The log odds that a negative binomial count goes on."""
    return eta - numpy_of(eta).log(dispersion)


def _log_gamma(x: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """In NumPy without SciPy, which is slow to import."""
    if isinstance(x, Array):
        return gammaln(x)
    return np.array([math.lgamma(number) for number in np.ravel(x).tolist()]).reshape(np.shape(x))


class ZeroInflated(AbstractFamily):
    """Rewards that are often zero and else positive, such as revenue.

    One linear predictor eta = phi' theta has two parts: a reward is positive with probability
    1 / (1 + exp(-eta)), and is then log-normal with median amount exp(slope eta). Its mean
    increases with eta, so that the best action is the one of the largest eta. Where amounts depend
    on features in ways of their own, this is an approximation; learn the two parts as two models.

    Args:
        amount: Median of positive rewards at eta = 0, where half of all rewards are zero.
        log_std: Standard deviation of the logarithm of positive rewards.
        slope: Change of that logarithm with eta, at least 0. At 0, amounts say nothing of theta.
    """

    amount: Float[Array, ""]
    log_std: Float[Array, ""]
    slope: Float[Array, ""]

    def __init__(self, amount: ArrayLike, log_std: ArrayLike, slope: ArrayLike = 0.0) -> None:
        self.amount = positive("amount", amount)
        self.log_std = positive("log_std", log_std)
        self.slope = on_device(self._checked_slope(slope))

    def validate(self) -> None:
        super().validate()
        positive("amount", self.amount)
        positive("log_std", self.log_std)
        self._checked_slope(self.slope)

    @staticmethod
    def _checked_slope(slope: ArrayLike) -> np.ndarray | Array:
        scalar = real_numbers("slope", slope, (), "pass a single number")
        if not is_traced(scalar) and scalar < 0:
            raise ValueError(
                f"`slope`: expected at least 0, got {float(scalar):g}; pass 0 if amounts do not "
                "grow with the chance of one"
            )
        return scalar

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        numpy = numpy_of(eta)
        amount, log_std, slope = map(numpy.asarray, (self.amount, self.log_std, self.slope))
        logs = numpy.log(amount) + slope * eta + 0.5 * log_std**2
        return Logistic().mean(eta) * numpy.exp(numpy.minimum(logs, 80.0))

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        xp = numpy_of(eta)
        log_y = xp.log(xp.where(y > 0, y, 1.0))
        amounts = normal_log_density(log_y, _center(self, eta), self.log_std) - log_y
        return xp.where(y > 0, amounts - _softplus(-eta), -_softplus(eta))

    def slopes(
        self, y: Float[Rows, "..."], eta: Float[Rows, "..."]
    ) -> tuple[Float[Rows, "..."], Float[Rows, "..."]]:
        xp, paid = numpy_of(eta), y > 0
        left = xp.log(xp.where(paid, y, 1.0)) - _center(self, eta)
        score = paid.astype(eta.dtype) - _sigmoid(eta)
        score = score + xp.where(paid, self.slope * left / self.log_std**2, 0.0)
        curvature = xp.where(paid, (self.slope / self.log_std) ** 2, 0.0)
        return score, _logistic_curvature(eta) + curvature

    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        keys = jax.random.split(key)
        noise = self.log_std * jax.random.normal(keys[1], eta.shape, eta.dtype)
        amounts = jnp.exp(jnp.minimum(_center(self, eta) + noise, 80.0))
        return Logistic().sample(keys[0], eta) * amounts

    def check_rewards(self, rewards: np.ndarray) -> None:
        reject_rewards(
            rewards, rewards < 0, "0 or positive numbers", "linear rewards may be negative"
        )


def _center(family: ZeroInflated, eta: Float[AnyArray, "..."]) -> Float[AnyArray, "..."]:
    """The mean of the logarithm of positive rewards."""
    return numpy_of(eta).log(family.amount) + family.slope * eta


LIKELIHOODS: dict[str, type[AbstractLikelihood]] = {
    "linear": Linear,
    "logistic": Logistic,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "zero-inflated": ZeroInflated,
}


def missing_likelihood(of: str) -> ValueError:
    """Error for a likelihood that nothing says; `of` is what does not know it."""
    return ValueError(
        f"`likelihood`: expected a likelihood, which {of} does not say, got none; pass "
        "logistic (0 or 1), linear with its noise_std (any number), poisson (counts) or "
        "negative-binomial with its dispersion (scattered counts), zero-inflated (often zero and "
        "else positive), or a model of `learn`"
    )
