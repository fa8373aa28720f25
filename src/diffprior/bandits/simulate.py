"""Many runs of many agents in the same environments: the experiments of Section 6."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..checks import positive_int
from ..executors import AbstractExecutor
from ..priors.base import AbstractPrior
from ..problems.base import AbstractProblem
from ..progress import Progress
from ..progress import progress as show_progress
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler
from .agents import AbstractAgent, ThompsonSampling
from .environment import Environment
from .player import Played, Player, check_draws
from .result import SimulationResult
from .streams import checked_seed

CHUNK_ROUNDS = 25  # rounds played by one call of an agent's program
CHUNK_NUMBERS = 2**25  # features and rewards held at once
SHARD_RUNS, FEWEST_SHARDS = 64, 8  # runs of a shard at most, and shards where runs are few
MOST_ROUNDS = 2**32  # of all runs together, whose regrets are kept


def simulate(
    problem: Any,
    agents: Any,
    num_runs: int = 512,
    num_rounds: int = 200,
    seed: int = 0,
    *,
    progress: bool | None = None,
    throw: bool = True,
    executor: AbstractExecutor | None = None,
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
        executor: Shares the runs out among its workers, to which the problem and the agents are
            sent; by default they go side by side in this process.

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
    chunks = _chunks(problem, num_runs, num_rounds)
    play = functools.partial(_play, problem, named, chunks, num_rounds, checked_seed(seed))
    if executor is None:
        with show_progress("simulating", chunks[1] * len(named), visible=progress) as told:
            played = play(range(num_runs), told, throw)
    else:
        played = _shared_out(play, num_runs, executor, progress)
        if throw:
            for name, part in played.items():
                check_draws(name, part.outcome.failed)
    return SimulationResult(
        regret={
            name: np.cumsum(part.outcome.regret, axis=1, dtype=np.float64)
            for name, part in played.items()
        },
        actions={name: part.outcome.action for name, part in played.items()},
        failures={name: int(np.sum(part.outcome.failed)) for name, part in played.items()},
        seconds={name: part.seconds for name, part in played.items()},
        compile_seconds={name: part.compile_seconds for name, part in played.items()},
        seed=seed,
    )


def _play(
    problem: AbstractProblem,
    agents: dict[str, AbstractAgent],
    chunks: tuple[int, int],
    num_rounds: int,
    seed: int,
    runs: range,
    told: Progress | None = None,
    throw: bool = False,
) -> dict[str, Played]:
    """Some runs of all agents: a pure function of their numbers."""
    length, num_chunks = chunks
    told = told or Progress("", 0)
    environment = Environment.of(problem, runs, seed)
    players = [
        Player(name, agent, problem.dim, len(runs), length * num_chunks)
        for name, agent in agents.items()
    ]
    for first in range(0, length * num_chunks, length):
        rounds = environment.rounds(jnp.arange(first, first + length))
        for player in players:
            told.describe(f"simulating {player.name}")
            player.play(rounds)
            if throw:
                player.check(num_rounds)
            told.advance()
    return {player.name: player.played(num_rounds) for player in players}


def _shared_out(
    play: Callable[[range], dict[str, Played]],
    num_runs: int,
    executor: AbstractExecutor,
    progress: bool | None,
) -> dict[str, Played]:
    """All runs, in shards of one size; runs beyond the last are dropped."""
    size = min(SHARD_RUNS, -(-num_runs // FEWEST_SHARDS))
    shards = [range(start, start + size) for start in range(0, num_runs, size)]
    parts = []
    with show_progress("simulating", len(shards), visible=progress) as told:
        for part in executor.map(play, shards):
            parts.append(part)
            told.advance()
    return {name: Played.joined([part[name] for part in parts], num_runs) for name in parts[0]}


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
