"""Kill the service, fill its disk, stop its database: nothing acknowledged may be lost or doubled.

python tests/service/crash.py --kills 200 --seconds 30
python tests/service/crash.py --kills 200 --database postgresql://... --processes 2
"""

import argparse
import json
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from service.harness import Ledger, Service, trouble, wait_for


def kill(services: list[Service], ledger: Ledger, rng: random.Random) -> None:
    """Kill a process at a random moment and start it again."""
    wait_for(ledger, len(ledger.decisions) + 5)
    time.sleep(rng.uniform(0.05, 0.6))
    victim = rng.choice(services)
    victim.kill()
    victim.start()
    victim.wait_until_ready()


def fill_disk(service: Service, database: Path, ledger: Ledger, seconds: float) -> None:
    """Let the service write nothing for a while: its files have reached their limit."""
    wait_for(ledger, len(ledger.decisions) + 20)
    size = max(path.stat().st_size for path in database.parent.glob(f"{database.name}*"))
    unlimited = resource.prlimit(service.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, (size, unlimited[1]))
    _wait_until_not_ready(service)
    time.sleep(seconds)
    resource.prlimit(service.pid, resource.RLIMIT_FSIZE, unlimited)
    service.wait_until_ready()


def stop_postgres(services: list[Service], server: Any, ledger: Ledger, seconds: float) -> None:
    """Stop PostgreSQL at once, and start it again after a while."""
    import pgserver

    wait_for(ledger, len(ledger.decisions) + 20)
    pgserver.pg_ctl(["stop", "-m", "immediate"], pgdata=server.pgdata, user=server.system_user)
    _wait_until_not_ready(services[0])
    time.sleep(seconds)
    server.ensure_postgres_running()
    for service in services:
        service.wait_until_ready()


def _wait_until_not_ready(service: Service, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while httpx.get(f"{service.url}/ready", timeout=30).status_code != 503:
        assert time.monotonic() < end, "the service did not notice"
        time.sleep(0.02)


@contextmanager
def postgres() -> Iterator[Any]:
    """A PostgreSQL server, in a folder that its own user may enter, unlike those of pytest."""
    import pgserver

    with tempfile.TemporaryDirectory() as folder, pgserver.get_server(f"{folder}/data") as server:
        yield server


def new_database(server: Any, name: str) -> str:
    """The URL of an empty database."""
    server.psql(f"CREATE DATABASE {name};")
    return server.get_uri(database=name)


def many_kills(database: str, kills: int, processes: int = 1) -> None:
    """Kill a process many times while versions change and old decisions are pruned, and print what
    was checked.
    """

    def cause(services: list[Service], ledger: Ledger, rng: random.Random) -> None:
        for _ in range(kills):
            kill(services, ledger, rng)

    counts = trouble(database, cause, processes, operated=True)
    counts |= {"kills": kills, "processes": processes}
    print(database.partition(":")[0], json.dumps(counts), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each outage")
    parser.add_argument("--database", help="PostgreSQL or SQLite; one of each by default")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    if options.database:
        many_kills(options.database, options.kills, options.processes)
        return
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        many_kills(f"{folder}/crash.sqlite", options.kills)
        for processes in (1, 2):
            many_kills(new_database(server, f"crash{processes}"), options.kills, processes)
        full = Path(folder) / "full.sqlite"
        seconds = options.seconds
        counts = trouble(str(full), lambda s, ledger, _: fill_disk(s[0], full, ledger, seconds))
        print("full disk", json.dumps(counts), flush=True)
        url = new_database(server, "gone")
        counts = trouble(url, lambda s, ledger, _: stop_postgres(s, server, ledger, seconds), 2)
        print("database gone", json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
