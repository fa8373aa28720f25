"""Starting the service: access is checked first, then the port opens."""

import ipaddress
import logging
import socket
import sys
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ..files.base import load
from .api import make_app
from .auth import Tokens, any_token
from .engine import Engine
from .gate import Limits
from .metrics import Metrics
from .models import Catalog
from .settings import Settings
from .store import Database

STOP_SECONDS = 20  # for requests in progress when the service is asked to stop
SWITCH_SECONDS = 0.0005  # after which a thread that computes lets another run


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_access(database: Database, host: str, require_tokens: bool) -> bool:
    """Whether callers need a token."""
    required = require_tokens or not is_loopback(host)
    if required and not any_token(database):
        raise ValueError(
            f"`host`: expected a token before other machines can reach {host}, found none; "
            "`diffprior token create --database ...` creates one"
        )
    return required


def add_models(catalog: Catalog, models: dict[str, Path], settings: Settings) -> list[str]:
    """Add each model of the command line that is not in the database, or that has changed."""
    lines = []
    for name, path in models.items():
        before = catalog.newest(name) if name in catalog.names() else None
        version = catalog.put(name, settings, load(path), share=1.0)
        source = "as in the database" if version is before else f"from {path}"
        lines.append(f"{name}: version {version.version}, {source}")
    return lines


def serve(
    database: Database,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    require_tokens: bool = False,
    limits: Limits | None = None,
    hosts: frozenset[str] = frozenset(),
) -> None:
    """Serve until asked to stop; until the models are compiled, calls are asked to wait."""
    limits = limits or Limits()
    required = check_access(database, host, require_tokens)
    sys.setswitchinterval(SWITCH_SECONDS)
    engine = Engine(database, metrics=Metrics())
    app = make_app(engine, Tokens(database, required=required), limits=limits, hosts=hosts)
    uvicorn.Server(server_config(app, host, port, limits)).run()
    database.close()  # which removes SQLite's log


def server_config(app: ASGIApp, host: str, port: int, limits: Limits) -> uvicorn.Config:
    """Configuration of uvicorn."""
    return uvicorn.Config(
        app,
        http=limits.protocol(),
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
    """Log one line per event, and per request too if `access`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("diffprior.access").setLevel(logging.INFO if access else logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.INFO)


def free_port() -> int:
    """A port on loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
