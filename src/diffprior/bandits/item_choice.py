"""Choices among items, by the joint draws of a panel."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..evidence.response import NamedFunction
from .agents import AbstractAgent, EpsilonGreedy, LinUCB, ThompsonSampling, Uniform
from .decisions import best_first, propensity
from .panel import Panel

Name = str | int
Chosen = Name | list[Name] | list[list[Name]]
Numbers = float | Float[np.ndarray, "..."]


class ItemChoice:
    """The item to show; with `top_k` above 1 the items, best first; for a batch, a list of them.

    Attributes:
        item: Name, or names.
        score: Mean reward of each under the draw that decided.
    """

    def __init__(
        self, item: Chosen, score: Numbers, propensity: Callable[[], tuple[Numbers, Numbers]]
    ) -> None:
        self.item, self.score, self._compute = item, score, propensity

    @functools.cached_property
    def _share(self) -> tuple[Numbers, Numbers]:
        return self._compute()

    @property
    def propensity(self) -> Numbers:
        """Probability that the same evidence leads to this choice (has the item among its top k).

        It is computed when first read, which must be before the items change.
        """
        return self._share[0]

    @property
    def propensity_se(self) -> Numbers:
        """Standard error of `propensity`; 0 where it is exact."""
        return self._share[1]

    def __repr__(self) -> str:
        return f"ItemChoice(item={self.item!r}, score={self.score!r})"


class View(NamedTuple):
    """The panel as one choice sees it: candidates (all rows if None), and those excluded."""

    panel: Panel
    rows: Int[np.ndarray, " k"] | None
    excluded: Int[np.ndarray, " e"]
    top_k: int
    number: int
    seed: int
    response: NamedFunction | None = None  # where eta is not linear in the parameters

    @property
    def num_candidates(self) -> int:
        """Number of candidates."""
        return self.panel.size if self.rows is None else len(self.rows)

    def values(
        self, agent: AbstractAgent, place: int, x: Float[np.ndarray, "r d"]
    ) -> Float[np.ndarray, " k"]:
        """Values that a decision maximizes; minus infinity where excluded."""
        number = self.number + place
        if isinstance(agent, ThompsonSampling):
            return self._linear(number % len(self.panel.draws), x)
        rng = np.random.default_rng((self.seed, number))
        if isinstance(agent, Uniform) or (
            isinstance(agent, EpsilonGreedy) and rng.random() < float(agent.epsilon)
        ):
            return self._barred(rng.random(self.num_candidates).astype(x.dtype))
        values = self._linear(0, x)
        if isinstance(agent, LinUCB):
            covs = self._chosen(self.panel.covs)
            phi = np.broadcast_to(x, (self.num_candidates, x.shape[1]))
            variances = np.matmul(np.matmul(covs, phi[:, :, None])[:, None, :, 0], phi[:, :, None])
            values = values + float(agent.width) * np.sqrt(np.maximum(variances[:, 0, 0], 0.0))
        return values

    def shares(
        self,
        agent: AbstractAgent,
        place: int,
        x: Float[np.ndarray, "r d"],
        chosen: Int[np.ndarray, " top_k"],
    ) -> tuple[Float[np.ndarray, " top_k"], Float[np.ndarray, " top_k"]]:
        """Propensities of a decision's choices, and their standard errors."""
        if isinstance(agent, ThompsonSampling):
            num_draws = len(self.panel.draws)
            hits = np.zeros(self.num_candidates, np.int64)
            for member in set(range(num_draws)) - {(self.number + place) % num_draws}:
                hits[best_first(self._linear(member, x)[None], self.top_k)[0]] += 1
            return hits[chosen] / (num_draws - 1), propensity(hits[chosen], num_draws - 1)[1]
        epsilon, greedy = 0.0, np.ones(len(chosen))
        if isinstance(agent, Uniform):
            epsilon = 1.0
        elif isinstance(agent, EpsilonGreedy):
            epsilon = float(agent.epsilon)
            best = best_first(self._linear(0, x)[None], self.top_k)[0]
            greedy = np.isin(chosen, best).astype(float)
        at_random = self.top_k / (self.num_candidates - len(self.excluded))
        return epsilon * at_random + (1 - epsilon) * greedy, np.zeros(len(chosen))

    def _chosen(self, array: np.ndarray) -> np.ndarray:
        return array[: self.panel.size] if self.rows is None else array[self.rows]

    def _linear(self, member: int, x: Float[np.ndarray, "r d"]) -> Float[np.ndarray, " k"]:
        theta = self._chosen(self.panel.draws[member])
        if self.response is not None:
            values = self.response.paired(theta, x).copy()
        else:
            values = theta @ x[0] if len(x) == 1 else np.einsum("kd,kd->k", theta, x)
        return self._barred(values)

    def _barred(self, values: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        if len(self.excluded):
            values[self.excluded] = -np.inf
        return values
