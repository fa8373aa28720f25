"""Processes of this machine, each with its share of the cores."""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

from ..checks import positive_int
from .base import AbstractExecutor, Result, Shard
from .cores import num_cores
from .pool import ATTEMPTS, AbstractPool, Event, results_in_order
from .worker import Settings, Worker, settings_here


class Processes(AbstractExecutor):
    """Fresh processes of this machine, which share out its cores and stay until `close`.

    They import the program's main module, so that a script starts its work under
    `if __name__ == "__main__":`, as always with `multiprocessing`.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        """Nothing is started before the first map.

        Args:
            num_workers: How many; by default one for each core that this process may use.
        """
        count = num_cores() if num_workers is None else positive_int("num_workers", num_workers)
        self._pool = _Pool(count)

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        """Results of all shards, in the order of the shards, as they come."""
        return results_in_order(self._pool, function, shards)

    def close(self) -> None:
        """End the processes."""
        self._pool.abandon(list(self._pool.workers))


class _Pool(AbstractPool):
    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.workers: dict[int, tuple[Any, Connection]] = {}
        self.ready: set[int] = set()
        self.round = 0
        self.unborn = 0  # deaths before anything was done
        self.function = memoryview(b"")

    def begin(self, function: Callable[[Any], Any]) -> int:
        self.function = ForkingPickler.dumps(function)
        self.unborn, self.round = 0, self.round + 1
        for worker in range(self.num_workers):
            if worker not in self.workers:
                self._start(worker)
            else:
                self._greet(worker)
        return self.num_workers

    def submit(self, worker: int, shard: Any) -> None:
        try:
            self.workers[worker][1].send((self.round, shard))
        except (BrokenPipeError, ConnectionError):
            pass  # dead, as `wait` will tell

    def wait(self, seconds: float | None) -> list[Event]:
        owners = {connection: worker for worker, (_, connection) in self.workers.items()}
        events: list[Event] = []
        while owners and not events:
            found = wait(list(owners), seconds)
            if not found:
                break
            for connection in found:
                events += self._heard(owners[connection])  # type: ignore[index]
        return events

    def abandon(self, workers: list[int]) -> None:
        for worker in workers:
            process, connection = self.workers.pop(worker)
            self.ready.discard(worker)
            connection.close()
            process.kill()
            process.join()

    def _heard(self, worker: int) -> list[Event]:
        try:
            round_, event = self.workers[worker][1].recv()
        except (EOFError, ConnectionError):
            return [self._died(worker)]
        self.ready.add(worker)
        # One that started too late for an earlier round tells of that first.
        return [event._replace(worker=worker)] if round_ == self.round else []

    def _died(self, worker: int) -> Event:
        if worker not in self.ready:
            self.unborn += 1
            if self.unborn == ATTEMPTS:
                self.abandon(list(self.workers))
                raise RuntimeError(
                    "Processes: workers die before they begin. Likely causes: a script that does "
                    'not start its work under `if __name__ == "__main__":`; too little memory'
                )
        self.abandon([worker])
        self._start(worker)
        return Event(worker, "died")

    def _start(self, worker: int) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        there.close()
        self.workers[worker] = (process, here)
        self._greet(worker)

    def _greet(self, worker: int) -> None:
        """Settings first: the arrays of the function are unpacked in their precision."""
        connection = self.workers[worker][1]
        try:
            connection.send((self.round, settings_here(*_share(worker, self.num_workers))))
            connection.send_bytes(self.function)
        except (BrokenPipeError, ConnectionError):
            pass  # dead, as `wait` will tell


def _share(worker: int, num_workers: int) -> tuple[int, frozenset[int]]:
    """How many threads a worker may have, and its cores; where there are fewer, two share one."""
    if not hasattr(os, "sched_getaffinity"):
        return max(1, num_cores() // num_workers), frozenset()
    cores = sorted(os.sched_getaffinity(0))
    own = cores[worker % len(cores) :: num_workers]
    return len(own), frozenset(own)


def _serve(connection: Connection) -> None:
    """The life of a worker; it ends with the connection."""
    worker = Worker()
    while True:
        try:
            round_, value = connection.recv()
        except (EOFError, ConnectionError):
            return
        if isinstance(value, Settings):
            worker.configure(value)
            worker.function = ForkingPickler.loads(connection.recv_bytes())
            event = Event(-1, "ready")
        else:
            event = Event(-1, "done", *worker.run(value))
        connection.send((round_, event))
