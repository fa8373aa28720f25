"""Progress: a line now and then off a terminal, nothing where it is not wanted."""

import io
import sys
import time

import pytest

from diffprior import progress as module
from diffprior.progress import progress


@pytest.mark.parametrize(("visible", "said"), [(None, True), (True, True), (False, False)])
def test_lines_come_also_within_a_long_step(
    visible: bool | None, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(module, "INTERVAL", 0.01)
    with progress("learning", 4, visible=visible) as bar:
        bar.advance()
        bar.advance(2)
        time.sleep(0.2)
        bar.describe("looking")
        time.sleep(0.2)
    assert bar.done == 3
    for line in ("learning: 3 of 4 after 0 s", "looking: 3 of 4 after 0 s"):
        assert (line in stream.getvalue()) == said
    after = stream.getvalue()
    time.sleep(0.05)
    assert stream.getvalue() == after  # nothing goes on


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("learning", 1) as bar:
        bar.advance()
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with progress("learning [x]", 4) as bar:
        bar.advance(4)
    assert "4 of 4" in stream.getvalue() and "learning [x]" in stream.getvalue()
