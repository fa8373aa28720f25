"""The loop over workers that may die: shards out, results back in order, failures tried again."""

import abc
import bisect
import collections
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from .base import AHEAD, ShardError
from .worker import Failure

ATTEMPTS = 3  # at a shard whose worker dies or whose files cannot be read
PATIENCE = 120.0  # seconds without any worker


class Event(NamedTuple):
    """News of a worker: it is ready, has finished its shard, or has died."""

    worker: int
    kind: str  # "ready", "done" or "died"
    result: Any = None
    failure: Failure | None = None


class AbstractPool(abc.ABC):
    """Workers by number; one that dies is replaced under the same number."""

    @abc.abstractmethod
    def begin(self, function: Callable[[Any], Any]) -> int:
        """Send the function to all workers, starting what is missing; returns their number.

        Each is told of as ready by `wait`.
        """

    @abc.abstractmethod
    def submit(self, worker: int, shard: Any) -> None:
        """Give a shard to a worker that is ready."""

    @abc.abstractmethod
    def wait(self, seconds: float | None) -> list[Event]:
        """News, at least one; none only if so many seconds have passed."""

    @abc.abstractmethod
    def abandon(self, workers: list[int]) -> None:
        """End workers whose results nobody waits for."""


def results_in_order(
    pool: AbstractPool, function: Callable[[Any], Any], shards: Sequence[Any]
) -> Iterator[Any]:
    """Results of the shards, by the workers of a pool."""
    if shards:
        yield from _Round(pool, shards).results(function)


class _Round:
    """One map: which shards wait, which are under way, and which are done before their turn."""

    def __init__(self, pool: AbstractPool, shards: Sequence[Any]) -> None:
        self.pool, self.shards = pool, shards
        self.waiting = list(range(len(shards)))
        self.busy: dict[int, int] = {}  # worker to shard
        self.idle: set[int] = set()
        self.done: dict[int, Any] = {}
        self.attempts: collections.Counter[int] = collections.Counter()
        self.turn = 0

    def results(self, function: Callable[[Any], Any]) -> Iterator[Any]:
        self.num_workers = self.pool.begin(function)
        try:
            while self.turn < len(self.shards):
                self._submit()
                events = self.pool.wait(None if self.busy else PATIENCE)
                if not events:
                    raise RuntimeError(
                        f"executor: no worker has started within {PATIENCE:.0f} s; look whether "
                        "the machine or the cluster has free cores for "
                        f"{self.num_workers} workers, or ask for fewer"
                    )
                for event in events:
                    self._take(event)
                while self.turn in self.done:
                    self.turn += 1
                    yield self.done.pop(self.turn - 1)
        finally:
            if self.busy:
                self.pool.abandon(list(self.busy))

    def _submit(self) -> None:
        """Shards to idle workers: one that the worker has had in earlier rounds, if any waits."""
        for worker in sorted(self.idle):
            near = [i for i in self.waiting if i < self.turn + AHEAD * self.num_workers]
            if not near:
                return
            own = (i for i in near if i % self.num_workers == worker)
            index = next(own, near[0])
            self.waiting.remove(index)
            self.idle.remove(worker)
            self.busy[worker] = index
            self.pool.submit(worker, self.shards[index])

    def _take(self, event: Event) -> None:
        if event.kind == "ready":
            self.idle.add(event.worker)
            return
        self.idle.discard(event.worker)
        index = self.busy.pop(event.worker, None)
        if event.kind == "done":
            self.idle.add(event.worker)
        if index is None:
            return
        if event.kind == "done" and event.failure is None:
            self.done[index] = event.result
            return
        self.attempts[index] += 1
        failure = event.failure or Failure("its worker died", passing=True)
        if not failure.passing or self.attempts[index] == ATTEMPTS:
            raise ShardError(self.shards[index], failure.error, self.attempts[index])
        bisect.insort(self.waiting, index)
