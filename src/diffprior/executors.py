"""Executors: where a map over shards runs, in this process, on this machine or on a Ray cluster."""

import abc
import collections
import contextlib
import functools
import multiprocessing
import os
import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from .checks import positive_int, require

__all__ = ["AbstractExecutor", "InProcess", "Processes", "Ray", "ShardError"]

MAX_SHARDS_PER_WORKER = 2  # running, or finished and not yet consumed
MAX_ATTEMPTS = 3  # per shard whose worker dies or whose files cannot be read
TRANSIENT = (OSError, MemoryError)  # another attempt may help
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
                shards share, such as a prior, with `functools.partial`: every worker unpacks it
                once, however many shards there are.
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
        apply = functools.partial(_apply, function)
        yield from map(apply, shards) if threads <= 1 else _in_order(apply, shards, threads)


def _in_order(
    apply: Callable[[Shard], Result], shards: Sequence[Shard], num_threads: int
) -> Iterator[Result]:
    """Results in the order of the shards, from threads that are never far ahead."""
    with ThreadPoolExecutor(num_threads) as pool:
        running: collections.deque[Future[Result]] = collections.deque()
        try:
            for shard in shards:
                if len(running) == MAX_SHARDS_PER_WORKER * num_threads:
                    yield running.popleft().result()
                running.append(pool.submit(apply, shard))
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


class _Settings(NamedTuple):
    """Settings of the driver, which its workers copy."""

    options: tuple[tuple[str, object], ...]
    flags: str | None
    num_threads: int

    @staticmethod
    def of_driver(num_threads: int) -> "_Settings":
        import jax

        config = jax.config  # `read` rejects options that can differ by thread: attributes
        options = tuple(
            (name, getattr(config, name) if hasattr(config, name) else config.read(name))
            for name in NUMERIC_OPTIONS
        )
        return _Settings(options, os.environ.get("XLA_FLAGS"), num_threads)

    def copy(self) -> None:
        """Configure this process; flags and threads count only before the first use of XLA."""
        import jax

        os.environ[CORES_VARIABLE] = str(self.num_threads)
        with contextlib.suppress(ImportError):  # only speed depends on it
            import threadpoolctl

            threadpoolctl.threadpool_limits(self.num_threads)
        if self.flags is not None:
            os.environ["XLA_FLAGS"] = self.flags
        for name, value in self.options:
            jax.config.update(name, value)


@functools.lru_cache(maxsize=1)
def _unpacked(settings: _Settings, function: bytes) -> Callable[[Any], Any]:
    """Copy settings first: the arrays of the function are unpacked in their precision."""
    settings.copy()
    unpacked: Callable[[Any], Any] = ForkingPickler.loads(function)
    return unpacked


def _run(settings: _Settings, function: bytes, shard: Any) -> Any:
    return _unpacked(settings, function)(shard)


def _run_here(settings: _Settings, function: bytes, shard: Any) -> tuple[Any, str, bool]:
    """As `_run`; what went wrong, in words that can always be sent, and whether it may pass."""
    try:
        return _run(settings, function, shard), "", False
    except Exception as error:
        return None, _one_line(error), isinstance(error, TRANSIENT)


def _exit_with_parent() -> None:
    """End this process when the driver does, even if that was killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


# ---- in the driver


class Processes(AbstractExecutor):
    """Fresh processes of this machine, which divide its cores and live until `close`.

    They import the program's main module, so a script must start its work under
    `if __name__ == "__main__":`, as always with `multiprocessing`. A process that dies is replaced,
    and its shard runs again.

    Args:
        num_workers: Number of processes; by default one per core available.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = (
            num_cores() if num_workers is None else positive_int("num_workers", num_workers)
        )
        # pools of one process each, so that a death costs one shard; None is to be started
        self._idle: queue.SimpleQueue[ProcessPoolExecutor | None] = queue.SimpleQueue()
        for _ in range(self.num_workers):
            self._idle.put(None)

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        settings = _Settings.of_driver(max(1, num_cores() // self.num_workers))
        run = functools.partial(_run_here, settings, bytes(ForkingPickler.dumps(function)))
        yield from _in_order(functools.partial(self._apply, run), shards, self.num_workers)

    def close(self) -> None:
        for _ in range(self.num_workers):
            pool = self._idle.get()
            if pool is not None:
                pool.shutdown()
            self._idle.put(None)

    def _apply(self, run: Callable[[Any], tuple[Any, str, bool]], shard: Any) -> Any:
        pool = self._idle.get()
        try:
            for attempt in range(1, MAX_ATTEMPTS + 1):
                pool = pool or _started()
                try:
                    result, error, transient = pool.submit(run, shard).result()
                except BrokenProcessPool:
                    pool, error, transient = None, "its worker died", True
                if not error:
                    return result
                if not transient or attempt == MAX_ATTEMPTS:
                    raise ShardError(shard, error, attempt)
        finally:
            self._idle.put(pool)


def _started() -> ProcessPoolExecutor:
    """A pool of one process, which has begun."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, context, _exit_with_parent)
    try:
        pool.submit(os.getpid).result()
    except BrokenProcessPool as error:
        raise RuntimeError(
            "executor: workers die before they begin. Likely causes: a script that does not "
            'start its work under `if __name__ == "__main__":`; too little memory'
        ) from error
    return pool


class Ray(AbstractExecutor):
    """Tasks on a Ray cluster: one per core at a time, or one per `cores_per_worker` cores.

    The package must be installed on all machines, in the same version. What ran on a worker or a
    machine that dies runs again elsewhere.

    Args:
        address: Address of the cluster: "host:6379", "ray://host:10001", or "auto" on one of its
            machines; "local" starts one, which ends with `close`. An existing connection of this
            program is used as it is.
        num_workers: Number of shards at a time; by default as many as the cluster has room for,
            counted before every map.
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
        self._owns_connection = _connect(address)

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        import ray

        cores = ray.cluster_resources().get("CPU", 0)
        room = int(cores // self.cores_per_worker)
        if room < 1:
            raise RuntimeError(
                f"executor: expected a cluster with {self.cores_per_worker} free cores for a "
                f"worker, got {cores:g}; add a machine, or lower `cores_per_worker`"
            )
        retries: dict[str, Any] = {"max_retries": MAX_ATTEMPTS - 1}
        retries["retry_exceptions"] = list(TRANSIENT)
        task = ray.remote(num_cpus=self.cores_per_worker, **retries)(_run)
        settings = _Settings.of_driver(self.cores_per_worker)
        packed = ray.put(bytes(ForkingPickler.dumps(function)))

        def apply(shard: Shard) -> Result:
            try:
                result: Result = ray.get(task.remote(settings, packed, shard))
            except ray.exceptions.RayTaskError as error:
                attempts = MAX_ATTEMPTS if isinstance(error.cause, TRANSIENT) else 1
                raise ShardError(shard, _one_line(error.cause), attempts) from error
            except ray.exceptions.RayError as error:
                raise ShardError(shard, "its worker died", MAX_ATTEMPTS) from error
            return result

        yield from _in_order(apply, shards, self.num_workers or room)

    def close(self) -> None:
        import ray

        if self._owns_connection and ray.is_initialized():
            ray.shutdown()
        self._owns_connection = False


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
