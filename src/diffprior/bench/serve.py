"""Load on the decision service: throughput and latency beside the same service at random."""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..bandits.bandit import Bandit
from ..evidence.families import Logistic
from ..priors.base import AbstractPrior
from .section import Bench, Measurement

DIM, ACTIONS, TASKS = 8, 10, 10_000
KINDS = {"random": "the same service at random", "best": "ours"}


@dataclass(frozen=True)
class Load:
    """What one run of a service came to; latencies are in milliseconds."""

    decisions_per_second: float
    p50: float
    p99: float
    errors: int


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
    port: int, seconds: float, rate: float | None = None, num_connections: int = 32
) -> Load:
    """Decide, and reward every decision, for so many seconds.

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
            if status == 200:
                path = f"/v1/decisions/{json.loads(reply)['decision_id']}/reward"
                status, _ = await connection.post(path, b'{"reward": 1}')
                errors += status != 200
        connection.close()

    await asyncio.gather(*(worker(i) for i in range(num_connections)))
    elapsed = time.perf_counter() - begin
    p50, p99 = np.quantile(1e3 * np.array(latencies), [0.5, 0.99])
    return Load(len(latencies) / elapsed, float(p50), float(p99), errors)


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


def serve(bench: Bench) -> list[Measurement]:
    """The decision service: eight parameters, ten actions, 10,000 tasks, every decision rewarded,
    client included; beside the same service choosing at random, and the bare library."""
    seconds = 2.0 if bench.quick else 20.0
    prior = bench.prior("clusters")
    rows = [_library(prior, seconds)]
    with tempfile.TemporaryDirectory() as name:
        prior.save(Path(name) / "prior.dprior")
        services = {s: Service(Path(name) / "prior.dprior", Path(name), s) for s in KINDS}
        try:
            for service in services.values():
                service.wait()
            found: dict[str, list[Load]] = {kind: [] for kind in KINDS}
            for _ in range(3):  # in turn, so that a slow moment hits both
                for kind, service in services.items():
                    found[kind].append(asyncio.run(load(service.port, seconds)))
            rows += [_measured(KINDS[kind], loads) for kind, loads in found.items()]
            best = np.median([load.decisions_per_second for load in found["best"]])
            half = asyncio.run(load(services["best"].port, 2 * seconds, float(best / 2)))
            rows.append(_measured("ours at half of that load", [half]))
        finally:
            for service in services.values():
                service.stop()
    return rows


def _measured(case: str, loads: list[Load]) -> Measurement:
    def median(name: str) -> float:
        return float(np.median([getattr(load, name) for load in loads]))

    return Measurement(
        case,
        {
            "decisions/s": median("decisions_per_second"),
            "p50, ms": median("p50"),
            "p99, ms": median("p99"),
            "errors": float(sum(load.errors for load in loads)),
        },
    )


def _library(prior: AbstractPrior, seconds: float) -> Measurement:
    """One bandit in one thread, decided and rewarded in turn."""
    bandit = Bandit(prior, Logistic(), seed=0)
    features = np.random.default_rng(0).standard_normal((ACTIONS, DIM)).round(3)
    bandit.warm_up(ACTIONS)
    bandit.decide(features, propensity_draws=16)
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.perf_counter()
        action = bandit.decide(features, propensity_draws=16).action
        times.append(time.perf_counter() - begin)
        bandit.update(features[action], 1.0)
    p50, p99 = (float(1e3 * q) for q in np.quantile(times, [0.5, 0.99]))
    return _measured("library, one task", [Load(len(times) / seconds, p50, p99, 0)])


def soak(prior: Path, minutes: float, rate: float, every: float = 60.0) -> list[tuple[float, Load]]:
    """Memory of the service in MB and its load, again and again under an even load."""
    with tempfile.TemporaryDirectory() as name:
        service = Service(prior, Path(name), "best")
        rows = []
        try:
            service.wait()
            for _ in range(max(1, round(minutes * 60 / every))):
                found = asyncio.run(load(service.port, every, rate))
                rows.append((service.memory(), found))
        finally:
            service.stop()
    return rows
