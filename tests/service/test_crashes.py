"""The service ended, restarted, on a full disk, without its database: nothing acknowledged is lost.

`make crash` does the same for long.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.crash import crash
from service.outages import database_gone, full_disk

pytestmark = pytest.mark.filterwarnings("ignore")  # of pgserver's own


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that PostgreSQL's own user may enter, which pytest's folders may not be."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def postgres(folder: Path) -> Iterator[str]:
    """The address of an empty database."""
    import pgserver

    with pgserver.get_server(folder / "postgres") as server:
        server.psql("CREATE DATABASE crash;")
        yield server.get_uri(database="crash")


def test_no_kill_loses_or_doubles_anything_on_sqlite(tmp_path: Path) -> None:
    counts = crash(str(tmp_path / "log.sqlite"), kills=2)
    assert counts["decisions"] >= 10 and counts["rewards"] >= 5


def test_no_kill_loses_or_doubles_anything_on_postgresql(postgres: str) -> None:
    counts = crash(postgres, kills=1, processes=2)
    assert counts["decisions"] >= 5 and counts["rewards"] >= 1


def test_a_restart_under_traffic_loses_no_request_that_is_tried_again(tmp_path: Path) -> None:
    counts = crash(str(tmp_path / "log.sqlite"), kills=1, politely=True)
    assert counts["decisions"] >= 5 and counts["rewards"] >= 1


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    assert full_disk(tmp_path, seconds=0.5)["decisions"] >= 20


def test_a_database_that_was_away_loses_nothing(folder: Path) -> None:
    assert database_gone(folder, seconds=0.5, processes=1)["decisions"] >= 20
