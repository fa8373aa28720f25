"""One contract, three executors: results in order, deaths survived, failures named."""

import functools
import importlib.util
import os
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest

import shard_functions as functions
from diffprior.executors import AbstractExecutor, InProcess, Processes, Ray, ShardError, num_cores

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def processes() -> Iterator[AbstractExecutor]:
    with Processes(2) as executor:
        yield executor


@pytest.mark.parametrize("count", [0, 1, 5])
def test_threads_keep_the_order(count: int) -> None:
    for threads in (1, 2, None):
        found = list(InProcess(threads).map(functools.partial(functions.scaled, 2.0), range(count)))
        assert [int(result[0]) for result in found] == [2 * i for i in range(count)]


def test_threads_name_what_fails() -> None:
    with pytest.raises(ShardError, match="shard 7 failed: ValueError: seven is not wanted"):
        list(InProcess(2).map(functions.rejected, range(20)))


def test_threads_are_never_far_ahead() -> None:
    started: list[int] = []
    results = InProcess(2).map(lambda shard: started.append(shard), range(100))
    next(results)
    time.sleep(0.05)
    assert len(started) <= 5
    results.close()  # type: ignore[attr-defined]


def test_processes_keep_order_settings_and_cores(processes: AbstractExecutor) -> None:
    assert list(processes.map(functions.rejected, [])) == []
    found = list(processes.map(functools.partial(functions.scaled, 0.1), range(9)))
    np.testing.assert_array_equal(found, [0.1 * np.full(3, i) for i in range(9)])
    with jax.enable_x64(False):
        assert list(processes.map(functions.precision, [0])) == ["float32True"]
    assert list(processes.map(functions.precision, [0])) == ["float64True"]
    places = functions.both_places(processes)
    assert len(places) == 2 and sum(places.values()) <= max(2, num_cores())
    assert os.getpid() not in places


def test_files_are_read_again_and_failures_cost_one_map(
    processes: AbstractExecutor, tmp_path: Path
) -> None:
    once = functools.partial(functions.dies_once, str(tmp_path))
    with pytest.raises(ShardError, match="failed: its worker died .*too little memory"):
        list(processes.map(once, range(8)))
    assert list(processes.map(once, range(8))) == list(range(8))
    again = functools.partial(functions.unreadable_twice, str(tmp_path))
    assert list(processes.map(again, range(8))) == list(range(8))
    results = processes.map(functions.rejected, range(7))
    assert next(results) == 0
    results.close()  # type: ignore[attr-defined]
    assert list(processes.map(functions.rejected, range(3))) == [0, 1, 2]
    with pytest.raises(ShardError, match="shard 7 failed: ValueError: seven is not wanted"):
        list(processes.map(functions.rejected, range(20)))


@pytest.mark.parametrize("kind", [Processes, InProcess])
def test_impossible_numbers_of_workers_are_rejected(kind: type) -> None:
    with pytest.raises(ValueError, match="expected"):
        kind(0)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else find(name)
    )
    with pytest.raises(ImportError, match=r"pip install 'diffprior\[cluster]'"):
        Ray("local")


def test_only_one_file_knows_of_ray() -> None:
    package = ROOT / "src" / "diffprior"
    found = [path for path in package.rglob("*.py") if "import ray" in path.read_text()]
    assert [path.name for path in found] == ["executors.py"]
