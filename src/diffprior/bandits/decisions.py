"""The compiled programs behind decisions: few, whatever is asked for, and not kept for ever."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from .agents import AbstractAgent
from .host import Layout, packed, unpacked
from .requests import Block
from .streams import Streams, decision_key
from .updates import State

MAX_PROGRAMS = 96  # kept at once; each holds up to some 400 memory maps, of which there are 65,530
NUMBERS_AT_ONCE = 2**22  # preferences held while propensities are estimated
DRAWS_AT_ONCE = 64  # for propensities
FEWEST_DRAWS = 256  # from a posterior
Leaves = tuple[list[Any], list[Any]]


class DecisionPrograms:
    """Decisions of one agent with one set of streams. The agent is partitioned once, so that a
    decision costs little more than its arithmetic. Safe to share between threads."""

    def __init__(self, agent: AbstractAgent, streams: Streams) -> None:
        self._agent, self._agent_structure = partition(agent)
        self._decisions = jax.random.key_data(streams.decisions)
        self._propensities = jax.random.key_data(streams.propensities)

    def decide(self, state: State, number: int, block: Block) -> Float[Array, "b numbers"]:
        """Preferences, mean rewards and failures of a block of a request, whose first decision has
        this number; they may still be computed."""
        program, arguments = self.decision(state, number, block)
        return program(*arguments)

    def decision(
        self, state: State, number: int, block: Block
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The program that decides a block of a request, and what to call it with."""
        sizes, actions, first = block.actions.shape[:2], block.actions, number + block.first
        if state.layout is None:
            program = self._program(_decision_program, state, *sizes)
            leaves = (self._agent, state.leaves)
            return program, (leaves, self._decisions, _as_number(first), actions)
        program = self._program(_packed_decision_program, state, *sizes, state.layout)
        halves = np.array((first >> 16 & 0xFFFF, first & 0xFFFF), actions.dtype)
        numbers = packed((halves, *state.leaves, actions), actions.dtype)
        return program, (self._agent, self._decisions, numbers)

    def count_hits(
        self, state: State, number: int, block: Block, top_k: int, num_draws: int
    ) -> Int[Array, "b numbers"]:
        """How often each action is among the best `top_k` in fresh draws, and whether one failed.

        The same draws serve all decisions of a request, which share the evidence.
        """
        sizes = block.actions.shape[:2]
        at_once = max(1, min(DRAWS_AT_ONCE, NUMBERS_AT_ONCE // math.prod(sizes)))
        program = self._program(_propensity_program, state, *sizes, at_once)
        numbers = (_as_number(n) for n in (number, top_k, num_draws))
        return program((self._agent, state.leaves), self._propensities, *numbers, block.actions)

    def draw(
        self, state: State, key: Key[Array, ""], num_draws: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, " n"]]:
        """Parameters from the agent's posterior, and which of the draws failed."""
        size = max(FEWEST_DRAWS, 1 << (num_draws - 1).bit_length())
        program = self._program(_posterior_program, state, size)
        thetas, failed = program((self._agent, state.leaves), jax.random.key_data(key))
        return np.asarray(thetas)[:num_draws], np.asarray(failed)[:num_draws]

    def _program(self, make: Callable[..., Any], state: State, *sizes: Any) -> Callable[..., Any]:
        return compiled(make, self._agent_structure, state.structure, sizes)


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def compiled(
    make: Callable[..., Any], agent: Structure, evidence: Structure, sizes: tuple[Any, ...]
) -> Callable[..., Any]:
    """The program for every agent and evidence of these structures, compiled when it is called;
    those that were not used for long are freed."""
    return make(agent, evidence, *sizes)


def _decision_program(
    agent_structure: Structure, evidence_structure: Structure, num_decisions: int, num_actions: int
) -> Callable[..., Any]:
    """Decides for so many decisions and actions."""

    @jax.jit
    def decide(
        leaves: Leaves,
        stream: UInt32[Array, "..."],
        first: UInt32[Array, ""],
        actions: Float[Array, "b k columns"],
    ) -> Float[Array, "b numbers"]:
        agent: AbstractAgent = agent_structure.combine(leaves[0])
        evidence: AbstractEvidence = evidence_structure.combine(leaves[1])

        def one(number: Array, actions: Array) -> Array:
            key = decision_key(jax.random.wrap_key_data(stream), number)
            choice = agent.choose(key, evidence, actions[:, :-1], actions[:, -1] > 0)
            means = agent.likelihood.mean(choice.values)
            failed = choice.failed.astype(means.dtype)
            return jnp.concatenate([choice.preferences, means, failed[None]])

        numbers = first + jnp.arange(num_decisions, dtype=jnp.uint32)
        return jax.vmap(one)(numbers, actions)

    return decide


def _packed_decision_program(
    agent_structure: Structure,
    evidence_structure: Structure,
    num_decisions: int,
    num_actions: int,
    layout: Layout,
) -> Callable[..., Any]:
    """The same, with all that changes between decisions in one array: the number of the decision in
    halves, the evidence and the actions."""
    answer = _decision_program(agent_structure, evidence_structure, num_decisions, num_actions)

    @jax.jit
    def decide(
        agent: list[Any], stream: UInt32[Array, "..."], numbers: Float[Array, " n"]
    ) -> Float[Array, "b numbers"]:
        length = sum(math.prod(shape) for shape, _ in layout)
        high, low = numbers[:2].astype(jnp.uint32)
        evidence = unpacked(numbers[2 : 2 + length], layout)
        actions = numbers[2 + length :].reshape(num_decisions, num_actions, -1)
        return answer((agent, evidence), stream, (high << 16) | low, actions)

    return decide


def _propensity_program(
    agent_structure: Structure,
    evidence_structure: Structure,
    num_decisions: int,
    num_actions: int,
    at_once: int,
) -> Callable[..., Any]:
    """Counts how often actions are chosen, in a loop over as many draws as are asked for."""

    @jax.jit
    def count(
        leaves: Leaves,
        stream: UInt32[Array, "..."],
        first: UInt32[Array, ""],
        top_k: UInt32[Array, ""],
        num_draws: UInt32[Array, ""],
        actions: Float[Array, "b k columns"],
    ) -> Int[Array, "b numbers"]:
        agent: AbstractAgent = agent_structure.combine(leaves[0])
        evidence: AbstractEvidence = evidence_structure.combine(leaves[1])
        key = decision_key(jax.random.wrap_key_data(stream), first)

        def again(number: Array) -> tuple[Array, Array]:
            def one(actions: Array) -> tuple[Array, Array]:
                about = (evidence, actions[:, :-1], actions[:, -1] > 0)
                choice = agent.choose(jax.random.fold_in(key, number), *about)
                return _among_best(choice.preferences, top_k), choice.failed

            hits, failed = jax.vmap(one)(actions)
            asked = number < num_draws
            return hits & asked, failed & asked

        def some(chunk: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            numbers = jnp.uint32(at_once) * chunk + jnp.arange(at_once, dtype=jnp.uint32)
            hits, failed = jax.vmap(again)(numbers)
            total = state[0] + jnp.sum(hits, axis=0, dtype=jnp.int32)
            return total, state[1] | jnp.any(failed, axis=0)

        num_chunks = (num_draws + jnp.uint32(at_once - 1)) // jnp.uint32(at_once)
        none = (jnp.zeros(actions.shape[:2], jnp.int32), jnp.zeros(num_decisions, bool))
        hits, failed = jax.lax.fori_loop(jnp.uint32(0), num_chunks, some, none)
        return jnp.concatenate([hits, failed[:, None].astype(hits.dtype)], axis=1)

    return count


def _among_best(preferences: Float[Array, " k"], top_k: UInt32[Array, ""]) -> Bool[Array, " k"]:
    """Which actions are among the best `top_k`; of equal ones, the first are."""

    def one() -> Array:
        return jnp.arange(preferences.shape[0]) == jnp.argmax(preferences)

    def several() -> Array:
        order = jnp.argsort(-preferences, stable=True)
        return jnp.argsort(order).astype(jnp.uint32) < top_k

    return jax.lax.cond(top_k == 1, one, several)


def _posterior_program(
    agent_structure: Structure, evidence_structure: Structure, num_draws: int
) -> Callable[..., Any]:
    """Draws parameters; the first ones are the same however many there are."""

    @jax.jit
    def draw(leaves: Leaves, key_data: UInt32[Array, "..."]) -> tuple[Array, Array]:
        agent: AbstractAgent = agent_structure.combine(leaves[0])
        evidence: AbstractEvidence = evidence_structure.combine(leaves[1])
        key = jax.random.wrap_key_data(key_data)

        def one(number: Array) -> tuple[Array, Array]:
            return agent.draw(jax.random.fold_in(key, number), evidence)

        numbers = jnp.arange(num_draws, dtype=jnp.uint32)
        return jax.lax.map(one, numbers, batch_size=min(num_draws, 2**10))

    return draw


def _as_number(number: int) -> UInt32[np.ndarray, ""]:
    return np.asarray(number % 2**32, np.uint32)
