"""Problems of simulations: parameters, actions and rewards; one whose actions are rows of data."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import positive_int, real_array
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
    def features(self, key: Key[Array, ""]) -> Float[Array, "k p"]:
        """Feature vectors of the actions in one context (k, p), from `key`; used inside compiled
        programs.
        """

    def mean_rewards(
        self, theta: Float[Array, " d"], features: Float[Array, "k p"]
    ) -> Float[Array, " k"]:
        """r(x, a; theta) of every action (k,): the likelihood's mean of phi' theta (Eq. 1), with
        `features` (k, p) and parameters `theta` (d,).
        """
        return jnp.asarray(self.likelihood.mean(self.likelihood.predictors(theta, features)))

    def rewards(
        self, key: Key[Array, ""], theta: Float[Array, " d"], features: Float[Array, "k p"]
    ) -> Float[Array, " k"]:
        """Rewards of all actions in one round (k,), from common random numbers of the `key`.

        They follow the likelihood, with `features` (k, p) and `theta` (d,); a problem with a
        `mean_rewards` of its own defines this too.
        """
        etas = self.likelihood.predictors(theta, features)
        return jax.vmap(lambda eta: self.likelihood.sample(key, eta))(etas)


class RowProblem(AbstractProblem):
    """theta_* is a random row of `parameters`; every round offers K random rows of `actions`.

    Args:
        parameters: Of tasks (n, d).
        actions: Feature vectors (m, d), or (m, p) of a response to p features.
        likelihood: How rewards arise.
        num_actions: Actions offered each round.
    """

    parameters: Float[Array, "n d"]
    actions: Float[Array, "m p"]
    likelihood: AbstractLikelihood
    dim: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    fresh_actions: bool = eqx.field(static=True)

    def __init__(
        self,
        parameters: ArrayLike,
        actions: ArrayLike,
        likelihood: AbstractLikelihood,
        num_actions: int = 10,
    ) -> None:
        self.parameters = _rows("parameters", parameters, "d")
        self.dim = self.parameters.shape[1]
        self.actions = _rows("actions", actions, likelihood.num_features(self.dim))
        self.likelihood = likelihood
        self.num_actions = positive_int("num_actions", num_actions)
        self.fresh_actions = True
        if self.num_actions > len(self.actions):
            raise ValueError(
                f"`num_actions`: expected at most {len(self.actions)}, the rows of `actions`, got "
                f"{num_actions}; lower it or pass more rows"
            )

    def sample_parameters(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        """Rows of `parameters`, drawn with replacement."""
        shape = (positive_int("num_samples", num_samples),)
        return self.parameters[jax.random.randint(key, shape, 0, len(self.parameters))]

    def features(self, key: Key[Array, ""]) -> Float[Array, "k p"]:
        """Different rows of `actions`."""
        return self.actions[distinct(key, len(self.actions), self.num_actions)]

    def split(
        self, key: Key[Array, ""], held_out: float = 0.2
    ) -> tuple["RowProblem", "RowProblem"]:
        """The same problem with most rows of `parameters`, to learn from, and with the others.

        Args:
            key: Of the split.
            held_out: Share of the tasks to hold out.

        Returns:
            The problem to learn from, and the one to evaluate on.

        Raises:
            ValueError: If no row would be left on one side.
        """
        n = len(self.parameters)
        num_held_out = round(n * held_out)
        if not 0 < num_held_out < n:
            raise ValueError(
                f"`held_out`: expected a fraction that leaves rows on both sides, got {held_out} "
                f"of {n}; pass 0.2 or so"
            )
        order = np.asarray(jax.random.permutation(key, n))
        return self._with(order[num_held_out:]), self._with(order[:num_held_out])

    def _with(self, rows: Int[np.ndarray, " r"]) -> "RowProblem":
        chosen = self.parameters[np.sort(rows)]
        return RowProblem(chosen, self.actions, self.likelihood, self.num_actions)


def distinct(key: Key[Array, ""], num_rows: int, num_chosen: int) -> Int[Array, " k"]:
    """Different row numbers, every set of them equally likely: Floyd's algorithm.

    Its cost does not depend on `num_rows`, unlike that of a permutation.
    """
    last = jnp.arange(num_rows - num_chosen, num_rows)
    picks = jax.random.randint(key, (num_chosen,), 0, last + 1)

    def choose(i: Int[Array, ""], chosen: Int[Array, " k"]) -> Int[Array, " k"]:
        taken = jnp.any(chosen == picks[i])
        return chosen.at[i].set(jnp.where(taken, last[i], picks[i]))

    chosen: Array = jax.lax.fori_loop(0, num_chosen, choose, jnp.full_like(last, -1))
    return chosen


def _rows(name: str, value: ArrayLike, dim: int | str) -> Float[Array, "n d"]:
    """A matrix of at least one row, in the default precision."""
    rows = real_array(name, value, ("n", dim), "pass one row of d numbers for each of them")
    if 0 in rows.shape:
        raise ValueError(f"`{name}`: expected at least one row, got {rows.shape}; pass some")
    return rows.astype(float)
