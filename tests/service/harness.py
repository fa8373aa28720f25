"""The service in processes of its own, clients that keep a ledger, and what is checked after."""

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

import diffprior as dp
from diffprior.service.server import free_port
from diffprior.service.store import Database
from diffprior.service.tasks import rebuild

DIM, ACTIONS, TASKS = 2, 4, 4


@dataclass
class Ledger:
    """What was acknowledged: decisions by id with their reply, rewards by decision id."""

    decisions: dict[str, dict] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class Service:
    """A process of the service that can be killed and started again."""

    def __init__(self, database: str, prior: Path | None) -> None:
        self.port = free_port()
        self._command = [sys.executable, "-m", "diffprior.cli", "serve", "--database", database]
        self._command += ["--port", str(self.port), "--likelihood", "linear:noise_std=1.0"]
        self._command += ["--model", f"shop={prior}"] if prior else []
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=self._log)

    def wait_until_ready(self, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        with new_client(self.url, seconds=2) as client:
            while time.monotonic() < end:
                try:
                    if client.get("/ready").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                if self._process.poll() is not None:
                    self._log.seek(0)
                    raise RuntimeError(self._log.read().decode()[-2000:])
                time.sleep(0.05)
        raise RuntimeError("the service did not become ready")

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._end()

    def _end(self, seconds: float | None = None) -> None:
        self._process.wait(seconds)
        self._log.close()

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._end(30)
        except subprocess.TimeoutExpired:
            self.kill()


def new_client(url: str, seconds: float) -> httpx.Client:
    """A client that is cheap to make: it reads no certificates, because nobody asks for them."""
    return httpx.Client(base_url=url, timeout=seconds, verify=False, trust_env=False)


class Client(threading.Thread):
    """Decides and rewards until told to stop; retries what was not acknowledged, as it is."""

    def __init__(self, number: int, services: list[Service], ledger: Ledger) -> None:
        super().__init__(daemon=True)
        self._rng = np.random.default_rng(number)
        self._number = number
        self._clients = [new_client(service.url, seconds=5) for service in services]
        self._ledger = ledger
        self.stopping = False
        self.wrong: list[str] = []

    def run(self) -> None:
        count = 0
        while not self.stopping:
            count += 1
            decision_id = f"c{self._number}-{os.getpid()}-{count}"
            features = self._rng.uniform(-1, 1, (ACTIONS, DIM)).round(3).tolist()
            task = f"task-{self._rng.integers(TASKS)}"
            path = f"/v1/models/shop/tasks/{task}/decisions"
            reply = self._post(path, {"features": features, "decision_id": decision_id})
            if reply is None:
                continue
            with self._ledger.lock:
                self._ledger.decisions[decision_id] = reply
            value = float(self._rng.standard_normal())
            if self._post(f"/v1/decisions/{decision_id}/reward", {"reward": value}) is not None:
                with self._ledger.lock:
                    self._ledger.rewards[decision_id] = value
            if self._rng.random() < 0.1:  # told twice, as a client does that lost the reply
                self._post(f"/v1/decisions/{decision_id}/reward", {"reward": value})
        for client in self._clients:
            client.close()

    def _post(self, path: str, body: dict) -> dict | None:
        while not self.stopping:
            client = self._clients[int(self._rng.integers(len(self._clients)))]
            try:
                reply = client.post(path, json=body)
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if reply.status_code == 200:
                return reply.json()
            if reply.status_code != 503:
                self.wrong.append(f"{path}: {reply.status_code} {reply.text}")
                return None
            time.sleep(0.05)
        return None


def check(url: str, ledger: Ledger) -> list[str]:
    """What was acknowledged and is missing, double or different."""
    wrong = []
    with ledger.lock:
        decisions, rewards = dict(ledger.decisions), dict(ledger.rewards)
    with new_client(url, seconds=600) as client:
        for decision_id, reply in decisions.items():
            found = client.get(f"/v1/decisions/{decision_id}")
            if found.status_code != 200:
                wrong.append(f"decision {decision_id} is missing")
                continue
            about = found.json()
            if about["action"] != reply["action"] or about["propensity"] != reply["propensity"]:
                wrong.append(f"decision {decision_id} is another")
            values = [r["value"] for r in about["rewards"]]
            expected = [rewards[decision_id]] if decision_id in rewards else values[:1]
            if values != expected:
                wrong.append(f"rewards of {decision_id}: {values}, acknowledged {expected}")
    return wrong


def trouble(
    database: str,
    cause: Callable[[list[Service], Ledger, random.Random], None],
    processes: int = 1,
    clients: int = 3,
) -> dict[str, int]:
    """Cause trouble while clients decide and reward; the counts of what was checked after it.

    Raises:
        AssertionError: Something acknowledged is missing or double, or evidence is not that of the
            log.
    """
    ledger = Ledger()
    with running(database, processes) as services:
        threads = [Client(i, services, ledger) for i in range(clients)]
        try:
            for thread in threads:
                thread.start()
            cause(services, ledger, random.Random(0))
            wait_for(ledger, len(ledger.decisions) + 5)
        finally:
            for thread in threads:
                thread.stopping = True
            for thread in threads:
                thread.join(60)
        wrong = check(services[0].url, ledger) + [w for t in threads for w in t.wrong]
    opened = Database(database)
    found = rebuild(opened)
    opened.close()
    assert not wrong, wrong[:10]
    assert not found.problems and not found.different, found
    counts = {"decisions": len(ledger.decisions), "rewards": len(ledger.rewards)}
    return counts | {"tasks": found.num_tasks, "snapshots": found.num_snapshots}


@contextmanager
def running(database: str, processes: int = 1) -> Iterator[list[Service]]:
    """Processes of the service on one database; they are stopped in the end."""
    services: list[Service] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prior.dprior"
        dp.GaussianPrior(np.zeros(DIM), np.eye(DIM)).save(path)
        try:
            for number in range(processes):
                services.append(Service(database, path if number == 0 else None))
                services[-1].wait_until_ready()
            yield services
        finally:
            for service in services:
                service.stop()


def wait_for(ledger: Ledger, count: int, seconds: float = 60) -> None:
    """Until so many decisions were acknowledged, however slow the machine is."""
    end = time.monotonic() + seconds
    while len(ledger.decisions) < count and time.monotonic() < end:
        time.sleep(0.02)
