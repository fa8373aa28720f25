"""A Ray cluster; the only file that knows of Ray."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..checks import positive_int
from ..extras import require
from .base import AbstractExecutor, Result, Shard
from .pool import AbstractPool, Event, results_in_order
from .worker import Settings, Worker, settings_here

LOCAL = "local"


class Ray(AbstractExecutor):
    """Workers on a Ray cluster: one for each core, or for each `cores_per_worker` of them.

    The package must be installed on all machines, in one version. A worker or a machine that dies
    is replaced, and what it had under way is done again.
    """

    def __init__(
        self,
        address: str = LOCAL,
        *,
        num_workers: int | None = None,
        cores_per_worker: int = 1,
    ) -> None:
        """Connect, or start a cluster of this machine alone.

        Args:
            address: Of the cluster: "host:6379", "ray://host:10001", or "auto" on one of its
                machines; "local" starts one, which ends with `close`. Where the program has
                connected already, that connection is used.
            num_workers: How many; by default as many as the cluster has room for, asked again
                before every map.
            cores_per_worker: Cores, and threads, of each.

        Raises:
            ImportError: Ray is not installed.
            ConnectionError: There is no cluster at the address.
        """
        require("cluster", "ray")
        cores = positive_int("cores_per_worker", cores_per_worker)
        if num_workers is not None:
            num_workers = positive_int("num_workers", num_workers)
        self._owned = _connect(address)
        self._pool = _Pool(num_workers, cores)

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        """Results of all shards, in the order of the shards, as they come."""
        return results_in_order(self._pool, function, shards)

    def close(self) -> None:
        """End the workers; and the connection, where this executor made it."""
        import ray

        if ray.is_initialized():
            self._pool.abandon(list(self._pool.actors))
            if self._owned:
                ray.shutdown()
        self._owned = False


def _connect(address: str) -> bool:
    """Connect to a cluster; whether there was no connection before."""
    import ray

    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray about its own future
        if address == LOCAL:
            ray.init(address=LOCAL, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    return True


class _RayWorker(Worker):
    """A worker as an actor of Ray."""

    def begin(self, settings: Settings, function: list[Any]) -> None:
        """Take over settings, then fetch the function: its arrays need the precision first."""
        import ray

        self.configure(settings)
        self.function = ray.get(function[0])


class _Pool(AbstractPool):
    def __init__(self, num_workers: int | None, cores: int) -> None:
        self.wanted, self.cores = num_workers, cores
        self.actors: dict[int, Any] = {}
        self.calls: dict[Any, tuple[int, str]] = {}  # reference to worker and what it will tell
        self.function: Any = None

    def begin(self, function: Callable[[Any], Any]) -> int:
        import ray

        self.function = ray.put(function)
        self.calls = {}
        count = self.wanted or max(1, int(ray.cluster_resources().get("CPU", 1) // self.cores))
        self.abandon([worker for worker in self.actors if worker >= count])
        for worker in range(count):
            self._greet(worker)
        return count

    def submit(self, worker: int, shard: Any) -> None:
        self.calls[self.actors[worker].run.remote(shard)] = (worker, "done")

    def wait(self, seconds: float | None) -> list[Event]:
        import ray

        ready, _ = ray.wait(list(self.calls), timeout=seconds)
        return [self._heard(reference) for reference in ready]

    def abandon(self, workers: list[int]) -> None:
        import ray

        for worker in workers:
            ray.kill(self.actors.pop(worker))
        self.calls = {ref: told for ref, told in self.calls.items() if told[0] in self.actors}

    def _heard(self, reference: Any) -> Event:
        import ray

        worker, kind = self.calls.pop(reference)
        try:
            found = ray.get(reference)
        except ray.exceptions.RayTaskError:
            raise  # of unpacking the function: no other worker could do that either
        except ray.exceptions.RayError:
            self.abandon([worker])
            self._greet(worker)
            return Event(worker, "died")
        return Event(worker, kind, *(found or ()))

    def _greet(self, worker: int) -> None:
        """Send settings and function, to a new actor where there is none."""
        import ray

        if worker not in self.actors:
            kind = ray.remote(num_cpus=self.cores, max_restarts=0)(_RayWorker)
            self.actors[worker] = kind.remote()
        reference = self.actors[worker].begin.remote(settings_here(self.cores), [self.function])
        self.calls[reference] = (worker, "ready")
