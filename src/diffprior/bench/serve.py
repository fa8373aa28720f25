"""The decision service: throughput and latency beside the same service at random, and what a
store of ten times as many tasks changes."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ..bandits.bandit import Bandit
from ..evidence.families import Logistic
from ..priors.base import AbstractPrior
from .section import Bench, Measurement
from .service_load import ACTIONS, DIM, Load, Service, load
from .service_store import make_store

TASKS = 10_000
KINDS = {"random": "the same service at random", "best": "ours"}
TURNS = 3  # of each service, so that a slow moment hits all


def serve(bench: Bench) -> list[Measurement]:
    """The decision service: eight parameters, ten actions, 10,000 tasks, logistic rewards, a
    learned prior, every decision rewarded, client included; beside the same service choosing at
    random, and the bare library."""
    seconds = 2.0 if bench.quick else 20.0
    prior = bench.prior("clusters")
    rows = [_library(prior, seconds)]
    with tempfile.TemporaryDirectory() as name:
        stores = {
            kind: make_store(Path(name) / kind, prior, sampler=kind, num_tasks=TASKS)
            for kind in KINDS
        }
        with running(stores) as services:
            found: dict[str, list[Load]] = {kind: [] for kind in KINDS}
            for _ in range(TURNS):
                for kind, service in services.items():
                    found[kind].append(load(service.port, seconds, num_tasks=TASKS))
            rows += [_measured(KINDS[kind], loads) for kind, loads in found.items()]
            rate = float(np.median([load.decisions_per_second for load in found["best"]]))
            half = load(services["best"].port, 2 * seconds, rate / 2, num_tasks=TASKS)
            rows.append(_measured("ours at half of that load", [half]))
    return rows


def serve_store(bench: Bench) -> list[Measurement]:
    """The decision service with 10,000 and 100,000 tasks in its store: seconds from the start of
    the process to the first reply when programs were compiled before, and latency at an even load
    over all tasks."""
    sizes = (1_000, 10_000) if bench.quick else (10_000, 100_000)
    seconds, prior = 2.0 if bench.quick else 20.0, bench.prior("clusters")
    with tempfile.TemporaryDirectory() as name:
        stores = {
            str(size): make_store(Path(name) / str(size), prior, sampler="best", num_tasks=size)
            for size in sizes
        }
        for store in stores.values():
            with running({"": store}):
                pass  # so that everything is compiled
        starts = {size: _start_up(store) for size, store in stores.items()}
        with running(stores) as services:
            rate = load(next(iter(services.values())).port, seconds, num_tasks=sizes[0])
            even = rate.decisions_per_second / 2
            found: dict[str, list[Load]] = {size: [] for size in stores}
            for _ in range(TURNS):
                for size, service in services.items():
                    done = load(service.port, seconds, even, num_tasks=int(size))
                    found[size].append(done)
    return [
        Measurement(
            f"{int(size):,} tasks",
            {"start, s": starts[size], **_measured("", loads).quantities},
        )
        for size, loads in found.items()
    ]


@contextmanager
def running(stores: dict[str, Path]) -> Iterator[dict[str, Service]]:
    """Services on these databases, ready; they are stopped in the end."""
    services = {}
    try:
        for name, store in stores.items():  # one after the other: compiling takes all cores
            services[name] = Service(store)
            services[name].wait()
        yield services
    finally:
        for service in services.values():
            service.stop()


def _start_up(store: Path) -> float:
    service = Service(store)
    try:
        return service.wait()
    finally:
        service.stop()


def _measured(case: str, loads: list[Load]) -> Measurement:
    def median(name: str) -> float:
        return float(np.median([getattr(load, name) for load in loads]))

    return Measurement(
        case,
        {
            "decisions/s": median("decisions_per_second"),
            "p50, ms": median("p50"),
            "p99, ms": median("p99"),
            "errors": float(sum(load.errors for load in loads)),
        },
    )


def _library(prior: AbstractPrior, seconds: float) -> Measurement:
    """One bandit in one thread, decided and rewarded in turn."""
    bandit = Bandit(prior, Logistic(), seed=0)
    features = np.random.default_rng(0).standard_normal((ACTIONS, DIM)).round(3)
    bandit.warm_up(ACTIONS, propensity_draws=16)
    times, begin = [], time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        action = bandit.decide(features, propensity_draws=16).action
        times.append(time.perf_counter() - now)
        bandit.update(features[action], 1.0)
    p50, p99 = (float(1e3 * q) for q in np.quantile(times, [0.5, 0.99]))
    elapsed = time.perf_counter() - begin
    return _measured("library, one task", [Load(len(times) / elapsed, p50, p99, 0)])
