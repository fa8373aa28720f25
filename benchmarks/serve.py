"""The decision service: throughput and latency beside the same service at random, and what a
store of ten times as many tasks changes."""

import itertools
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from diffprior.bandits.bandit import Bandit
from diffprior.evidence.families import Logistic
from diffprior.priors.base import AbstractPrior
from diffprior.problems.mixtures import example_mixture

from .distributions import law
from .section import NUM_SAMPLES, SAMPLES_SEED, Bench, Measurement
from .service_load import ACTIONS, DIM, Load, Service
from .service_store import make_store

TASKS = 10_000
SECONDS, QUICK_SECONDS = 10.0, 2.0  # of each turn; the half loads take two turns
TURNS = 3  # of each service, so that a slow moment hits all
BANDITS = 64  # of the bare library
RANDOM = "the same service at random"
SHAPE = "sheet-8"


def serve(bench: Bench) -> list[Measurement]:
    """The decision service: eight parameters, ten actions, 10,000 tasks, logistic rewards, every
    decision rewarded, client included; beside the same service choosing at random, and the bare
    library. Full load is 32 connections; half load is half of the decisions a second of that. The
    diffusion prior is of a sheet, a shape that takes many components."""
    seconds = QUICK_SECONDS if bench.quick else SECONDS
    closed = example_mixture("clusters")
    learned = bench.learned(SHAPE, np.asarray(law(SHAPE).sample(SAMPLES_SEED, NUM_SAMPLES)))
    rows = [
        _library("library, mixture", closed, seconds),
        _library("library, diffusion prior", learned, seconds),
    ]
    with tempfile.TemporaryDirectory() as name:
        kinds = {
            RANDOM: make_store(Path(name) / "0", closed, TASKS, sampler="random"),
            "mixture": make_store(Path(name) / "1", closed, TASKS),
            "diffusion prior": make_store(Path(name) / "2", learned, TASKS),
            "diffusion prior, 20 stages": make_store(
                Path(name) / "3", learned, TASKS, sampler="evidence-dps"
            ),
        }
        with running(kinds) as services:
            found: dict[str, list[Load]] = {kind: [] for kind in kinds}
            for _ in range(TURNS):
                for kind, service in services.items():
                    found[kind].append(service.load(seconds, num_tasks=TASKS))
            rows += [_measured(kind, loads) for kind, loads in found.items()]
            for kind, service in services.items():
                rate = float(np.median([load.decisions_per_second for load in found[kind]]))
                half = service.load(2 * seconds, rate / 2, num_tasks=TASKS)
                rows.append(_measured(f"{kind}, half load", [half]))
    return rows


def serve_store(bench: Bench) -> list[Measurement]:
    """The decision service with 10,000 and 100,000 tasks in its store: seconds from the start of
    the process to its first reply when programs were compiled before, and latency at an even load
    over all tasks."""
    sizes = (1_000, 10_000) if bench.quick else (10_000, 100_000)
    seconds, prior = QUICK_SECONDS if bench.quick else SECONDS, example_mixture("clusters")
    with tempfile.TemporaryDirectory() as name:
        stores = {str(size): make_store(Path(name) / str(size), prior, size) for size in sizes}
        with running(stores):
            pass  # so that everything is compiled
        with running(stores) as services:
            first = services[str(sizes[0])].load(seconds, num_tasks=sizes[0])
            even = first.decisions_per_second / 2
            found: dict[str, list[Load]] = {size: [] for size in stores}
            for _ in range(TURNS):
                for size, service in services.items():
                    found[size].append(service.load(seconds, even, num_tasks=int(size)))
            starts = {size: service.start_seconds for size, service in services.items()}
    return [
        Measurement(
            f"{int(size):,} tasks", {"start, s": starts[size], **_measured("", loads).quantities}
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


def _measured(case: str, loads: list[Load]) -> Measurement:
    def median(name: str) -> float:
        return float(np.median([getattr(load, name) for load in loads]))

    return Measurement(
        case,
        {
            "decisions/s": median("decisions_per_second"),
            "p50, ms": median("p50"),
            "p99, ms": median("p99"),
            "service CPU, ms": median("cpu_ms"),
            "errors": float(sum(load.errors for load in loads)),
        },
    )


def _library(case: str, prior: AbstractPrior, seconds: float) -> Measurement:
    """Bandits in one thread, decided and rewarded in turn, so that none of them learns much more
    than a task of the service."""
    bandits = [Bandit(prior, Logistic(), seed=seed) for seed in range(BANDITS)]
    features = np.random.default_rng(0).standard_normal((ACTIONS, DIM)).round(3)
    for bandit in bandits:
        bandit.warm_up(ACTIONS, propensity_draws=16)
    turns, times, begin = itertools.cycle(bandits), [], time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        bandit = next(turns)
        action = bandit.decide(features, propensity_draws=16).action
        times.append(time.perf_counter() - now)
        bandit.update(features[action], 1.0)
    p50, p99 = (float(1e3 * q) for q in np.quantile(times, [0.5, 0.99]))
    return _measured(case, [Load(len(times) / (time.perf_counter() - begin), p50, p99, 0)])
