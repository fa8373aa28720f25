"""What a problem holds ready for every run and round, whatever the agents do."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from ..checks import real_array
from ..problems.base import AbstractProblem
from .streams import decision_key, stream_keys

PARAMETERS = 2**31 - 1  # the run whose stream the parameters of the first block are drawn from
BLOCK = 64  # runs whose parameters are drawn together, so that fewer runs are the first of more


class Rounds(NamedTuple):
    """Keys of decisions; features, mean rewards and rewards of all actions.

    Leading axes are runs and rounds.
    """

    keys: Key[Array, "*n"]

    features: Float[Array, "*n k d"]
    means: Float[Array, "*n k"]
    rewards: Float[Array, "*n k"]


class Environment(eqx.Module):
    """The runs of a simulation: the problem, its parameters and the streams of randomness."""

    problem: AbstractProblem
    theta: Float[Array, "r d"]
    actions: Key[Array, " r"]
    noise: Key[Array, " r"]
    decisions: Key[Array, " r"]

    @staticmethod
    def of(problem: AbstractProblem, runs: range, seed: int) -> "Environment":
        """Draw the parameters of some runs."""
        numbers = jnp.arange(runs.start, runs.stop)
        streams = jax.vmap(lambda run: stream_keys(seed, run))(numbers)
        actions, noise = jax.vmap(jax.random.split, out_axes=1)(streams.environment)
        first = runs.start // BLOCK
        blocks = [_parameters(problem, seed, b) for b in range(first, -(-runs.stop // BLOCK))]
        theta = jnp.concatenate(blocks)[runs.start - first * BLOCK : runs.stop - first * BLOCK]
        return Environment(problem, theta, actions, noise, streams.decisions)

    def rounds(self, numbers: Int[Array, " n"]) -> Rounds:
        """The rounds of these numbers, of every run; checked."""
        self._check_features()
        features, means, rewards, finite = _realize(self, numbers)
        if not finite:
            raise ValueError(
                "`problem`: expected finite features and rewards, got NaN or infinity; "
                "check `features`, `mean_rewards` and `rewards` of the problem"
            )
        return Rounds(_decision_keys(self.decisions, numbers), features, means, rewards)

    def _check_features(self) -> None:
        expected = (self.problem.num_actions, self.problem.dim)
        got = jax.eval_shape(self.problem.features, self.actions[0]).shape
        if got != expected:
            raise ValueError(
                f"`features`: expected shape (num_actions, dim) = {expected}, got {got}; "
                "return one row of `dim` numbers for each action"
            )


def _parameters(problem: AbstractProblem, seed: int, block: int) -> Float[Array, "b d"]:
    """Parameters of a block of runs."""
    return real_array(
        "sample_parameters",
        problem.sample_parameters(stream_keys(seed, PARAMETERS - block).environment, BLOCK),
        (BLOCK, problem.dim),
        "return one row of `dim` numbers for each sample",
    )


@eqx.filter_jit
def _realize(
    environment: Environment, numbers: Int[Array, " n"]
) -> tuple[Array, Array, Array, Array]:
    """Features, means and rewards of every run and round, and whether all are finite."""
    problem = environment.problem

    def one(theta: Array, actions: Array, noise: Array, number: Array) -> tuple[Array, ...]:
        key = jax.random.fold_in(actions, number) if problem.fresh_actions else actions
        features = problem.features(key)
        means = problem.mean_rewards(theta, features)
        return features, means, problem.rewards(jax.random.fold_in(noise, number), theta, features)

    over_rounds = jax.vmap(one, in_axes=(None, None, None, 0))
    over_runs = jax.vmap(over_rounds, in_axes=(0, 0, 0, None))
    features, means, rewards = over_runs(
        environment.theta, environment.actions, environment.noise, numbers
    )
    finite = jnp.all(jnp.isfinite(features)) & jnp.all(jnp.isfinite(means + rewards))
    return features, means, rewards, finite


@eqx.filter_jit
def _decision_keys(streams: Key[Array, " r"], numbers: Int[Array, " n"]) -> Key[Array, "r n"]:
    over_rounds = jax.vmap(decision_key, in_axes=(None, 0))
    return jax.vmap(over_rounds, in_axes=(0, None))(streams, numbers)
