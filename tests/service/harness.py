"""Processes of the service, clients that record what was acknowledged, and a check of both."""

import contextlib
import multiprocessing
import os
import random
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
import sqlalchemy as sa

import diffprior as dp
from diffprior.logs.decisions import candidate_ids
from diffprior.service.bases import prune
from diffprior.service.models import Catalog
from diffprior.service.reading import Reader
from diffprior.service.requests import ServiceError
from diffprior.service.server import free_port
from diffprior.service.settings import Settings
from diffprior.service.store import Database, candidates, decisions, tasks
from diffprior.service.tasks import TaskCache, rebuild

DIM, ACTIONS, TASKS = 2, 4, 4


@dataclass
class Ledger:
    """Acknowledged replies to decisions and rewards, by decision id."""

    decisions: dict[str, dict] = field(default_factory=dict)
    rewards: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


# Each process is a fork of one that has imported what the command needs.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["service.harness", "diffprior.service.server"])


def _command(arguments: list[str], log: str) -> None:
    """Run `diffprior` in this process."""
    with open(log, "wb") as file:
        os.dup2(file.fileno(), 2)
    from diffprior.cli import app

    sys.argv = ["diffprior", *arguments]
    app()


class Service:
    """A process of the service that can be killed and started again."""

    def __init__(self, database: str, prior: Path | None) -> None:
        self.port = free_port()
        self._log = tempfile.NamedTemporaryFile()
        self._arguments = ["serve", "--database", database, "--port", str(self.port)]
        self._arguments += ["--likelihood", "linear:noise_std=1.0"]
        self._arguments += ["--model", f"shop={prior}"] if prior else []
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = processes.Process(
            target=_command, args=(self._arguments, self._log.name), daemon=True
        )
        self._process.start()

    def wait_until_ready(self, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        with new_client(self.url, seconds=2) as client:
            while time.monotonic() < end:
                try:
                    if client.get("/ready").status_code == 200:
                        return
                except httpx.HTTPError:
                    pass
                if not self._process.is_alive():
                    raise RuntimeError(Path(self._log.name).read_text()[-2000:])
                time.sleep(0.05)
        raise RuntimeError("the service did not become ready")

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def stop(self) -> None:
        """Ask it to end, as upgrades do; again if it has ended already."""
        self._process.terminate()
        self._process.join(30)
        if self._process.is_alive():
            self.kill()


def new_client(url: str, seconds: float) -> httpx.Client:
    """A client that is cheap to create, because it reads no certificates."""
    return httpx.Client(base_url=url, timeout=seconds, verify=False, trust_env=False)


class Client(threading.Thread):
    """Decides and rewards until stopped; repeats calls that were not acknowledged."""

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
            path, body = self._choice() if self._rng.random() < 0.5 else self._decision()
            reply = self._post(path, body | {"decision_id": decision_id})
            if reply is None:
                continue
            with self._ledger.lock:
                self._ledger.decisions[decision_id] = reply
            value = float(self._rng.standard_normal())
            if self._post(f"/v1/decisions/{decision_id}/reward", {"reward": value}) is not None:
                with self._ledger.lock:
                    self._ledger.rewards[decision_id] = value
            if self._rng.random() < 0.1:  # reported twice, as by a client that lost the reply
                self._post(f"/v1/decisions/{decision_id}/reward", {"reward": value})
        for client in self._clients:
            client.close()

    def _decision(self) -> tuple[str, dict]:
        features = self._rng.uniform(-1, 1, (ACTIONS, DIM)).round(3).tolist()
        task = f"task-{self._rng.integers(TASKS)}"
        return f"/v1/models/shop/tasks/{task}/decisions", {"features": features}

    def _choice(self) -> tuple[str, dict]:
        """A choice among some tasks, or among all that there are."""
        body: dict = {"context": self._rng.uniform(-1, 1, DIM).round(3).tolist()}
        if not self._ledger.decisions or self._rng.random() < 0.5:
            named = self._rng.choice(TASKS, self._rng.integers(1, TASKS + 1), replace=False)
            body["items"] = [f"task-{number}" for number in named]
        return "/v1/models/shop/choices", body

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


class Operator(threading.Thread):
    """Adds versions, rolls back and prunes while others work, until stopped."""

    def __init__(self, database: str) -> None:
        super().__init__(daemon=True)
        self._database = database
        self.pruned: dict[str, int] = {"decisions": 0, "observations": 0}
        self.versions = 0
        self.stopping = False

    def run(self) -> None:
        rng, opened = random.Random(1), Database(self._database)
        catalog = Catalog(opened)
        settings = {"likelihood": "linear", "likelihood_options": {"noise_std": 1.0}}
        prior = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
        while not self.stopping:
            time.sleep(rng.uniform(0.2, 1.0))
            with contextlib.suppress(sa.exc.SQLAlchemyError, ServiceError):  # it may be away
                if rng.random() < 0.3 and self.versions < 8:
                    about = Settings.model_validate(settings | {"temperature": rng.uniform(0.5, 2)})
                    catalog.put("shop", about, prior, rng.choice([0.5, 1.0]))
                    self.versions += 1
                elif rng.random() < 0.3:
                    catalog.roll_back("shop")
                found = prune(opened, older_than=rng.uniform(2.0, 6.0))
                self.pruned["decisions"] += found.num_decisions
                self.pruned["observations"] += found.num_observations
        opened.close()


def check(database: Database, ledger: Ledger, num_pruned: int = 0) -> list[str]:
    """Acknowledged replies that are missing, double or different; so many were pruned."""
    wrong = []
    missing = 0
    reader = Reader(database, Catalog(database), TaskCache(0))
    for decision_id, reply in ledger.decisions.items():
        try:
            found = reader.decision(decision_id, None)
        except ServiceError:
            missing += 1
            if missing > num_pruned:
                wrong.append(f"decision {decision_id} is missing")
            continue
        if any(found.get(name) != reply.get(name) for name in ("action", "item", "propensity")):
            wrong.append(f"decision {decision_id} is another")
        values = [r["value"] for r in found["rewards"]]
        acknowledged = ledger.rewards.get(decision_id)
        expected = values[:1] if acknowledged is None else [acknowledged]
        if values != expected:
            wrong.append(f"rewards of {decision_id}: {values}, acknowledged {expected}")
    with database.reading() as connection:
        known = {row.id: row.items for row in connection.execute(sa.select(candidates))}
        named = sa.select(decisions.c.id, decisions.c.task_id, decisions.c.candidates)
        for row in connection.execute(named.where(decisions.c.candidates.isnot(None))):
            among = known.get(row.candidates)
            if among is None or row.task_id not in candidate_ids(among):
                wrong.append(f"the candidates of {row.id} are missing, or without its item")
    return wrong


def trouble(
    database: str,
    cause: Callable[[list[Service], Ledger, random.Random], None],
    processes: int = 1,
    clients: int = 3,
    operated: bool = False,
) -> dict[str, int]:
    """Cause trouble while clients decide and reward, stop the service, and check the database.

    If it is `operated`, versions change and old decisions are pruned meanwhile.

    Returns:
        Counts of what was checked.

    Raises:
        AssertionError: Something acknowledged is missing or double, or evidence differs from the
            log.
    """
    ledger = Ledger()
    with running(database, processes) as services:
        threads = [Client(i, services, ledger) for i in range(clients)]
        operator = Operator(database)
        try:
            for thread in [*threads, *[operator] * operated]:
                thread.start()
            cause(services, ledger, random.Random(0))
            wait_for(ledger, len(ledger.decisions) + 5)
            for service in services:
                service.stop()  # under traffic
        finally:
            for thread in [*threads, operator]:
                thread.stopping = True
            for thread in [*threads, *[operator] * operated]:
                thread.join(60)
    opened = Database(database)
    wrong = check(opened, ledger, operator.pruned["decisions"])
    wrong += [w for t in threads for w in t.wrong if not (operated and ": 404" in w)]
    found = rebuild(opened)
    with opened.reading() as connection:
        learned = connection.execute(sa.select(sa.func.sum(tasks.c.num_learned))).scalar_one()
    opened.close()
    assert learned >= len(ledger.rewards), (learned, len(ledger.rewards))
    assert not wrong, wrong[:10]
    assert not found.problems, found
    assert not found.different, found
    counts = {"decisions": len(ledger.decisions), "rewards": len(ledger.rewards)}
    counts |= {"tasks": found.num_tasks, "snapshots": found.num_snapshots}
    counts |= {f"pruned {name}": count for name, count in operator.pruned.items()}
    return counts | {"versions": operator.versions}


@contextmanager
def running(database: str, processes: int = 1) -> Iterator[list[Service]]:
    """Processes of the service on one database, stopped on exit."""
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
    """Wait until this many decisions are acknowledged."""
    end = time.monotonic() + seconds
    while len(ledger.decisions) < count and time.monotonic() < end:
        time.sleep(0.02)
