"""Progress of long work: a bar on a terminal, elsewhere a line every few seconds."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

INTERVAL = 10.0  # seconds between lines, where there is no terminal


class Progress:
    """Counts the steps done, and passes them to `show` with a description of the current one."""

    def __init__(
        self,
        description: str,
        total: int,
        show: Callable[["Progress"], None] | None = None,
        visible: bool = False,
    ) -> None:
        self.description, self.total, self.done, self.visible = description, total, 0.0, visible
        self._show = show or (lambda counted: None)

    def describe(self, description: str) -> None:
        """Set the description of the current step."""
        self.description = description
        self._show(self)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self.visible:
            print(text, file=sys.stderr, flush=True)

    def advance(self, steps: int | float = 1) -> None:
        """Count finished steps."""
        self.done += steps
        self._show(self)

    def drop(self, steps: int) -> None:
        """Plan fewer steps."""
        self.total -= steps
        self._show(self)


@contextlib.contextmanager
def progress(description: str, total: int, *, visible: bool | None = None) -> Iterator[Progress]:
    """Show the progress of the work inside on standard error, unless `visible` is False.

    On a terminal it is a bar, elsewhere a line every ten seconds: short work shows nothing.
    """
    if visible is False:
        yield Progress(description, total)
    elif sys.stderr.isatty():
        with _bar(description, total) as show:
            yield Progress(description, total, show, visible=True)
    else:
        counted = Progress(description, total, visible=True)
        with _lines(counted):
            yield counted


@contextlib.contextmanager
def _lines(counted: Progress) -> Iterator[None]:
    """Print a line every few seconds, also during a long step."""
    begin, ended = time.monotonic(), threading.Event()

    def print_until_ended() -> None:
        while not ended.wait(INTERVAL):
            seconds = time.monotonic() - begin
            done = f"{counted.done:.0f} of {counted.total} after {seconds:.0f} s"
            print(f"{counted.description}: {done}", file=sys.stderr, flush=True)

    thread = threading.Thread(target=print_until_ended, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _bar(description: str, total: int) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f}"),
        TimeElapsedColumn(),
        Remaining(),
    )
    text = TextColumn("{task.description}", markup=False)
    with Bars(*columns, text, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(description, total=total)

        def show(counted: Progress) -> None:
            text, done = counted.description, counted.done
            shown.update(task, total=counted.total, completed=done, description=text)

        yield show
