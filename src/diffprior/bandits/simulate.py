"""Many runs of many agents in the same environments: the experiments of Section 6."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from ..checks import positive_int, real_array
from ..evidence.base import AbstractEvidence, Rows
from ..executors import AbstractExecutor, num_cores
from ..priors.base import AbstractPrior
from ..problems.base import AbstractProblem
from ..problems.synthetic import ItemProblem, ItemRun
from ..progress import Progress
from ..progress import progress as show_progress
from ..samplers.base import AbstractSampler
from ._dispatch import Structure, compiled, partition
from .agents import AbstractAgent, as_agent
from .decisions import checked_seed, choose, decision_key, stream_keys
from .items import Items
from .result import SimulationResult

CHUNK_ROUNDS = 25  # rounds played by one call of an agent's program
CHUNK_NUMBERS = 2**25  # features and rewards held at once
SHARD_RUNS, MIN_SHARDS = 64, 8  # runs of a shard at most, and shards where runs are few
SEED_STEP = 0x9E3779B97F4A7C15  # between runs
MAX_ROUNDS = 2**32  # of all runs together, whose regrets are stored
PARAMETERS_RUN = 2**31 - 1  # the run whose stream the parameters of the first block are drawn from
BLOCK = 64  # runs whose parameters are drawn together, so that fewer runs are the first of more


class Rounds(NamedTuple):
    """Keys of decisions; features, means and rewards of all actions; by runs and rounds."""

    keys: Key[Array, "*n"]
    features: Float[Array, "*n k d"]
    means: Float[Array, "*n k"]
    rewards: Float[Array, "*n k"]


class Environment(eqx.Module):
    """The runs of a simulation: the problem, its parameters and the streams of randomness."""

    problem: AbstractProblem
    theta: Float[Array, "r d"]
    actions: Key[Array, " r"]
    noise: Key[Array, " r"]
    decisions: Key[Array, " r"]

    @staticmethod
    def of(problem: AbstractProblem, runs: range, seed: int) -> "Environment":
        """Draw the parameters of some runs."""
        numbers = jnp.arange(runs.start, runs.stop)
        streams = jax.vmap(lambda run: stream_keys(seed, run))(numbers)
        actions, noise = jax.vmap(jax.random.split, out_axes=1)(streams.environment)
        first = runs.start // BLOCK
        blocks = [_parameters(problem, seed, b) for b in range(first, -(-runs.stop // BLOCK))]
        theta = jnp.concatenate(blocks)[runs.start - first * BLOCK : runs.stop - first * BLOCK]
        return Environment(problem, theta, actions, noise, streams.decisions)

    def rounds(self, numbers: Int[Array, " n"]) -> Rounds:
        """The rounds of these numbers, of every run; checked."""
        self._check_features()
        features, means, rewards, finite = _realize(self, numbers)
        if not finite:
            raise ValueError(
                "`problem`: expected finite features and rewards, got NaN or infinity; "
                "check `features`, `mean_rewards` and `rewards` of the problem"
            )
        return Rounds(_decision_keys(self.decisions, numbers), features, means, rewards)

    def _check_features(self) -> None:
        expected = (self.problem.num_actions, _num_features(self.problem))
        got = jax.eval_shape(self.problem.features, self.actions[0]).shape
        if got != expected:
            raise ValueError(
                f"`features`: expected shape {expected}, got {got}; return one row of "
                f"{expected[1]} numbers for each action"
            )


def _parameters(problem: AbstractProblem, seed: int, block: int) -> Float[Array, "b d"]:
    """Parameters of a block of runs."""
    return real_array(
        "sample_parameters",
        problem.sample_parameters(stream_keys(seed, PARAMETERS_RUN - block).environment, BLOCK),
        (BLOCK, problem.dim),
        "return one row of `dim` numbers for each sample",
    )


@eqx.filter_jit
def _realize(
    environment: Environment, numbers: Int[Array, " n"]
) -> tuple[Array, Array, Array, Array]:
    """Features, means and rewards of every run and round, and whether all are finite."""
    problem = environment.problem

    def one(theta: Array, actions: Array, noise: Array, number: Array) -> tuple[Array, ...]:
        key = jax.random.fold_in(actions, number) if problem.fresh_actions else actions
        features = problem.features(key)
        means = problem.mean_rewards(theta, features)
        return features, means, problem.rewards(jax.random.fold_in(noise, number), theta, features)

    over_rounds = jax.vmap(one, in_axes=(None, None, None, 0))
    over_runs = jax.vmap(over_rounds, in_axes=(0, 0, 0, None))
    features, means, rewards = over_runs(
        environment.theta, environment.actions, environment.noise, numbers
    )
    finite = jnp.all(jnp.isfinite(features)) & jnp.all(jnp.isfinite(means + rewards))
    return features, means, rewards, finite


@eqx.filter_jit
def _decision_keys(streams: Key[Array, " r"], numbers: Int[Array, " n"]) -> Key[Array, "r n"]:
    over_rounds = jax.vmap(decision_key, in_axes=(None, 0))
    return jax.vmap(over_rounds, in_axes=(0, None))(streams, numbers)


class Outcome(NamedTuple):
    """Actions of an agent and their regret; leading axes are runs and rounds."""

    regret: Float[Rows, "*n"]
    action: Int[Rows, "*n"]
    failed: Bool[Rows, "*n"]

    @staticmethod
    def joined(parts: "Iterable[Outcome]", axis: int) -> "Outcome":
        """Several outcomes as one, in NumPy."""
        return Outcome(*(np.concatenate(found, axis) for found in zip(*parts, strict=True)))

    def check(self, name: str) -> None:
        """Raise if a draw of the agent of this name has failed."""
        if np.any(self.failed):
            raise RuntimeError(
                f"`simulate`: {np.sum(self.failed)} of the first {self.failed.size} decisions of "
                f"agent {name!r} rest on a draw that failed, the first of them in round "
                f"{1 + np.argmax(np.any(self.failed, axis=0))}. Likely causes: a sampler that "
                "diverges as evidence grows; features or rewards of extreme scale; float32 at its "
                "limit (set jax_enable_x64). throw=False goes on with random actions and counts "
                "them."
            )


class Played(NamedTuple):
    """The outcome of an agent, and the seconds that playing and compiling took."""

    outcome: Outcome
    seconds: float
    compile_seconds: float


class Player:
    """An agent on its way through the rounds of all runs, in shards of equal size.

    Where the runs cannot be shared evenly, the last one is repeated, and what it adds is dropped.
    """

    def __init__(
        self, name: str, agent: AbstractAgent, dim: int, num_runs: int, capacity: int
    ) -> None:
        self.name, self._num_runs = name, num_runs
        self._agent, self._agent_leaves = agent, partition(agent)
        evidence = jax.vmap(lambda _: agent.likelihood.empty(dim, capacity))(jnp.arange(num_runs))
        cores = num_cores() if jax.default_backend() == "cpu" else 1
        shards = _shards(evidence, _num_shards(num_runs, cores))
        self._shards, (self._structure, *_) = zip(*map(partition, shards), strict=True)
        self._program: Any = None
        self._outcomes: list[Outcome] = []
        self._seconds = self._compile_seconds = 0.0

    def play(self, rounds: Rounds) -> None:
        """Play some rounds; all calls have the same shapes."""
        shards = _shards(rounds, len(self._shards))
        leaves, structure = self._agent_leaves
        if self._program is None:
            self._check_rewards(rounds)
            begin = time.perf_counter()
            program = compiled(_rounds_program, structure, self._structure)
            self._program = program.lower(leaves, self._shards[0], shards[0]).compile()
            self._compile_seconds = time.perf_counter() - begin
        begin = time.perf_counter()
        with ThreadPoolExecutor(len(self._shards)) as pool:
            calls = pool.map(functools.partial(self._program, leaves), self._shards, shards)
            after, outcomes = zip(*jax.block_until_ready(list(calls)), strict=True)
        self._seconds += time.perf_counter() - begin
        self._shards = after
        parts = Outcome.joined(outcomes, 0)
        self._outcomes.append(Outcome(*(part[: self._num_runs] for part in parts)))

    def played(self, num_rounds: int) -> Played:
        """The outcome so far, up to `num_rounds`, and the time that it took."""
        whole = Outcome.joined(self._outcomes, 1)
        outcome = Outcome(*(part[:, :num_rounds] for part in whole))
        return Played(outcome, self._seconds, self._compile_seconds)

    def check(self, num_rounds: int) -> None:
        """Raise if a draw has failed."""
        if np.any(self._outcomes[-1].failed):  # so that all are not joined every time
            self.played(num_rounds).outcome.check(self.name)

    def _check_rewards(self, rounds: Rounds) -> None:
        try:
            self._agent.likelihood.check_rewards(np.asarray(rounds.rewards).reshape(-1))
        except ValueError as error:
            raise ValueError(
                f"`agents`: the likelihood of {self.name!r} cannot take the problem's rewards "
                f"({error}); give the agent `problem.likelihood`"
            ) from error


def _num_shards(num_runs: int, cores: int) -> int:
    """One for each core: the matrices of a step are too small to occupy more than one."""
    each = -(-num_runs // min(cores, num_runs))
    return -(-num_runs // each)


def _shards(tree: Any, count: int) -> list[Any]:
    """Pieces of equal length along the first axis, the last entry repeated if there are too few."""

    def piece(index: int, array: Any) -> Any:
        size = -(-array.shape[0] // count)
        if (index + 1) * size <= array.shape[0]:
            return array[index * size : (index + 1) * size]
        return array[np.minimum(np.arange(index * size, (index + 1) * size), array.shape[0] - 1)]

    return [jax.tree.map(functools.partial(piece, i), tree) for i in range(count)]


def _rounds_program(agent: Structure[AbstractAgent], evidence: Structure[AbstractEvidence]) -> Any:
    """Algorithm 3 for some rounds of every run, for all agents of one structure."""

    @jax.jit
    def play(known: list[Any], state: list[Any], rounds: Rounds) -> tuple[list[Any], Outcome]:
        run = jax.vmap(
            functools.partial(jax.lax.scan, functools.partial(_step, agent.combine(known)))
        )
        after, outcome = run(evidence.combine(state), rounds)
        return partition(after)[0], outcome

    return play


def _step(
    agent: AbstractAgent, evidence: AbstractEvidence, now: Rounds
) -> tuple[AbstractEvidence, Outcome]:
    choice = choose(now.keys, agent, evidence, now.features)
    action = jnp.argmax(choice.preferences)
    reward = now.rewards[action][None]
    evidence = evidence.add(now.features[action][None], reward, jnp.ones_like(reward))
    regret = jnp.max(now.means) - now.means[action]
    return evidence, Outcome(regret, action, choice.failed)


def simulate(
    problem: object,
    agents: Mapping[str, object],
    num_runs: int = 512,
    num_rounds: int = 200,
    seed: int = 0,
    *,
    progress: bool | None = None,
    throw: bool = True,
    executor: AbstractExecutor | None = None,
) -> SimulationResult:
    """Regret of every agent, Eq. (9), for the same parameters, actions and reward noise.

    Runs go side by side in one compiled program, a share of them on each core.

    Args:
        problem: Where parameters, actions and rewards come from.
        agents: Agents by name; a sampler or a prior stands for Thompson sampling with it.
        num_runs: Independent runs of each agent.
        num_rounds: Rounds of each run.
        seed: Of the environments and the agents.
        progress: How far it is: a bar on a terminal, elsewhere a line every ten seconds; False
            shows nothing.
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
    if num_runs * num_rounds > MAX_ROUNDS:
        raise ValueError(
            f"`num_runs`, `num_rounds`: expected a product of at most {MAX_ROUNDS}, since every "
            f"regret is stored, got {num_runs} times {num_rounds}; simulate fewer"
        )
    problem, named = _checked_agents(problem, agents)
    play: Callable[..., dict[str, Played]]
    if isinstance(problem, ItemProblem):
        play = functools.partial(_play_items, problem, named, num_rounds, checked_seed(seed))
        num_steps = num_runs * len(named)
    else:
        chunks = _chunks(problem, num_runs, num_rounds)
        play = functools.partial(_play, problem, named, chunks, num_rounds, checked_seed(seed))
        num_steps = chunks[1] * len(named)
    if executor is None:
        with show_progress("simulating", num_steps, visible=progress) as shown:
            played = play(range(num_runs), shown, throw)
    else:
        played = _shared_out(play, num_runs, executor, progress)
        if throw:
            for name, part in played.items():
                part.outcome.check(name)
    regret = {name: np.cumsum(p.outcome.regret, 1, np.float64) for name, p in played.items()}
    return SimulationResult(
        regret=regret,
        actions={name: np.asarray(part.outcome.action) for name, part in played.items()},
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
    shown: Progress | None = None,
    throw: bool = False,
) -> dict[str, Played]:
    """Some runs of all agents: a pure function of their numbers."""
    length, num_chunks = chunks
    shown = shown or Progress("", 0)
    environment = Environment.of(problem, runs, seed)
    players = [
        Player(name, agent, agent.dim or problem.dim, len(runs), length * num_chunks)
        for name, agent in agents.items()
    ]
    for first in range(0, length * num_chunks, length):
        rounds = environment.rounds(jnp.arange(first, first + length))
        for player in players:
            shown.describe(f"simulating {player.name}")
            player.play(rounds)
            if throw:
                player.check(num_rounds)
            shown.advance()
    return {player.name: player.played(num_rounds) for player in players}


def _play_items(
    problem: ItemProblem,
    agents: dict[str, AbstractAgent],
    num_rounds: int,
    seed: int,
    runs: range,
    shown: Progress | None = None,
    throw: bool = False,
) -> dict[str, Played]:
    """As `_play`, by `Items`, which fail by an error."""
    shown = shown or Progress("", 0)
    environments = [
        ItemRun(problem, stream_keys(seed, run).environment, num_rounds) for run in runs
    ]
    played = {}
    for name, agent in agents.items():
        shown.describe(f"simulating {name}")
        begin = time.perf_counter()
        _play_run(agent, environments[0], problem.num_items, min(2, num_rounds), seed)
        compiled, found = time.perf_counter(), []
        for run, environment in zip(runs, environments, strict=True):
            found.append(
                _play_run(agent, environment, problem.num_items, num_rounds, seed + SEED_STEP * run)
            )
            shown.advance()
        outcome = Outcome(*(np.stack(part) for part in zip(*found, strict=True)))
        played[name] = Played(outcome, time.perf_counter() - compiled, compiled - begin)
    return played


def _play_run(
    agent: AbstractAgent, run: ItemRun, num_items: int, num_rounds: int, seed: int
) -> Outcome:
    """The rounds of one run."""
    items = Items(agent, seed=seed % 2**63)
    items.add(range(num_items))
    regret, shown = np.empty(num_rounds), np.empty(num_rounds, np.int64)
    for t in range(num_rounds):
        if len(run.arrivals[t]):
            items.remove(run.departures[t])
            items.add(run.arrivals[t])
        shown[t] = items.choose(run.contexts[t]).item
        names = items.names
        means = run.mean_rewards(t, np.array(names))
        regret[t] = means.max() - means[names.index(int(shown[t]))]
        items.update(int(shown[t]), run.contexts[t], run.reward(t, int(shown[t])))
    return Outcome(regret, shown, np.zeros(num_rounds, bool))


def _shared_out(
    play: Callable[[range], dict[str, Played]],
    num_runs: int,
    executor: AbstractExecutor,
    progress: bool | None,
) -> dict[str, Played]:
    """All runs, in shards of one size; runs beyond the last are dropped."""
    size = min(SHARD_RUNS, -(-num_runs // MIN_SHARDS))
    shards = [range(start, start + size) for start in range(0, num_runs, size)]
    parts = []
    with show_progress("simulating", len(shards), visible=progress) as shown:
        for part in executor.map(play, shards):
            parts.append(part)
            shown.advance()
    found = {}
    for name in parts[0]:
        outcomes, *times = zip(*(part[name] for part in parts), strict=True)
        outcome = Outcome(*(a[:num_runs] for a in Outcome.joined(outcomes, 0)))
        found[name] = Played(outcome, *map(sum, times))
    return found


def _chunks(
    problem: AbstractProblem, num_runs: int, num_rounds: int, max_numbers: int = CHUNK_NUMBERS
) -> tuple[int, int]:
    """Length and number of chunks, all of one length; rounds beyond `num_rounds` are dropped."""
    per_round = num_runs * problem.num_actions * (_num_features(problem) + 2)
    at_most = max(1, min(CHUNK_ROUNDS, max_numbers // per_round))
    num_chunks = -(-num_rounds // at_most)
    return -(-num_rounds // num_chunks), num_chunks


def _checked_agents(
    problem: object, agents: object
) -> tuple[AbstractProblem | ItemProblem, dict[str, AbstractAgent]]:
    if not isinstance(problem, AbstractProblem | ItemProblem):
        raise ValueError(
            f"`problem`: expected a problem, got {type(problem).__name__}; "
            'try `synthetic("cross")` or a subclass of AbstractProblem'
        )
    if not isinstance(agents, Mapping) or not agents:
        raise ValueError(
            f"`agents`: expected names mapped to agents, got {type(agents).__name__} "
            f'{"without entries" if not agents else "without names"}; pass {{"TS": agent, ...}}'
        )
    return problem, {str(name): _checked_agent(problem, name, a) for name, a in agents.items()}


def _checked_agent(
    problem: AbstractProblem | ItemProblem, name: str, agent: object
) -> AbstractAgent:
    able = isinstance(agent, AbstractAgent | AbstractSampler | AbstractPrior)
    if not able and not hasattr(agent, "denoise"):
        raise ValueError(
            f"`agents`: expected an agent, a sampler or a prior for {name!r}, got "
            f"{type(agent).__name__}; pass a prior, or a sampler such as `Exact(prior)`"
        )
    agent = agent if isinstance(agent, AbstractAgent) else as_agent(agent, problem.likelihood)
    known = _num_features(problem)
    if agent.dim is not None and agent.likelihood.num_features(agent.dim) != known:
        raise ValueError(
            f"`agents`: expected {known} features for {name!r} as in the problem, got those of "
            f"{agent.dim} parameters; fit its prior to samples of this problem"
        )
    return agent


def _num_features(problem: AbstractProblem | ItemProblem) -> int:
    return problem.likelihood.num_features(problem.dim)
