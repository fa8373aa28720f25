"""The decision service and its log: `diffprior serve`, `export`, `prune`, `rebuild` and others."""

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Features, Reward, Task, Time, check_output, friendly_errors, say, split_names

if TYPE_CHECKING:
    from ..service.store import Database as Store

Database = Annotated[
    str, typer.Option(help="File of SQLite, or address of PostgreSQL: postgresql://...")
]
DEFAULT_DATABASE = "diffprior.sqlite"
COMPILED = Path.home() / ".cache" / "diffprior"
token_app = typer.Typer(no_args_is_help=True, help="Tokens of the decision service.")


def _require_modules() -> None:
    from ..checks import require

    modules = ("fastapi", "httptools", "jinja2", "uvicorn", "sqlalchemy", "prometheus_client")
    require("serve", *modules, "fastapi_offline")


@contextlib.contextmanager
def _opened(database: str, *, new: bool = False) -> "Iterator[Store]":
    """Open a database, which may be `new`; what the user can fix becomes a message."""
    with friendly_errors():
        _require_modules()
        from ..service.store import Database as Store

        path = database.removeprefix("sqlite:///")
        if not new and "://" not in path and not Path(path).is_file():
            raise ValueError(
                f"`database`: expected a database, found none at {path}; check the name"
            )
        opened = Store(database)
        yield opened
        opened.close()


def serve(
    context: typer.Context,
    model: Annotated[
        list[str] | None, typer.Option(help="NAME=FILE of a prior; repeat for more.")
    ] = None,
    likelihood: Annotated[
        str | None,
        typer.Option(help="logistic, linear:noise_std=0.5, ...; of a model, its own by default."),
    ] = None,
    database: Database = DEFAULT_DATABASE,
    host: Annotated[str, typer.Option(help="Address; needs tokens if not loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port.")] = 8000,
    temperature: Annotated[float, typer.Option(help="Below 1 explores less.")] = 1.0,
    reward_wait: Annotated[
        float | None, typer.Option(help="Seconds that a decision waits for its reward.")
    ] = None,
    default_reward: Annotated[
        float | None, typer.Option(help="Reward that is learned if none came within the wait.")
    ] = None,
    aggregation: Annotated[
        str, typer.Option(help="Which of several rewards counts: first, last or sum.")
    ] = "first",
    half_life: Annotated[
        str | None,
        typer.Option(help="When a reward counts half: 500 (decisions), or P7D (seven days)."),
    ] = None,
    propensity_draws: Annotated[
        int, typer.Option(help="Most draws per propensity, of about 16 per action that can win.")
    ] = 256,
    quota_gb: Annotated[
        float | None, typer.Option(help="Gigabytes of the log of a model; then decisions get 507.")
    ] = None,
    require_tokens: Annotated[
        bool, typer.Option("--require-tokens", help="Require tokens on loopback too.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that callers may use for this service; repeat for more."),
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log one line per request.")
    ] = False,
    import_: Annotated[
        list[str] | None,
        typer.Option("--import", help="Module that defines the responses of models."),
    ] = None,
    compiled: Annotated[
        Path, typer.Option(help="Folder for compiled programs, so that the next start is faster.")
    ] = COMPILED,
) -> None:
    """Serve decisions for many tasks over HTTP; everything acknowledged is in the log."""
    with friendly_errors():
        for text in context.args:
            raise ValueError(
                f"`model`: expected --model NAME=FILE, got {text!r}; "
                f"write --model {Path(text).stem}={text}"
            )
        _require_modules()
        from ..service.settings import checked_settings, parse_likelihood

        for module in import_ or ():
            sys.path.insert(0, "")  # as `python -m` does
            importlib.import_module(module)
        models = dict(_named_file(text) for text in model or [])
        about = {
            "temperature": temperature,
            "reward_wait": reward_wait,
            "default_reward": default_reward,
            "aggregation": aggregation,
            "half_life": half_life,
            "propensity_draws": propensity_draws,
            "quota_gb": quota_gb,
        }
        settings = checked_settings((parse_likelihood(likelihood) if likelihood else {}) | about)
    with _opened(database, new=True) as opened:
        from ..files.cache import keep_compiled
        from ..service.models import Catalog
        from ..service.server import add_models, check_access, log_to_stderr
        from ..service.server import serve as run

        check_access(opened, host, require_tokens)
        catalog = Catalog(opened)
        for line in add_models(catalog, models, settings):
            say(line)
        if not catalog.names():
            raise ValueError(
                "`model`: expected at least one, got none; pass --model shop=shop.model"
            )
        if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
            keep_compiled(compiled)
        log_to_stderr(access_log)
        hosts = frozenset(name.lower() for name in allow_host or ())
        say(f"http://{host}:{port}, all calls at /docs; models serve once they are compiled")
        run(opened, host=host, port=port, require_tokens=require_tokens, hosts=hosts)


def retire(
    model: Annotated[str, typer.Option(help="Name of the model.")],
    version: Annotated[int, typer.Option(min=1, help="Number of the version.")],
    database: Database = DEFAULT_DATABASE,
) -> None:
    """Take a version of a model out of service for good, also one that cannot be loaded."""
    with _opened(database) as opened:
        from ..service.models import Catalog

        catalog = Catalog(opened)
        catalog.retire(model, version)
        left = [f"{v.version} ({v.share:.0%})" for v in catalog.versions_of(model)]
        say(f"retired version {version} of {model}; left: {', '.join(left)}")


def rebuild(database: Database = DEFAULT_DATABASE) -> None:
    """Recompute the evidence of every task from the log, and report differences."""
    with _opened(database) as opened:
        from ..service.tasks import rebuild as run

        found = run(opened)
        for line in (*found.problems, *(f"{name}: evidence differed" for name in found.different)):
            say(line)
        counts = f"{found.num_tasks} tasks, {found.num_snapshots} snapshots"
        say(f"{counts}, {len(found.different)} replaced; {len(found.problems)} wrong counts")
        if found.problems or found.different:
            raise typer.Exit(1)


def prune(
    older_than: Annotated[str, typer.Option(help="Age: 90d (days), or 36h (hours).")],
    database: Database = DEFAULT_DATABASE,
) -> None:
    """Delete old decisions, whose rewards are learned: the evidence of every task stays.

    The service may be running. `diffprior export` writes what off-policy estimates need.
    """
    with _opened(database) as opened:
        from ..service.bases import prune as run

        say(str(run(opened, _seconds("older-than", older_than))))


def import_logs(
    logs: Annotated[Path, typer.Argument(help="Rows of past rewards: .csv .parquet")],
    model: Annotated[str, typer.Option(help="Name of the model.")],
    database: Database = DEFAULT_DATABASE,
    task: Task = "task",
    reward: Reward = "reward",
    features: Features = None,
    time: Time = None,
) -> None:
    """Let tasks that ran elsewhere begin with their past rewards.

    Tasks that have decisions in the service already are left out. The service may be running.
    """
    with _opened(database) as opened:
        from ..logs.logs import Logs
        from ..service.bases import import_logs as run
        from ..service.models import Catalog

        version = Catalog(opened).newest(model)
        table = Logs.read(
            logs,
            task=task,
            reward=reward,
            features=split_names(features) or version.feature_names or None,
            time=time,
            intercept=False,  # features are those of the prior
            encoder=version.encoder,
        )
        say(str(run(opened, model, table)))


def _seconds(name: str, text: str) -> float:
    """Seconds of an age such as 90d or 36h."""
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in ("d", "h"):
        raise ValueError(f"`{name}`: expected an age such as 90d or 36h, got {text!r}")
    return float(number) * {"d": 86400, "h": 3600}[unit]


def export(
    model: Annotated[str, typer.Option(help="Name of the model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    database: Database = DEFAULT_DATABASE,
    format: Annotated[
        str,
        typer.Option(help="parquet, dsjson (Vowpal Wabbit) or obd (Open Bandit arrays, .npz)."),
    ] = "parquet",
) -> None:
    """Write the decisions of a model with their rewards and propensities.

    `diffprior learn` reads the Parquet file: --features 'x*'. The service may be running.
    """
    with _opened(database) as opened:
        check_output("output", output)
        if format == "parquet":
            from ..checks import require

            require("logs", "pyarrow")
        from ..service.export import export as write

        say(str(write(opened, model, format, output)))
        say(f"wrote {output}")


@token_app.command("create")
def create_token(
    database: Database = DEFAULT_DATABASE,
    rights: Annotated[
        str, typer.Option(help="Some of decide,reward,read,admin.")
    ] = "decide,reward,read",
    model: Annotated[str | None, typer.Option(help="For one model only.")] = None,
    max_tasks: Annotated[int, typer.Option(min=1, help="Tasks it may create.")] = 1_000_000,
) -> None:
    """Create a token and print it; only its digest is stored."""
    with _opened(database, new=True) as opened:
        from ..service.auth import create_token as create

        wanted = tuple(part.strip() for part in rights.split(",") if part.strip())
        typer.echo(create(opened, wanted, model, max_tasks))


@token_app.command("list")
def list_tokens(database: Database = DEFAULT_DATABASE) -> None:
    """List the tokens: what each may do, and how many tasks it has created."""
    with _opened(database) as opened:
        from ..reporting.tables import Table
        from ..service.auth import list_tokens as read

        heads = ("id", "rights", "model", "tasks", "created", "")
        rows = [
            (
                row["id"],
                ", ".join(json.loads(row["rights"])),
                row["model"] or "all",
                f"{row['num_tasks']} of {row['max_tasks']}",
                f"{datetime.fromtimestamp(row['created'], UTC):%Y-%m-%d %H:%M} UTC",
                "revoked" if row["revoked"] else "",
            )
            for row in read(opened)
        ]
        typer.echo(str(Table(heads, rows)) if rows else "no tokens")


@token_app.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(help="The part between dp_ and the next _.")],
    database: Database = DEFAULT_DATABASE,
) -> None:
    """Revoke a token."""
    with _opened(database) as opened:
        from ..service.auth import revoke_token as revoke

        if not revoke(opened, name):
            raise ValueError(f"`name`: expected a token's id, found none like {name!r}; check it")
    say(f"revoked {name}")


def _named_file(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not name or not path:
        raise ValueError(f"`model`: expected NAME=FILE, got {text!r}; write shop=shop.model")
    if not Path(path).is_file():
        raise ValueError(f"`model`: expected a file, found none at {path}; check the name")
    return name, Path(path)
