"""What the command line shows: messages and tables on the terminal, errors in one line."""

import contextlib
from collections.abc import Iterator
from typing import Any

import typer


def say(message: Any, style: str | None = None) -> None:
    """Print on standard error, unwrapped, as it is."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(message, style=style, markup=False, soft_wrap=isinstance(message, str))


@contextlib.contextmanager
def friendly_errors() -> Iterator[None]:
    """Turn an error that the user can mend into a message and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        say(f"error: {error}", style="red")
        raise typer.Exit(2) from error
