"""The decision service under load, beside the same service at random; and with many more tasks.

`python -m benchmarks.service --section load --quick`
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import diffprior as dp

from .distributions import distribution
from .harness import NUM_SAMPLES, Bench, Measurement, command, resident

DIM, ACTIONS = 8, 10
FEATURES = np.random.default_rng(0).standard_normal((ACTIONS, DIM)).round(3)
TASKS = 10_000
SECONDS, QUICK_SECONDS = 10.0, 2.0  # of each turn; the half loads take two turns
TURNS = 3  # of each service, so that a slow moment hits all
BANDITS = 64  # of the bare library
NUM_REWARDS = 2  # of a task in a store
CHUNK = 2_000  # tasks of one transaction when a store is made
SHAPE = "sheet-8"


@dataclass(frozen=True)
class Load:
    """One run of a service; latencies of decisions are in milliseconds."""

    decisions_per_second: float
    p50: float
    p99: float
    errors: int
    cpu_ms: float = float("nan")  # processor time of the service, per decision and its reward


class Connection:
    """One kept-alive HTTP connection, with as little of its own cost as can be."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> "Connection":
        streams = await asyncio.open_connection("127.0.0.1", self._port)
        self._reader, self._writer = streams
        return self

    async def post(self, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
        """Status and body of the reply."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        reply = await self._reader.readuntil(b"\r\n\r\n")
        length = int(reply.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(reply[9:12]), await self._reader.readexactly(length)

    async def json(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and content of the reply."""
        status, reply = await self.post(path, json.dumps(body).encode())
        return status, json.loads(reply)

    def close(self) -> None:
        self._writer.close()


class Client:
    """Decides for random tasks, or chooses among all as items, and rewards every decision."""

    def __init__(self, port: int, num_tasks: int, choices: bool, seed: int = 0) -> None:
        self._port, self._num_tasks, self._choices = port, num_tasks, choices
        self._rng = np.random.default_rng(seed)
        tables = self._rng.standard_normal((200, ACTIONS, DIM)).round(3).tolist()
        bodies = [{"context": t[0]} if choices else {"features": t} for t in tables]
        self._bodies = [json.dumps(body).encode() for body in bodies]
        self.latencies: list[float] = []
        self.errors = 0

    async def work(self, seconds: float, first: float, every: float | None) -> None:
        """One connection for so many seconds. With `every`, decisions are due at even times, the
        first after `first` seconds, and latency counts from when they were due."""
        connection = await Connection(self._port).open()
        begin, count = time.perf_counter(), 0
        while (due := time.perf_counter()) - begin < seconds:
            if every is not None:
                due = begin + first + count * every
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                count += 1
            await self._decide(connection, due)
        connection.close()

    async def _decide(self, connection: Connection, due: float) -> None:
        task, body = self._rng.integers(self._num_tasks), self._rng.integers(len(self._bodies))
        path = f"/v1/models/shop/tasks/t{task}/decisions"
        path = "/v1/models/shop/choices" if self._choices else path
        status, reply = await connection.post(path, self._bodies[body])
        self.latencies.append(time.perf_counter() - due)
        if status == 200:
            path = f"/v1/decisions/{json.loads(reply)['decision_id']}/reward"
            value = self._rng.integers(2)
            status, _ = await connection.post(path, b'{"reward": %d}' % value)
        self.errors += status != 200


def load(
    port: int,
    seconds: float,
    rate: float | None,
    num_tasks: int,
    choices: bool = False,
    num_connections: int = 32,
) -> Load:
    """Decide, and reward every decision, for so many seconds; at `rate` per second, or as fast as
    the service answers so many connections."""
    client = Client(port, num_tasks, choices)
    every = None if rate is None else num_connections / rate

    async def everyone() -> None:
        firsts = [(every or 0.0) * place / num_connections for place in range(num_connections)]
        await asyncio.gather(*(client.work(seconds, first, every) for first in firsts))

    begin = time.perf_counter()
    asyncio.run(everyone())
    count, elapsed = len(client.latencies), time.perf_counter() - begin
    p50, p99 = np.quantile(1e3 * np.asarray(client.latencies), [0.5, 0.99])
    return Load(count / elapsed, float(p50), float(p99), client.errors)


class Service:
    """A process of the service, on a database that has a model."""

    def __init__(self, database: Path | str) -> None:
        from diffprior.service.server import free_port

        self.port = free_port()
        command = [sys.executable, "-m", "diffprior.cli", "serve", "--port", str(self.port)]
        command += ["--database", str(database)]
        self._begin, self.start_seconds = time.perf_counter(), float("nan")
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def wait(self, seconds: float = 600) -> None:
        """Until it is ready; `start_seconds` is how long that took."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                if asyncio.run(_is_ready(self.port)):
                    self.start_seconds = time.perf_counter() - self._begin
                    return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError("the service did not start")

    def memory(self) -> float:
        """Resident memory in MB."""
        return resident(self._process.pid)

    def cpu_seconds(self) -> float:
        """Processor time so far, which other processes do not lengthen much."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(
        self, seconds: float, rate: float | None = None, *, num_tasks: int, choices: bool = False
    ) -> Load:
        """Put it under a load."""
        before = self.cpu_seconds()
        found = load(self.port, seconds, rate, num_tasks, choices)
        count = max(1.0, found.decisions_per_second * seconds)
        return replace(found, cpu_ms=1e3 * (self.cpu_seconds() - before) / count)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


async def _is_ready(port: int) -> bool:
    connection = await Connection(port).open()
    status, _ = await connection.post("/ready", b"", "GET")
    connection.close()
    return status == 200


@contextmanager
def running(stores: dict[str, Any]) -> Iterator[dict[str, Service]]:
    """Services on these databases, ready; they are stopped in the end."""
    services = {}
    try:
        for name, store in stores.items():  # one after the other: compiling takes all cores
            services[name] = Service(store)
            services[name].wait()
        yield services
    finally:
        for service in services.values():
            service.stop()


def full_and_half_load(bench: Bench) -> list[Measurement]:
    """The decision service: eight parameters, ten actions, 10,000 tasks, logistic rewards, every
    decision rewarded, client included; beside the same service choosing at random, and the bare
    library. Full load is 32 connections; half load is half of the decisions per second of that.
    The diffusion prior is of a sheet, a shape that takes many components."""
    closed = dp.example_mixture("clusters")
    learned = bench.learned(SHAPE, distribution(SHAPE).sample(100, NUM_SAMPLES))
    kinds: dict[str, Any] = {
        "the same service at random": (closed, "random"),
        "mixture": (closed, "best"),
        "diffusion prior": (learned, "best"),
        "diffusion prior, 20 stages": (learned, "evidence-dps"),
    }
    seconds = QUICK_SECONDS if bench.quick else SECONDS
    rows = [
        _library("library, mixture", closed, seconds),
        _library("library, diffusion prior", learned, seconds),
    ]
    return rows + _loads(bench, kinds)


def choices(bench: Bench) -> list[Measurement]:
    """Choices among 10,000 items that were rewarded twice each: eight parameters, linear and
    logistic rewards, every choice rewarded, client included; beside a random choice. Full load is
    32 connections; half load is half of the choices per second of that."""
    prior = dp.example_mixture("clusters")
    kinds = {
        "random choice": (prior, "random", "logistic"),
        "mixture, linear rewards": (prior, "best", "linear:noise_std=1"),
        "mixture, logistic rewards": (prior, "best", "logistic"),
    }
    return _loads(bench, kinds, choices=True)


def _loads(bench: Bench, kinds: dict[str, Any], choices: bool = False) -> list[Measurement]:
    """Services of these priors, samplers and rewards under full load in turns, then half."""
    seconds = QUICK_SECONDS if bench.quick else SECONDS
    with tempfile.TemporaryDirectory() as name:
        stores = {
            kind: make_store(Path(name) / str(number), prior, TASKS, *about)
            for number, (kind, (prior, *about)) in enumerate(kinds.items())
        }
        with running(stores) as services:
            found: dict[str, list[Load]] = {kind: [] for kind in kinds}
            for service in services.values() if choices else ():
                service.load(QUICK_SECONDS, 10.0, num_tasks=TASKS, choices=True)  # draws items
            for _ in range(TURNS):
                for kind, service in services.items():
                    found[kind].append(service.load(seconds, num_tasks=TASKS, choices=choices))
            rows = [_measured(kind, loads) for kind, loads in found.items()]
            for kind, service in services.items():
                rate = float(np.median([load.decisions_per_second for load in found[kind]])) / 2
                half = service.load(2 * seconds, rate, num_tasks=TASKS, choices=choices)
                rows.append(_measured(f"{kind}, half load", [half]))
    return rows


def many_tasks(bench: Bench) -> list[Measurement]:
    """The decision service with 10,000 and 100,000 tasks in its store: seconds from the start of
    the process to its first reply when programs were compiled before, and latency at an even load
    over all tasks."""
    sizes = (1_000, 10_000) if bench.quick else (10_000, 100_000)
    seconds, prior = QUICK_SECONDS if bench.quick else SECONDS, dp.example_mixture("clusters")
    with tempfile.TemporaryDirectory() as name:
        stores = {str(size): make_store(Path(name) / str(size), prior, size) for size in sizes}
        with running(stores):
            pass  # so that everything is compiled
        with running(stores) as services:
            first = services[str(sizes[0])].load(seconds, num_tasks=sizes[0])
            even = first.decisions_per_second / 2
            found: dict[str, list[Load]] = {size: [] for size in stores}
            for _ in range(TURNS):
                for size, service in services.items():
                    found[size].append(service.load(seconds, even, num_tasks=int(size)))
            starts = {size: service.start_seconds for size, service in services.items()}
    return [
        Measurement(
            f"{int(size):,} tasks", {"start, s": starts[size], **_measured("", loads).quantities}
        )
        for size, loads in found.items()
    ]


def _measured(case: str, loads: list[Load]) -> Measurement:
    def median(name: str) -> float:
        return float(np.median([getattr(load, name) for load in loads]))

    return Measurement(
        case,
        {
            "decisions/s": median("decisions_per_second"),
            "p50, ms": median("p50"),
            "p99, ms": median("p99"),
            "service CPU, ms": median("cpu_ms"),
            "errors": float(sum(load.errors for load in loads)),
        },
    )


def _library(case: str, prior: dp.AbstractPrior, seconds: float) -> Measurement:
    """Bandits in one thread, decided and rewarded in turn, so that none of them learns much more
    than a task of the service."""
    bandits = [dp.Bandit(prior, dp.Logistic(), seed=seed) for seed in range(BANDITS)]
    for bandit in bandits:
        bandit.warm_up(ACTIONS, propensity_draws=16)
    turns, times, begin = itertools.cycle(bandits), [], time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        bandit = next(turns)
        action = bandit.decide(FEATURES, propensity_draws=16).action
        times.append(time.perf_counter() - now)
        bandit.update(FEATURES[action], 1.0)
    p50, p99 = (float(1e3 * q) for q in np.quantile(times, [0.5, 0.99]))
    return _measured(case, [Load(len(times) / (time.perf_counter() - begin), p50, p99, 0)])


def make_store(
    path: Path | str,
    prior: dp.AbstractPrior,
    num_tasks: int,
    sampler: str = "best",
    likelihood: str = "logistic",
) -> Path | str:
    """A database with a model called shop, and tasks t0, t1, ... that were rewarded twice each;
    made without the service."""
    from diffprior.service.models import Catalog, task_seed
    from diffprior.service.settings import Settings, parse_likelihood
    from diffprior.service.store import Database, decisions, observations, rewards, tasks

    database, now = Database(str(path)), time.time()
    about = {"sampler": sampler, "propensity_draws": 16, **parse_likelihood(likelihood)}
    version = Catalog(database).put("shop", Settings.model_validate(about), prior, 1.0)

    def task(number: int) -> dict[str, Any]:
        same = {"model": "shop", "num_decisions": NUM_REWARDS, "num_learned": NUM_REWARDS}
        name = f"t{number - 1}"
        seed = task_seed(version.seed, name)
        return same | {"id": number, "name": name, "seed": seed, "created": now}

    def decision(task: int, number: int) -> dict[str, Any]:
        features = {"features": FEATURES.tobytes(), "num_actions": ACTIONS, "version": 1}
        taken = {"ranking": "[0]", "taken": 0, "predicted": 0.5, "failed": False}
        same = {"task_id": task, "number": number, "status": "active", "settled": True}
        return {"id": f"d{task}-{number}", **same, **features, **taken, "created": now}

    def reward(task: int, number: int) -> dict[str, Any]:
        value = {"value": float(task % 2), "late": False, "received": now}
        return {"decision_id": f"d{task}-{number}", "reward_id": "", "number": 0, **value}

    def observation(task: int, number: int) -> dict[str, Any]:
        row = {"features": FEATURES[0].tobytes(), "reward": float(task % 2), "learned": now}
        same = {"task_id": task, "number": number, "source": "reward"}
        return {"decision_id": f"d{task}-{number}", **same, **row}

    for start in range(1, num_tasks + 1, CHUNK):
        ids = range(start, min(start + CHUNK, num_tasks + 1))
        taken = list(itertools.product(ids, range(NUM_REWARDS)))
        with database.transaction() as connection:
            connection.execute(tasks.insert(), [task(number) for number in ids])
            for table, row in (
                (decisions, decision),
                (rewards, reward),
                (observations, observation),
            ):
                connection.execute(table.insert(), [row(*each) for each in taken])
    database.close()
    return path


if __name__ == "__main__":
    command({"load": full_and_half_load, "choices": choices, "store": many_tasks}, usual=("load",))
