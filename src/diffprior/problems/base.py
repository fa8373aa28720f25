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
        """Draws of theta_*, of past tasks to learn from or of new ones to act in.

        Args:
            key: Of the random numbers.
            num_samples: How many tasks n.

        Returns:
            Parameters (n, d).
        """

    @abc.abstractmethod
    def features(self, key: Key[Array, ""]) -> Float[Array, "k d"]:
        """Feature vectors of the actions in one context; used inside compiled programs.

        Args:
            key: Of the random numbers.

        Returns:
            One row for each action (k, d).
        """

    def mean_rewards(
        self, theta: Float[Array, " d"], features: Float[Array, "k d"]
    ) -> Float[Array, " k"]:
        """r(x, a; theta) of every action: the likelihood's mean function of phi' theta (Eq. 1).

        Args:
            theta: Parameters (d,).
            features: Of the actions (k, d).

        Returns:
            Expected rewards (k,).
        """
        return jnp.asarray(self.likelihood.mean(features @ theta))

    def rewards(
        self, key: Key[Array, ""], theta: Float[Array, " d"], features: Float[Array, "k d"]
    ) -> Float[Array, " k"]:
        """Rewards of all actions in one round, from common random numbers.

        They follow the likelihood; a problem with a `mean_rewards` of its own defines this too.

        Args:
            key: Of the random numbers.
            theta: Parameters (d,).
            features: Of the actions (k, d).

        Returns:
            Rewards (k,).
        """
        return jax.vmap(lambda eta: self.likelihood.sample(key, eta))(features @ theta)
