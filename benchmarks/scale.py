"""The cost of one decision, reward and task, and two processes on one PostgreSQL beside one.

`python -m benchmarks.scale --section cost`
"""

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import diffprior as dp

from .harness import Bench, Measurement, command
from .service import DIM, TASKS, Connection, Load, Service, load, make_store, running

ITEMS = 1_000  # that a choice is among
BULK, BATCH = 1_000, 256  # rewards and decisions of one call


def cost(bench: Bench) -> list[Measurement]:
    """Processor time of the service per call: one decision with its reward, calls with many, and
    choices among a thousand items. Eight parameters, ten actions, logistic rewards, SQLite."""
    seconds = 3.0 if bench.quick else 15.0
    with tempfile.TemporaryDirectory() as name:
        store = make_store(Path(name) / "log", dp.example_mixture("clusters"), TASKS)
        with running({"": store}) as services:
            service = services[""]
            single = service.load(seconds, num_tasks=TASKS)
            memory = service.memory()
            rows = [_row("decision and reward", single.decisions_per_second, single.cpu_ms)]
            for case, calls in (("in bulk", _bulk), ("choice and reward", _choices)):
                before, begin = service.cpu_seconds(), time.perf_counter()
                count = asyncio.run(calls(service.port, seconds))
                cpu, elapsed = service.cpu_seconds() - before, time.perf_counter() - begin
                rows.append(_row(case, count / elapsed, 1e3 * cpu / count))
            grown = [_touched(service, size) for size in (0, TASKS)]
            each = 1e3 * (grown[1] - grown[0]) / TASKS
            rows.append(Measurement("task in memory", {"kB": each, "process, MB": memory}))
    return rows


def _row(case: str, per_second: float, cpu_ms: float) -> Measurement:
    return Measurement(case, {"per second": per_second, "service CPU, ms": cpu_ms})


async def _bulk(port: int, seconds: float) -> int:
    """Decide by 256 and reward by 1,000; how many."""
    connection, rng = await Connection(port).open(), np.random.default_rng(0)
    end, ids, count = time.perf_counter() + seconds, list[str](), 0
    while time.perf_counter() < end:
        tables = rng.standard_normal((BATCH, 10, DIM)).round(3).tolist()
        names = [f"t{number}" for number in rng.integers(TASKS, size=BATCH)]
        ids += await _decide(connection, names, tables)
        if len(ids) >= BULK:
            some, ids = ids[:BULK], ids[BULK:]
            rewards = [{"decision_id": one, "reward": float(rng.integers(2))} for one in some]
            said = (await connection.json("/v1/rewards", {"rewards": rewards}))[1]["rewards"]
            assert all(one["status"] == "learned" for one in said)
            count += BULK
    connection.close()
    return max(count, 1)


async def _decide(connection: Connection, names: list[str], tables: list[Any]) -> list[str]:
    bodies = [{"task": t, "features": x} for t, x in zip(names, tables, strict=True)]
    reply = await connection.json("/v1/models/shop/decisions", {"decisions": bodies})
    return [one["decision_id"] for one in reply[1]["decisions"]]


async def _choices(port: int, seconds: float) -> int:
    """Choose among a thousand items, and reward every choice; how many."""
    items = [f"t{number}" for number in range(ITEMS)]
    end = time.perf_counter() + seconds

    async def work(seed: int) -> int:
        connection, rng, count = await Connection(port).open(), np.random.default_rng(seed), 0
        while time.perf_counter() < end:
            body = {"context": rng.standard_normal(DIM).round(3).tolist(), "items": items}
            status, reply = await connection.json("/v1/models/shop/choices", body)
            if status == 200:
                path = f"/v1/decisions/{reply['decision_id']}/reward"
                await connection.json(path, {"reward": 1})
                count += 1
        connection.close()
        return count

    return max(1, sum(await asyncio.gather(*map(work, range(16)))))


def _touched(service: Service, num_tasks: int) -> float:
    """Memory of the service in MB, once it has decided for so many tasks."""

    async def decide() -> None:
        connection, row = await Connection(service.port).open(), np.zeros((1, DIM)).tolist()
        names = [f"t{number}" for number in range(num_tasks)]
        for start in range(0, num_tasks, BATCH):
            some = names[start : start + BATCH]
            await _decide(connection, some, [row] * len(some))
        connection.close()

    asyncio.run(decide())
    return service.memory()


def processes(bench: Bench) -> list[Measurement]:
    """One process and two on one PostgreSQL database, with two clients of 16 connections each, all
    on the same machine: the database and the clients take processor time too."""
    rows = []
    with _postgresql() as address:
        store = make_store(address, dp.example_mixture("clusters"), TASKS)
        for count in (1, 2):
            with running({str(number): store for number in range(count)}) as services:
                rows.append(_together([*services.values()], 3.0 if bench.quick else 20.0))
    return rows


def _together(services: list[Service], seconds: float) -> Measurement:
    ports = [services[0].port, services[-1].port]
    before = sum(service.cpu_seconds() for service in services)
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as clients:
        found: list[Load] = list(clients.map(_client, ports, [seconds] * 2))
    total = sum(one.decisions_per_second for one in found)
    cpu = sum(service.cpu_seconds() for service in services) - before
    quantities = {
        "decisions/s": total,
        "p50, ms": float(np.mean([one.p50 for one in found])),
        "p99, ms": max(one.p99 for one in found),
        "services' CPU, ms": 1e3 * cpu / (total * seconds),
        "errors": float(sum(one.errors for one in found)),
    }
    return Measurement(f"{len(services)} processes", quantities)


def _client(port: int, seconds: float) -> Load:
    return load(port, seconds, None, TASKS, 16)


@contextmanager
def _postgresql() -> Iterator[str]:
    """Address of an empty database, in a folder that the server's own user may enter."""
    import pgserver

    with tempfile.TemporaryDirectory() as folder, pgserver.get_server(f"{folder}/data") as server:
        yield server.get_uri()


if __name__ == "__main__":
    command({"cost": cost, "processes": processes}, usual=("cost",))
