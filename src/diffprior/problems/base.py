"""The contract of a bandit problem: where parameters, actions and rewards come from (Section 5)."""

import abc
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from ..evidence.base import AbstractLikelihood
from ..evidence.families import Identity, Logistic, Poisson
from ..evidence.linear import Linear


class AbstractProblem(eqx.Module):
    """A contextual bandit: theta_* is drawn once a run, an action set once a run or every round.

    A problem of one's own names `dim`, `num_actions`, `likelihood` and `fresh_actions`, as class
    attributes, fields or properties, and defines `sample_parameters` and `features`.
    """

    dim: eqx.AbstractVar[int]
    num_actions: eqx.AbstractVar[int]
    likelihood: eqx.AbstractVar[AbstractLikelihood]
    fresh_actions: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def sample_parameters(self, key: Key[Array, ""], num_samples: int) -> Float[Any, "n d"]:
        """Draws of theta_*, of past tasks to learn from or of new ones to act in."""

    @abc.abstractmethod
    def features(self, key: Key[Array, ""]) -> Float[Array, "k d"]:
        """Feature vectors of the actions in one context; used inside compiled programs."""

    def mean_rewards(
        self, theta: Float[Array, " d"], features: Float[Array, "k d"]
    ) -> Float[Array, " k"]:
        """r(x, a; theta) of every action: the likelihood's mean function of phi' theta (Eq. 1)."""
        return self.likelihood.mean(features @ theta)

    def rewards(self, key: Key[Array, ""], means: Float[Array, " k"]) -> Float[Array, " k"]:
        """What each action would have paid this round: common random numbers for all of them."""
        return sample_rewards(self.likelihood, key, means)


@functools.singledispatch
def sample_rewards(
    likelihood: AbstractLikelihood, key: Key[Array, ""], means: Float[Array, " k"]
) -> Float[Array, " k"]:
    """Rewards with these means, all functions of the same random numbers."""
    name = type(likelihood).__name__
    raise ValueError(
        f"`likelihood`: expected one whose rewards can be drawn, got {name}; "
        "define `rewards(self, key, means)` in the problem"
    )


@sample_rewards.register(Linear)
@sample_rewards.register(Identity)
def _gaussian(likelihood: Linear | Identity, key: Key[Array, ""], means: Array) -> Array:
    return means + likelihood.noise_std * jax.random.normal(key, (), means.dtype)


@sample_rewards.register(Logistic)
def _bernoulli(likelihood: Logistic, key: Key[Array, ""], means: Array) -> Array:
    return (jax.random.uniform(key, (), means.dtype) < means).astype(means.dtype)


@sample_rewards.register(Poisson)
def _poisson(likelihood: Poisson, key: Key[Array, ""], means: Array) -> Array:
    counts = jax.vmap(lambda mean: jax.random.poisson(key, mean))(means)
    return jnp.asarray(counts, means.dtype)
