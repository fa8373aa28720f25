"""Problems of choosing among items that each have parameters of their own."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..checks import positive_int
from ..evidence.base import AbstractLikelihood
from ..priors.base import AbstractPrior
from .synthetic import uniform_in_ball


class ItemProblem(eqx.Module):
    """In every round a context arrives, one item is shown, and its reward is seen.

    Args:
        prior: What the parameters of items are drawn from.
        likelihood: How rewards arise from context'theta.
        num_items: Items that can be chosen at any time.
        turnover: Share of them that is replaced in each round by new ones, on average.

    Raises:
        ValueError: An argument is not what is said above.
    """

    prior: AbstractPrior
    likelihood: AbstractLikelihood
    num_items: int = eqx.field(static=True)
    turnover: float = eqx.field(static=True)

    def __init__(
        self,
        prior: AbstractPrior,
        likelihood: AbstractLikelihood,
        *,
        num_items: int = 100,
        turnover: float = 0.0,
    ) -> None:
        self.prior, self.likelihood = prior, likelihood
        self.num_items, self.turnover = positive_int("num_items", num_items), float(turnover)
        if not 0 <= self.turnover <= 1:
            raise ValueError(f"`turnover`: expected a share from 0 to 1, got {turnover}; try 0.01")

    @property
    def dim(self) -> int:
        """Number of parameters d of an item."""
        return self.prior.dim

    def sample_parameters(self, key: Key[Array, ""], num_items: int) -> Float[Array, "n d"]:
        """Parameters of items, of past ones to learn from or of new ones.

        Args:
            key: Of the random numbers.
            num_items: How many.

        Returns:
            Parameters (n, d).
        """
        return self.prior.sample(key, num_items)

    def contexts(self, key: Key[Array, ""], num_rounds: int) -> Float[Array, "n d"]:
        """Contexts, uniform in the unit ball.

        Args:
            key: Of the random numbers.
            num_rounds: How many.

        Returns:
            One for each round (n, d).
        """
        return uniform_in_ball(key, num_rounds, self.dim)


class ItemRun:
    """One run of a problem, the same for all agents."""

    def __init__(self, problem: ItemProblem, key: Key[Array, ""], num_rounds: int) -> None:
        parameters, contexts, self.rewards_key, arrivals = jax.random.split(key, 4)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(arrivals)))
        counts = rng.binomial(problem.num_items, problem.turnover, num_rounds)
        counts[0] = 0
        self.likelihood = problem.likelihood
        self.thetas = np.asarray(
            problem.sample_parameters(parameters, problem.num_items + int(counts.sum()))
        )
        self.contexts = np.asarray(problem.contexts(contexts, num_rounds))
        self.arrivals: list[Int[np.ndarray, " a"]] = []
        self.departures: list[Int[np.ndarray, " a"]] = []
        active, added = np.arange(problem.num_items), problem.num_items
        for count in counts:
            places = rng.choice(problem.num_items, count, replace=False)
            new = np.arange(added, added + count)
            self.departures.append(active[places].copy())
            self.arrivals.append(new)
            active[places], added = new, added + int(count)

    def mean_rewards(self, round_: int, items: Int[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """Expected rewards of items in a round."""
        eta = self.thetas[items] @ self.contexts[round_]
        return np.asarray(self.likelihood.mean(jnp.asarray(eta)))

    def reward(self, round_: int, item: int) -> float:
        """The reward of an item in a round, from random numbers that all items share."""
        eta = jnp.asarray(self.thetas[item] @ self.contexts[round_])
        return float(_sample(self.likelihood, self.rewards_key, jnp.int32(round_), eta))


@eqx.filter_jit
def _sample(
    likelihood: AbstractLikelihood, key: Key[Array, ""], round_: Int[Array, ""], eta: Array
) -> Array:
    return likelihood.sample(jax.random.fold_in(key, round_), eta)
