"""Tables of the service, and how a database of an earlier version becomes one of this version.

The log is the truth: `decisions`, `rewards` and `observations` (what was learned, in which order).
`snapshots` are a cache of it, which `diffprior rebuild` makes anew.
"""

from collections.abc import Callable

import sqlalchemy as sa

metadata = sa.MetaData()
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
    sa.Column("predicted", Real, nullable=False),
    sa.Column("failed", sa.Boolean, nullable=False),
    sa.Column("shadow", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("status", Text, nullable=False),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("created", Real, nullable=False),
    sa.Column("expires", Real),
)
sa.Index("decisions_due", decisions.c.settled, decisions.c.expires)
sa.Index("decisions_of_task", decisions.c.task_id, decisions.c.number)
decisions_by_time = sa.Index("decisions_by_time", decisions.c.created)

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


def _create(connection: sa.Connection) -> None:
    metadata.create_all(connection)


def _index_times(connection: sa.Connection) -> None:
    decisions_by_time.create(connection, checkfirst=True)  # a new database has it already


def _add_moments(connection: sa.Connection) -> None:
    """When evidence was learned, so that it can fade; which decisions are the caller's own.

    Of decisions before, those are known whose action was not the one recommended.
    """
    added = [table.c[name] for table, name in _LATER if not _has(connection, table, name)]
    for column in added:
        definition = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
        connection.execute(sa.text(f"ALTER TABLE {column.table.name} ADD COLUMN {definition}"))
    if added:
        number = sa.select(decisions.c.number + 1).where(
            decisions.c.id == observations.c.decision_id
        )
        connection.execute(observations.update().values(num_decisions=number.scalar_subquery()))
        first = "[" + sa.cast(decisions.c.taken, Text)
        ours = [decisions.c.ranking.startswith(first + end) for end in (",", "]")]
        connection.execute(decisions.update().where(~sa.or_(*ours)).values(shadow=True))


_LATER = (decisions, "shadow"), (observations, "num_decisions"), (snapshots, "moment")


def _has(connection: sa.Connection, table: sa.Table, column: str) -> bool:
    return column in {found["name"] for found in sa.inspect(connection).get_columns(table.name)}


# The step at index n makes a database of version n one of version n + 1. Steps are only added.
MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (_create, _index_times, _add_moments)


def migrate(connection: sa.Connection) -> None:
    """Bring a database, empty or of an earlier version, to the version of this package.

    Raises:
        ValueError: The database is of a later version of the package.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(7241963)"))
    schema_version.create(connection, checkfirst=True)
    found = connection.execute(sa.select(schema_version.c.version)).scalar()
    if found is not None and found > len(MIGRATIONS):
        raise ValueError(
            f"`database`: expected schema version {len(MIGRATIONS)} or earlier, got {found}; "
            "upgrade diffprior to open it"
        )
    for step in MIGRATIONS[found or 0 :]:
        step(connection)
    connection.execute(schema_version.delete())
    connection.execute(schema_version.insert().values(version=len(MIGRATIONS)))
