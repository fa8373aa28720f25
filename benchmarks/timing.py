"""Fair timing: candidates take turns, each many times, and the first call is told apart."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: median, quartiles, 99th percentile; and of the first, which compiles."""

    median: float
    low: float
    high: float
    p99: float
    first: float

    @staticmethod
    def of(seconds: list[float], first: float) -> "Timing":
        """The summary of repeated calls."""
        low, median, high, p99 = np.quantile(seconds, (0.25, 0.5, 0.75, 0.99))
        return Timing(float(median), float(low), float(high), float(p99), first)


def take_turns(
    candidates: Mapping[str, Callable[[], object]], num_rounds: int
) -> dict[str, Timing]:
    """Time every candidate `num_rounds` times, in turn, so that all meet the same disturbances."""
    firsts = {name: _seconds(call) for name, call in candidates.items()}
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(num_rounds):
        for name, call in candidates.items():
            seconds[name].append(_seconds(call))
    return {name: Timing.of(seconds[name], firsts[name]) for name in candidates}


def _seconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
