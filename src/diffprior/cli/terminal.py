"""Terminal output of the command line: messages, tables, and errors in one line."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..reporting.tables import Table


def say(message: str, style: str | None = None) -> None:
    """Print text on standard error, without markup or wrapping."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(message, style=style, markup=False, soft_wrap=True)


def say_table(table: "Table") -> None:
    """Print a table on standard error, highlighted cells in bold on a terminal."""
    typer.echo(f"\n{table.to_text(bold=True)}", err=True)  # strips escape codes from a file


@contextlib.contextmanager
def friendly_errors() -> Iterator[None]:
    """Turn an error that the user can fix into a message and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        say(f"error: {error}", style="red")
        raise typer.Exit(2) from error
