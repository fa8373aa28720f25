"""Simulation, evaluation, logs and files: documented errors, or results without NaN."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import diffprior as dp
from bandits.helpers import Ball
from fuzz.strategies import DIM, arrays, attempt, either, finite, fuzzed

PRIOR = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
EXACT = dp.Exact(PRIOR)
TASK = Ball(dp.Linear(0.5), fresh_actions=False, num_actions=3)


@fuzzed
@given(st.data())
def test_simulation(data: st.DataObject) -> None:
    agents = data.draw(either({"TS": EXACT}, {"TS": PRIOR}, {}, {1: EXACT}))
    problem = data.draw(either(TASK, TASK, dp.Linear(0.5)))
    sizes = data.draw(st.tuples(either(2), either(3)))
    seed = data.draw(either(0, 7, 2**40))
    found = attempt(lambda: dp.simulate(problem, agents, *sizes, seed=seed), (RuntimeError,))
    if isinstance(found, dp.SimulationResult):
        assert found.num_runs == 2 and finite(found.regret)


@fuzzed
@given(st.data())
def test_evaluation(data: st.DataObject) -> None:
    first, second = data.draw(arrays(6, DIM)), data.draw(arrays(6, DIM))
    found = attempt(lambda: dp.evaluate.earth_movers_distance(first, second))
    assert isinstance(found, Exception) or found >= 0
    found = attempt(lambda: dp.evaluate.distance_over_floor(first, second, second))
    assert isinstance(found, Exception) or not np.any(np.isnan(found.distances))


@fuzzed
@given(st.data())
def test_logs(data: st.DataObject) -> None:
    tasks = data.draw(either(["a", "a", "b", "b"], np.array([1, 1, 2, 2]), np.arange(4.0)))
    logs = attempt(lambda: dp.Logs(tasks, data.draw(arrays(4, DIM)), data.draw(arrays(4))))
    if isinstance(logs, dp.Logs):
        assert logs.num_rows == 4 and repr(logs)
        statistics = attempt(logs.statistics)
        assert isinstance(statistics, Exception) or statistics is not None


KEPT: tuple[Any, ...] = (
    PRIOR,
    dp.MixturePrior([1.0, 2.0], np.eye(2), np.stack([np.eye(2)] * 2)),
    dp.EmpiricalPrior(np.eye(2)),
    dp.Linear(0.5).observe(np.eye(2), [1.0, 2.0]),
    EXACT,
)
BLOBS = tuple(kept.to_bytes() for kept in KEPT)


@fuzzed
@given(st.sampled_from(BLOBS), st.data())
def test_bytes(whole: bytes, data: st.DataObject) -> None:
    """Damaged ones are rejected, or load equal: every number has a checksum."""
    blob = bytearray(whole)
    for _ in range(data.draw(st.integers(0, 3))):
        blob[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    length = data.draw(st.one_of(st.just(len(blob)), st.integers(0, len(blob))))
    found = attempt(lambda: dp.load_bytes(bytes(blob[:length])))
    assert isinstance(found, Exception) or finite(found)
    odd = data.draw(st.one_of(st.binary(max_size=64), either(b"", 3, None)))
    assert isinstance(attempt(lambda: dp.load_bytes(odd)), Exception)


@fuzzed
@given(either("nowhere/at/all", "", Path("/proc/self/maps"), "/dev/null"))
def test_paths(path: Any) -> None:
    assert isinstance(attempt(lambda: dp.load(path), (OSError,)), Exception)
