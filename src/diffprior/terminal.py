"""What the command line shows: messages, refusals, and how far an experiment has come."""

import contextlib
from collections.abc import Iterator

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from .reproduce.parts import AbstractWatch, Part

console = Console(stderr=True, highlight=False)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turn a refusal into a message and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        console.print(f"error: {error}", style="red", markup=False)
        raise typer.Exit(2) from error


class Lines(AbstractWatch):
    """One line for each finished part."""

    def plan(self, count: int) -> None:
        """Nothing."""

    def begin(self, name: str) -> None:
        """Nothing."""

    def end(self, part: Part) -> None:
        """What was done, and how long it took."""
        when = "kept from before" if part.kept else f"{part.seconds:.1f} s"
        console.print(f"{part.name}: {when}", markup=False, soft_wrap=True)


class Bar(AbstractWatch):
    """A progress bar over the parts."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def plan(self, count: int) -> None:
        """The length of the bar."""
        self._progress.update(self._task, total=count)

    def begin(self, name: str) -> None:
        """The part on show."""
        self._progress.update(self._task, description=name)

    def end(self, part: Part) -> None:
        """One part further."""
        self._progress.advance(self._task)


@contextlib.contextmanager
def watching() -> Iterator[AbstractWatch]:
    """A bar on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield Lines()
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    text = TextColumn("{task.description}", markup=False)
    with Progress(*columns, text, console=console, transient=True) as progress:
        yield Bar(progress)
