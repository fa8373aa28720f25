"""Many runs of many agents in the same environments: the experiments of Section 6."""

import functools
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from ..checks import positive_int
from ..evidence.base import AbstractEvidence
from ..partition import Structure, partition
from ..priors.base import AbstractPrior
from ..problems.base import AbstractProblem
from ..progress import progress as show_progress
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler
from .agents import AbstractAgent, ThompsonSampling
from .environment import Environment, Rounds
from .result import SimulationResult
from .streams import checked_seed

CHUNK_ROUNDS = 25  # rounds played by one call of an agent's program
CHUNK_NUMBERS = 2**25  # features and rewards held at once
MOST_ROUNDS = 2**32  # of all runs together, whose regrets are kept


class Outcome(NamedTuple):
    """What an agent did and what it cost; leading axes are runs and rounds."""

    regret: Float[Any, "*n"]
    action: Int[Any, "*n"]
    failed: Bool[Any, "*n"]


def simulate(
    problem: Any,
    agents: Any,
    num_runs: int = 512,
    num_rounds: int = 200,
    seed: int = 0,
    *,
    progress: bool | None = None,
    throw: bool = True,
) -> SimulationResult:
    """Regret of every agent, Eq. (9), for the same parameters, actions and reward noise.

    `agents` maps names to agents; a sampler stands for Thompson sampling with it. Runs go side by
    side in one compiled program, a share of them on each core. A failed draw raises, or with
    throw=False is counted and its action is random. `progress` shows how far it is: a bar on a
    terminal, elsewhere a line every ten seconds; False shows nothing.

    Args:
        problem: Where parameters, actions and rewards come from.
        agents: Agents by name; a sampler or a prior stands for Thompson sampling with it.
        num_runs: Independent runs of each agent.
        num_rounds: Rounds of each run.
        seed: Of the environments and the agents.
        progress: False shows nothing.
        throw: Whether a failed draw raises; else its action is random and counted.

    Returns:
        Regret of every agent, run and round.

    Raises:
        ValueError: If an agent does not fit the problem, or there are too many rounds to keep.
        RuntimeError: If a draw fails, unless throw=False.

    References:
        Kveton et al. (2024), Eq. (9) and Section 6.
    """
    num_runs = positive_int("num_runs", num_runs)
    num_rounds = positive_int("num_rounds", num_rounds)
    if num_runs * num_rounds > MOST_ROUNDS:
        raise ValueError(
            f"`num_runs`, `num_rounds`: expected a product of at most {MOST_ROUNDS}, since every "
            f"regret is kept, got {num_runs} times {num_rounds}; simulate fewer"
        )
    named = _checked_agents(problem, agents)
    environment = Environment.of(problem, num_runs, checked_seed(seed))
    length, num_chunks = _chunks(problem, num_runs, num_rounds)
    players = {
        name: _Player(name, agent, problem.dim, num_runs, length * num_chunks)
        for name, agent in named.items()
    }
    with show_progress("simulating", num_chunks * len(players), visible=progress) as told:
        for first in range(0, length * num_chunks, length):
            rounds = environment.rounds(jnp.arange(first, first + length))
            for player in players.values():
                told.describe(f"simulating {player.name}")
                player.play(rounds)
                if throw:
                    player.check(num_rounds)
                told.advance()
    outcomes = {name: player.outcome(num_rounds) for name, player in players.items()}
    return SimulationResult(
        regret={
            name: np.cumsum(outcome.regret, axis=1, dtype=np.float64)
            for name, outcome in outcomes.items()
        },
        actions={name: outcome.action for name, outcome in outcomes.items()},
        failures={name: int(np.sum(outcome.failed)) for name, outcome in outcomes.items()},
        seconds={name: player.seconds for name, player in players.items()},
        compile_seconds={name: player.compile_seconds for name, player in players.items()},
        seed=seed,
    )


class _Player:
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
        failed = self.outcome(num_rounds).failed
        if np.any(failed):
            raise RuntimeError(
                f"`simulate`: {np.sum(failed)} of the first {failed.size} decisions of agent "
                f"{self.name!r} rest on a draw that failed, the first of them in round "
                f"{1 + np.argmax(np.any(failed, axis=0))}. Likely causes: a sampler that diverges "
                "as evidence grows; features or rewards of extreme scale; float32 at its limit "
                "(set jax_enable_x64). throw=False goes on with random actions and counts them."
            )

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
    cores = (os.cpu_count() or 1) if jax.default_backend() == "cpu" else 1
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


def _chunks(problem: AbstractProblem, num_runs: int, num_rounds: int) -> tuple[int, int]:
    """Length and number of chunks, all of one length; rounds beyond `num_rounds` are dropped."""
    per_round = num_runs * problem.num_actions * (problem.dim + 2)
    at_most = max(1, min(CHUNK_ROUNDS, CHUNK_NUMBERS // per_round))
    num_chunks = -(-num_rounds // at_most)
    return -(-num_rounds // num_chunks), num_chunks


def _checked_agents(problem: Any, agents: Any) -> dict[str, AbstractAgent]:
    if not isinstance(problem, AbstractProblem):
        raise ValueError(
            f"`problem`: expected a problem, got {type(problem).__name__}; "
            'try `synthetic("cross")` or a subclass of AbstractProblem'
        )
    if not isinstance(agents, Mapping) or not agents:
        raise ValueError(
            f"`agents`: expected names mapped to agents, got {type(agents).__name__} "
            f'{"without entries" if not agents else "without names"}; pass {{"TS": agent, ...}}'
        )
    return {str(name): _checked_agent(problem, name, agent) for name, agent in agents.items()}


def _checked_agent(problem: AbstractProblem, name: str, agent: Any) -> AbstractAgent:
    if isinstance(agent, AbstractPrior) or hasattr(agent, "denoise"):
        agent = best_sampler(agent)
    if isinstance(agent, AbstractSampler):
        agent = ThompsonSampling(agent, problem.likelihood)
    if not isinstance(agent, AbstractAgent):
        raise ValueError(
            f"`agents`: expected an agent, a sampler or a prior for {name!r}, got "
            f"{type(agent).__name__}; pass a prior, or a sampler such as `Exact(prior)`"
        )
    if agent.dim not in (None, problem.dim):
        raise ValueError(
            f"`agents`: expected {problem.dim} parameters for {name!r} as in the problem, got "
            f"{agent.dim}; fit its prior to samples of this problem"
        )
    return agent
