"""How far long work has come: a bar on a terminal, elsewhere a line now and then."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

INTERVAL = 10.0  # seconds between lines, where there is no terminal


class Progress:
    """Is told how far some work has come, and tells `show`: steps done, and what is being done."""

    def __init__(
        self, description: str, total: int, show: Callable[[int, str], None] | None = None
    ) -> None:
        self.description, self.total, self.done = description, total, 0
        self._show = show or _silently

    def describe(self, description: str) -> None:
        """Say what is being done now."""
        self.description = description
        self._show(self.done, description)

    def advance(self, steps: int = 1) -> None:
        """So many steps further."""
        self.done += steps
        self._show(self.done, self.description)


def _silently(done: int, description: str) -> None:
    """Show nothing."""


@contextlib.contextmanager
def progress(description: str, total: int, *, visible: bool | None = None) -> Iterator[Progress]:
    """Show how far the work inside has come, on standard error.

    Args:
        description: What is being done.
        total: Number of steps that `advance` will be told of.
        visible: False shows nothing; None and True show a bar on a terminal, and elsewhere a line
            every ten seconds, so that work of a few seconds says nothing.

    Yields:
        What to tell: `advance(steps)` and `describe(text)`.
    """
    if visible is False:
        yield Progress(description, total)
    elif sys.stderr.isatty():
        with _bar(description, total) as show:
            yield Progress(description, total, show)
    else:
        told = Progress(description, total)
        with _lines(told):
            yield told


@contextlib.contextmanager
def _lines(told: Progress) -> Iterator[None]:
    """Print a line now and then, also while a long step is under way."""
    begin, ended = time.monotonic(), threading.Event()

    def print_until_ended() -> None:
        while not ended.wait(INTERVAL):
            seconds = time.monotonic() - begin
            line = f"{told.description}: {told.done} of {told.total} after {seconds:.0f} s"
            print(line, file=sys.stderr, flush=True)

    thread = threading.Thread(target=print_until_ended, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _bar(description: str, total: int) -> Iterator[Callable[[int, str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        TimeElapsedColumn(),
        Remaining(),
    )
    text = TextColumn("{task.description}", markup=False)
    with Progress(*columns, text, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(description, total=total)
        yield lambda done, text: shown.update(task, completed=done, description=text)
