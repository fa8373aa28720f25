"""Batches of decisions: what comes in, the programs behind them, and what goes out."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from ..checks import positive_int, real_numbers
from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from .agents import AbstractAgent, decision_key

NUMBERS_AT_ONCE = 2**22  # index values held while propensities are estimated


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do. For a batch of decisions every entry has a leading axis.

    `action` is a row of `features`, or with `top_k` that many, best first. `scores` are the mean
    rewards of all actions under the draw that decided. `propensity` estimates how often the same
    policy with the same evidence chooses the action (has it among its top k), from draws that are
    independent of the decision. `failed` says that the draw failed and the action is random.
    """

    action: Any
    scores: Float[np.ndarray, "*b k"]
    propensity: Any
    propensity_se: Any
    failed: Any


class Request:
    """Checked features (B, K, d), allowed actions (B, K) and how many to choose."""

    def __init__(self, features: Any, mask: Any, top_k: int | None, dim: int) -> None:
        self.single = dimensions("features", features) < 3
        self.ranked = top_k is not None
        axes = ("K", dim) if self.single else ("B", "K", dim)
        fix = f"one row of {dim} numbers for each action, and a first axis for a batch"
        checked = real_numbers("features", features, axes, fix)
        self.features = np.asarray(checked)[None] if self.single else np.asarray(checked)
        if 0 in self.features.shape:
            raise ValueError(f"`features`: expected an action, got shape {checked.shape}; {fix}")
        self.mask = self._checked_mask(mask)
        self.top_k = 1 if top_k is None else self._checked_top_k(top_k)

    @property
    def size(self) -> int:
        """Number of decisions B."""
        return len(self.features)

    def reply(self, array: Any) -> Any:
        """A result (B, top_k) without the axes that the request did not have."""
        array = np.asarray(array)
        array = array if self.ranked else array[:, 0]
        return self.reply_each(array)

    def reply_each(self, array: Any) -> Any:
        """A result (B, ...) without the first axis if the request had none."""
        array = np.asarray(array)
        array = array[0] if self.single else array
        return array.item() if array.ndim == 0 else array

    def _checked_mask(self, mask: Any) -> Bool[np.ndarray, "b k"]:
        shape = self.features.shape[:2]
        if mask is None:
            return np.ones(shape, bool)
        allowed = np.asarray(mask)
        expected = shape[1:] if self.single or allowed.ndim == 1 else shape
        if allowed.dtype != bool or allowed.shape != expected:
            raise ValueError(
                f"`mask`: expected booleans of shape {expected}, got {allowed.dtype} of shape "
                f"{allowed.shape}; true for each row of `features` that is allowed"
            )
        if not np.all(np.any(allowed, axis=-1)):
            raise ValueError("`mask`: expected at least one allowed action, got none; allow one")
        return np.array(np.broadcast_to(allowed, shape))

    def _checked_top_k(self, top_k: int) -> int:
        fewest = int(np.min(np.sum(self.mask, axis=1)))
        if positive_int("top_k", top_k) > fewest:
            raise ValueError(
                f"`top_k`: expected at most {fewest}, the number of allowed actions, got {top_k}; "
                "ask for fewer or allow more"
            )
        return int(top_k)


class DecisionProgram:
    """Decisions of one agent with one stream of keys. The agent is partitioned once and its
    evidence once an update, so that a decision costs little more than its arithmetic."""

    def __init__(self, agent: AbstractAgent, stream: Key[Array, ""]) -> None:
        self._agent, self._agent_structure = partition(agent)
        self._stream = jax.random.key_data(stream)
        self._last: AbstractEvidence | None = None

    def __call__(
        self,
        evidence: AbstractEvidence,
        number: UInt32[np.ndarray, ""],
        features: Float[np.ndarray, "b k d"],
        mask: Bool[np.ndarray, "b k"],
        top_k: int,
    ) -> tuple[Int[Array, "b top_k"], Float[Array, "b k"], Bool[Array, " b"]]:
        """Actions, mean rewards and failures of the decisions from this number on."""
        if evidence is not self._last:
            self._last = evidence
            self._evidence, self._evidence_structure = partition(evidence)
        leaves = (self._agent, self._evidence)
        program = _decision_program(self._agent_structure, self._evidence_structure, top_k)
        return program(leaves, self._stream, number, features, mask)


@functools.lru_cache(maxsize=256)
def _decision_program(
    agent_structure: Structure, evidence_structure: Structure, top_k: int
) -> Callable[..., Any]:
    """The program for every agent and evidence of these structures, compiled once a shape."""

    @jax.jit
    def decide(
        leaves: tuple[list[Any], list[Any]],
        stream: UInt32[Array, "..."],
        first: UInt32[Array, ""],
        features: Float[Array, "b k d"],
        mask: Bool[Array, "b k"],
    ) -> tuple[Array, Array, Array]:
        agent: AbstractAgent = agent_structure.combine(leaves[0])
        evidence: AbstractEvidence = evidence_structure.combine(leaves[1])

        def one(number: Array, features: Array, mask: Array) -> tuple[Array, Array, Array]:
            key = decision_key(jax.random.wrap_key_data(stream), number)
            choice = agent.choose(key, evidence, features, mask, top_k)
            return choice.actions, agent.likelihood.mean(choice.values), choice.failed

        numbers = first + jnp.arange(features.shape[0], dtype=jnp.uint32)
        return jax.vmap(one)(numbers, features, mask)

    return decide


@eqx.filter_jit
def count_hits(
    key: Key[Array, ""],
    agent: AbstractAgent,
    evidence: AbstractEvidence,
    features: Float[Array, "b k d"],
    mask: Bool[Array, "b k"],
    actions: Int[Array, "b top_k"],
    num_draws: int,
) -> tuple[Int[Array, "b top_k"], Bool[Array, ""]]:
    """How often each action is chosen again in `num_draws` fresh draws, and whether one failed.

    One draw serves all decisions of the batch, which share the evidence.
    """

    def again(key: Key[Array, ""]) -> tuple[Array, Array]:
        def one(features: Array, mask: Array, actions: Array) -> tuple[Array, Array]:
            choice = agent.choose(key, evidence, features, mask, actions.shape[0])
            return jnp.any(actions[:, None] == choice.actions[None, :], axis=1), choice.failed

        hits, failed = jax.vmap(one)(features, mask, actions)
        return hits, jnp.any(failed)

    at_once = max(1, min(num_draws, NUMBERS_AT_ONCE // mask.size))
    hits, failed = jax.lax.map(again, jax.random.split(key, num_draws), batch_size=at_once)
    return jnp.sum(hits, axis=0), jnp.any(failed)


def propensity(
    hits: Int[np.ndarray, "b top_k"], num_draws: int
) -> tuple[Float[np.ndarray, "b top_k"], Float[np.ndarray, "b top_k"]]:
    """The share of draws, unbiased, and its standard error.

    The error is that of (hits + 1) / (num_draws + 2), so that it is not zero when the share is 0 or
    1: such a share is not certain either.
    """
    smoothed = (hits + 1.0) / (num_draws + 2.0)
    return hits / num_draws, np.sqrt(smoothed * (1.0 - smoothed) / num_draws)


def dimensions(name: str, value: Any) -> int:
    """Number of axes."""
    try:
        return np.ndim(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}`: expected an array, got a ragged nest; rows must have equal lengths"
        ) from error
