"""Many runs of many agents in the same environments: the experiments of Section 6."""

import functools
import time
from collections.abc import Callable, Mapping
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
from ..samplers.choose import best_sampler
from ._dispatch import Structure, partition
from .agents import AbstractAgent, ThompsonSampling
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
    """Keys of decisions; features, mean rewards and rewards of all actions.

    Leading axes are runs and rounds.
    """

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


def check_draws(name: str, failed: Bool[Rows, "runs rounds"]) -> None:
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
        evidence = jax.vmap(lambda _: agent.likelihood.empty(dim, capacity))(jnp.arange(num_runs))
        cores = num_cores() if jax.default_backend() == "cpu" else 1
        self.shards = _shards(evidence, _num_shards(num_runs, cores))
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
        """All rounds played so far, up to `num_rounds`."""
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
        try:
            self.agent.likelihood.check_rewards(np.asarray(rounds.rewards).reshape(-1))
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
    """Pieces of equal length along the first axis of every array, the last entry repeated where
    there are too few.
    """

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
def _compiled(
    agent: Structure[AbstractAgent],
    evidence: Structure[AbstractEvidence],
    shapes: tuple[Any, ...],
    tree: Any,
) -> Any:
    """Algorithm 3 for some rounds of every run, for all agents of one structure."""

    def play(known: list[Any], state: list[Any], rounds: Rounds) -> tuple[list[Any], Outcome]:
        agent_here: AbstractAgent = agent.combine(known)
        step = functools.partial(_step, agent_here)
        run = jax.vmap(functools.partial(jax.lax.scan, step))
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
                check_draws(name, part.outcome.failed)
    return SimulationResult(
        regret={
            name: np.cumsum(part.outcome.regret, axis=1, dtype=np.float64)
            for name, part in played.items()
        },
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
    return {name: Played.joined([part[name] for part in parts], num_runs) for name in parts[0]}


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
    named = {str(name): _checked_agent(problem, name, agent) for name, agent in agents.items()}
    return problem, named


def _checked_agent(
    problem: AbstractProblem | ItemProblem, name: str, agent: object
) -> AbstractAgent:
    if isinstance(agent, AbstractPrior) or hasattr(agent, "denoise"):
        agent = best_sampler(agent, likelihood=problem.likelihood)
    if isinstance(agent, AbstractSampler):
        agent = ThompsonSampling(agent, problem.likelihood)
    if not isinstance(agent, AbstractAgent):
        raise ValueError(
            f"`agents`: expected an agent, a sampler or a prior for {name!r}, got "
            f"{type(agent).__name__}; pass a prior, or a sampler such as `Exact(prior)`"
        )
    known = _num_features(problem)
    if agent.dim is not None and agent.likelihood.num_features(agent.dim) != known:
        raise ValueError(
            f"`agents`: expected {known} features for {name!r} as in the problem, got those of "
            f"{agent.dim} parameters; fit its prior to samples of this problem"
        )
    return agent


def _num_features(problem: AbstractProblem | ItemProblem) -> int:
    return problem.likelihood.num_features(problem.dim)
