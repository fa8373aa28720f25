"""The database: its tables, their migrations, and connections to SQLite or PostgreSQL.

`decisions`, `rewards` and `observations` (what was learned, in order) are the source of truth; of
pruned ones, `bases` hold what was learned. `snapshots` is a cache, which `diffprior rebuild`
recreates.
"""

import contextlib
import functools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

READ_ONLY = "diffprior_read_only"
BUSY_MS = 30_000  # how long a connection waits for a writer in another process

metadata = sa.MetaData()
Row = dict[str, Any]  # of one of the tables below, by column
Rows = Sequence[Any]  # of a query
Value = Any
Blob, Text, Real, Whole = sa.LargeBinary, sa.Text, sa.Double, sa.BigInteger
Key = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # SQLite numbers rows of INTEGER only

schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer))

models = sa.Table(
    "models",
    metadata,
    sa.Column("name", Text, primary_key=True),
    sa.Column("seed", Whole, nullable=False),
    sa.Column("created", Real, nullable=False),
)

versions = sa.Table(
    "versions",
    metadata,
    sa.Column("model", Text, sa.ForeignKey("models.name"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("settings", Text, nullable=False),
    sa.Column("prior", Blob, nullable=False),
    sa.Column("share", Real, nullable=False),
    sa.Column("created", Real, nullable=False),
    sa.Column("retired", Real),  # when it was taken out of service for good
    sa.Column("since", Real, nullable=False, server_default="0"),  # when a share last changed
    sa.Column("rolled_back", Text),  # why it was, by itself
)

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Key, primary_key=True, autoincrement=True),
    sa.Column("model", Text, sa.ForeignKey("models.name"), nullable=False),
    sa.Column("name", Text, nullable=False),
    sa.Column("seed", Whole, nullable=False),
    sa.Column("num_decisions", Whole, nullable=False),
    sa.Column("num_learned", Whole, nullable=False),
    sa.Column("created", Real, nullable=False),
    sa.Column("attributes", Text),
    sa.Column("retired", Real),
    sa.Column("pruned_decisions", Whole, nullable=False, server_default="0"),  # of num_decisions
    sa.Column("pruned_learned", Whole, nullable=False, server_default="0"),  # the first of them
    sa.Column("num_bytes", Whole, nullable=False, server_default="0"),  # of its log
    sa.UniqueConstraint("model", "name"),
)

decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("task_id", Key, sa.ForeignKey("tasks.id"), nullable=False),
    sa.Column("number", Whole, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("features", Blob, nullable=False),
    sa.Column("num_actions", sa.Integer, nullable=False),
    sa.Column("names", Text),
    sa.Column("mask", Blob),
    sa.Column("ranking", Text, nullable=False),
    sa.Column("top_k", sa.Integer),
    sa.Column("taken", sa.Integer, nullable=False),
    sa.Column("propensity", Real),
    sa.Column("propensity_se", Real),
    sa.Column("num_draws", sa.Integer),  # for the propensity; null before they ended at 16 wins
    sa.Column("predicted", Real, nullable=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("shadow", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("status", Text, nullable=False),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("created", Real, nullable=False),
    sa.Column("expires", Real),
    sa.Column("digest", Text),  # of the request; null before it was stored
    sa.Column("raw", Text),
    sa.Column("candidates", Text),  # of a choice: the set of items that it was among, and those
    sa.Column("excluded", Text),  # of them that it might not take, by the ids of their tasks
)
sa.Index("decisions_due", decisions.c.settled, decisions.c.expires)
sa.Index("decisions_of_task", decisions.c.task_id, decisions.c.number)
sa.Index("decisions_by_time", decisions.c.created)
of_choices = decisions.c.candidates.isnot(None)
sa.Index(
    "decisions_by_set", decisions.c.candidates, sqlite_where=of_choices, postgresql_where=of_choices
)

candidates = sa.Table(
    "candidates",
    metadata,
    sa.Column("model", Text, sa.ForeignKey("models.name"), primary_key=True),
    sa.Column("id", Text, primary_key=True),
    sa.Column("items", Blob, nullable=False),  # ids of tasks
)

rewards = sa.Table(
    "rewards",
    metadata,
    sa.Column("decision_id", Text, sa.ForeignKey("decisions.id"), primary_key=True),
    sa.Column("reward_id", Text, primary_key=True),
    sa.Column("number", sa.Integer, nullable=False),
    sa.Column("value", Real, nullable=False),
    sa.Column("late", sa.Boolean, nullable=False),
    sa.Column("received", Real, nullable=False),
)

observations = sa.Table(
    "observations",
    metadata,
    sa.Column("task_id", Key, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("number", Whole, primary_key=True),
    sa.Column("decision_id", Text, sa.ForeignKey("decisions.id"), nullable=False, unique=True),
    sa.Column("features", Blob, nullable=False),
    sa.Column("reward", Real, nullable=False),
    sa.Column("source", Text, nullable=False),
    sa.Column("learned", Real, nullable=False),
    sa.Column("num_decisions", Whole, nullable=False, server_default="0"),
)

snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("task_id", Key, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("num_learned", Whole, nullable=False),
    sa.Column("moment", Real, nullable=False, server_default="0"),
    sa.Column("evidence", Blob, nullable=False),
)

bases = sa.Table(  # evidence of the first observations of a task, which are pruned
    "bases",
    metadata,
    sa.Column("task_id", Key, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("likelihood", Text, nullable=False),
    sa.Column("num_learned", Whole, nullable=False),
    sa.Column("num_decisions", Whole, nullable=False),  # when the last one was learned
    sa.Column("learned", Real, nullable=False),
    sa.Column("evidence", Blob, nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", Text, primary_key=True),
    sa.Column("digest", Text, nullable=False),
    sa.Column("rights", Text, nullable=False),
    sa.Column("model", Text),
    sa.Column("max_tasks", Whole, nullable=False),
    sa.Column("num_tasks", Whole, nullable=False),
    sa.Column("created", Real, nullable=False),
    sa.Column("revoked", sa.Boolean, nullable=False),
)


ROW_BYTES = 450  # of a decision with its reward and indexes, beside what these columns hold
SIZED = ("features", "names", "mask", "ranking", "raw", "excluded")
SUM_OF_BYTES = sa.func.coalesce(
    sa.func.sum(
        ROW_BYTES + sum(sa.func.coalesce(sa.func.length(decisions.c[name]), 0) for name in SIZED)
    ),
    0,
)


def num_bytes(decision: Row) -> int:
    """Bytes that a decision takes in the log, about."""
    return ROW_BYTES + sum(len(decision[name] or "") for name in SIZED)


def read_rows(
    connection: sa.Connection, query: sa.Executable, values: Sequence[object] | None = None
) -> list[Row]:
    """Rows that may be changed before they are written back; of `rows_with`, those of values."""
    given = None if values is None else {"values": values}
    return [dict(row) for row in connection.execute(query, given).mappings()]


@functools.cache
def rows_with(column: sa.Column[object]) -> sa.Select[object]:
    """Rows of its table in which a column has one of some values; made once, as it takes long."""
    wanted = sa.bindparam("values", expanding=True, type_=column.type)
    return sa.select(column.table).where(column.in_(wanted))


SCHEMA_VERSION = 10  # one more with every change of the tables above


def migrate(connection: sa.Connection) -> None:
    """Bring a database, empty or of an earlier version, to the current schema version."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7241963)"))
    schema_version.create(connection, checkfirst=True)
    found = connection.execute(sa.select(schema_version.c.version)).scalar()
    if found is not None and found > SCHEMA_VERSION:
        raise ValueError(
            f"`database`: expected schema version {SCHEMA_VERSION} or earlier, got {found}; "
            "upgrade diffprior to open it"
        )
    if found != SCHEMA_VERSION:
        metadata.create_all(connection)
        _fill(connection, _add_columns(connection))
        connection.execute(schema_version.delete())
        connection.execute(schema_version.insert().values(version=SCHEMA_VERSION))


def _add_columns(connection: sa.Connection) -> set[str]:
    """Add the columns and indexes that an earlier version did not have; names of the columns."""
    added = set()
    for table in metadata.sorted_tables:
        known = {each["name"] for each in sa.inspect(connection).get_columns(table.name)}
        for column in table.c:
            if column.name not in known:
                definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {definition}"))
                added.add(f"{table.name}.{column.name}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)
    return added


def _fill(connection: sa.Connection, added: set[str]) -> None:
    """Compute what new columns hold of earlier decisions."""
    d, o = decisions.c, observations.c
    if "observations.num_decisions" in added:
        number = sa.select(d.number + 1).where(d.id == o.decision_id).scalar_subquery()
        connection.execute(observations.update().values(num_decisions=number))
    if "decisions.shadow" in added:  # where the action taken is not the one recommended
        first = "[" + sa.cast(d.taken, Text)
        ours = [d.ranking.startswith(first + end) for end in (",", "]")]
        connection.execute(decisions.update().where(~sa.or_(*ours)).values(shadow=True))
    if "tasks.num_bytes" in added:
        size = sa.select(SUM_OF_BYTES).where(d.task_id == tasks.c.id).scalar_subquery()
        connection.execute(tasks.update().values(num_bytes=size))


class Database:
    """An opened and migrated database."""

    def __init__(self, url: str) -> None:
        self.url = _parse_url(url)
        self._engine = sa.create_engine(self.url, **_options(self.url))
        if self.is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        try:
            self._open()
        except (sa.exc.SQLAlchemyError, OSError) as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise ValueError(
                f"`database`: expected a database that can be opened, got {reason!r} for "
                f"{self.url.render_as_string()}; check its address, rights and server"
            ) from error

    def _open(self) -> None:
        path = self.url.database
        if self.is_sqlite and path and path != ":memory:" and not os.path.exists(path):
            os.close(os.open(path, os.O_CREAT, 0o600))  # for its owner; its log inherits that
        with self.transaction() as connection:
            migrate(connection)

    @property
    def is_sqlite(self) -> bool:
        """Whether the database is a SQLite file, which one transaction at a time writes to."""
        return self.url.get_backend_name() == "sqlite"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Connection that commits on exit and rolls back on an exception."""
        with self._engine.begin() as connection:
            yield connection

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Connection with a consistent view that does not wait for writers."""
        with self._engine.connect().execution_options(**{READ_ONLY: True}) as connection:
            yield connection

    def read(self, query: sa.Executable) -> Rows:
        """All rows of one query."""
        with self.reading() as connection:
            return connection.execute(query).all()

    def read_value(self, query: sa.Executable) -> Value:
        """The first value that a query finds; None if it finds none."""
        with self.reading() as connection:
            return connection.execute(query).scalar()

    def insert_if_absent(self, table: sa.Table) -> sqlite.Insert | postgresql.Insert:
        """INSERT statement that skips rows whose key exists."""
        dialect = sqlite if self.is_sqlite else postgresql
        return dialect.insert(table).on_conflict_do_nothing()

    def close(self) -> None:
        self._engine.dispose()


def _parse_url(url: str) -> sa.URL:
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


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins transactions
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA synchronous = FULL")  # commits are on disk before they are acknowledged
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _begin_sqlite(connection: sa.Connection) -> None:
    reads = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
