"""Copies and processes: a copy goes on, a fork is noticed, and workers that start afresh decide."""

import contextlib
import copy
import http.client
import json
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import standard_prior
from diffprior.bandits.bandit import Bandit

ROOT = Path(__file__).parents[2]
TIMEOUT = 120  # seconds; a few are needed
FEATURES = np.random.default_rng(2).standard_normal((7, 2))
COPIES: dict[str, Callable[[Bandit], Bandit]] = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": lambda bandit: pickle.loads(pickle.dumps(bandit)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("likelihood", [dp.Linear(0.5), dp.Logistic()], ids=["linear", "logistic"])
def test_a_copy_decides_as_the_original_and_learns_apart(
    how: str, likelihood: dp.AbstractLikelihood
) -> None:
    bandit = Bandit(standard_prior(), likelihood, seed=2**40 + 1, max_rows=256)
    bandit.update(FEATURES, np.ones(7))
    bandit.decide(FEATURES)
    twin = COPIES[how](bandit)
    assert (twin.num_decisions, twin.seed) == (1, bandit.seed)
    same = np.broadcast_to(FEATURES, (5, 7, 2))
    np.testing.assert_array_equal(twin.decide(same).scores, bandit.decide(same).scores)
    before = bandit.evidence
    twin.update(FEATURES, np.zeros(7))
    assert bandit.evidence is before


def test_a_copy_of_another_agent() -> None:
    bandit = Bandit(dp.LinUCB(standard_prior(), dp.Linear(0.5), width=3.0), seed=1)
    bandit.update(FEATURES, np.ones(7))
    twin = copy.deepcopy(bandit)
    assert isinstance(twin.agent, dp.LinUCB) and float(twin.agent.width) == 3.0
    np.testing.assert_array_equal(twin.decide(FEATURES).scores, bandit.decide(FEATURES).scores)


FORK = """
import os, sys, warnings
import numpy as np, diffprior as dp
warnings.filterwarnings("ignore", message="os.fork")
features = np.eye(2)
make = lambda: dp.Bandit(dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Linear(1.0), seed=0)
bandit = make()
bandit.decide(features)
calls = {
    "decide": lambda: bandit.decide(features),
    "update": lambda: bandit.update(features[0], 1.0),
    "posterior": lambda: bandit.posterior(10),
    "warm_up": lambda: bandit.warm_up(3),
    "save": lambda: bandit.save("nowhere"),
    "Bandit": make,
}
reader, writer = os.pipe()
if os.fork() == 0:
    for name, call in calls.items():
        try:
            call()
            os.write(writer, f"{name} returned\\n".encode())
        except RuntimeError as error:
            os.write(writer, f"{error}\\n".encode())
    os._exit(0)
os.wait()
os.close(writer)
print(os.fdopen(reader).read(), end="")
print("parent", bandit.decide(features).action, bandit.num_decisions)
"""


def run(*arguments: str) -> str:
    """Output of a process of its own."""
    found = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=TIMEOUT, cwd=ROOT
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


def test_a_fork_is_noticed_before_it_hangs() -> None:
    lines = run("-c", FORK).splitlines()
    names = ["decide", "update", "posterior", "warm_up", "save", "Bandit"]
    assert len(lines) == len(names) + 1
    for name, line in zip(names, lines, strict=False):
        assert line.startswith(f"`{name}`: expected a process that was started afresh")
        assert "'spawn' or 'forkserver'" in line and "Gunicorn without --preload" in line
    assert lines[-1].startswith("parent") and lines[-1].endswith("2")


def test_worker_processes_that_start_afresh_decide() -> None:
    lines = run("examples/worker_processes.py").splitlines()
    assert [line.split(":")[0] for line in lines] == [f"task {i}" for i in range(4)]
    assert all(float(line.split()[-1]) > 0 for line in lines)


@contextlib.contextmanager
def served(*options: str) -> Iterator[int]:
    """The port of the example behind Gunicorn, which is ended afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        bind = ["--bind", f"fd://{listener.fileno()}", "--chdir", "examples"]
        command = [sys.executable, "-m", "gunicorn", *bind, *options, "gunicorn_app:app"]
        server = subprocess.Popen(
            command,
            cwd=ROOT,
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield listener.getsockname()[1]
        finally:
            server.terminate()
            server.wait(30)


def post(port: int, path: str, body: Any) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body))
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_gunicorn_without_preload_decides() -> None:
    deadline = time.monotonic() + TIMEOUT
    with served("--workers", "1", "--threads", "4", "--timeout", str(TIMEOUT)) as port:
        status, found = post(port, "/decide", {"features": np.eye(2).tolist()})
        assert status == 200 and found["action"] in (0, 1) and found["num_decisions"] == 1
        assert post(port, "/reward", {"phi": [1, 0], "reward": 1}) == (200, {"learned": True})
        status, found = post(port, "/reward", {"phi": [1, 0], "reward": 2})
        assert status == 400 and "0 or 1" in found["error"]
        assert time.monotonic() < deadline
