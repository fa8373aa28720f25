"""Rewards taken into evidence: all of them or none, in few compiled programs."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..checks import on_device, positive_int, real_numbers
from ..evidence.base import AbstractEvidence
from ..evidence.glm import GLMEvidence
from ..gaussian import Gaussian
from ..partition import Structure, partition
from .host import Layout, Learn, layout_of, learning_on_host
from .requests import dimensions

MIN_ROWS = 128  # fewer are too few for a Gaussian term to be accurate
LARGE = 1e3  # prior standard deviations, or standard deviations of the noise
MAX_PROGRAMS = 64  # kept at once
NUM_ORDINARY, ORDINARY_ROWS = 4, 16  # observations that must still be welcome after extreme ones


class Observations:
    """Checked features (n, d) and rewards (n,)."""

    def __init__(self, phi: Any, reward: Any, dim: int, dtype: np.dtype) -> None:
        axes = (dim,) if dimensions("phi", phi) < 2 else ("n", dim)
        phi = real_numbers("phi", phi, axes, f"{dim} numbers for each reward")
        reward = real_numbers("reward", reward, phi.shape[:-1], "one reward for each row of `phi`")
        self.features = np.asarray(phi, dtype).reshape(-1, dim)
        self.rewards = np.asarray(reward, dtype).reshape(-1)

    def __len__(self) -> int:
        return len(self.rewards)

    def largest(self, stds: Float[np.ndarray, " d"]) -> float:
        """The largest reward, or change of a mean by a prior standard deviation."""
        if not len(self):
            return 0.0
        with np.errstate(over="ignore"):
            spread = (np.abs(self.features) @ stds).max()
        return max(float(spread), float(self.rewards.max()), -float(self.rewards.min()))

    def __str__(self) -> str:
        """How large they are."""
        features, rewards = (np.max(np.abs(a), initial=0) for a in (self.features, self.rewards))
        return f"features up to {features:.3g} and rewards up to {rewards:.3g}"


def ordinary(stds: Float[np.ndarray, " d"], dtype: np.dtype) -> Iterator[Observations]:
    """Observations as any task may show them: features of the prior's units, rewards of 0 and 1."""
    scales = 1.0 / np.where(stds > 0, stds, 1.0)
    for seed in range(NUM_ORDINARY):
        features = np.random.default_rng(seed).standard_normal((ORDINARY_ROWS, len(stds)))
        rewards = np.arange(ORDINARY_ROWS) % 2
        yield Observations(features * scales, rewards, len(stds), dtype)


class State(NamedTuple):
    """Evidence, partitioned, so that neither decisions nor updates walk through it; how many rows
    can be added before it has to be made smaller, None if any number can; the moment that it has
    faded to, where it does; and if it is kept on the host, how it learns and is laid out there."""

    leaves: list[Any]
    structure: Structure
    room: int | None
    moment: float = 0.0
    learn: Learn | None = None
    layout: Layout | None = None

    @staticmethod
    def of(
        evidence: AbstractEvidence, max_rows: int | None, like: "State | None" = None
    ) -> "State":
        """The state that holds this evidence; `like` is one that may have the same structure."""
        evidence = evidence.with_capacity(max_rows or 0)
        leaves, structure = partition(evidence)
        if like is not None and like.structure == structure:
            structure = like.structure  # the same object is found faster
        moment = 0.0 if like is None else like.moment
        room = None
        if isinstance(evidence, GLMEvidence):
            room = (max_rows or evidence.capacity) - int(evidence.num_rows)
        learn = learning_on_host(evidence)
        if learn is None:
            return State(leaves, structure, room, moment)
        state = State(leaves, structure, room, moment, learn, layout_of(leaves))
        return state.with_leaves(leaves)

    def with_leaves(self, leaves: Sequence[Any]) -> "State":
        """The state with other numbers, on the host if it is."""
        if self.learn is None:
            return self._replace(leaves=list(leaves))
        return self._replace(leaves=[np.asarray(leaf) for leaf in leaves])

    @property
    def evidence(self) -> AbstractEvidence:
        """The evidence as one object."""
        return self.structure.combine([on_device(leaf) for leaf in self.leaves])

    def add(self, new: Observations, max_rows: int | None, moments: Gaussian) -> "State":
        """The state with these observations, in at most `max_rows` rows."""
        state = self
        for piece in _binary_pieces(len(new), max_rows // 2 if max_rows else len(new)):
            length = piece.stop - piece.start
            if state.room is not None and state.room < length:
                state = state._with_room(length, max_rows, moments)
            learn = state.learn or update_program(state.structure, length)
            leaves = learn(state.leaves, new.features[piece], new.rewards[piece])
            left = None if state.room is None else state.room - length
            state = state._replace(leaves=leaves, room=left)
        return state

    def _with_room(self, length: int, max_rows: int | None, moments: Gaussian) -> "State":
        """The state with room for `length` rows: more of it, or rows merged and folded."""
        evidence = self.evidence
        if max_rows is not None:
            return State.of(evidence.bounded(max_rows - length, moments), max_rows, like=self)
        used = evidence.num_rows if isinstance(evidence, GLMEvidence) else 0
        return State.of(evidence.with_capacity(int(used) + length), None, like=self)

    def rehearse(self, max_rows: int | None, moments: Gaussian) -> None:
        """Compile what updates need, by learning from made-up rows and forgetting them."""
        dim, dtype = moments.mean.shape[0], np.dtype(moments.mean.dtype)
        one = Observations(np.ones(dim), 0.0, dim, dtype)
        self.add(one, max_rows, moments)
        if max_rows is not None and self.room:
            features = np.random.default_rng(0).standard_normal((self.room, dim))
            rows = (features, np.zeros(self.room), np.ones(self.room))
            full = State.of(self.evidence.add(*map(on_device, rows)), max_rows, like=self)
            full.add(one, max_rows, moments)


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def update_program(structure: Structure, length: int) -> Callable[..., list[Any]]:
    """Adds that many observations to the arrays of evidence of this structure."""

    @jax.jit
    def add(
        leaves: list[Any], features: Float[Array, "n d"], rewards: Float[Array, " n"]
    ) -> list[Any]:
        evidence: AbstractEvidence = structure.combine(leaves)
        return partition(evidence.put(features, rewards, jnp.ones_like(rewards)))[0]

    return add


def checked_max_rows(max_rows: Any) -> int | None:
    """`max_rows` as None or an integer that is large enough."""
    if max_rows is None:
        return None
    max_rows = positive_int("max_rows", max_rows)
    if max_rows < MIN_ROWS:
        raise ValueError(
            f"`max_rows`: expected at least {MIN_ROWS}, got {max_rows}; older rows are approximated"
            " by a Gaussian term, which needs that many to be accurate; None keeps all"
        )
    return max_rows


def _binary_pieces(n: int, at_most: int) -> Iterator[slice]:
    """Slices of lengths 2^i that make up n, so that few programs serve batches of all sizes."""
    start = 0
    while start < n:
        length = 1 << (min(n - start, at_most).bit_length() - 1)
        yield slice(start, start + length)
        start += length
