"""An agent on its way through the rounds of many runs, in one compiled program."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..evidence.base import AbstractEvidence
from ..executors import num_cores
from ..partition import Structure, partition
from .agents import AbstractAgent
from .environment import Rounds


class Outcome(NamedTuple):
    """What an agent did and what it cost; leading axes are runs and rounds."""

    regret: Float[Any, "*n"]
    action: Int[Any, "*n"]
    failed: Bool[Any, "*n"]


class Played(NamedTuple):
    """The outcome of an agent, and the seconds that playing and compiling took."""

    outcome: Outcome
    seconds: float
    compile_seconds: float

    @staticmethod
    def joined(parts: "list[Played]", num_runs: int) -> "Played":
        """Several shards as one, of the first so many runs."""
        arrays = zip(*(part.outcome for part in parts), strict=True)
        return Played(
            Outcome(*(np.concatenate(found)[:num_runs] for found in arrays)),
            sum(part.seconds for part in parts),
            sum(part.compile_seconds for part in parts),
        )


def check_draws(name: str, failed: Bool[np.ndarray, "runs rounds"]) -> None:
    """Raise if a draw of an agent has failed."""
    if np.any(failed):
        raise RuntimeError(
            f"`simulate`: {np.sum(failed)} of the first {failed.size} decisions of agent "
            f"{name!r} rest on a draw that failed, the first of them in round "
            f"{1 + np.argmax(np.any(failed, axis=0))}. Likely causes: a sampler that diverges "
            "as evidence grows; features or rewards of extreme scale; float32 at its limit "
            "(set jax_enable_x64). throw=False goes on with random actions and counts them."
        )


class Player:
    """An agent on its way through the rounds of all runs, in shards of equal size.

    Where the runs cannot be shared evenly, the last one is repeated, and what it adds is dropped.
    """

    def __init__(
        self, name: str, agent: AbstractAgent, dim: int, num_runs: int, capacity: int
    ) -> None:
        self.name = name
        self.agent = agent
        self.num_runs = num_runs
        evidence = jax.vmap(lambda _: agent.init(dim, capacity))(jnp.arange(num_runs))
        self.shards = _shards(evidence, _num_shards(num_runs))
        self.program: Any = None
        self.outcomes: list[Outcome] = []
        self.seconds = self.compile_seconds = 0.0

    def play(self, rounds: Rounds) -> None:
        """Play some rounds; all calls have the same shapes."""
        shards = _shards(rounds, len(self.shards))
        if self.program is None:
            self._check_rewards(rounds)
            begin = time.perf_counter()
            self.program = _program(self.agent, self.shards[0], shards[0])
            self.compile_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(self.shards)) as pool:
            played = list(pool.map(self.program, self.shards, shards))
        self.seconds += time.perf_counter() - begin
        self.shards = [evidence for evidence, _ in played]
        parts = zip(*(outcome for _, outcome in played), strict=True)
        self.outcomes.append(Outcome(*(np.concatenate(part)[: self.num_runs] for part in parts)))

    def outcome(self, num_rounds: int) -> Outcome:
        """What has been played so far, up to `num_rounds`."""
        parts = zip(*self.outcomes, strict=True)
        return Outcome(*(np.concatenate(part, axis=1)[:, :num_rounds] for part in parts))

    def check(self, num_rounds: int) -> None:
        """Raise if a draw has failed."""
        if not np.any(self.outcomes[-1].failed):  # so that all are not joined every time
            return
        check_draws(self.name, self.outcome(num_rounds).failed)

    def played(self, num_rounds: int) -> Played:
        """The outcome, and the time that it took."""
        return Played(self.outcome(num_rounds), self.seconds, self.compile_seconds)

    def _check_rewards(self, rounds: Rounds) -> None:
        evidence = self.agent.init(rounds.features.shape[-1])
        try:
            evidence.check_rewards(np.asarray(rounds.rewards).reshape(-1))
        except ValueError as error:
            raise ValueError(
                f"`agents`: the likelihood of {self.name!r} cannot take the problem's rewards "
                f"({error}); give the agent `problem.likelihood`"
            ) from error


def _num_shards(num_runs: int) -> int:
    """One for each core: the matrices of a step are too small to occupy more than one."""
    cores = num_cores() if jax.default_backend() == "cpu" else 1
    each = -(-num_runs // min(cores, num_runs))
    return -(-num_runs // each)


def _shards(tree: Any, count: int) -> list[Any]:
    """Pieces of equal length along the first axis of every array, the last entry repeated where
    there are too few."""

    def piece(index: int, array: Any) -> Any:
        size = -(-array.shape[0] // count)
        rows = np.minimum(np.arange(index * size, (index + 1) * size), array.shape[0] - 1)
        whole = rows[-1] - rows[0] == size - 1
        return array[rows[0] : rows[-1] + 1] if whole else array[rows]

    return [jax.tree.map(functools.partial(piece, i), tree) for i in range(count)]


def _program(agent: AbstractAgent, evidence: AbstractEvidence, rounds: Rounds) -> Any:
    """A function of evidence and rounds that plays them, compiled."""
    known, agent_structure = partition(agent)
    state, evidence_structure = partition(evidence)
    shapes = jax.tree.map(jax.typeof, (known, state, rounds))
    leaves, tree = jax.tree.flatten(shapes)
    compiled = _compiled(agent_structure, evidence_structure, tuple(leaves), tree)

    def play(evidence: AbstractEvidence, rounds: Rounds) -> tuple[AbstractEvidence, Outcome]:
        after, outcome = compiled(known, partition(evidence)[0], rounds)
        outcome = jax.tree.map(np.asarray, outcome)
        return evidence_structure.combine(after), outcome

    return play


@functools.lru_cache(maxsize=64)
def _compiled(agent: Structure, evidence: Structure, shapes: tuple[Any, ...], tree: Any) -> Any:
    """Algorithm 3 for some rounds of every run, for all agents of one structure."""

    def play(known: list[Any], state: list[Any], rounds: Rounds) -> tuple[list[Any], Outcome]:
        agent_here: AbstractAgent = agent.combine(known)
        step = functools.partial(_step, agent_here)
        run = jax.vmap(lambda evidence, rounds: jax.lax.scan(step, evidence, rounds))
        after, outcome = run(evidence.combine(state), rounds)
        return partition(after)[0], outcome

    arguments = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape.shape, shape.dtype),
        jax.tree.unflatten(tree, shapes),
    )
    return jax.jit(play).lower(*arguments).compile()


def _step(
    agent: AbstractAgent, evidence: AbstractEvidence, now: Rounds
) -> tuple[AbstractEvidence, Outcome]:
    action, failed = agent.act(now.keys, evidence, now.features)
    evidence = agent.update(evidence, now.features[action], now.rewards[action])
    regret = jnp.max(now.means) - now.means[action]
    return evidence, Outcome(regret, action, failed)
