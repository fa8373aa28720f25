"""A client that loads the decision service as hard or as evenly as it is told, and the service."""

import asyncio
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

DIM, ACTIONS = 8, 10


@dataclass(frozen=True)
class Load:
    """What one run of a service came to; latencies of decisions are in milliseconds."""

    decisions_per_second: float
    p50: float
    p99: float
    errors: int
    cpu_ms: float = float("nan")  # processor time of the service, a decision and its reward


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


class Client:
    """Decides for random tasks, and rewards every decision."""

    def __init__(self, port: int, num_tasks: int, seed: int = 0) -> None:
        self._port, self._num_tasks = port, num_tasks
        self._rng = np.random.default_rng(seed)
        tables = self._rng.standard_normal((200, ACTIONS, DIM)).round(3)
        self._bodies = [json.dumps({"features": table.tolist()}).encode() for table in tables]
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
    rate: float | None = None,
    *,
    num_tasks: int,
    num_connections: int = 32,
) -> Load:
    """Decide, and reward every decision, for so many seconds; at `rate` a second, or as fast as the
    service answers so many connections."""
    client = Client(port, num_tasks)
    every = None if rate is None else num_connections / rate

    async def everyone() -> None:
        places = range(num_connections)
        firsts = [0.0 if every is None else every * place / num_connections for place in places]
        await asyncio.gather(*(client.work(seconds, first, every) for first in firsts))

    begin = time.perf_counter()
    asyncio.run(everyone())
    count, elapsed = len(client.latencies), time.perf_counter() - begin
    p50, p99 = np.quantile(1e3 * np.asarray(client.latencies), [0.5, 0.99])
    return Load(count / elapsed, float(p50), float(p99), client.errors)


class Service:
    """A process of the service, on a database that has a model."""

    def __init__(self, database: Path) -> None:
        from diffprior.service.server import free_port

        self.port = free_port()
        command = [sys.executable, "-m", "diffprior.cli", "serve", "--port", str(self.port)]
        command += ["--database", str(database)]
        self._begin, self.start_seconds = time.perf_counter(), float("nan")
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)

    def wait(self, seconds: float = 600) -> None:
        """Until the port is open; `start_seconds` is how long that took."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self._process.poll() is None:
            try:
                asyncio.run(_ping(self.port))
                self.start_seconds = time.perf_counter() - self._begin
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("the service did not start")

    def memory(self) -> float:
        """Resident memory in MB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="utf-8")
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return float(line.split()[1]) / 1024

    def cpu_seconds(self) -> float:
        """Processor time so far, which other processes do not lengthen much."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def load(self, seconds: float, rate: float | None = None, *, num_tasks: int) -> Load:
        """What it comes to under a load."""
        before = self.cpu_seconds()
        found = load(self.port, seconds, rate, num_tasks=num_tasks)
        count = max(1.0, found.decisions_per_second * seconds)
        return replace(found, cpu_ms=1e3 * (self.cpu_seconds() - before) / count)

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait(60)


async def _ping(port: int) -> None:
    (await Connection(port).open()).close()
