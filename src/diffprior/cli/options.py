"""What the commands share: options, and checks of files before any work begins."""

import contextlib
import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..executors import AbstractExecutor

Seed = Annotated[int, typer.Option(min=0, help="Seed of everything random.")]
Json = Annotated[Path | None, typer.Option("--json", help="File for the numbers, as JSON.")]
Ray = Annotated[
    str | None,
    typer.Option("--ray", help="Share the work out on a Ray cluster: its address, or `local`."),
]
PICTURES = (".png", ".pdf", ".svg")


def print_version(wanted: bool | None) -> None:
    """Show the version and end."""
    if wanted:
        typer.echo(f"diffprior {importlib.metadata.version('diffprior')}")
        raise typer.Exit()


def check_cluster(ray: str | None) -> None:
    """Check that Ray is installed, where an address of a cluster was given.

    Raises:
        ImportError: It is not; the message says what to install.
    """
    if ray is not None:
        from ..extras import require

        require("cluster", "ray")


@contextlib.contextmanager
def executor_of(ray: str | None) -> "Iterator[AbstractExecutor | None]":
    """The executor of an address, or None without one; ended when the work is done."""
    if ray is None:
        yield None
        return
    from ..executors import Ray as Cluster

    with Cluster(ray) as executor:
        yield executor


def check_output(option: str, path: Path, *inputs: Path) -> None:
    """Check that a file can be written there, and that it is none of the inputs.

    Args:
        option: The option that named it, for the message.
        path: The file to be written.
        inputs: Files that are read, and must stay.

    Raises:
        ValueError: The folder is missing or cannot be written to, or the file is an input.
    """
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(
            f"`{option}`: expected a file in a folder that exists, got {path}; make the folder "
            f"with `mkdir -p {folder}`, or name another"
        )
    if path.is_dir():
        raise ValueError(f"`{option}`: expected a file, got the folder {path}; name a file in it")
    if any(path.exists() and path.samefile(given) for given in inputs if given.exists()):
        raise ValueError(
            f"`{option}`: expected another file than the input, got {path} for both; it would be "
            "overwritten, so name another"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(
            f"`{option}`: expected a file that can be written, got {path}; name another"
        )


def check_picture(option: str, path: Path, *inputs: Path) -> None:
    """Check that a picture can be drawn there: its ending, its folder, and Matplotlib."""
    from ..extras import require

    require("plot", "matplotlib")
    if path.suffix.lower() not in PICTURES:
        raise ValueError(
            f"`{option}`: expected one of {', '.join(PICTURES)}, got {path.name}; name it so"
        )
    check_output(option, path, *inputs)
