"""Maps over shards: cost of a shard, gain of a second worker, and learning from very many tasks
through shards beside one process.

`python -m benchmarks.cluster overhead`, `speed`, `linear --tasks 1e6`, `logistic --tasks 1e5`
"""

import argparse
import functools
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
from diffprior.learning.learn import FAMILIES

from .harness import seconds

COLUMNS: Any = {"task": "task", "reward": "reward", "features": "x*"}
TASKS_PER_FILE = 10_000


def make_rows(path: Path, num_tasks: int, num_rows: int, dim: int, logistic: bool) -> None:
    """A Parquet file of tasks from ten round clusters, the same number of rows each."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    centers, writer = rng.standard_normal((10, dim)), None
    for start in range(0, num_tasks, 10_000):
        count = min(10_000, num_tasks - start)
        thetas = centers[rng.integers(10, size=count)] + 0.3 * rng.standard_normal((count, dim))
        x = rng.standard_normal((count, num_rows, dim))
        eta = np.einsum("nrd,nd->nr", x, thetas)
        noisy = eta + rng.standard_normal(eta.shape)
        y = (rng.random(eta.shape) < 1 / (1 + np.exp(-eta))).astype(float) if logistic else noisy
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
    for name, kind in (("processes", Processes), ("Ray", functools.partial(Ray, "local"))):
        with kind(num_workers=num_workers) as executor:
            list(executor.map(peak, range(2 * num_workers)))
            yield name, executor


def overhead(count: int = 2000) -> None:
    """Time of a shard that does nothing."""
    for name, executor in executors(2):
        took = seconds(lambda executor=executor: list(executor.map(nothing, range(count))))
        print(f"overhead on {name}: {1e3 * took / count:.2f} ms per shard", flush=True)


def speed() -> None:
    """Gain of two workers of one core each over one: simulated runs, and learning from shards."""
    problem = dp.synthetic("cross")
    agents = {"TwistedSMC": dp.TwistedSMC(dp.DiffusionPrior.from_prior(problem.true_prior))}
    play = functools.partial(dp.simulate, problem, agents, 256, 100, progress=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_rows(folder / "rows.parquet", 60_000, 10, 10, logistic=False)
        rows = folder / "rows.parquet"
        dp.ShardedLogs.write(rows, folder / "shards", task="task", tasks_per_file=5000)
        logs = dp.ShardedLogs.read(folder / "shards", **COLUMNS)
        works = {"simulate with TwistedSMC": play, "learn": functools.partial(_learn, logs, False)}
        times: dict[tuple[str, str, int], float] = {}
        for workers in (1, 2):
            for kind, executor in executors(workers):
                for what, work in works.items():
                    call = functools.partial(work, executor=executor)
                    call()  # compiles, or reads
                    times[what, kind, workers] = found = min(seconds(call) for _ in range(3))
                    gain = times[what, kind, 1] / found
                    line = f"{workers} workers on {kind}: {found:.2f} s, {gain:.2f} times one"
                    print(f"{what}, {line}", flush=True)


def _learn(
    logs: Any, logistic: bool, up_to: str = "gaussian", *, executor: AbstractExecutor
) -> dp.Model:
    rewards = dp.Logistic() if logistic else dp.Linear(noise_std=1.0)
    families = FAMILIES[: 1 + FAMILIES.index(up_to)]
    return dp.learn(
        logs, rewards, families=families, simulate=False, progress=False, executor=executor
    )


def learning(folder: Path, where: str, logistic: bool, up_to: str) -> None:
    """Learn from `folder`, and print seconds and the most memory of driver and workers."""
    begin = time.perf_counter()
    kinds: dict[str, Any] = {"ray": functools.partial(Ray, "local"), "processes": Processes}
    with kinds[where](num_workers=2) if where in kinds else InProcess() as executor:
        if where == "memory":
            logs: Any = dp.Logs.read(folder / "rows.parquet", **COLUMNS)
        elif where == "statistics":
            logs = dp.Logs.read_statistics(folder / "rows.parquet", **COLUMNS)
        else:
            logs = dp.ShardedLogs.read(folder / "shards", **COLUMNS)
        learned = _learn(logs, logistic, up_to, executor=executor)
        took = time.perf_counter() - begin
        workers = [f"{gb:.2f}" for gb in executor.map(peak, range(4))] if where in kinds else []
    laps = ", ".join(f"{name} {value:.0f}" for name, value in learned.report.seconds.items())
    print(
        f"{where}: {learned.report.num_tasks} tasks in {took:.0f} s ({laps}); driver "
        f"{peak(0):.2f} GB, workers {' '.join(workers) or 'none'}; {learned.report.chosen}",
        flush=True,
    )
    print(f"  digest of the Gaussian: {learned.families['Gaussian'].digest[:12]}", flush=True)


def beside(num_tasks: int, dim: int, logistic: bool, up_to: str, wheres: list[str]) -> None:
    """Make rows and shards, and learn from them in fresh processes, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_rows(folder / "rows.parquet", num_tasks, 20, dim, logistic)
        size = (folder / "rows.parquet").stat().st_size / 1e9
        code = (
            "import sys, diffprior as dp; "
            "dp.ShardedLogs.write(sys.argv[1], sys.argv[2], task='task', "
            f"tasks_per_file={TASKS_PER_FILE})"
        )
        paths = [str(folder / "rows.parquet"), str(folder / "shards")]
        command = [sys.executable, "-c", code, *paths]
        took = seconds(lambda: subprocess.run(command, check=True))
        print(f"{size:.2f} GB sharded in {took:.0f} s", flush=True)
        for where in wheres:
            arguments = ["learn", "--folder", name, "--where", where, "--up-to", up_to]
            arguments += ["--logistic"] * logistic
            subprocess.run([sys.executable, "-m", "benchmarks.cluster", *arguments], check=True)


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=["overhead", "speed", "linear", "logistic", "learn"])
    parser.add_argument("--tasks", type=float, default=1e6)
    parser.add_argument("--dim", type=int, default=10)
    parser.add_argument("--up-to", default="mixture")
    parser.add_argument("--where", nargs="+", default=["memory", "shards", "ray"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--logistic", action="store_true")
    options = parser.parse_args()
    if options.part in ("overhead", "speed"):
        {"overhead": overhead, "speed": speed}[options.part]()
    elif options.part == "learn":
        learning(options.folder, options.where[0], options.logistic, options.up_to)
    else:
        logistic = options.part == "logistic"
        beside(int(options.tasks), options.dim, logistic, options.up_to, options.where)


if __name__ == "__main__":
    main()
