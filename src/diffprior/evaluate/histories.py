"""Histories of tasks whose parameters are known: actions at random, and what they paid."""

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key

from ..evidence.base import AbstractLikelihood
from ..priors.base import AbstractPrior
from ..problems.base import AbstractProblem
from ..problems.synthetic import uniform_in_ball


class RandomActions(AbstractProblem):
    """Parameters from a prior, and every round one action from the unit ball."""

    prior: AbstractPrior
    likelihood: AbstractLikelihood
    dim: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    fresh_actions: bool = eqx.field(static=True)

    def __init__(self, prior: AbstractPrior, likelihood: AbstractLikelihood) -> None:
        self.prior, self.likelihood, self.dim = prior, likelihood, prior.dim
        self.num_actions, self.fresh_actions = 1, True

    def sample_parameters(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Draws from the prior."""
        return self.prior.sample(key, num_samples)

    def features(self, key: Key[Array, ""]) -> Float[Array, "k d"]:
        """One action from the unit ball."""
        return uniform_in_ball(key, self.num_actions, self.dim)


@eqx.filter_jit
def rows_of_tasks(
    problem: AbstractProblem, keys: Key[Array, " n"], thetas: Float[Array, "n d"], num_rows: int
) -> tuple[Float[Array, "n r d"], Float[Array, "n r"]]:
    """Features and rewards of actions chosen at random, `num_rows` for each task."""

    def row(
        key: Key[Array, ""], theta: Float[Array, " d"], actions_key: Key[Array, ""]
    ) -> tuple[Float[Array, " d"], Float[Array, ""]]:
        fresh_key, noise_key, choice_key = jax.random.split(key, 3)
        features = problem.features(fresh_key if problem.fresh_actions else actions_key)
        rewards = problem.rewards(noise_key, theta, features)
        action = jax.random.randint(choice_key, (), 0, problem.num_actions)
        return features[action], rewards[action]

    def task(
        inputs: tuple[Key[Array, ""], Float[Array, " d"]],
    ) -> tuple[Float[Array, "r d"], Float[Array, " r"]]:
        key, theta = inputs
        actions_key, rows_key = jax.random.split(key)
        row_keys = jax.random.split(rows_key, num_rows)
        return jax.vmap(lambda k: row(k, theta, actions_key))(row_keys)

    return jax.lax.map(task, (keys, thetas))
