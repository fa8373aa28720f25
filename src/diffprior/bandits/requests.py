"""Decisions as they are asked for and answered: NumPy arrays, checked."""

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..checks import positive_int, real_numbers

FEWEST_ACTIONS = 8  # arrays are padded to this many actions, or 4, 16, 64, ... times as many
FEW_DECISIONS, MANY_DECISIONS = 8, 128  # batches are decided in blocks of so many
FIELDS = 2  # of a block before its features: the number of actions, and whether there is a mask
ALIGNMENT = 64  # bytes, by which memory must be aligned for programs to read it where it is
MAX_DRAWS = 2**24


@dataclasses.dataclass(frozen=True)
class Decision:
    """What to do. For a batch of decisions every entry has a leading axis.

    Attributes:
        action: A row of `features`, or with `top_k` that many, best first.
        scores: Mean rewards of all actions under the draw that decided; shape (K,).
        propensity: How often the same policy with the same evidence chooses the action (has it
            among its top k), estimated from draws that are independent of the decision; None if
            not asked for.
        propensity_se: Standard error of `propensity`.
        failed: Whether the draw failed, so that the action is random.
    """

    action: Any
    scores: Float[np.ndarray, "*b k"]
    propensity: Any
    propensity_se: Any
    failed: Any


class Block(NamedTuple):
    """Some decisions of a request: the number of the first, how many are real, and for how many
    decisions and actions there is place. One array goes to a program faster than several, above
    all where threads compete for the interpreter: after as much `room` as the program wants, the
    number of actions, whether there is a mask, the features and the mask. What is past the number
    of actions is left as it happens to be."""

    first: int
    size: int
    shape: tuple[int, int]
    room: int
    numbers: Float[np.ndarray, " numbers"]

    @property
    def actions(self) -> Float[np.ndarray, " numbers"]:
        """Without the room."""
        return self.numbers[self.room :]


class _Scratch(threading.local):
    """Memory of one thread."""

    def __init__(self) -> None:
        self._array = np.empty(0)

    def numbers(self, size: int, dtype: np.dtype) -> np.ndarray:
        """So many numbers, those of the last call."""
        if self._array.size < size or self._array.dtype != dtype:
            memory = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
            start = -memory.ctypes.data % ALIGNMENT
            self._array = memory[start : start + size * dtype.itemsize].view(dtype)
        return self._array[:size]


_SCRATCH = _Scratch()


class Request:
    """Checked features (B, K, d), allowed actions (B, K), how many to choose, and from how many
    draws to estimate propensities, if any."""

    def __init__(self, features: Any, mask: Any, top_k: Any, propensity_draws: Any, dim: int):
        self.single = dimensions("features", features) < 3
        self.ranked = top_k is not None
        axes = ("K", dim) if self.single else ("B", "K", dim)
        fix = f"one row of {dim} numbers for each action, and a first axis for a batch"
        checked = real_numbers("features", features, axes, fix)
        self.features = np.asarray(checked)[None] if self.single else np.asarray(checked)
        if 0 in self.features.shape:
            raise ValueError(f"`features`: expected an action, got shape {checked.shape}; {fix}")
        self.mask = None if mask is None else self._checked_mask(mask)
        self.top_k = 1 if top_k is None else self._checked_top_k(top_k)
        self.num_draws = None if propensity_draws is None else _checked_draws(propensity_draws)

    @property
    def size(self) -> int:
        """Number of decisions B."""
        return len(self.features)

    def blocks(self, dtype: np.dtype, room: int = 0) -> list[Block]:
        """The request in arrays of few different sizes, so that few programs serve all; a decision
        that is added is the first of its block again.

        The block of a single decision is written over by the next one in the same thread: to ask
        for memory anew takes longer than all else that is done here.
        """
        columns = FEWEST_ACTIONS
        while columns < self.features.shape[1]:
            columns *= 4
        if self.size == 1:
            return [self._block(_SCRATCH.numbers, dtype, room, (0, 1), (1, columns))]
        return [
            self._block(np.empty, dtype, room, (first, size), (rows, columns))
            for first, size, rows in _pieces(self.size)
        ]

    def _block(
        self,
        memory: Callable[[int, np.dtype], np.ndarray],
        dtype: np.dtype,
        room: int,
        decisions: tuple[int, int],
        shape: tuple[int, int],
    ) -> Block:
        (first, size), (k, d) = decisions, self.features.shape[1:]
        start, places = room + FIELDS, shape[0] * shape[1]
        numbers = memory(start + places * (d + 1), dtype)
        numbers[room], numbers[room + 1] = k, self.mask is not None
        if places == shape[1]:  # one decision, in fewer steps
            numbers[start : start + k * d] = self.features.reshape(-1)
        else:
            features = numbers[start : start + places * d].reshape(*shape, d)
            features[:size, :k] = self.features[first : first + size]
            features[size:] = features[:1]
        if self.mask is not None:
            mask = numbers[start + places * d :].reshape(shape)
            mask[:size, :k] = self.mask[first : first + size]
            mask[size:] = mask[:1]
        return Block(first, size, shape, room, numbers)

    def joined(self, found: Sequence[Any], blocks: Sequence[Block]) -> list[np.ndarray]:
        """Results (b, p k + 1) of all blocks, p numbers an action and one a decision, as p arrays
        (B, K) and one (B,), without what was added."""
        k, padded = self.features.shape[1], blocks[0].shape[1]
        parts = [
            np.asarray(array)[: block.size] for array, block in zip(found, blocks, strict=True)
        ]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
        starts = range(0, whole.shape[1] - 1, padded)
        return [*(whole[:, start : start + k] for start in starts), whole[:, -1]]

    @property
    def plain(self) -> bool:
        """Whether one action is asked for, and nothing else, as most requests do."""
        return self.single and not self.ranked and self.num_draws is None

    def decision(self, row: Float[np.ndarray, " numbers"], block: Block) -> Decision:
        """What a plain request is answered, from the one row of results."""
        k, padded = self.features.shape[1], block.shape[1]
        scores = row[padded : padded + k]
        return Decision(int(row[:k].argmax()), scores, None, None, bool(row[-1] > 0.0))

    def best(self, preferences: Float[np.ndarray, "b k"]) -> Int[np.ndarray, "b top_k"]:
        """The actions of the highest preferences, the first of equal ones first."""
        if self.top_k == 1:
            return np.argmax(preferences, axis=1)[:, None]
        return np.argsort(-preferences, axis=1, kind="stable")[:, : self.top_k]

    def reply(self, array: np.ndarray) -> Any:
        """A result (B, top_k) without the axes that the request did not have."""
        return self.reply_each(array if self.ranked else array[:, 0])

    def reply_each(self, array: np.ndarray) -> Any:
        """A result (B, ...) without the first axis if the request had none."""
        array = array[0] if self.single else array
        return array.item() if array.ndim == 0 else array

    def _checked_mask(self, mask: Any) -> Bool[np.ndarray, "b k"]:
        shape = self.features.shape[:2]
        dimensions("mask", mask)
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

    def _checked_top_k(self, top_k: Any) -> int:
        allowed = self.features.shape[1] if self.mask is None else np.sum(self.mask, axis=1)
        fewest = int(np.min(allowed))
        if positive_int("top_k", top_k) > fewest:
            raise ValueError(
                f"`top_k`: expected at most {fewest}, the number of allowed actions, got {top_k}; "
                "ask for fewer or allow more"
            )
        return int(top_k)


def _checked_draws(num_draws: Any) -> int:
    if positive_int("propensity_draws", num_draws) > MAX_DRAWS:
        raise ValueError(
            f"`propensity_draws`: expected at most 2**24, got {num_draws}; ask for fewer"
        )
    return int(num_draws)


def _pieces(n: int) -> Iterator[tuple[int, int, int]]:
    """Start, length and padded length of the blocks of several decisions."""
    first = 0
    while first < n:
        room = MANY_DECISIONS if 2 * (n - first) > MANY_DECISIONS else FEW_DECISIONS
        yield first, min(n - first, room), room
        first += room


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
