"""Connections: SQLite in one file that survives a power cut, or PostgreSQL by its address."""

import contextlib
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from .schema import migrate

READ_ONLY = "diffprior_read_only"
BUSY_MS = 30_000  # how long a connection waits for another process that writes


class Database:
    """One address, many transactions; every transaction may write.

    Args:
        url: `sqlite:///decisions.sqlite`, `postgresql://user@host/name`, or the path of a SQLite
            file.

    Raises:
        ValueError: The address is of another kind of database.
    """

    def __init__(self, url: str) -> None:
        self.url = _checked_url(url)
        self._engine = sa.create_engine(self.url, **_options(self.url))
        if self.is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_immediate)
        with self.transaction() as connection:
            migrate(connection)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a SQLite file."""
        return self.url.get_backend_name() == "sqlite"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """All that is done inside is committed together, or not at all."""
        with self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """A consistent view of the log, which waits for no writer."""
        with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
            yield connection

    def insert_new(self, table: sa.Table) -> Any:
        """An INSERT that leaves rows alone whose key is there already."""
        dialect = sqlite if self.is_sqlite else postgresql
        return dialect.insert(table).on_conflict_do_nothing()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()


def _checked_url(url: str) -> sa.URL:
    text = url if "://" in url else f"sqlite:///{url}"
    if text.startswith(("postgresql://", "postgres://")):
        text = "postgresql+psycopg://" + text.split("://", 1)[1]
    try:
        parsed = sa.make_url(text)
    except sa.exc.ArgumentError as error:
        raise ValueError(
            "`database`: expected a file name or an address such as "
            "sqlite:///decisions.sqlite or postgresql://user@host/name"
        ) from error
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise ValueError(
            f"`database`: expected SQLite or PostgreSQL, got {parsed.get_backend_name()}; "
            "use one of those"
        )
    return parsed


def _options(url: sa.URL) -> dict[str, Any]:
    if url.get_backend_name() == "sqlite":
        return {"connect_args": {"check_same_thread": False}}
    pool = {"pool_pre_ping": True, "pool_size": 4, "max_overflow": 4}
    return {"connect_args": {"connect_timeout": 5}, **pool}


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions are begun by `_begin_immediate`
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")  # a commit is on the disk before it is answered
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_immediate(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
