"""The contract of an executor: a pure function mapped over shards, results in their order."""

import abc
import collections
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ..checks import positive_int
from .cores import num_cores

Shard = TypeVar("Shard")
Result = TypeVar("Result")
SHOWN = 120  # characters of a shard in a message
AHEAD = 2  # shards a worker that are under way, or done and not yet taken


class ShardError(ValueError):
    """A shard whose function fails wherever it is run; the message names both."""

    def __init__(self, shard: Any, error: str, attempts: int = 1) -> None:
        """The error of a shard after so many attempts.

        Args:
            shard: What failed.
            error: How.
            attempts: How often.
        """
        shown = str(shard)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}..."
        times = "" if attempts == 1 else f" {attempts} times"
        super().__init__(f"shard {shown} failed{times}: {error}")


class AbstractExecutor(abc.ABC):
    """Maps pure functions over shards, somewhere; a context manager that ends what it started."""

    @abc.abstractmethod
    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        """Results of all shards, in the order of the shards, as they come.

        Args:
            function: Pure, and importable by its name where it runs elsewhere. What all shards
                share, such as a prior, is bound to it by `functools.partial`: it is sent once to
                every worker, however many shards there are.
            shards: What to map over, each small enough for one worker.

        Returns:
            An iterator; at most two shards a worker are under way or wait to be taken.

        Raises:
            ShardError: A shard that fails wherever it is run.
        """

    def total(
        self, kind: Any, function: Callable[[Shard], Result], shards: Sequence[Shard]
    ) -> Result:
        """The results of all shards, added in their order.

        Args:
            kind: The class of the results, a dataclass of arrays and numbers; its `total` adds
                an iterable of them.
            function: As of `map`.
            shards: As of `map`.

        Returns:
            One result.
        """
        return kind.total(self.map(function, shards))

    def close(self) -> None:
        """End the workers that this executor has started."""
        return None

    def __enter__(self) -> "AbstractExecutor":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class InProcess(AbstractExecutor):
    """This process, with a thread for each core: NumPy and XLA work outside Python's lock."""

    def __init__(self, num_threads: int | None = None) -> None:
        """Nothing is started before it is needed.

        Args:
            num_threads: Shards at once; by default as many as this process may use cores.
        """
        self.num_threads = None if num_threads is None else positive_int("num_threads", num_threads)

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        """Results of all shards, in the order of the shards, as they come."""
        threads = min(self.num_threads or num_cores(), len(shards))
        if threads <= 1:
            yield from (_apply(function, shard) for shard in shards)
            return
        with ThreadPoolExecutor(threads) as pool:
            waiting: collections.deque[Future[Result]] = collections.deque()
            try:
                for shard in shards:
                    if len(waiting) == AHEAD * threads:
                        yield waiting.popleft().result()
                    waiting.append(pool.submit(_apply, function, shard))
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def _apply(function: Callable[[Shard], Result], shard: Shard) -> Result:
    try:
        return function(shard)
    except Exception as error:
        raise ShardError(shard, told(error)) from error


def told(error: BaseException) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
