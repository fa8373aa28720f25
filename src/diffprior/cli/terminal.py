"""What the command line shows: messages and tables on the terminal, errors in one line."""

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..reporting.tables import Table


def say(message: str, style: str | None = None) -> None:
    """Print text on standard error, as it is."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(message, style=style, markup=False, soft_wrap=True)


def say_table(table: "Table") -> None:
    """Print a table on standard error, as wide as it is."""
    from rich.console import Console

    from ..reporting.tables import for_terminal, table_width

    console = Console(stderr=True, highlight=False)
    wide = Console(stderr=True, highlight=False, width=max(console.width, table_width(table)))
    wide.print(for_terminal(table), crop=False)


@contextlib.contextmanager
def friendly_errors() -> Iterator[None]:
    """Turn an error that the user can mend into a message and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        say(f"error: {error}", style="red")
        raise typer.Exit(2) from error
