"""The one path of a decision: an index drawn from the evidence, then the action that maximizes it.

An agent's index is drawn by a compiled program, which knows nothing of the actions; so few programs
serve all numbers of actions. The actions are compared on the host (`Bandit`, the service) or inside
a larger program (`choose`, for simulations).

Propensities are estimated by inverse binomial sampling: further indices are drawn until the chosen
action has won r = 16 times. If that takes n draws, n / r is an unbiased estimate of the inverse of
the propensity, which is what off-policy estimates multiply by.

Random numbers follow from a seed, the run and the number of the decision in it. So a `Bandit` and
run 0 of `simulate` with the same seed and the same history decide alike, as do decisions taken in a
batch and one by one.
"""

import dataclasses
import functools
import itertools
import math
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Key, UInt32
from numpy.typing import ArrayLike

from ..checks import default_float, positive_int, real_numbers
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..evidence.linear import Linear
from ..executors import num_cores
from ..priors.conditional import conditioned
from ..samplers.exact import Exact
from ..threefry import fold_in, host_fold_in, is_known_generator
from ._dispatch import ONE_THREAD, QUICK_COMPILATION, Structure, awaited, compiled, partition
from .agents import (
    AbstractAgent,
    Index,
    LinearIndex,
    RandomIndex,
    ThompsonSampling,
    key_words,
    moved,
    random_numbers,
)
from .closed_form import ClosedForm
from .updates import State, num_axes

SEED_BITS = 63
SIZES = (512, 64, 8)  # of the draws of one call, where there are several
TASKS_PER_CALL = 16
MAX_DRAWS = 2**24
WINS = 16  # r, after which draws for a propensity end; its relative error is 1 / sqrt(r)
BLOCK, CLOSED_BLOCK = 32, 256  # draws for propensities at once; where they cost almost nothing
DECISIONS_AT_ONCE = 256  # of a batch whose draws for propensities are in memory
MAX_BLOCKS = 8  # of draws for propensities in one call, per decision of the call before
MAX_TABLE = 2**22  # values of actions that are compared at once
COMPILE_AFTER = 2000  # slower decisions in NumPy, which take about as long as compiling does
_NOT_FAILED = np.zeros(1, bool)


class Streams(NamedTuple):
    """Independent sources of randomness of one run."""

    environment: Key[Array, ""]  # parameters, actions and rewards
    decisions: Key[Array, ""]
    propensities: Key[Array, ""]


def stream_keys(seed: int, run: int | Integer[Array, ""]) -> Streams:
    """The streams of a run. All bits of the seed count, in both precisions."""
    return Streams(*jax.random.split(jax.random.fold_in(seed_key(seed), run), 3))


def stream_words(seed: int) -> UInt32[np.ndarray, "streams words"]:
    """The bits of `stream_keys(seed, 0)`, computed in NumPy where JAX's generator is known."""
    if not is_known_generator():
        return np.stack([np.asarray(jax.random.key_data(key)) for key in stream_keys(seed, 0)])
    high, low = divmod(seed, 2**32)
    key = (np.zeros(1, np.uint32), np.full(1, low, np.uint32))
    for number in ((high,) if high else ()) + (0,):
        key = host_fold_in(key, np.full(1, number))
    return np.stack(host_fold_in(key, np.arange(3)), axis=1)


def seed_key(seed: int) -> Key[Array, ""]:
    """The key of a seed below 2**63; those below 2**32 are JAX's own."""
    high, low = divmod(seed, 2**32)
    key = jax.random.key(low)
    return jax.random.fold_in(key, np.uint32(high)) if high else key


def _task_streams(seed: UInt32[Array, " 2"]) -> Streams:
    """As `stream_keys(seed, 0)`, from the two halves of a seed inside a program."""
    high, low = seed
    key = jax.random.key(low)
    folded = jnp.where(high > 0, jax.random.fold_in(key, high), key)
    return Streams(*jax.random.split(jax.random.fold_in(folded, 0), 3))


def decision_key(stream: Key[Array, ""], number: int | Integer[Array, ""]) -> Key[Array, ""]:
    """The key of a decision, numbered from 0 within its run."""
    return fold_in(stream, number)


def checked_seed(seed: object) -> int:
    """`seed` as an integer from 0 to 2**63 - 1."""
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**SEED_BITS:  # type: ignore[operator]
        raise ValueError(f"`seed`: expected an integer from 0 to 2**63 - 1, got {seed!r}; try 0")
    return int(seed)  # type: ignore[call-overload]


def fresh_seed() -> int:
    """A seed that no other process has."""
    return secrets.randbits(SEED_BITS)


class Choice(NamedTuple):
    """Values to maximize, random if the index failed; the index of every action; if it failed."""

    preferences: Float[Array, " k"]
    values: Float[Array, " k"]
    failed: Bool[Array, ""]


def choose(
    key: Key[Array, ""],
    agent: AbstractAgent,
    evidence: AbstractEvidence,
    features: Float[Array, "k d"],
    mask: Bool[Array, " k"] | None = None,
) -> Choice:
    """One decision, inside a program. A failed index chooses at random."""
    index, failed = agent.index(key, evidence)
    values: Any = index(features)
    failed = failed | ~jnp.all(jnp.isfinite(values))
    random: Any = random_numbers(key_words(key), features.shape[0], values.dtype)
    usable = jnp.where(failed, random, values)
    return Choice(usable if mask is None else jnp.where(mask, usable, -jnp.inf), values, failed)


@dataclasses.dataclass(frozen=True)
class Decision:
    """The action to take. For a batch of decisions every entry has a leading axis.

    Attributes:
        action: A row of `features`, or with `top_k` that many, best first.
        scores: Mean rewards of all actions under the draw that decided; shape (K,).
        propensity: Probability that the same policy with the same evidence chooses the action (has
            it among its top k), estimated from draws that are independent of the decision and of
            each other, so that its inverse is unbiased; None if not asked for.
        propensity_se: Standard error of `propensity`.
        failed: Whether the draw failed, so that the action is random.
    """

    action: int | Int[np.ndarray, "..."]
    scores: Float[np.ndarray, "*b k"]
    propensity: float | Float[np.ndarray, "..."] | None
    propensity_se: float | Float[np.ndarray, "..."] | None
    failed: bool | Bool[np.ndarray, " b"]


class Request:
    """Checked arguments of `Bandit.decide`: features (B, K, d), allowed actions (B, K)."""

    def __init__(
        self,
        features: ArrayLike,
        mask: ArrayLike | None,
        top_k: int | None,
        propensity_draws: int | None,
        dim: int,
    ) -> None:
        self.single = num_axes("features", features) < 3
        self.ranked = top_k is not None
        axes = ("K", dim) if self.single else ("B", "K", dim)
        fix = f"one row of {dim} numbers for each action, and a first axis for a batch"
        checked = np.asarray(real_numbers("features", features, axes, fix))
        if 0 in checked.shape:
            raise ValueError(f"`features`: expected an action, got shape {checked.shape}; {fix}")
        checked = checked.astype(default_float(), copy=False)
        self.features = checked[None] if self.single else checked
        self.mask = None if mask is None else self._checked_mask(mask)
        self.top_k = 1 if top_k is None else self._checked_top_k(top_k)
        self.num_draws = None if propensity_draws is None else _checked_draws(propensity_draws)

    @property
    def size(self) -> int:
        """Number of decisions B."""
        return len(self.features)

    @property
    def plain(self) -> bool:
        """Whether one action is asked for, and nothing else."""
        simple = self.mask is None and self.num_draws is None
        return simple and self.single and not self.ranked

    def _checked_mask(self, mask: ArrayLike) -> Bool[np.ndarray, "b k"]:
        shape = self.features.shape[:2]
        num_axes("mask", mask)
        allowed = np.asarray(mask)
        expected = shape[1:] if self.single or allowed.ndim == 1 else shape
        if allowed.dtype != bool or allowed.shape != expected:
            raise ValueError(
                f"`mask`: expected booleans of shape {expected}, got {allowed.dtype} of shape "
                f"{allowed.shape}; true for each row of `features` that is allowed"
            )
        if not np.all(np.any(allowed, axis=-1)):
            raise ValueError("`mask`: expected at least one allowed action, got none; allow one")
        return np.broadcast_to(allowed, shape)

    def _checked_top_k(self, top_k: int) -> int:
        allowed = self.features.shape[1] if self.mask is None else np.sum(self.mask, axis=1)
        fewest = int(np.min(allowed))
        if positive_int("top_k", top_k) > fewest:
            raise ValueError(
                f"`top_k`: expected at most {fewest}, the number of allowed actions, got {top_k}; "
                "ask for fewer or allow more"
            )
        return int(top_k)


def _reply(request: Request, array: np.ndarray | None, *, ranked: bool) -> Any:
    """A result (B, ...) without the first axis if the request has no batch, nor, if not `ranked`,
    the second.
    """
    if array is None:
        return None
    array = array if ranked else array[:, 0]
    array = array[0] if request.single else array
    return array.item() if array.ndim == 0 else array


def _checked_draws(num_draws: int) -> int:
    if positive_int("propensity_draws", num_draws) > MAX_DRAWS:
        raise ValueError(
            f"`propensity_draws`: expected at most 2**24, got {num_draws}; ask for fewer"
        )
    return int(num_draws)


def block_size(agent: AbstractAgent) -> int:
    """How many draws for propensities are worth a call: more where each is one product."""
    closed = isinstance(agent, ThompsonSampling) and isinstance(agent.sampler, Exact)
    return CLOSED_BLOCK if closed and isinstance(agent.likelihood, Linear) else BLOCK


class Policy:
    """Draws, chooses and estimates propensities for one agent, with the streams of a seed."""

    def __init__(self, agent: AbstractAgent, seed: int, compile_after: int | None = None) -> None:
        self._leaves, self._structure = partition(agent)
        _, self._decisions, self._propensities = stream_words(seed)
        self._mean = host_mean(agent.likelihood)
        self._closed_form = ClosedForm.of(agent, self._decisions)
        self._block = block_size(agent)
        self._compiled = False  # whether to decide by program where that is faster, once compiled
        self._compile_after, self._num_slow = compile_after, itertools.count(1)
        self._compiling: threading.Thread | None = None

    def decide(self, state: State, number: int, request: Request) -> Decision:
        """The decisions of a request, the first of which has this number."""
        index, failed = self._index(state, number, request.size)
        if request.plain:  # as most are, in fewer steps
            values = np.asarray(_nth(index, 0)(request.features[0]))
            if not failed[0] and np.isfinite(values).all():
                return Decision(int(values.argmax()), self._mean(values), None, None, False)
        values = _paired_values(index, request.features)
        failed = failed | ~np.isfinite(values).all(axis=1)
        preferences = self._usable(values, failed, number)
        if request.mask is not None:
            preferences = np.where(request.mask, preferences, -np.inf)
        actions = best_first(preferences, request.top_k)
        share = error = None
        if request.num_draws is not None:
            share, error, some_failed = self._shares(state, number, request, actions)
            failed = failed | some_failed
        replies = (_reply(request, a, ranked=request.ranked) for a in (actions, share, error))
        scores, lost = (_reply(request, a, ranked=True) for a in (self._mean(values), failed))
        action, propensity, propensity_se = replies
        return Decision(action, scores, propensity, propensity_se, lost)

    def warm_up(self, state: State, request: Request) -> None:
        """Compile what decisions of this size need; they then use it."""
        if self._closed_form is not None and self._closed_form.slower:
            self._compiled = True
        self.decide(state, 0, request)

    def _index(self, state: State, number: int, count: int) -> tuple[Any, Bool[np.ndarray, " n"]]:
        """The indices that decide, and what failed."""
        closed = None if self._compiled else self._closed_form
        if count == 1 and closed is not None and state.learn is not None:
            theta = closed.draw(state, number)
            if theta is not None:
                if closed.slower and self._compile_after is not None:
                    self._compile_in_time(state, next(self._num_slow))
                return LinearIndex(theta[None]), _NOT_FAILED
        return self._draw("index", state, self._decisions, number, count)

    def _compile_in_time(self, state: State, num_slow: int) -> None:
        """Compile the program in a thread after some decisions, and use it after twice as many: not
        as soon as it is there, so that results do not depend on time.
        """
        if num_slow == self._compile_after:
            about = ("index", state, self._decisions, 0, 1)
            self._compiling = threading.Thread(target=self._draw, args=about, name="decisions")
            self._compiling.start()
        elif self._compiling is not None and num_slow >= 2 * (self._compile_after or 0):
            self._compiling.join()
            self._compiled = True

    def fails(self, state: State, num_draws: int) -> bool:
        """Whether one of the first draws of the compiled program fails given this evidence."""
        for number in range(num_draws):
            index, failed = self._draw("index", state, self._decisions, number, 1)
            if failed[0] or not all(np.isfinite(field).all() for field in index):
                return True
        return False

    def posterior(
        self, state: State, key: Key[Array, ""], num_draws: int
    ) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, " n"]]:
        """Parameters, the first of them the same however many there are, and which draws failed."""
        index, failed = self._draw("draw", state, jax.random.key_data(key), 0, num_draws)
        return index.theta, failed | ~np.isfinite(index.theta).all(axis=1)

    def _usable(self, values: np.ndarray, failed: np.ndarray, number: int) -> np.ndarray:
        """The values, those of a failed draw replaced by random numbers."""
        lost = np.flatnonzero(failed)
        values = values.copy() if len(lost) else values
        for row in lost:
            words = _folded(self._decisions, number + int(row))[-2:]
            values[row] = random_numbers(words, values.shape[1], values.dtype)
        return values

    def _shares(
        self, state: State, number: int, request: Request, actions: Int[np.ndarray, "b top_k"]
    ) -> tuple[Float[np.ndarray, "b top_k"], Float[np.ndarray, "b top_k"], bool]:
        """Propensities of the chosen actions, their errors, and whether a draw failed."""
        key, most = _folded(self._propensities, number), request.num_draws or 0
        masks = [None] * request.size if request.mask is None else list(request.mask)
        counts = [
            WinCount(features, mask, request.top_k, chosen)
            for features, mask, chosen in zip(request.features, masks, actions, strict=True)
        ]
        block = min(most, self._block, max(1, MAX_TABLE // request.features.shape[1]))
        used, lost = 0, False
        for start in range(0, len(counts), DECISIONS_AT_ONCE):
            waiting = counts[start : start + DECISIONS_AT_ONCE]
            while waiting:
                size = min(block, most - waiting[0].num_draws)
                index, failed = self._draw("index", state, key, used, size * len(waiting))
                for i, count in enumerate(waiting):
                    own = _nth(index, slice(i * size, (i + 1) * size))
                    count.add(all_values(own, count.features))
                used, lost = used + len(failed), lost or bool(failed.any())
                waiting = [count for count in waiting if count.num_needed(most)]
        share, error = zip(*(count.propensity for count in counts), strict=True)
        return np.stack(share), np.stack(error), lost

    def _draw(
        self, method: str, state: State, key: Any, first: int, count: int
    ) -> tuple[Any, Bool[np.ndarray, " n"]]:
        """Results of the agent's `method` for the numbers from `first` on, and which failed."""
        parts = []
        for start, size in pieces(count):
            program = compiled(_draw_program, self._structure, state.structure, method, size)
            number = np.asarray((first + start) % 2**32, np.uint32)
            index, failed = program(self._leaves, state.leaves, key, number)
            parts.append((awaited(failed), *map(np.asarray, index)))
        kind = type(index)
        if len(parts) == 1 and size == count:
            failed, *fields = parts[0]
        else:
            failed, *fields = (np.concatenate(found)[:count] for found in zip(*parts, strict=True))
        return kind(*fields), failed


def _draw_program(
    agent_structure: Structure[AbstractAgent],
    evidence_structure: Structure[AbstractEvidence],
    method: str,
    count: int,
) -> Callable[..., Any]:
    """Calls a method of the agent for `count` numbers in a row, side by side."""

    @functools.partial(jax.jit, compiler_options=ONE_THREAD if count == 1 else None)
    def draws(agent_leaves: Any, evidence_leaves: Any, key_data: Any, first: Array) -> Any:
        agent: AbstractAgent = agent_structure.combine(agent_leaves)
        evidence: AbstractEvidence = evidence_structure.combine(evidence_leaves)
        key = jax.random.wrap_key_data(key_data)

        def one(number: Array) -> Any:
            found, failed = getattr(agent, method)(decision_key(key, number), evidence)
            return found if method == "index" else LinearIndex(found), failed

        if count == 1:  # without an axis that would be in the way
            return jax.tree.map(lambda leaf: leaf[None], one(first))
        return jax.vmap(one)(first + jnp.arange(count, dtype=jnp.uint32))

    return draws


def pieces(count: int, sizes: tuple[int, ...] = SIZES) -> Iterator[tuple[int, int]]:
    """Start and size of the calls that make up so many draws, few of which are not needed."""
    start = 0
    while start < count:
        left = count - start
        size = 1 if count == 1 else next((s for s in sizes if 2 * left > s), sizes[-1])
        yield start, size
        start += size


def _folded(words: UInt32[np.ndarray, " words"], number: int) -> UInt32[np.ndarray, " words"]:
    """The bits of a `decision_key`."""
    if is_known_generator():
        halves = (words[:1], words[1:])
        return np.concatenate(host_fold_in(halves, np.full(1, number % 2**32)))
    key = jax.random.wrap_key_data(jax.device_put(words))
    return np.asarray(jax.random.key_data(decision_key(key, number % 2**32)))


def _paired_values(index: Any, features: Float[np.ndarray, "b k d"]) -> Float[np.ndarray, "b k"]:
    """The index of every action, where each decision has its own draw."""
    if isinstance(index, LinearIndex):
        return np.matmul(features, index.theta[:, :, None])[:, :, 0]
    return np.stack([_nth(index, i)(some) for i, some in enumerate(features)])


def all_values(index: Index, features: Float[np.ndarray, "k d"]) -> Float[np.ndarray, "m k"]:
    """The index of every action under every one of several draws."""
    if isinstance(index, LinearIndex):
        return np.asarray(index.theta) @ features.T
    fields: Any = index
    if hasattr(index, "of_many"):
        return fields.of_many(features)
    return np.stack([_nth(index, i)(features) for i in range(len(fields[0]))])


def _nth(index: Any, place: int | slice) -> Index:
    return type(index)(*(field[place] for field in index))


def best_first(preferences: Float[np.ndarray, "b k"], top_k: int) -> Int[np.ndarray, "b top_k"]:
    """The actions of the highest preferences, the first of equal ones first."""
    if top_k == 1:
        return preferences.argmax(axis=1)[:, None]
    return np.argsort(-preferences, axis=1, kind="stable")[:, :top_k]


def wins(
    values: Float[np.ndarray, "m k"],
    mask: Bool[np.ndarray, " k"] | None,
    top_k: int,
    actions: Int[np.ndarray, " n"],
) -> Bool[np.ndarray, "m n"]:
    """In which draws each of these actions is among the best `top_k`."""
    best = best_first(values if mask is None else np.where(mask, values, -np.inf), top_k)
    if top_k == 1:
        return best == actions
    among = np.zeros(values.shape, bool)
    np.put_along_axis(among, best, True, axis=1)
    return among[:, actions]


class WinCount:
    """Wins of the chosen actions of one decision: of each its `hits`, at most r, and the `draws` up
    to the last of them, or all so far if there are fewer.
    """

    def __init__(
        self,
        features: Float[np.ndarray, "k d"],
        mask: Bool[np.ndarray, " k"] | None,
        top_k: int,
        actions: Int[np.ndarray, " n"],
    ) -> None:
        self.features = features
        self._mask, self._top_k, self._actions = mask, top_k, actions
        self.hits, self.draws = np.zeros((2, len(actions)), np.int64)
        self.num_draws = 0

    def num_needed(self, max_draws: int) -> int:
        """About how many more draws it takes until every action has won r times."""
        hits = int(self.hits.min())
        if hits >= WINS:
            return 0
        wait = (self.num_draws + 1) / (hits + 1)
        return min(math.ceil((WINS - hits) * wait), max_draws - self.num_draws)

    @property
    def propensity(self) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Propensity of each action, and its standard error."""
        return propensity(self.hits, self.draws, self.hits >= WINS)

    def add(self, values: Float[np.ndarray, "m k"]) -> None:
        """Count the wins in further draws, of which these are the values of all actions."""
        totals = self.hits + np.cumsum(wins(values, self._mask, self._top_k, self._actions), axis=0)
        before = np.sum(totals < WINS, axis=0)
        last = np.where(before < len(totals), before + 1, before)
        self.draws = np.where(self.hits >= WINS, self.draws, self.num_draws + last)
        self.hits = np.minimum(totals[-1], WINS)
        self.num_draws += len(totals)


def propensity(
    hits: Int[np.ndarray, "..."],
    draws: int | Int[np.ndarray, "..."],
    ended: bool | Bool[np.ndarray, "..."] = False,
) -> tuple[Float[np.ndarray, "..."], Float[np.ndarray, "..."]]:
    """Propensities whose inverse may be used as a weight, and their standard errors.

    If draws `ended` because the action won its r-th time in draw n, it is r / n. If h of all n
    draws were wins, the draw that decided counts with them: (h + 1) / (n + 1). For an action of
    probability p the inverse has, over both cases, the mean (1 - (1 - p)^(m + 1)) / p, where m is
    the most draws there may be.

    References:
        Haldane (1945), On a Method of Estimating Frequencies.
    """
    smoothed = (hits + 1.0) / (draws + 2.0)  # not 0 or 1, which would not be certain either
    error = np.sqrt(smoothed * (1.0 - smoothed) / draws)
    return np.where(ended, hits, hits + 1) / np.where(ended, draws, draws + 1), error


def host_mean(likelihood: AbstractLikelihood) -> Callable[[np.ndarray], np.ndarray]:
    """The mean reward of NumPy arrays; compiled for few sizes if the likelihood knows JAX only."""
    mean = functools.partial(type(likelihood).mean, likelihood)  # quicker than the bound method
    if isinstance(mean(np.zeros(1, default_float())), np.ndarray):
        return mean  # type: ignore[return-value]
    program = jax.jit(mean)

    def padded(eta: np.ndarray) -> np.ndarray:
        size = 8
        while size < eta.size:
            size *= 4
        flat = np.pad(eta.reshape(-1), (0, size - eta.size))
        return np.asarray(program(flat))[: eta.size].reshape(eta.shape)

    return padded


def of_residual(
    agent: AbstractAgent, evidence: AbstractEvidence, condition: Float[Array, " c"] | None
) -> tuple[AbstractAgent, AbstractEvidence, Float[Array, " d"]]:
    """An agent for a task of this condition (see `ConditionalPrior.conditions`), evidence about
    what its offset leaves of the parameters, and the offset.
    """
    identity = jnp.eye(evidence.dim, dtype=default_float())
    if condition is None:
        return agent, evidence, jnp.zeros_like(identity[0])
    agent, offset = conditioned(agent, condition, evidence.dim)
    return agent, evidence.reparameterize(offset, identity), offset


# ---- many tasks, each with its own evidence


class TaskRequest(NamedTuple):
    """The evidence of a task on the host, tempered as it has faded; its seed, the number of its
    decision, what its attributes move the prior by, and the block of draws for its propensity.
    """

    leaves: list[np.ndarray]
    structure: Structure[AbstractEvidence]
    seed: int
    number: int
    temperature: float = 1.0
    condition: Float[np.ndarray, " c"] | None = None
    block: int = 0


class TaskDraws(NamedTuple):
    """Of each task, the index that decides and those for its propensity; and what failed."""

    index: Any  # with leading axes (b, 1 + m)
    failed: Bool[np.ndarray, "b draws"]

    def of(self, place: int) -> Index:
        """The indices of one task (1 + m)."""
        return _nth(self.index, place)


class TaskPolicy:
    """Indices of one agent for many tasks by one program, of evidence with room for `max_rows`
    rows; `num_others` of the draws of a task are for a propensity.
    """

    def __init__(
        self, agent: AbstractAgent, empty: AbstractEvidence, max_rows: int, num_others: int
    ) -> None:
        self._leaves, self._structure = partition(agent)
        self._shapes = [leaf.shape for leaf in partition(empty.with_capacity(max_rows))[0]]
        self.num_others = num_others
        exact = isinstance(agent, ThompsonSampling) and isinstance(agent.sampler, Exact)
        self._options = tuple(QUICK_COMPILATION.items()) if exact else ()
        self._num_cores = num_cores()

    def __call__(self, requests: Sequence[TaskRequest]) -> TaskDraws:
        """Draws for tasks of one likelihood, shared out among the processor's cores."""
        size = min(TASKS_PER_CALL, -(-len(requests) // self._num_cores))
        shares = [requests[start : start + size] for start in range(0, len(requests), size)]
        about = (self._structure, requests[0].structure, self.num_others, self._options)
        call = functools.partial(self._draws, compiled(_task_program, *about))
        parts = list(map(call, shares) if len(shares) == 1 else _threads().map(call, shares))
        return TaskDraws(*jax.tree.map(lambda *arrays: np.concatenate(arrays), *parts))

    def _draws(self, program: Callable[..., Any], requests: Sequence[TaskRequest]) -> Any:
        count = len(requests)
        columns = zip(*(request.leaves for request in requests), strict=True)
        evidence = [_side_by_side(*each) for each in zip(columns, self._shapes, strict=True)]
        seeds, numbers = np.zeros((2, TASKS_PER_CALL, 2), np.uint32)
        seeds[:count] = [divmod(request.seed, 2**32) for request in requests]
        numbers[:count] = [(request.number % 2**32, request.block) for request in requests]
        temperatures = np.ones(TASKS_PER_CALL)
        temperatures[:count] = [request.temperature for request in requests]
        conditions = None
        if requests[0].condition is not None:  # as all have, or none
            given: Any = [request.condition for request in requests]
            conditions = padded(given, TASKS_PER_CALL)
        own = (evidence, temperatures, seeds, numbers, conditions)
        found = program(self._leaves, own, np.int32(count))
        return jax.tree.map(lambda array: np.asarray(array)[:count], found)


def padded(conditions: ArrayLike, size: int) -> Float[np.ndarray, "n c"]:
    """Conditions of tasks, with rows of zeros up to this number."""
    rows = np.asarray(conditions, default_float())
    return np.pad(rows, [(0, size - len(rows)), (0, 0)])


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """One for each core; compiled programs run in them side by side."""
    return ThreadPoolExecutor(num_cores(), "draws")


def _side_by_side(column: tuple[np.ndarray, ...], shape: tuple[int, ...]) -> np.ndarray:
    """The same array of every task, with zeros for rows and tasks that there are not."""
    whole = np.zeros((TASKS_PER_CALL, *shape), column[0].dtype)
    for place, array in enumerate(column):
        part: Any = (place, *map(slice, array.shape))
        whole[part] = array
    return whole


def _task_program(
    agent_structure: Structure[AbstractAgent],
    evidence_structure: Structure[AbstractEvidence],
    num_others: int,
    options: tuple[tuple[str, int], ...],
) -> Callable[..., Any]:
    """The program for all agents and evidence of these structures, compiled with options."""

    @jax.jit  # so that it is traced once, though its shapes are asked for before
    def one(leaves: Any, own: Any) -> tuple[Index, Bool[Array, " draws"]]:
        evidence_leaves, temperature, seed, (number, block), condition = own
        agent: AbstractAgent = agent_structure.combine(leaves)
        evidence: AbstractEvidence = evidence_structure.combine(evidence_leaves)
        agent, evidence, offset = of_residual(agent, evidence.temper(temperature), condition)
        streams = _task_streams(seed)
        first = decision_key(streams.decisions, number)
        own_stream = decision_key(decision_key(streams.propensities, number), block)
        others = jax.random.split(own_stream, num_others)
        keys = jnp.concatenate([first[None], others])

        def index(key: Key[Array, ""]) -> tuple[Index, Bool[Array, ""]]:
            found, failed = agent.index(key, evidence)
            return found if condition is None else moved(found, offset), failed

        return jax.vmap(index)(keys)

    @functools.partial(jax.jit, compiler_options=dict(options))
    def many(leaves: Any, columns: Any, count: Array) -> Any:
        def step(place: Array, found: Any) -> Any:
            new = one(leaves, jax.tree.map(lambda column: column[place], columns))
            return jax.tree.map(lambda all_, own: all_.at[place].set(own), found, new)

        shapes = jax.eval_shape(one, leaves, jax.tree.map(lambda column: column[0], columns))
        nothing = jax.tree.map(lambda s: jnp.zeros((TASKS_PER_CALL, *s.shape), s.dtype), shapes)
        return jax.lax.fori_loop(jnp.int32(0), count, step, nothing)

    return many


class TaskOffer(NamedTuple):
    """Actions that a task may choose from, how many, and the one that is taken if not the best."""

    features: Float[np.ndarray, "k d"]
    mask: Bool[np.ndarray, " k"] | None
    top_k: int = 1
    taken: int | None = None


class TaskChoice(NamedTuple):
    """Actions, best first; the one taken, its propensity, from how many draws it is (0 if known),
    its index in some of them (in the one that decides if there are none), and whether draws failed.
    """

    ranking: Int[np.ndarray, " top_k"]
    taken: int
    propensity: float | None
    propensity_se: float | None
    num_draws: int
    predictors: Float[np.ndarray, " m"]
    failed: bool


def choose_for_tasks(
    policy: TaskPolicy,
    requests: Sequence[TaskRequest],
    offers: Sequence[TaskOffer],
    max_draws: int,
    nothing: State | None = None,
) -> list[TaskChoice]:
    """Decisions of tasks (Algorithm 3, line 4), with propensities of at most `max_draws` draws.

    Draws for propensities come in blocks, those of all tasks that need more at once. Where a draw
    fails, the prior decides: what is drawn given `nothing`, the evidence of a new task.
    """
    draws, requests = policy(requests), list(requests)
    lost = [] if nothing is None else [i for i in range(len(requests)) if _is_lost(draws, i)]
    if lost and nothing is not None:
        for place in lost:
            requests[place] = requests[place]._replace(
                leaves=nothing.leaves, structure=nothing.structure
            )
        again = policy([requests[place] for place in lost])
        for whole, part in zip(*map(jax.tree.leaves, (draws, again)), strict=True):
            whole[lost] = part
    choices, counts = [], dict[int, WinCount]()
    for place, (request, offer) in enumerate(zip(requests, offers, strict=True)):
        choice, count = _choose(draws.of(place), draws.failed[place], request, offer, max_draws)
        choices.append(choice._replace(failed=choice.failed or place in lost))
        if count is not None:
            counts[place] = count
    for place in _count_all(policy, requests, counts, max_draws):
        del counts[place]  # whose propensity is unknown, because a draw failed
    for place, count in counts.items():
        (share,), (error,) = count.propensity
        choices[place] = choices[place]._replace(
            propensity=float(share), propensity_se=float(error), num_draws=int(count.draws[0])
        )
    return choices


def _is_lost(draws: TaskDraws, place: int) -> bool:
    """Whether a draw of a task failed or is not finite."""
    fields: Any = draws.of(place)
    finite = all(np.isfinite(field).all() for field in fields)
    return bool(draws.failed[place].any()) or not finite


def _choose(
    index: Index,
    failed: Bool[np.ndarray, " draws"],
    request: TaskRequest,
    offer: TaskOffer,
    max_draws: int,
) -> tuple[TaskChoice, WinCount | None]:
    """The decision of one task, and the wins of its action in the draws so far if they are counted.

    A failed draw chooses at random.
    """
    features = offer.features.astype(default_float(), copy=False)
    values = all_values(index, features)
    lost = bool(np.any(failed)) or not np.all(np.isfinite(values))
    random = np.random.default_rng((request.seed, request.number)) if lost else None
    first = values[0] if random is None else random.random(len(features))
    preferences = first if offer.mask is None else np.where(offer.mask, first, -np.inf)
    ranking = best_first(preferences[None], offer.top_k)[0]
    taken = int(ranking[0]) if offer.taken is None else offer.taken
    at_random = isinstance(index, RandomIndex)
    others = values[1:] if max_draws else values
    predictors = np.zeros(1, values.dtype) if at_random else others[:, taken]
    if lost or at_random:
        share = offer.top_k / int(len(features) if offer.mask is None else np.sum(offer.mask))
        return TaskChoice(ranking, taken, share, 0.0, 0, predictors, lost), None
    choice = TaskChoice(ranking, taken, None, None, 0, predictors, False)
    if not max_draws:
        return choice, None
    count = WinCount(features, offer.mask, offer.top_k, np.asarray([taken]))
    count.add(values[1 : 1 + max_draws])
    return choice, count


def _count_all(
    policy: TaskPolicy, requests: Sequence[TaskRequest], counts: dict[int, WinCount], max_draws: int
) -> set[int]:
    """Draw until all have won r times or have had `max_draws`; the places where a draw failed."""
    lost, size = set[int](), policy.num_others
    blocks = dict.fromkeys(counts, 1)
    while True:
        more = [
            (place, blocks[place] + i)
            for place, count in counts.items()
            if place not in lost
            for i in range(-(-count.num_needed(max_draws) // size))
        ][: MAX_BLOCKS * len(requests)]
        if not more:
            return lost
        draws = policy([requests[place]._replace(block=block) for place, block in more])
        for i, (place, block) in enumerate(more):
            count, blocks[place] = counts[place], block + 1
            left = max_draws - count.num_draws
            values = all_values(draws.of(i), count.features)[1 : 1 + left]
            if np.any(draws.failed[i]) or not np.all(np.isfinite(values)):
                lost.add(place)
            else:
                count.add(values)
