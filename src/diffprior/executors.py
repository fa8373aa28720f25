"""Executors: where a map over shards runs, in this process, on this machine or on a Ray cluster."""

import abc
import collections
import functools
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from .checks import positive_int, require

__all__ = ["AbstractExecutor", "InProcess", "Processes", "Ray", "ShardError"]

MAX_SHARDS_PER_WORKER = 2  # running, or finished and not yet consumed
MAX_ATTEMPTS = 3  # per shard whose files cannot be read or, with Ray, whose worker dies
TRANSIENT = (OSError, MemoryError)  # another attempt may help
SHOWN_CHARACTERS = 120  # of a shard in an error message
CAUSES = (
    "Likely causes: too little memory; a script that does not start its work under "
    '`if __name__ == "__main__":`'
)
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
    """A shard failed and retrying cannot help; the message names the shard and the error."""


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


def _in_order(
    submit: Callable[[Shard], "Future[Result]"], shards: Sequence[Shard], num_workers: int
) -> Iterator[Result]:
    """Results in the order of the shards, from workers that are never far ahead."""
    running: collections.deque[tuple[Shard, Future[Result]]] = collections.deque()
    try:
        for shard in shards:
            if len(running) == MAX_SHARDS_PER_WORKER * num_workers:
                yield _result(*running.popleft())
            running.append((shard, _submitted(submit, shard)))
        while running:
            yield _result(*running.popleft())
    finally:
        for _, future in running:
            future.cancel()


def _submitted(submit: Callable[[Shard], "Future[Result]"], shard: Shard) -> "Future[Result]":
    try:
        return submit(shard)
    except (
        BrokenExecutor
    ) as error:  # the death of an earlier shard's worker, which is reported first
        future: Future[Result] = Future()
        future.set_exception(error)
        return future


def _result(shard: Shard, future: "Future[Result]") -> Result:
    try:
        return future.result()
    except Exception as error:
        cause = getattr(error, "cause", error)  # Ray wraps it
        if isinstance(cause, ShardError):
            raise cause from error
        raise _failed(shard, f"its worker died ({type(cause).__name__}). {CAUSES}") from error


def _failed(shard: object, error: str) -> ShardError:
    text = str(shard)
    text = text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
    return ShardError(f"shard {text} failed: {error}")


def _apply(function: Callable[[Shard], Result], shard: Shard) -> Result:
    """Apply a function; what goes wrong is raised in words, which can always be sent."""
    attempts = 1
    while True:
        try:
            return function(shard)
        except Exception as error:
            if not isinstance(error, TRANSIENT) or attempts == MAX_ATTEMPTS:
                kind = type(error).__name__
                raise _failed(shard, f"{kind}: {error}" if str(error) else kind) from error
        attempts += 1


def num_cores() -> int:
    """Number of cores this process may use, fewer than the machine has when it is confined."""
    share = os.environ.get(CORES_VARIABLE, "")
    if share.isdigit() and int(share) > 0:
        return int(share)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
        if threads <= 1:
            yield from map(apply, shards)
            return
        with ThreadPoolExecutor(threads) as pool:
            yield from _in_order(functools.partial(pool.submit, apply), shards, threads)


# ---- other processes


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
        import threadpoolctl

        os.environ[CORES_VARIABLE] = str(self.num_threads)
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
    return _apply(_unpacked(settings, function), shard)


def _exit_with_parent() -> None:
    """End this process when the driver does, even if that was killed."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Processes(AbstractExecutor):
    """New processes of this machine, which divide its cores and live until `close`.

    They import the program's main module, so a script must start its work under
    `if __name__ == "__main__":`, as always with `multiprocessing`. If one of them dies, the map
    fails, and the next one starts new processes; `Ray` survives deaths.

    Args:
        num_workers: Number of processes; by default one per core available.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self.num_workers = (
            num_cores() if num_workers is None else positive_int("num_workers", num_workers)
        )
        self._pool: ProcessPoolExecutor | None = None

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        settings = _Settings.of_driver(max(1, num_cores() // self.num_workers))
        run = functools.partial(_run, settings, bytes(ForkingPickler.dumps(function)))
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.num_workers, context, _exit_with_parent)
        submit = functools.partial(self._pool.submit, run)
        try:
            yield from _in_order(submit, shards, self.num_workers)
        except ShardError:  # of a pool that may be broken
            self.close()
            raise

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None


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
        task = ray.remote(num_cpus=self.cores_per_worker, max_retries=MAX_ATTEMPTS - 1)(_run)
        settings = _Settings.of_driver(self.cores_per_worker)
        packed = ray.put(bytes(ForkingPickler.dumps(function)))

        def submit(shard: Shard) -> "Future[Result]":
            future: Future[Result] = task.remote(settings, packed, shard).future()
            return future

        yield from _in_order(submit, shards, self.num_workers or room)

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
