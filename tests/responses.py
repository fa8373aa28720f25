"""Response functions beyond linear ones, their twins in NumPy, and histories of them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import diffprior as dp
import reference
from cases import representable

Array = NDArray[np.float64]
NOISE_STD = 0.4


def cosine(theta: jax.Array, x: jax.Array) -> jax.Array:
    """Cos(3 x'theta)."""
    return jnp.cos(3.0 * x @ theta)


def emax(theta: jax.Array, x: jax.Array) -> jax.Array:
    """A dose response that saturates: largest effect, and logarithm of the dose of half of it."""
    return 3.0 * theta[0] * x[0] / (x[0] + jnp.exp(theta[1]))


def power_law(theta: jax.Array, x: jax.Array) -> jax.Array:
    """Demand at a price, of a level and an elasticity; not a number at a price of zero."""
    return jnp.exp(theta[0] - theta[1] * jnp.log(x[0]))


def network(theta: jax.Array, x: jax.Array) -> jax.Array:
    """Two layers of four weights."""
    return theta[2:] @ jnp.tanh(theta[:2] * x)


@dataclasses.dataclass(frozen=True)
class ResponseCase:
    """A response function, its twin over rows, and about where its parameters are."""

    name: str
    fn: Callable[[jax.Array, jax.Array], jax.Array]
    twin: Callable[[Array, Array], Array]  # of parameters (..., d) and rows (n, p)
    mean: Array
    cov: Array
    num_features: int
    features: Callable[[np.random.Generator, int], Array]

    @property
    def dim(self) -> int:
        return len(self.mean)

    def likelihood(self, family: str) -> dp.Response:
        """The response with rewards of this family."""
        made: Any = dp.Linear(NOISE_STD) if family == "gaussian" else dp.Logistic()
        return dp.Response(self.fn, made, dim=self.dim, num_features=self.num_features)


def _normal(rng: np.random.Generator, n: int) -> Array:
    return rng.standard_normal((n, 2))


def _positive(rng: np.random.Generator, n: int) -> Array:
    return rng.uniform(0.3, 3.0, (n, 1))


CASES = (
    ResponseCase(
        "cosine",
        cosine,
        lambda t, x: np.cos(3.0 * t @ x.T),
        np.array([0.4, 0.2]),
        np.diag([0.04, 0.02]),
        2,
        _normal,
    ),
    ResponseCase(
        "emax",
        emax,
        lambda t, x: 3 * t[..., :1] * x[:, 0] / (x[:, 0] + np.exp(t[..., 1:])),
        np.array([0.7, 0.2]),
        np.array([[0.3, 0.1], [0.1, 0.4]]),
        1,
        _positive,
    ),
    ResponseCase(
        "power-law",
        power_law,
        lambda t, x: np.exp(t[..., :1] - t[..., 1:] * np.log(x[:, 0])),
        np.array([0.2, 1.0]),
        np.array([[0.1, 0.05], [0.05, 0.2]]),
        1,
        _positive,
    ),
    ResponseCase(
        "network",
        network,
        lambda t, x: np.sum(t[..., None, 2:] * np.tanh(t[..., None, :2] * x), axis=-1),
        np.array([0.5, -0.3, 1.0, 0.8]),
        0.3 * np.eye(4) + 0.1,
        2,
        _normal,
    ),
)


@dataclasses.dataclass(frozen=True)
class History:
    """Rows of a case."""

    case: ResponseCase
    family: str
    features: Array
    rewards: Array

    @property
    def dispersion(self) -> float:
        return NOISE_STD**2 if self.family == "gaussian" else 1.0

    def evidence(self) -> dp.ResponseEvidence:
        found: Any = self.case.likelihood(self.family).observe(self.features, self.rewards)
        return found

    def eta(self, theta: Array) -> Array:
        """Of every row."""
        return self.case.twin(theta, self.features)

    def log_likelihood(self, theta: Array) -> Array:
        """By the twin, of parameters (..., d)."""
        rows = reference.family_log_density(
            self.rewards, self.eta(theta), self.family, self.dispersion
        )
        return rows.sum(axis=-1)

    def on_a_grid(self) -> tuple[Array, Array, float]:
        """Mean, covariance and log evidence under the Gaussian of the case, in two dimensions."""
        case, half = self.case, 7 * np.sqrt(np.diagonal(self.case.cov))

        def log_density(points: Array) -> Array:
            prior = reference.gaussian_log_density(points, case.mean, case.cov)
            return self.log_likelihood(points) + prior

        return reference.grid_moments_2d(log_density, case.mean - half, case.mean + half, 600)


def history(case: ResponseCase, num_rows: int, family: str, seed: int = 0) -> History:
    """Rows of parameters that are drawn from the Gaussian of the case."""
    rng = np.random.default_rng(seed)
    theta = rng.multivariate_normal(case.mean, case.cov)
    features = representable(case.features(rng, num_rows))
    eta = case.twin(theta, features)
    if family == "gaussian":
        rewards = representable(eta + NOISE_STD * rng.standard_normal(num_rows))
    else:
        rewards = (rng.random(num_rows) < reference.family_mean(eta, family)).astype(float)
    return History(case, family, features, rewards)
