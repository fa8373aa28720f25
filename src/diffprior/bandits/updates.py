"""Rewards learned into evidence: all of them or none, in few compiled programs.

Evidence of our own is on the host, where learning a reward is a few additions and calls no program;
that of other classes stays on the device. Evidence may fade, and linear rewards are checked against
the noise of their likelihood.
"""

import dataclasses
import datetime
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from ..checks import on_device, positive, positive_int, real_numbers
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..evidence.glm import GLMEvidence
from ..evidence.linear import LinearEvidence
from ..evidence.response import Response, ResponseEvidence
from ..gaussian import Gaussian
from ._dispatch import Leaf, Structure, compiled, partition

MIN_ROWS = 128  # fewer are too few for a Gaussian term to be accurate
LARGE = 1e3  # prior standard deviations, or standard deviations of the noise
NUM_ORDINARY, ORDINARY_ROWS = 4, 16  # observations that must still be usable after extreme ones
MAX_HALVINGS = 100.0  # beyond, nothing is left in either precision
FIRST_CHECK = 64  # rewards before the noise is checked
SIGNIFICANCE = 1e-9  # chance of a warning if the noise is what it is said to be
TOLERANCE = 2.0  # factor by which the noise may be off without a warning
Leaves = list[np.ndarray]
Learn = Callable[[Sequence[Leaf], np.ndarray, np.ndarray], Leaves]


class RowPlaces(NamedTuple):
    """Where among the arrays of evidence with rows these are."""

    features: int
    rewards: int
    weights: int
    num_rows: int

    @staticmethod
    def of(evidence: AbstractEvidence) -> "RowPlaces | None":
        """The places of an evidence's rows; None for evidence without rows."""
        rows = rows_of(evidence)
        if rows is None:
            return None
        first, *names = [field.name for field in dataclasses.fields(GLMEvidence)]
        before = len(partition(getattr(rows, first))[0])  # of the family; then one array each
        return RowPlaces(*(before + names.index(name) for name in RowPlaces._fields))


def rows_of(evidence: AbstractEvidence) -> GLMEvidence | None:
    """The rows of an evidence, whose arrays are the first of it; None for evidence without rows."""
    held = evidence.rows if isinstance(evidence, ResponseEvidence) else evidence
    return held if isinstance(held, GLMEvidence) else None


def learning_on_host(evidence: AbstractEvidence) -> Learn | None:
    """The function that adds rows to such evidence on the host; None for other evidence."""
    if isinstance(evidence, LinearEvidence):
        return add_to_sums
    places = RowPlaces.of(evidence)
    return None if places is None else functools.partial(put_rows_on_host, places)


def add_to_sums(leaves: Sequence[Leaf], features: np.ndarray, rewards: np.ndarray) -> Leaves:
    """The arrays of `LinearEvidence` with rows added, as `AbstractEvidence.put` does."""
    precision, shift, sum_squares, count, noise_std = leaves
    with np.errstate(over="ignore", invalid="ignore"):  # extreme ones are looked at afterwards
        scaled, standard = features / noise_std**2, rewards / noise_std
        return [
            precision + scaled.T @ features,
            shift + rewards @ scaled,
            np.asarray(sum_squares + standard @ standard),
            np.asarray(count + len(rewards), count.dtype),
            noise_std,
        ]


def put_rows_on_host(
    places: RowPlaces, leaves: Sequence[Leaf], features: np.ndarray, rewards: np.ndarray
) -> Leaves:
    """The arrays of `GLMEvidence` with rows put where there is room for them, likewise."""
    new, first = [np.asarray(leaf) for leaf in leaves], int(leaves[places.num_rows])
    last = first + len(rewards)
    for place, rows in zip(places[:3], (features, rewards, 1.0), strict=True):
        new[place] = new[place].copy()
        new[place][first:last] = rows
    new[places.num_rows] = np.asarray(last, leaves[places.num_rows].dtype)
    return new


def num_axes(name: str, value: ArrayLike) -> int:
    """Number of axes of an array, or of a nest of equal lengths."""
    try:
        return np.ndim(value)
    except ValueError as error:
        raise ValueError(
            f"`{name}`: expected an array, got a ragged nest; rows must have equal lengths"
        ) from error


class Observations:
    """Checked features (n, d) and rewards (n,)."""

    def __init__(self, features: ArrayLike, reward: ArrayLike, dim: int, dtype: np.dtype) -> None:
        axes = (dim,) if num_axes("features", features) < 2 else ("n", dim)
        fix = f"{dim} numbers for each reward"
        if np.ndim(features) == 0:
            fix += "; of an action, pass its row of the features that it was chosen from"
        rows = real_numbers("features", features, axes, fix)
        fix = "one reward for each row of `features`"
        rewards = real_numbers("reward", reward, rows.shape[:-1], fix)
        self.features = np.asarray(rows, dtype).reshape(-1, dim)
        self.rewards = np.asarray(rewards, dtype).reshape(-1)

    def __len__(self) -> int:
        return len(self.rewards)

    def select(self, places: Sequence[int]) -> "Observations":
        """Some of them."""
        some = object.__new__(Observations)
        some.features, some.rewards = self.features[places], self.rewards[places]
        return some

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


def feature_scales(likelihood: AbstractLikelihood, moments: Gaussian) -> Float[np.ndarray, " p"]:
    """About how much eta changes with each feature: prior standard deviations of the parameters;
    ones where eta is not linear in them.
    """
    if isinstance(likelihood, Response):
        return np.ones(likelihood.num_features(moments.mean.shape[0]))
    return np.sqrt(np.diagonal(np.asarray(moments.cov, np.float64)))


def ordinary(stds: Float[np.ndarray, " d"], dtype: np.dtype) -> Iterator[Observations]:
    """Observations as any task may show them: features of the prior's units, rewards of 0 and 1."""
    scales = 1.0 / np.where(stds > 0, stds, 1.0)
    for seed in range(NUM_ORDINARY):
        features = np.random.default_rng(seed).standard_normal((ORDINARY_ROWS, len(stds)))
        rewards = np.arange(ORDINARY_ROWS) % 2
        yield Observations(features * scales, rewards, len(stds), dtype)


_PREPARED: set[object] = set()  # kinds of evidence whose compaction is compiled, or soon will be


class State(NamedTuple):
    """Evidence, partitioned, so that neither decisions nor updates walk through it; how many rows
    can be added before it has to be made smaller, None if any number can; the moment that it has
    faded to, where it does; and if it is on the host, how it learns there.
    """

    leaves: list[Any]  # on the host, if `learn` is there
    structure: Structure[AbstractEvidence]
    room: int | None
    moment: float = 0.0
    learn: Learn | None = None

    @staticmethod
    def of(
        evidence: AbstractEvidence, max_rows: int | None, like: "State | None" = None
    ) -> "State":
        """The state that holds this evidence; `like` is one that may have the same structure."""
        leaves, structure = partition(evidence)
        if like is not None and like.structure == structure:
            structure = like.structure  # the same object is found faster
        moment = 0.0 if like is None else like.moment
        room = None
        if (rows := rows_of(evidence)) is not None:
            room = min(max_rows or rows.capacity, rows.capacity) - int(rows.num_rows)
        state = State(leaves, structure, room, moment, learning_on_host(evidence))
        return state.with_leaves(leaves)

    def with_leaves(self, leaves: Sequence[Leaf]) -> "State":
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
            learn = state.learn or compiled(_update_program, state.structure, length)
            leaves = learn(state.leaves, new.features[piece], new.rewards[piece])
            left = None if state.room is None else state.room - length
            state = state._replace(leaves=leaves, room=left)
            if left is not None and max_rows is not None and left <= max_rows // 2:
                state._prepare_compaction(max_rows, moments)
        return state

    def _prepare_compaction(self, max_rows: int, moments: Gaussian) -> None:
        """Compile the first compaction in a thread, while the last rows before it come."""
        about = (self.structure, max_rows, moments.mean.dtype)
        if about not in _PREPARED:
            _PREPARED.add(about)
            target = functools.partial(self._compact_made_up_rows, max_rows, moments)
            threading.Thread(target=target, name="first compaction").start()

    def _with_room(self, length: int, max_rows: int | None, moments: Gaussian) -> "State":
        """The state with room for `length` rows: more of it, or rows merged and folded."""
        evidence = self.evidence
        rows = rows_of(evidence)
        num_rows = length + (0 if rows is None else int(rows.num_rows))
        if max_rows is not None and num_rows > max_rows:
            evidence, num_rows = evidence.bounded(max_rows - length, moments), max_rows
        return State.of(evidence.with_capacity(num_rows), max_rows, like=self)

    def warm_up(self, max_rows: int | None, moments: Gaussian) -> None:
        """Compile what updates need, by learning from made-up rows and forgetting them."""
        width, dtype = self.evidence.num_features, np.dtype(moments.mean.dtype)
        self.add(Observations(np.ones(width), 0.0, width, dtype), max_rows, moments)
        if max_rows is not None:
            self._compact_made_up_rows(max_rows, moments)

    def _compact_made_up_rows(self, max_rows: int, moments: Gaussian) -> None:
        if self.room and isinstance(self.evidence, GLMEvidence):  # of others, nothing is folded
            dim, dtype = moments.mean.shape[0], np.dtype(moments.mean.dtype)
            features = np.random.default_rng(0).standard_normal((self.room, dim))
            rows = (features, np.zeros(self.room), np.ones(self.room))
            full = State.of(self.evidence.add(*map(on_device, rows)), max_rows, like=self)
            full.add(Observations(np.ones(dim), 0.0, dim, dtype), max_rows, moments)


def _update_program(
    structure: Structure[AbstractEvidence], length: int
) -> Callable[..., list[Any]]:
    """Adds that many observations to the arrays of evidence of this structure."""

    @jax.jit
    def add(
        leaves: list[Any], features: Float[Array, "n d"], rewards: Float[Array, " n"]
    ) -> list[Any]:
        evidence: AbstractEvidence = structure.combine(leaves)
        return partition(evidence.put(features, rewards, jnp.ones_like(rewards)))[0]

    return add


def checked_max_rows(max_rows: int | None) -> int | None:
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


@dataclasses.dataclass(frozen=True)
class Forgetting:
    """How fast evidence fades: a reward counts 2^(-age / half_life) times."""

    half_life: float
    in_seconds: bool

    @staticmethod
    def of(half_life: ArrayLike | datetime.timedelta) -> "Forgetting":
        """From a number of decisions, or a `datetime.timedelta`."""
        in_seconds = isinstance(half_life, datetime.timedelta)
        number = (
            half_life.total_seconds() if isinstance(half_life, datetime.timedelta) else half_life
        )
        fix = "pass a number of decisions, such as 500, or datetime.timedelta(days=7)"
        positive("half_life", number, fix)
        return Forgetting(float(number), in_seconds)  # type: ignore[arg-type]

    def now(self, num_decisions: int) -> float:
        """The moment, in the units of the half-life."""
        return time.time() if self.in_seconds else float(num_decisions)

    def temperature(self, before: float, now: float) -> float:
        """Temperature of the evidence of one moment at a later one; 1 if the clock went back."""
        return float(np.exp2(np.clip((now - before) / self.half_life, 0.0, MAX_HALVINGS)))

    def faded(self, state: State, now: float) -> State:
        """The faded evidence at a later moment."""
        temperature = self.temperature(state.moment, now)
        if temperature == 1.0:
            return state
        leaves = compiled(_fade_program, state.structure)(state.leaves, temperature)
        return state.with_leaves(leaves)._replace(moment=now)


def _fade_program(structure: Structure[AbstractEvidence]) -> Callable[..., list[Any]]:
    """Counts evidence of this structure less."""

    @jax.jit
    def fade(leaves: list[Any], temperature: Float[Array, ""]) -> list[Any]:
        evidence: AbstractEvidence = structure.combine(leaves)
        return partition(evidence.temper(temperature))[0]

    return fade


class NoiseWarning(UserWarning):
    """Rewards contradict the noise that a linear likelihood was given."""


class NoiseWatch:
    """Looks at the rewards when there are 64, 128, 256 and so on, until it has warned."""

    def __init__(self) -> None:
        self._seen, self._next = 0, FIRST_CHECK

    def due(self, num_rewards: int) -> bool:
        """Whether to look, now that there are so many rewards more."""
        self._seen += num_rewards
        if self._seen < self._next:
            return False
        while self._next <= self._seen:
            self._next *= 2
        return True

    def look(self, evidence: AbstractEvidence) -> str | None:
        """A warning about rewards that contradict their noise, once; None if they do not."""
        if not isinstance(evidence, LinearEvidence):
            return None
        scatter, noise_std = residual_std(evidence, TOLERANCE), float(evidence.noise_std)
        if scatter is None:
            return None
        self._next = np.iinfo(np.int64).max
        return (
            f"`noise_std`: expected rewards that scatter by {noise_std:.3g} around a linear "
            f"function of the features, got {scatter:.3g} in {float(evidence.count):.0f} rewards, "
            f"so that exploration is too {'little' if scatter > noise_std else 'much'}; "
            f"pass Linear(noise_std={scatter:.2g}), or learn it from logs with `learn`; if the "
            "task changes in time, pass Bandit(..., half_life=)"
        )


def residual_std(evidence: LinearEvidence, tolerated: float = 1.0) -> float | None:
    """The standard deviation of rewards around their least-squares fit, if it is beyond chance, and
    by a factor of `tolerated`, away from the noise of the likelihood; None if it is not, or cannot
    be determined.
    """
    precision, shift = (np.asarray(a, np.float64) for a in (evidence.precision, evidence.shift))
    values, vectors = np.linalg.eigh(precision)
    rounding = len(values) * float(np.finfo(evidence.shift.dtype).eps)
    determined = values > rounding * values[-1]
    explained = float(np.sum((shift @ vectors[:, determined]) ** 2 / values[determined]))
    squares, freedom = float(evidence.sum_squares), float(evidence.count) - np.sum(determined)
    left = max(squares - explained, 0.0)
    if freedom < FIRST_CHECK / 2 or left < 100 * rounding * squares:
        return None
    ratio = float(np.sqrt(left / freedom))
    if 1.0 / tolerated < ratio < tolerated:
        return None
    from scipy.special import chdtr, chdtrc  # slow to import, and not needed to decide

    beyond = min(chdtr(freedom, left), chdtrc(freedom, left)) < SIGNIFICANCE
    return float(evidence.noise_std) * ratio if beyond else None
