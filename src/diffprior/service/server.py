"""Starting the service: checks first, then the models, then the port."""

import ipaddress
import logging
import socket
from pathlib import Path
from typing import Any

import uvicorn

from ..files.base import load
from .catalog import Catalog
from .database import Database
from .engine import Engine
from .http import make_app
from .limits import Limits
from .metrics import Metrics
from .protocol import TimedProtocol
from .settings import Settings
from .tokens import Tokens, any_token

STOP_SECONDS = 20  # for requests under way when the service is asked to stop


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_access(database: Database, host: str, require_tokens: bool) -> bool:
    """Whether callers need a token.

    Raises:
        ValueError: Others could reach the service, and there is no token that they could be asked
            for.
    """
    required = require_tokens or not is_loopback(host)
    if required and not any_token(database):
        raise ValueError(
            f"`host`: expected a token before anyone but this machine can reach {host}, found none;"
            " `diffprior token create --database ...` makes one"
        )
    return required


def add_models(catalog: Catalog, models: dict[str, Path], settings: Settings) -> list[str]:
    """Put each model of the command line that is not in the database yet, or that has changed.

    Returns:
        What was done, a line each.
    """
    said = []
    for name, path in models.items():
        prior = load(path)
        if name in catalog.names():
            newest = catalog.versions_of(name)[0]
            if newest.prior.digest == prior.digest and newest.settings == settings:
                said.append(f"{name}: version {newest.version}, as in the database")
                continue
        version = catalog.put(name, settings, prior, share=1.0)
        said.append(f"{name}: version {version.version}, from {path}")
    return said


def serve(
    database: Database,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    require_tokens: bool = False,
    limits: Limits | None = None,
    max_tasks: int = 20_000,
) -> None:
    """Serve until asked to stop; the port opens when everything is compiled.

    Args:
        database: The log and the models.
        host: Where to listen; loopback unless there are tokens.
        port: The port; 0 for a free one.
        require_tokens: Ask for a token on loopback too.
        limits: On the size and duration of requests.
        max_tasks: Tasks kept in memory.
    """
    required = check_access(database, host, require_tokens)
    engine = Engine(database, max_tasks=max_tasks, metrics=Metrics())
    app = make_app(engine, Tokens(database, required=required), limits=limits or Limits())
    uvicorn.Server(server_config(app, host, port)).run()


def server_config(app: Any, host: str, port: int) -> uvicorn.Config:
    """How HTTP is spoken."""
    return uvicorn.Config(
        app,
        http=TimedProtocol,
        ws="none",
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_SECONDS,
        timeout_keep_alive=30,
    )


def log_to_stderr(access: bool) -> None:
    """One line for each event; for each request too if `access`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("diffprior.access").setLevel(logging.INFO if access else logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.INFO)


def free_port() -> int:
    """A port on loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
