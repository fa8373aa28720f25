"""Kills, restarts, a full disk and a missing database lose nothing that was acknowledged.

`make crash` repeats them many times.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from service.crash import fill_disk, kill, new_database, stop_postgres
from service.harness import Ledger, Service, trouble, wait_for


def test_sqlite_loses_nothing(tmp_path: Path) -> None:
    database = tmp_path / "log.sqlite"

    def cause(services: list[Service], ledger: Ledger, rng: random.Random) -> None:
        fill_disk(services[0], database, ledger, seconds=0.3)
        kill(services, ledger, rng)

    counts = trouble(str(database), cause, operated=True)
    assert counts["decisions"] >= 30
    assert counts["rewards"] >= 20


@pytest.mark.filterwarnings("ignore")  # of pgserver's own
def test_postgresql_loses_nothing(postgres_server: Any) -> None:
    """Two processes; PostgreSQL stops and returns, then one process is killed for good."""

    def cause(services: list[Service], ledger: Ledger, _: random.Random) -> None:
        stop_postgres(services, postgres_server, ledger, seconds=0.3)
        wait_for(ledger, len(ledger.decisions) + 5)
        services[1].kill()

    counts = trouble(new_database(postgres_server, "crash"), cause, processes=2)
    assert counts["decisions"] >= 30
    assert counts["rewards"] >= 20
