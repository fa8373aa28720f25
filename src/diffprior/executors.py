"""Executors: where a map over shards runs, in this process, on this machine or on a Ray cluster."""

import abc
import bisect
import collections
import contextlib
import functools
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from .checks import positive_int, require

__all__ = ["AbstractExecutor", "InProcess", "Processes", "Ray", "ShardError"]

MAX_SHARDS_PER_WORKER = 2  # running, or finished and not yet consumed
MAX_ATTEMPTS = 3  # per shard whose worker dies or whose files cannot be read
START_TIMEOUT = 120.0  # seconds without a single worker before giving up
SHOWN_CHARACTERS = 120  # of a shard in an error message
CORES_VARIABLE = "PJRT_NPROC"  # read by XLA too, when it starts its threads

# JAX options that change digits, so workers copy them from the driver.
NUMERIC_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_threefry_partitionable",
)


@runtime_checkable
class _Summable(Protocol):
    """A result that can be added over shards."""

    @staticmethod
    def total(parts: Iterable[Any]) -> Any: ...


Shard = TypeVar("Shard")
Result = TypeVar("Result")
Sum = TypeVar("Sum", bound=_Summable)


class ShardError(ValueError):
    """A shard failed and retrying cannot help; the message names the shard and the error.

    Args:
        shard: The shard that failed.
        error: What went wrong.
        attempts: How many times it was tried.
    """

    def __init__(self, shard: object, error: str, attempts: int = 1) -> None:
        text = str(shard)
        text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
        times = "" if attempts == 1 else f" {attempts} times"
        super().__init__(f"shard {text} failed{times}: {error}")


class AbstractExecutor(abc.ABC):
    """Maps pure functions over shards; a context manager that stops the workers it started."""

    @abc.abstractmethod
    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        """Apply a function to every shard.

        Args:
            function: Pure, and importable by name when it runs in another process. Bind what all
                shards share, such as a prior, with `functools.partial`: it is sent once to each
                worker, however many shards there are.
            shards: Inputs, each small enough for one worker.

        Returns:
            An iterator over the results, in the order of the shards. At most two shards per worker
            are running or waiting to be consumed.

        Raises:
            ShardError: A shard failed and retrying cannot help.
        """

    def total(
        self, kind: type[Sum], function: Callable[[Shard], Sum], shards: Sequence[Shard]
    ) -> Sum:
        """Apply a function to every shard and add up the results, in order.

        Args:
            kind: Class of the results, a dataclass of arrays and numbers whose `total` adds them.
            function: As for `map`.
            shards: As for `map`.

        Returns:
            The sum.
        """
        found: Sum = kind.total(self.map(function, shards))
        return found

    def close(self) -> None:  # noqa: B027
        """Stop the workers that this executor started."""

    def __enter__(self) -> "AbstractExecutor":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class InProcess(AbstractExecutor):
    """Threads of this process, one per core: NumPy and XLA release Python's lock.

    Args:
        num_threads: Shards at a time; by default the number of cores available.
    """

    def __init__(self, num_threads: int | None = None) -> None:
        self.num_threads = None if num_threads is None else positive_int("num_threads", num_threads)

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        threads = min(self.num_threads or num_cores(), len(shards))
        if threads <= 1:
            yield from (_apply(function, shard) for shard in shards)
            return
        with ThreadPoolExecutor(threads) as pool:
            running: collections.deque[Future[Result]] = collections.deque()
            try:
                for shard in shards:
                    if len(running) == MAX_SHARDS_PER_WORKER * threads:
                        yield running.popleft().result()
                    running.append(pool.submit(_apply, function, shard))
                while running:
                    yield running.popleft().result()
            finally:
                for future in running:
                    future.cancel()


def num_cores() -> int:
    """Number of cores this process may use, fewer than the machine has when it is confined."""
    share = os.environ.get(CORES_VARIABLE, "")
    if share.isdigit() and int(share) > 0:
        return int(share)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _apply(function: Callable[[Shard], Result], shard: Shard) -> Result:
    try:
        return function(shard)
    except Exception as error:
        raise ShardError(shard, _one_line(error)) from error


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# ---- in a worker


class _Failure(NamedTuple):
    error: str
    transient: bool  # another attempt may help


class _Settings(NamedTuple):
    """Settings of the driver, which its workers copy."""

    options: dict[str, Any]
    flags: str | None
    num_threads: int
    cores: frozenset[int]

    @staticmethod
    def of_driver(num_threads: int, cores: frozenset[int] = frozenset()) -> "_Settings":
        import jax

        config = jax.config  # `read` rejects options that can differ by thread: attributes
        options = {
            name: getattr(config, name) if hasattr(config, name) else config.read(name)
            for name in NUMERIC_OPTIONS
        }
        return _Settings(options, os.environ.get("XLA_FLAGS"), num_threads, cores)

    def copy(self) -> None:
        """Configure this process; flags and threads count only before the first use of XLA."""
        import jax

        os.environ[CORES_VARIABLE] = str(self.num_threads)
        if self.cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)
        with contextlib.suppress(ImportError):  # only speed depends on it
            import threadpoolctl

            threadpoolctl.threadpool_limits(self.num_threads)
        if self.flags is not None:
            os.environ["XLA_FLAGS"] = self.flags
        for name, value in self.options.items():
            jax.config.update(name, value)


_function: Callable[[Any], Any] | None = None  # of a worker's process


def _load(settings: _Settings, unpack: Callable[[], Callable[[Any], Any]]) -> int:
    """Copy settings first: the arrays of the function are unpacked in their precision."""
    global _function
    settings.copy()
    _function = unpack()
    return os.getpid()


def _run(shard: Any) -> tuple[Any, _Failure | None]:
    assert _function is not None
    try:
        return _function(shard), None
    except Exception as error:
        return None, _Failure(_one_line(error), isinstance(error, OSError | MemoryError))


# ---- workers that may die


class _AbstractPool(AbstractExecutor):
    """Numbered workers, each of which may die and is replaced under the same number."""

    @abc.abstractmethod
    def _begin(self, function: Callable[[Any], Any]) -> int:
        """Prepare a map; returns the number of workers."""

    @abc.abstractmethod
    def _load(self, worker: int) -> "Future[Any]":
        """Send settings and function to a worker, starting it if necessary."""

    @abc.abstractmethod
    def _submit(self, worker: int, shard: Any) -> "Future[Any]":
        """Send a shard to a worker that has loaded the function."""

    @abc.abstractmethod
    def _stop(self, worker: int) -> None:
        """Stop a worker, whether idle, busy or dead."""

    @abc.abstractmethod
    def _is_death(self, error: BaseException) -> bool:
        """Whether an error means that the worker is gone."""

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        if shards:
            yield from _Map(self, function, shards).results()


class _Map:
    """One map: which shards wait, which are running, and which finished before their turn."""

    def __init__(
        self, pool: _AbstractPool, function: Callable[[Any], Any], shards: Sequence[Any]
    ) -> None:
        self.pool, self.shards = pool, shards
        self.num_workers = pool._begin(function)
        self.pending: dict[Future[Any], tuple[int, int | None]] = {}  # worker, and shard if any
        self.idle: set[int] = set()
        self.waiting = list(range(len(shards)))
        self.done: dict[int, Any] = {}
        self.attempts: collections.Counter[int | None] = collections.Counter()  # None: to start
        self.turn = 0

    def results(self) -> Iterator[Any]:
        try:
            for worker in range(self.num_workers):
                self.pending[self.pool._load(worker)] = (worker, None)
            while self.turn < len(self.shards):
                self._submit()
                busy = any(index is not None for _, index in self.pending.values())
                finished, _ = wait(self.pending, None if busy else START_TIMEOUT, FIRST_COMPLETED)
                if not finished:
                    raise RuntimeError(
                        f"executor: no worker started within {START_TIMEOUT:.0f} s; check that the "
                        f"machine or cluster has free cores for {self.num_workers} workers, or use "
                        "fewer"
                    )
                for future in finished:
                    self._collect(future)
                while self.turn in self.done:
                    self.turn += 1
                    yield self.done.pop(self.turn - 1)
        finally:
            for worker, index in list(self.pending.values()):
                if index is not None:
                    self.pool._stop(worker)

    def _submit(self) -> None:
        """Send shards to idle workers, preferring those that a worker had in earlier maps."""
        for worker in sorted(self.idle):
            limit = self.turn + MAX_SHARDS_PER_WORKER * self.num_workers
            near = [index for index in self.waiting if index < limit]
            if not near:
                return
            index = next((i for i in near if i % self.num_workers == worker), near[0])
            self.waiting.remove(index)
            self.idle.remove(worker)
            self.pending[self.pool._submit(worker, self.shards[index])] = (worker, index)

    def _collect(self, future: "Future[Any]") -> None:
        worker, index = self.pending.pop(future)
        error = future.exception()
        if error is not None and self.pool._is_death(error):
            self.pool._stop(worker)
            self._count_failure(index, _Failure("its worker died", transient=True))
            self.pending[self.pool._load(worker)] = (worker, None)
        elif index is None:
            future.result()  # raises if the function cannot be loaded, by any worker
            self.idle.add(worker)
        else:
            self.idle.add(worker)
            result, failure = (
                future.result() if error is None else (None, _Failure(_one_line(error), False))
            )
            if failure is None:
                self.done[index] = result
            else:
                self._count_failure(index, failure)

    def _count_failure(self, index: int | None, failure: _Failure) -> None:
        """Put a shard back among the waiting, or give up on it."""
        self.attempts[index] += 1
        last = not failure.transient or self.attempts[index] == MAX_ATTEMPTS
        if last and index is None:
            raise RuntimeError(
                "executor: workers die before they begin. Likely causes: a script that does not "
                'start its work under `if __name__ == "__main__":`; too little memory'
            )
        if index is not None:
            if last:
                raise ShardError(self.shards[index], failure.error, self.attempts[index])
            bisect.insort(self.waiting, index)


class Processes(_AbstractPool):
    """Fresh processes of this machine, which divide its cores and live until `close`.

    They import the program's main module, so a script must start its work under
    `if __name__ == "__main__":`, as always with `multiprocessing`.

    Args:
        num_workers: Number of processes; by default one per core available.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = (
            num_cores() if num_workers is None else positive_int("num_workers", num_workers)
        )
        self._function = b""
        self._pools: dict[int, ProcessPoolExecutor] = {}  # of one process each: deaths stay apart
        self._pids: dict[int, Future[int]] = {}

    def close(self) -> None:
        for worker in list(self._pools):
            self._pools.pop(worker).shutdown()
        self._pids.clear()

    def _begin(self, function: Callable[[Any], Any]) -> int:
        from multiprocessing.reduction import ForkingPickler

        self._function = bytes(ForkingPickler.dumps(function))
        return self.num_workers

    def _load(self, worker: int) -> "Future[int]":
        import multiprocessing
        from multiprocessing.reduction import ForkingPickler

        if worker not in self._pools:
            context = multiprocessing.get_context("spawn")
            self._pools[worker] = ProcessPoolExecutor(1, context, _exit_with_parent)
        settings = _Settings.of_driver(*_share_of_cores(worker, self.num_workers))
        unpack = functools.partial(ForkingPickler.loads, self._function)
        try:
            self._pids[worker] = self._pools[worker].submit(_load, settings, unpack)
        except BrokenProcessPool:  # died while idle, since the last map
            del self._pools[worker]
            return self._load(worker)
        return self._pids[worker]

    def _submit(self, worker: int, shard: Any) -> "Future[Any]":
        try:
            return self._pools[worker].submit(_run, shard)
        except BrokenProcessPool as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def _stop(self, worker: int) -> None:
        pool, loaded = self._pools.pop(worker), self._pids.pop(worker)
        alive = loaded.done() and loaded.exception() is None
        pool.shutdown(wait=False, cancel_futures=True)
        if alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(loaded.result(), signal.SIGTERM)

    def _is_death(self, error: BaseException) -> bool:
        return isinstance(error, BrokenProcessPool)


def _exit_with_parent() -> None:
    """End this process when the driver does, even if that was killed."""
    import multiprocessing

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _share_of_cores(worker: int, num_workers: int) -> tuple[int, frozenset[int]]:
    """Number of threads of a worker, and its cores; when cores are few, workers share them."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, num_cores() // num_workers), frozenset()
    cores = sorted(os.sched_getaffinity(0))
    own = cores[worker % len(cores) :: num_workers]
    return len(own), frozenset(own)


class Ray(_AbstractPool):
    """Workers on a Ray cluster: one per core, or one per `cores_per_worker` cores.

    The package must be installed on all machines, in the same version. A worker or machine that
    dies is replaced, and its unfinished shards run again.

    Args:
        address: Address of the cluster: "host:6379", "ray://host:10001", or "auto" on one of its
            machines; "local" starts one, which ends with `close`. An existing connection of this
            program is used as it is.
        num_workers: Number of workers; by default as many as the cluster has room for, counted
            before every map.
        cores_per_worker: Cores, and threads, per worker.

    Raises:
        ImportError: Ray is not installed.
        ConnectionError: There is no cluster at the address.
    """

    def __init__(
        self, address: str = "local", *, num_workers: int | None = None, cores_per_worker: int = 1
    ) -> None:
        require("cluster", "ray")
        self.cores_per_worker = positive_int("cores_per_worker", cores_per_worker)
        if num_workers is not None:
            num_workers = positive_int("num_workers", num_workers)
        self.num_workers = num_workers
        self._actors: dict[int, Any] = {}
        self._function: Any = None
        self._owns_connection = _connect(address)

    def close(self) -> None:
        import ray

        if ray.is_initialized():
            for worker in list(self._actors):
                self._stop(worker)
            if self._owns_connection:
                ray.shutdown()
        self._owns_connection = False

    def _begin(self, function: Callable[[Any], Any]) -> int:
        import ray

        self._function = ray.put(function)
        room = int(ray.cluster_resources().get("CPU", 1) // self.cores_per_worker)
        count = self.num_workers or max(1, room)
        for worker in [worker for worker in self._actors if worker >= count]:
            self._stop(worker)
        return count

    def _load(self, worker: int) -> "Future[Any]":
        import ray

        if worker not in self._actors:
            actor = ray.remote(num_cpus=self.cores_per_worker, max_restarts=0)(_RayWorker)
            self._actors[worker] = actor.remote()
        settings = _Settings.of_driver(self.cores_per_worker)
        future: Future[Any] = self._actors[worker].load.remote(settings, [self._function]).future()
        return future

    def _submit(self, worker: int, shard: Any) -> "Future[Any]":
        future: Future[Any] = self._actors[worker].run.remote(shard).future()
        return future

    def _stop(self, worker: int) -> None:
        import ray

        ray.kill(self._actors.pop(worker))

    def _is_death(self, error: BaseException) -> bool:
        from ray.exceptions import RayError, RayTaskError

        return isinstance(error, RayError) and not isinstance(error, RayTaskError)


class _RayWorker:
    """A worker as a Ray actor."""

    def load(self, settings: _Settings, function: list[Any]) -> None:
        """Copy settings, then unpack the function, of which Ray passes a reference."""
        import ray

        _load(settings, lambda: ray.get(function[0]))

    def run(self, shard: Any) -> tuple[Any, _Failure | None]:
        """Apply the function to one shard."""
        return _run(shard)


def _connect(address: str) -> bool:
    """Connect to a cluster; returns whether there was no connection before."""
    import ray

    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options["include_dashboard"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own deprecations
        ray.init(address=address, **options)
    return True
