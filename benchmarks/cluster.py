"""Maps over shards: cost of a shard, gain of a second worker, and learning from very many tasks
through shards beside one process.

`python -m benchmarks.cluster --section linear-10000`
"""

import functools
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import diffprior as dp
from diffprior.executors import AbstractExecutor, InProcess, Processes, Ray

from .harness import Bench, Measurement, command, seconds

COLUMNS: Any = {"task": "task", "reward": "reward", "features": "x*"}
TASKS_PER_FILE, ROWS_PER_TASK, SHARDS = 10_000, 20, 2000
KINDS: dict[str, Any] = {"processes": Processes, "Ray": functools.partial(Ray, "local")}
SIZES = {"linear": (10_000, 100_000, 1_000_000), "logistic": (100_000,)}
DIMS = {"linear": 10, "logistic": 2}


def make_rows(path: Path, num_tasks: int, num_rows: int, kind: str) -> None:
    """A Parquet file of tasks from ten round clusters, the same number of rows each."""
    import pyarrow
    from pyarrow import parquet

    rng, dim = np.random.default_rng(0), DIMS[kind]
    centers, writer = rng.standard_normal((10, dim)), None
    for start in range(0, num_tasks, 10_000):
        count = min(10_000, num_tasks - start)
        thetas = centers[rng.integers(10, size=count)] + 0.3 * rng.standard_normal((count, dim))
        x = rng.standard_normal((count, num_rows, dim))
        eta = np.einsum("nrd,nd->nr", x, thetas)
        noisy = eta + rng.standard_normal(eta.shape)
        won = (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(float)
        y = won if kind == "logistic" else noisy
        columns = {f"x{i}": x[:, :, i].reshape(-1) for i in range(dim)}
        tasks = np.repeat(np.arange(start, start + count), num_rows)
        table = pyarrow.table({"task": tasks, "reward": y.reshape(-1), **columns})
        writer = writer or parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def nothing(shard: int) -> int:
    """As little as a shard can be."""
    return shard


def peak(shard: int) -> float:
    """The most memory that this process has had, in GB."""
    time.sleep(0.2)  # so that every worker has one
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def executors(num_workers: int) -> Iterator[tuple[str, AbstractExecutor]]:
    """Processes, then Ray, of so many workers of one core each; started."""
    for name, kind in KINDS.items():
        with kind(num_workers=num_workers) as executor:
            list(executor.map(peak, range(2 * num_workers)))
            yield name, executor


def overhead(bench: Bench) -> list[Measurement]:
    """Time of a shard that does nothing."""
    rows = []
    for name, executor in executors(2):
        took = seconds(lambda executor=executor: list(executor.map(nothing, range(SHARDS))))
        rows.append(Measurement(name, {"ms per shard": 1e3 * took / SHARDS}))
    return rows


def learned(logs: Any, kind: str, executor: AbstractExecutor) -> dp.Model:
    """A Gaussian from logs."""
    rewards = dp.Logistic() if kind == "logistic" else dp.Linear(noise_std=1.0)
    options: dict[str, Any] = {"simulate": False, "progress": False, "executor": executor}
    return dp.learn(logs, rewards, families=("gaussian",), **options)


def speed(bench: Bench) -> list[Measurement]:
    """Gain of two workers of one core each over one: simulated runs, and learning from shards."""
    problem = dp.synthetic("cross")
    agents = {"TwistedSMC": dp.TwistedSMC(dp.DiffusionPrior.from_prior(problem.true_prior))}
    play = functools.partial(dp.simulate, problem, agents, 256, 100, progress=False)
    times: dict[tuple[str, int], float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_rows(folder / "rows.parquet", 60_000, 10, "linear")
        paths = folder / "rows.parquet", folder / "shards"
        dp.ShardedLogs.write(*paths, task="task", tasks_per_file=5000)
        logs = dp.ShardedLogs.read(folder / "shards", **COLUMNS)
        works = {"simulate": play, "learn": functools.partial(learned, logs, "linear")}
        for workers in (1, 2):
            for kind, executor in executors(workers):
                for what, work in works.items():
                    call = functools.partial(work, executor=executor)
                    call()  # compiles, or reads
                    times[f"{what}, {kind}", workers] = min(seconds(call) for _ in range(3))
    return [
        Measurement(case, {"one worker, s": one, "two, s": two, "gain": one / two})
        for case in dict.fromkeys(case for case, _ in times)
        for one, two in [(times[case, 1], times[case, 2])]
    ]


def measure(folder: Path, where: str, kind: str) -> None:
    """Learn from `folder`, and print what it took as JSON."""
    begin = time.perf_counter()
    with KINDS[where](num_workers=2) if where in KINDS else InProcess() as executor:
        if where == "memory":
            logs: Any = dp.Logs.read(folder / "rows.parquet", **COLUMNS)
        elif where == "statistics":
            logs = dp.Logs.read_statistics(folder / "rows.parquet", **COLUMNS)
        else:
            logs = dp.ShardedLogs.read(folder / "shards", **COLUMNS)
        model = learned(logs, kind, executor)
        found: dict[str, float | str] = {"seconds": time.perf_counter() - begin, "GB": peak(0)}
        workers = list(executor.map(peak, range(4))) if where in KINDS else []
    found |= {"GB of a worker": max(workers)} if workers else {}
    print(json.dumps(found | {"digest": model.families["Gaussian"].digest[:12]}))


def beside(kind: str, num_tasks: int, bench: Bench) -> list[Measurement]:
    """Learning a Gaussian, in fresh processes one after the other; the same digest each time."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        paths = Path(name) / "rows.parquet", Path(name) / "shards"
        make_rows(paths[0], num_tasks, ROWS_PER_TASK, kind)
        write = functools.partial(dp.ShardedLogs.write, *paths, task="task")
        took = seconds(lambda: write(tasks_per_file=TASKS_PER_FILE))
        rows.append(Measurement("making shards", {"seconds": took}))
        for where in ("memory", "statistics", "shards", "Ray"):
            code = "from benchmarks.cluster import *; measure(Path(sys.argv[1]), *sys.argv[2:])"
            arguments = [sys.executable, "-c", code, name, where, kind]
            if kind == "linear" or where != "statistics":
                done = subprocess.run(arguments, check=True, capture_output=True, text=True)
                rows.append(Measurement(where, json.loads(done.stdout.splitlines()[-1])))
    return rows


LEARNING = {
    f"{kind}-{size}": functools.partial(beside, kind, size)
    for kind, sizes in SIZES.items()
    for size in sizes
}

if __name__ == "__main__":
    sections = {"overhead": overhead, "speed": speed, **LEARNING}
    command(sections, usual=("overhead", "speed", "linear-10000"))
