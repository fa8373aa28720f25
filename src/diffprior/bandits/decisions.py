"""The compiled programs behind decisions: few, whatever is asked for, and not kept for ever."""

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from ..evidence.base import AbstractEvidence
from ..partition import PackedStructure, Structure, packed_partition
from .agents import AbstractAgent
from .host import Layout, pack, unpacked
from .requests import FIELDS, Block
from .streams import Streams, decision_key
from .updates import State

MAX_PROGRAMS = 96  # kept at once; each holds up to some 400 memory maps, of which there are 65,530
NUMBERS_AT_ONCE = 2**22  # preferences held while propensities are estimated
DRAWS_AT_ONCE = 64  # for propensities
FEWEST_DRAWS = 256  # from a posterior
# Many small kernels on a CPU, which would be handed from one thread to another at a price beyond
# their own, are run in turn by one thread. Known since JAX 0.9.1.
ONE_BY_ONE = ("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED")
MOST_LOOKS = 400  # for a result, some tenths of a millisecond
HALVES = 2  # numbers that hold the number of a decision, which may be beyond 2^24
Leaves = tuple[list[Any], list[Any]]


class DecisionPrograms:
    """Decisions of one agent with one set of streams. The agent is partitioned once, so that a
    decision costs little more than its arithmetic. Safe to share between threads."""

    def __init__(self, agent: AbstractAgent, streams: Streams) -> None:
        self._agent, self._agent_structure = packed_partition(agent)
        self._decisions = jax.random.key_data(streams.decisions)
        self._propensities = jax.random.key_data(streams.propensities)
        self._latest: tuple[Any, ...] = (None, None, None)  # found without hashing what it is for

    def room(self, state: State) -> int:
        """What `decide` wants to be left before the actions of a block."""
        return 0 if state.layout is None else HALVES + state.layout.size

    def decide(self, state: State, number: int, block: Block) -> Float[Array, "b numbers"]:
        """Preferences, mean rewards and failures of a block of a request, whose first decision has
        this number; they may still be computed."""
        program, arguments = self.decision(state, number, block)
        return program(*arguments)

    def decision(
        self, state: State, number: int, block: Block
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """The program that decides a block of a request, and what to call it with."""
        first, layout = number + block.first, state.layout
        if layout is None:
            program = self._program(_decision_program, state, *block.shape)
            leaves = (self._agent, state.leaves)
            return program, (leaves, self._decisions, _as_number(first), block.actions)
        latest, shape, program = self._latest
        if latest is not layout or shape != block.shape:
            program = self._program(_packed_decision_program, state, *block.shape, layout)
            self._latest = (layout, block.shape, program)
        numbers = block.numbers
        numbers[0], numbers[1] = first >> 16 & 0xFFFF, first & 0xFFFF
        pack(state.leaves, numbers[HALVES : HALVES + layout.size])
        return program, (self._agent, self._decisions, numbers)

    def count_hits(
        self, state: State, number: int, block: Block, top_k: int, num_draws: int
    ) -> Int[Array, "b numbers"]:
        """How often each action is among the best `top_k` in fresh draws, and whether one failed.

        The same draws serve all decisions of a request, which share the evidence.
        """
        at_once = max(1, min(DRAWS_AT_ONCE, NUMBERS_AT_ONCE // math.prod(block.shape)))
        program = self._program(_propensity_program, state, *block.shape, at_once)
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


@functools.cache
def known_options(name: str, value: str | bool) -> dict[str, str | bool]:
    """An option of the compiler, by which results do not change, or none where it is not known."""
    options = {name: value}
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except RuntimeError:
        return {}
    return options


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def compiled(
    make: Callable[..., Any], agent: PackedStructure, evidence: Structure, sizes: tuple[Any, ...]
) -> Callable[..., Any]:
    """The program for every agent and evidence of these structures, compiled when it is called;
    those that were not used for long are freed."""
    return make(agent, evidence, *sizes)


def _decision_program(
    agent_structure: PackedStructure,
    evidence_structure: Structure,
    num_decisions: int,
    num_actions: int,
) -> Callable[..., Any]:
    """Decides for so many decisions and actions."""
    shape = (num_decisions, num_actions)
    return jax.jit(functools.partial(_decide, agent_structure, evidence_structure, shape))


def _packed_decision_program(
    agent_structure: PackedStructure,
    evidence_structure: Structure,
    num_decisions: int,
    num_actions: int,
    layout: Layout,
) -> Callable[..., Any]:
    """The same, with all that changes between decisions in one array: the number of the decision in
    halves, the evidence and the actions."""
    shape = (num_decisions, num_actions)
    options = known_options(*ONE_BY_ONE) if num_decisions == 1 else None

    @functools.partial(jax.jit, compiler_options=options)
    def decide(
        agent: list[Any], stream: UInt32[Array, "..."], numbers: Float[Array, " n"]
    ) -> Float[Array, "b numbers"]:
        high, low = numbers[:HALVES].astype(jnp.uint32)
        evidence = unpacked(numbers[HALVES : HALVES + layout.size], layout)
        leaves, actions = (agent, evidence), numbers[HALVES + layout.size :]
        first = (high << 16) | low
        return _decide(agent_structure, evidence_structure, shape, leaves, stream, first, actions)

    return decide


def _decide(
    agent_structure: PackedStructure,
    evidence_structure: Structure,
    shape: tuple[int, int],
    leaves: Leaves,
    stream: UInt32[Array, "..."],
    first: UInt32[Array, ""],
    actions: Float[Array, " n"],
) -> Float[Array, "b numbers"]:
    """Preferences, mean rewards and whether the draw failed, of each decision."""
    agent: AbstractAgent = agent_structure.combine(leaves[0])
    evidence: AbstractEvidence = evidence_structure.combine(leaves[1])

    def one(number: Array, features: Array, allowed: Array) -> Array:
        key = decision_key(jax.random.wrap_key_data(stream), number)
        choice = agent.choose(key, evidence, features, allowed)
        means = agent.likelihood.mean(choice.values)
        failed = choice.failed.astype(means.dtype)
        return jnp.concatenate([choice.preferences, means, failed[None]])

    features, allowed = unpacked_actions(actions, shape)
    if shape[0] == 1:  # without an axis that would be in the way
        return one(first, features[0], allowed[0])[None]
    numbers = first + jnp.arange(shape[0], dtype=jnp.uint32)
    return jax.vmap(one)(numbers, features, allowed)


def unpacked_actions(
    numbers: Float[Array, " n"], shape: tuple[int, int]
) -> tuple[Float[Array, "b k d"], Bool[Array, "b k"]]:
    """Features, and which actions are allowed, of a block's actions. An action that pads them has
    the features of the first and is not allowed."""
    (rows, columns), masked = shape, numbers[1] > 0
    dim = (numbers.shape[0] - FIELDS) // (rows * columns) - 1
    end = FIELDS + rows * columns * dim
    features = numbers[FIELDS:end].reshape(rows, columns, dim)
    real = (jnp.arange(columns, dtype=numbers.dtype) < numbers[0])[None]
    mask = (numbers[end:].reshape(rows, columns) > 0) | ~masked
    return jnp.where(real[:, :, None], features, features[:, :1]), real & mask


def _propensity_program(
    agent_structure: PackedStructure,
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
        actions: Float[Array, " n"],
    ) -> Int[Array, "b numbers"]:
        agent: AbstractAgent = agent_structure.combine(leaves[0])
        evidence: AbstractEvidence = evidence_structure.combine(leaves[1])
        key = decision_key(jax.random.wrap_key_data(stream), first)
        about = unpacked_actions(actions, (num_decisions, num_actions))

        def again(number: Array) -> tuple[Array, Array]:
            def one(features: Array, allowed: Array) -> tuple[Array, Array]:
                key_here = jax.random.fold_in(key, number)
                choice = agent.choose(key_here, evidence, features, allowed)
                return _among_best(choice.preferences, top_k), choice.failed

            hits, failed = jax.vmap(one)(*about)
            asked = number < num_draws
            return hits & asked, failed & asked

        def some(chunk: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
            numbers = jnp.uint32(at_once) * chunk + jnp.arange(at_once, dtype=jnp.uint32)
            hits, failed = jax.vmap(again)(numbers)
            total = state[0] + jnp.sum(hits, axis=0, dtype=jnp.int32)
            return total, state[1] | jnp.any(failed, axis=0)

        num_chunks = (num_draws + jnp.uint32(at_once - 1)) // jnp.uint32(at_once)
        none = (jnp.zeros(about[1].shape, jnp.int32), jnp.zeros(num_decisions, bool))
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
    agent_structure: PackedStructure, evidence_structure: Structure, num_draws: int
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


def awaited(result: Any) -> np.ndarray:
    """A result that will not take long. A thread that sleeps until it is there is woken late, by as
    much as a small program takes; so it looks again and again for a while."""
    for _ in range(MOST_LOOKS if hasattr(os, "sched_yield") else 0):
        if result.is_ready():
            break
        os.sched_yield()
    return np.asarray(result)


def _as_number(number: int) -> UInt32[np.ndarray, ""]:
    return np.asarray(number % 2**32, np.uint32)
