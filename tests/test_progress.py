"""Progress: a line now and then off a terminal, nothing where it is not wanted."""

import io
import sys

import pytest

from diffprior import progress as module
from diffprior.progress import lines, progress


def test_a_line_every_interval() -> None:
    said: list[str] = []
    now = [0.0]
    show = lines(8, said.append, interval=10.0, clock=lambda: now[0])
    for done in range(1, 8):
        now[0] += 4.0
        show(done, "learning")
    assert said == ["learning: 3 of 8 after 12 s", "learning: 6 of 8 after 24 s"]


@pytest.mark.parametrize(("visible", "said"), [(None, True), (True, True), (False, False)])
def test_who_is_told(visible: bool | None, said: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    with progress("learning", 4, visible=visible) as told:
        told.advance(3)
        told.describe("looking")
    assert told.done == 3
    assert ("learning: 3 of 4" in stream.getvalue()) == said
    assert ("looking: 3 of 4" in stream.getvalue()) == said


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress("learning [x]", 4) as told:
        told.advance(4)
    assert "4 of 4" in stream.getvalue() and "learning [x]" in stream.getvalue()
