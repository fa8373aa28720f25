"""Samplers and problems that bandit tests share."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import diffprior as dp
from diffprior.problems.base import AbstractProblem
from diffprior.problems.synthetic import uniform_in_ball

STANDARD = (np.zeros(2), np.eye(2))


def standard_prior() -> dp.GaussianPrior:
    """N(0, I) in two dimensions."""
    return dp.GaussianPrior(*STANDARD)


class Tally:
    """How often a sampler was traced, so how often a program was made with it."""

    def __init__(self) -> None:
        self.count = 0


class Counting(dp.AbstractSampler):
    """Exact sampling that counts its traces."""

    prior: dp.GaussianPrior
    temperature: float = eqx.field(static=True)
    exact: dp.Exact
    tally: Tally = eqx.field(static=True)

    def __init__(self) -> None:
        self.prior, self.temperature = standard_prior(), 1.0
        self.exact, self.tally = dp.Exact(self.prior), Tally()

    def draw(self, key: jax.Array, evidence: dp.AbstractEvidence) -> tuple[jax.Array, dp.Info]:
        self.tally.count += 1
        return self.exact.draw(key, evidence)


class FailingLater(dp.AbstractSampler):
    """Exact sampling that turns to NaN once a linear task has `limit` observations."""

    prior: dp.GaussianPrior
    temperature: float = eqx.field(static=True)
    exact: dp.Exact
    limit: int = eqx.field(static=True)

    def __init__(self, limit: int) -> None:
        self.prior, self.temperature = standard_prior(), 1.0
        self.exact, self.limit = dp.Exact(self.prior), limit

    def draw(self, key: jax.Array, evidence: dp.LinearEvidence) -> tuple[jax.Array, dp.Info]:
        theta, _ = self.exact.draw(key, evidence)
        theta = jnp.where(evidence.count >= self.limit, jnp.nan, theta)
        return theta, dp.Info.of(theta)


class Ball(AbstractProblem):
    """A small problem: theta ~ N(0, I), actions in the unit ball."""

    likelihood: dp.AbstractLikelihood
    fresh_actions: bool = eqx.field(static=True)
    dim: int = eqx.field(static=True, default=2)
    num_actions: int = eqx.field(static=True, default=8)

    def sample_parameters(self, key: jax.Array, num_samples: int) -> jax.Array:
        return jax.random.normal(key, (num_samples, self.dim))

    def features(self, key: jax.Array) -> jax.Array:
        return uniform_in_ball(key, self.num_actions, self.dim)
