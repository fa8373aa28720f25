"""The contract of a bandit problem: where parameters, actions and rewards come from (Section 5)."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..evidence.base import AbstractLikelihood


class AbstractProblem(eqx.Module):
    """A contextual bandit: theta_* is drawn once per run, an action set per run or per round.

    A problem of one's own names `dim`, `num_actions`, `likelihood` and `fresh_actions`, as class
    attributes, fields or properties, and defines `sample_parameters` and `features`.
    """

    dim: eqx.AbstractVar[int]
    num_actions: eqx.AbstractVar[int]
    likelihood: eqx.AbstractVar[AbstractLikelihood]
    fresh_actions: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def sample_parameters(
        self, key: Key[Array, ""], num_samples: int
    ) -> Float[Array | np.ndarray, "n d"]:
        """`num_samples` draws of theta_* from `key` (n, d), of past tasks or of new ones."""

    @abc.abstractmethod
    def features(self, key: Key[Array, ""]) -> Float[Array, "k d"]:
        """Feature vectors of the actions in one context (k, d), from `key`; used inside compiled
        programs.
        """

    def mean_rewards(
        self, theta: Float[Array, " d"], features: Float[Array, "k d"]
    ) -> Float[Array, " k"]:
        """r(x, a; theta) of every action (k,): the likelihood's mean of phi' theta (Eq. 1), with
        `features` (k, d) and parameters `theta` (d,).
        """
        return jnp.asarray(self.likelihood.mean(features @ theta))

    def rewards(
        self, key: Key[Array, ""], theta: Float[Array, " d"], features: Float[Array, "k d"]
    ) -> Float[Array, " k"]:
        """Rewards of all actions in one round (k,), from common random numbers of the `key`.

        They follow the likelihood, with `features` (k, d) and `theta` (d,); a problem with a
        `mean_rewards` of its own defines this too.
        """
        return jax.vmap(lambda eta: self.likelihood.sample(key, eta))(features @ theta)
