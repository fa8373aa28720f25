"""A disk that is full and a database that is away, and what is there when they are back.

python tests/service/outages.py --seconds 30
"""

import argparse
import json
import random
import resource
import tempfile
import time
from pathlib import Path

import httpx

from service.harness import Ledger, Service, trouble, wait_for


def full_disk(folder: Path, seconds: float) -> dict[str, int]:
    """Let the service write nothing more for a while: its files have reached their limit."""

    def cause(services: list[Service], ledger: Ledger, _: random.Random) -> None:
        wait_for(ledger, 20)
        size = max(path.stat().st_size for path in folder.glob("log.sqlite*"))
        unlimited = resource.prlimit(services[0].pid, resource.RLIMIT_FSIZE)
        resource.prlimit(services[0].pid, resource.RLIMIT_FSIZE, (size, unlimited[1]))
        _until_not_ready(services[0])
        time.sleep(seconds)
        resource.prlimit(services[0].pid, resource.RLIMIT_FSIZE, unlimited)
        services[0].wait_until_ready()

    return trouble(str(folder / "log.sqlite"), cause)


def database_gone(folder: Path, seconds: float, processes: int = 2) -> dict[str, int]:
    """Stop PostgreSQL at once, and start it again after a while."""
    import pgserver

    with pgserver.get_server(folder / "postgres") as server:
        server.psql("CREATE DATABASE gone;")

        def cause(services: list[Service], ledger: Ledger, _: random.Random) -> None:
            wait_for(ledger, 20)
            stop = ["stop", "-m", "immediate"]
            pgserver.pg_ctl(stop, pgdata=server.pgdata, user=server.system_user)
            _until_not_ready(services[0])
            time.sleep(seconds)
            server.ensure_postgres_running()
            for service in services:
                service.wait_until_ready()

        return trouble(server.get_uri(database="gone"), cause, processes)


def _until_not_ready(service: Service, seconds: float = 60) -> None:
    """Until the service says that its database does not take what it writes."""
    end = time.monotonic() + seconds
    while httpx.get(f"{service.url}/ready", timeout=30).status_code != 503:
        assert time.monotonic() < end, "the service did not notice"
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as name:
        print("full disk", json.dumps(full_disk(Path(name), seconds)), flush=True)
        print("database gone", json.dumps(database_gone(Path(name), seconds)), flush=True)


if __name__ == "__main__":
    main()
