"""Progress: a line now and then off a terminal, nothing where it is not wanted."""

import contextlib
import importlib
import io
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from diffprior import progress as module
from diffprior.fitting.config import LearningConfig
from diffprior.fitting.search import SearchConfig
from diffprior.progress import Progress, progress
from worlds_of_tasks import blobs, rows


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


def test_learning_ends_where_its_plan_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of families that were not fitted are dropped, so that the bar ends full."""
    rng = np.random.default_rng(0)
    config = LearningConfig(search=SearchConfig(max_components=2, max_tied=0), max_rounds=1)
    for num_tasks, arguments in ((250, {"quick": True}), (60, {})):
        counted: list[Progress] = []

        @contextlib.contextmanager
        def kept(
            *arguments: Any, found: list[Progress] = counted, **_: object
        ) -> Iterator[Progress]:
            found.append(Progress(*arguments))
            yield found[0]

        monkeypatch.setattr(
            importlib.import_module("diffprior.learning.learn"), "progress_bar", kept
        )
        logs = dp.Logs(*rows(rng, blobs(rng, num_tasks), 100.0))
        dp.learn(logs, dp.Linear(noise_std=1.0), config=config, **arguments)
        assert counted[0].done == counted[0].total > 0
