"""Panels: joint draws of many items, and how they are made.

Where parameters follow a Gaussian mixture, items are conditioned side by side in NumPy and in
double precision, where nothing has to be compiled. Everything else goes through few programs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import default_float
from ..evidence.base import AbstractEvidence
from ..evidence.linear import Linear
from ..samplers.exact import Exact
from ._dispatch import Structure, compiled, partition
from .agents import AbstractAgent, AbstractGaussianAgent, LinUCB, ThompsonSampling, Uniform
from .closed_form import HostMixture
from .decisions import of_residual, padded, pieces, seed_key
from .updates import State

POOL = 2**14  # draws of a learned prior that new items share once there are more of them
BLOCK = 2**10  # draws that are added to the pool at once
STRIDE = 7919
SIZES = (512, 64, 8, 1)  # numbers of items that one program draws for
HOST_SIZES = (128, 32, 8, 1)  # likewise in NumPy, so that their matrices stay in the cache
GROWTH = 1.25


class PanelRows(NamedTuple):
    """Draws of items; and covariances for an agent that asks for them, else of no size."""

    thetas: Float[np.ndarray, "n m d"]
    covs: Float[np.ndarray, "n c c"]

    @property
    def failed(self) -> Bool[np.ndarray, " n"]:
        """Which items have a draw that is not finite."""
        return ~np.isfinite(self.thetas).all(axis=(1, 2))

    def select(self, places: Int[np.ndarray, " k"]) -> "PanelRows":
        """Those of some of the items."""
        return PanelRows(self.thetas[places], self.covs[places])


class Panel:
    """Joint draws of all active items, an array for each draw, which decisions read as a whole."""

    def __init__(self, empty: PanelRows) -> None:
        self.size = 0
        _, num_draws, dim = empty.thetas.shape
        self.draws = [np.empty((0, dim), default_float()) for _ in range(num_draws)]
        self.covs = np.empty((0, *empty.covs.shape[1:]), default_float())

    def reserve(self, count: int) -> None:
        """Make room for so many rows more; one array at a time, to spare memory."""
        size = self.size + count
        if size > len(self.covs):
            room = max(size, int(GROWTH * len(self.covs)))
            for index, draw in enumerate(self.draws):
                self.draws[index] = _enlarged(draw, room)
            self.covs = _enlarged(self.covs, room)

    def append(self, rows: PanelRows) -> None:
        """Add rows, for which there is room."""
        first, self.size = self.size, self.size + len(rows.thetas)
        self.write(np.arange(first, self.size), rows)

    def write(self, places: Int[np.ndarray, " n"], rows: PanelRows) -> None:
        """Replace rows."""
        for member, draw in enumerate(self.draws):
            draw[places] = rows.thetas[:, member]
        self.covs[places] = rows.covs

    def drop(self, row: int) -> None:
        """Remove a row; the last one takes its place."""
        self.size -= 1
        for array in (*self.draws, self.covs):
            array[row] = array[self.size]


def _enlarged(array: np.ndarray, room: int) -> np.ndarray:
    larger = np.empty((room, *array.shape[1:]), array.dtype)
    larger[: len(array)] = array
    return larger


class PriorPool:
    """Draws of the prior for new items, from a pool that is gone through again in other orders."""

    def __init__(
        self,
        sample: Callable[[Key[Array, ""], int], ArrayLike],
        key: Key[Array, ""],
        num_draws: int,
    ) -> None:
        self._sample, self._num_draws = sample, num_draws
        self._key = jax.random.key_data(key)
        self._pool: list[np.ndarray] = []

    def __call__(self, numbers: Int[np.ndarray, " n"]) -> Float[np.ndarray, "n m d"]:
        """Draws (n, m, d) of items of these numbers."""
        taken = numbers[:, None] * self._num_draws + np.arange(self._num_draws)
        epoch, place = np.divmod(taken, POOL)
        which = (place * (2 * STRIDE * epoch + 1) + epoch) % POOL
        while len(self._pool) * BLOCK <= which.max():
            key = jax.random.fold_in(jax.random.wrap_key_data(self._key), len(self._pool))
            self._pool.append(np.asarray(self._sample(key, BLOCK)))
        return np.concatenate(self._pool)[which]


class PanelDraws:
    """Rows of a panel: joint draws of Thompson sampling, or what another agent maximizes."""

    def __init__(self, agent: AbstractAgent, seed: int, num_draws: int, dim: int) -> None:
        self._agent, self._num_draws, self._dim, self._seed = agent, num_draws, dim, seed
        self._leaves, self._structure = partition(agent)
        self._key = jax.random.key_data(seed_key(seed))
        linear = isinstance(agent.likelihood, Linear)
        self.mixture = HostMixture.of(agent) if linear else None
        self._width = dim if isinstance(agent, LinUCB) else 0  # of covariances
        if isinstance(agent, Uniform):
            self._num_draws = 0
        elif isinstance(agent, AbstractGaussianAgent):
            self._num_draws = 1
        self._pool = PriorPool(self._prior_draws, seed_key(seed), self._num_draws)

    def empty(self, count: int = 0) -> PanelRows:
        """Rows with nothing in them yet."""
        thetas = np.empty((count, self._num_draws, self._dim), default_float())
        return PanelRows(thetas, np.empty((count, self._width, self._width), default_float()))

    def __call__(
        self,
        states: Sequence[State | None],
        words: Int[np.ndarray, "n 2"],
        conditions: Float[np.ndarray, "n e"] | None = None,
    ) -> PanelRows:
        """Rows for items that have shown this; not finite where a draw failed.

        `words` tell the random numbers of one item, and of one time that it is drawn, from others;
        the prior of an item is that of its condition (see `ConditionalPrior.conditions`).
        """
        found = self.empty(len(states))
        groups: dict[Any, list[int]] = {}
        kind = state_kind if self.mixture is None else type
        for place, state in enumerate(states if self._num_draws else ()):
            groups.setdefault(None if state is None else kind(state), []).append(place)
        sizes = SIZES if self.mixture is None else HOST_SIZES
        for about, places in groups.items():
            for start, size in pieces(len(places), sizes):
                some = np.array(places[start : start + size])
                given = [] if about is None else [state for i in some if (state := states[i])]
                by = None if conditions is None else conditions[some]
                found.thetas[some], covs = self._rows(given, words[some], by)
                found.covs[some] = covs[:, : self._width, : self._width]
        return found

    def _rows(
        self,
        states: Sequence[State],
        words: Int[np.ndarray, "n 2"],
        conditions: Float[np.ndarray, "n e"] | None,
    ) -> tuple[Float[np.ndarray, "n m d"], Float[np.ndarray, "n c c"]]:
        """As of a call, for new items if there are no states, else for states of one kind."""
        agent, count = self._agent, len(words)
        none = np.zeros((count, 0, 0))
        if self.mixture is not None:
            return self.mixture.draws(states, words, self._num_draws, self._seed, conditions), none
        if not states and isinstance(agent, AbstractGaussianAgent):
            moments = agent.prior.moments()
            mean, cov = np.asarray(moments.mean), np.asarray(moments.cov)
            return np.tile(mean, (count, 1, 1)), np.tile(cov, (count, 1, 1))
        if not states and conditions is not None and len(conditions[0]) > self._dim:
            states = [State.of(agent.likelihood.empty(self._dim, 0), None)] * count
        if not states:
            drawn = self._pool(words[:, 0] + (words[:, 1] - 1) * STRIDE)
            return (drawn if conditions is None else drawn + conditions[:, None]), none
        return self._programmed(states, words, conditions)

    def _programmed(
        self,
        states: Sequence[State],
        words: Int[np.ndarray, "n 2"],
        conditions: Float[np.ndarray, "n e"] | None,
        posterior: int | None = None,
    ) -> tuple[Float[np.ndarray, "n m d"], Float[np.ndarray, "n c c"]]:
        """Joint draws and covariances by a compiled program, or so many draws from a posterior."""
        count = len(words)
        size = next(size for size in reversed(SIZES) if size >= count)
        own = np.zeros((size, 2), np.uint32)
        own[:count] = words
        about = (self._structure, states[0].structure, posterior or self._num_draws)
        program = compiled(_program, *about, posterior is None)
        leaves = side_by_side(states, size)
        by = None if conditions is None else padded(conditions, size)
        thetas, covs = program(self._leaves, self._key, leaves, own, by)
        return np.asarray(thetas)[:count], np.asarray(covs)[:count]

    def posterior(
        self,
        state: State | None,
        num_draws: int,
        seed: int,
        condition: Float[np.ndarray, " e"] | None = None,
    ) -> Float[np.ndarray, "n d"]:
        """Draws from the posterior of one item; NaN where they failed."""
        if state is None:
            state = State.of(self._agent.likelihood.empty(self._dim, 0), None)
        words, by = np.zeros((1, 2), np.int64), None if condition is None else condition[None]
        if self.mixture is not None:
            return self.mixture.draws([state], words, num_draws, seed, by)[0]
        own = PanelDraws(self._agent, seed, num_draws, self._dim)
        return own._programmed([state], words, by, num_draws)[0][0]

    def _prior_draws(self, key: Key[Array, ""], count: int) -> Any:
        assert isinstance(self._agent, ThompsonSampling)
        if isinstance(self._agent.sampler, Exact):
            return self._agent.sampler.prior.sample(key, count)
        empty = self._agent.likelihood.empty(self._dim)
        return self._agent.sampler.sample_many(key, empty, count, throw=False)[0]


def state_kind(state: State) -> tuple[object, ...]:
    """States of a kind can be stacked."""
    return (state.structure, *(np.shape(leaf) for leaf in state.leaves))


def side_by_side(states: Sequence[State], size: int) -> list[np.ndarray]:
    """Leaves of states with a leading axis, the last state repeated up to `size`."""
    columns = zip(*(state.leaves for state in states), strict=True)
    missing = size - len(states)
    return [np.stack([*map(np.asarray, c), *[np.asarray(c[-1])] * missing]) for c in columns]


def _program(
    agent_structure: Structure[AbstractAgent],
    evidence_structure: Structure[AbstractEvidence],
    num_draws: int,
    joint: bool,
) -> Callable[..., tuple[Array, Array]]:
    """Draws (n, m, d) of items, NaN where they failed, and covariances: those of a Gaussian agent
    with its mean in place of draws, where they are `joint` ones for a panel.
    """

    def one(
        agent: AbstractAgent, key: Array, leaves: list[Array], words: Array, condition: Array | None
    ) -> Any:
        evidence = evidence_structure.combine(leaves)
        if joint and isinstance(agent, AbstractGaussianAgent):
            posterior, failed = agent.posterior(evidence)
            return jnp.where(failed, jnp.nan, posterior.mean)[None], posterior.cov
        if joint:
            key = jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])
        agent, evidence, offset = of_residual(agent, evidence, condition)

        def draw(key: Array) -> Array:
            theta, failed = agent.draw(key, evidence)
            return jnp.where(failed, jnp.nan, theta)

        thetas = jax.lax.map(draw, jax.random.split(key, num_draws), batch_size=SIZES[0])
        return thetas if condition is None else thetas + offset[None], jnp.zeros((0, 0))

    @jax.jit
    def panel(
        agent_leaves: list[Array],
        key_data: Array,
        leaves: list[Array],
        words: Array,
        conditions: Array | None,
    ) -> Any:
        agent, key = agent_structure.combine(agent_leaves), jax.random.wrap_key_data(key_data)
        return jax.vmap(functools.partial(one, agent, key))(leaves, words, conditions)

    return panel
