"""Load on the decision service: throughput and latency beside the same service at random."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

DIM, ACTIONS, TASKS = 8, 10, 10_000


@dataclass(frozen=True)
class Load:
    """What one run of a service came to; latencies are in milliseconds."""

    name: str
    offered: float | None  # decisions a second; None for as many as it takes
    decisions_per_second: float
    p50: float
    p99: float
    errors: int

    def __str__(self) -> str:
        offered = "full load" if self.offered is None else f"{self.offered:.0f}/s offered"
        return (
            f"{self.name:24} {offered:16} {self.decisions_per_second:7.0f} decisions/s   "
            f"p50 {self.p50:6.1f} ms   p99 {self.p99:6.1f} ms   {self.errors} errors"
        )


class Connection:
    """One kept-alive HTTP connection, with as little of its own cost as can be."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> "Connection":
        """Connect."""
        streams = await asyncio.open_connection("127.0.0.1", self._port)
        self._reader, self._writer = streams
        return self

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Status and body of the reply."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        self._writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        reply = await self._reader.readuntil(b"\r\n\r\n")
        length = int(reply.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        return int(reply[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        """Disconnect."""
        self._writer.close()


async def load(
    name: str, port: int, seconds: float, rate: float | None, num_connections: int, reward: bool
) -> Load:
    """Decide (and reward every decision, if `reward`) for so many seconds.

    With a `rate`, decisions are due at even times and latency counts from when they were due.
    """
    rng = np.random.default_rng(0)
    bodies = [
        json.dumps({"features": rng.standard_normal((ACTIONS, DIM)).round(3).tolist()}).encode()
        for _ in range(200)
    ]
    latencies: list[float] = []
    errors = 0
    begin = time.perf_counter()

    async def worker(number: int) -> None:
        nonlocal errors
        connection = await Connection(port).open()
        count = 0
        while time.perf_counter() - begin < seconds:
            due = time.perf_counter()
            if rate is not None:
                due = begin + (count * num_connections + number) / rate
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = int(rng.integers(TASKS))
            body = bodies[int(rng.integers(len(bodies)))]
            status, reply = await connection.post(f"/v1/models/shop/tasks/t{task}/decisions", body)
            latencies.append(time.perf_counter() - due)
            errors += status != 200
            count += 1
            if reward and status == 200:
                path = f"/v1/decisions/{json.loads(reply)['decision_id']}/reward"
                status, _ = await connection.post(path, b'{"reward": 1}')
                errors += status != 200
        connection.close()

    await asyncio.gather(*(worker(i) for i in range(num_connections)))
    elapsed = time.perf_counter() - begin
    p50, p99 = np.quantile(1e3 * np.array(latencies), [0.5, 0.99])
    return Load(name, rate, len(latencies) / elapsed, float(p50), float(p99), errors)


class Service:
    """A process of the service on a database of its own."""

    def __init__(self, prior: Path, folder: Path, sampler: str) -> None:
        from ..files.base import load as load_file
        from ..service.catalog import Catalog
        from ..service.database import Database
        from ..service.server import free_port
        from ..service.settings import Settings

        database = Database(str(folder / f"{sampler}.sqlite"))
        settings = Settings.model_validate({"likelihood": "logistic", "sampler": sampler})
        Catalog(database).put("shop", settings, load_file(prior), 1.0)
        database.close()
        self.port = free_port()
        command = [sys.executable, "-m", "diffprior.cli", "serve", "--port", str(self.port)]
        command += ["--database", str(folder / f"{sampler}.sqlite")]
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def wait(self, seconds: float = 300) -> None:
        """Until the port is open."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                asyncio.run(_ping(self.port))
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the service did not start")

    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return float(line.split()[1]) / 1024

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(30)


async def _ping(port: int) -> None:
    (await Connection(port).open()).close()


def measure(prior: Path, seconds: float = 20.0, connections: int = 32) -> list[Load]:
    """Full load on both services in turn, then half of what ours bears.

    Args:
        prior: File of a prior of eight parameters.
        seconds: Of each run.
        connections: That decide side by side.
    """
    rows: list[Load] = []
    with tempfile.TemporaryDirectory() as name:
        services = {s: Service(prior, Path(name), s) for s in ("random", "best")}
        try:
            for service in services.values():
                service.wait()
            for _ in range(2):  # in turn, so that a slow moment hits both
                for sampler, service in services.items():
                    run = load(sampler, service.port, seconds, None, connections, True)
                    rows.append(asyncio.run(run))
            half = 0.5 * np.mean([r.decisions_per_second for r in rows if r.name == "best"])
            run = load("best", services["best"].port, seconds, float(half), connections, True)
            rows.append(asyncio.run(run))
        finally:
            for service in services.values():
                service.stop()
    return rows


def soak(prior: Path, minutes: float, rate: float, every: float = 60.0) -> list[tuple[float, Any]]:
    """Memory of the service, minute by minute, under an even load."""
    with tempfile.TemporaryDirectory() as name:
        service = Service(prior, Path(name), "best")
        service.wait()
        rows = []
        try:
            for minute in range(int(minutes * 60 / every)):
                found = asyncio.run(load("best", service.port, every, rate, 16, True))
                rows.append((minute * every / 60, (service.memory(), found)))
        finally:
            service.stop()
    return rows
