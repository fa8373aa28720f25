"""Maps over shards: what a shard costs, what a second worker gains, and learning from very many
tasks through shards beside one process. `python -m diffprior.bench.cluster PART`."""

import argparse
import functools
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diffprior.executors import AbstractExecutor, InProcess, Processes, Ray

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
        begin = time.perf_counter()
        list(executor.map(nothing, range(count)))
        each = 1e3 * (time.perf_counter() - begin) / count
        print(f"overhead on {name}: {each:.2f} ms a shard", flush=True)


def speed() -> None:
    """What two workers of one core each gain over one: simulate with TwistedSMC, an E-step."""
    with tempfile.TemporaryDirectory() as folder:
        works = {
            "simulate with TwistedSMC": _simulation(),
            "E-step of a mixture of ten": _mixture_step(Path(folder)),
            "E-step of a diffusion model": _diffusion_step(Path(folder)),
        }
        times: dict[tuple[str, str, int], float] = {}
        for workers in (1, 2):
            for name, executor in executors(workers):
                for what, work in works.items():
                    work(executor)  # compiles, or reads
                    found = min(_seconds(work, executor) for _ in range(3))
                    times[what, name, workers] = found
                    gain = times[what, name, 1] / found
                    told = f"{workers} workers on {name}: {found:.2f} s, {gain:.2f} times one"
                    print(f"{what}, {told}", flush=True)


def _simulation() -> Callable[[AbstractExecutor], Any]:
    from diffprior.bandits.simulate import simulate
    from diffprior.priors.diffusion import DiffusionPrior
    from diffprior.problems.synthetic import synthetic
    from diffprior.samplers.twisted_smc import TwistedSMC

    problem = synthetic("cross")
    sampler = TwistedSMC(DiffusionPrior.from_prior(problem.true_prior))
    agents = {"TwistedSMC": sampler}
    return lambda executor: simulate(problem, agents, 256, 100, progress=False, executor=executor)


def _shards(folder: Path) -> Any:
    from diffprior.logs.shards import ShardedLogs

    if not (folder / "shards").exists():
        make_rows(folder / "rows.parquet", 60_000, 10, 10, logistic=False)
        source = folder / "rows.parquet"
        ShardedLogs.write(source, folder / "shards", task="task", tasks_per_file=5000)
    return ShardedLogs.read(folder / "shards", **COLUMNS).shards


def _mixture_step(folder: Path) -> Callable[[AbstractExecutor], Any]:
    from diffprior.evidence.linear import Linear
    from diffprior.logs.labels import Selection
    from diffprior.priors.from_tasks.em import expectations
    from diffprior.priors.from_tasks.shards import ShardBlock

    like = Linear(noise_std=1.0)
    blocks = [ShardBlock(shard, Selection(), like, like.digest, True) for shard in _shards(folder)]
    return lambda executor: expectations(blocks, _mixture(), 0, executor)


def _diffusion_step(folder: Path) -> Callable[[AbstractExecutor], Any]:
    from diffprior.evidence.linear import Linear
    from diffprior.learning.diffusion import Draws, draw_piece, on_components
    from diffprior.learning.source import Piece
    from diffprior.logs.labels import Selection
    from diffprior.samplers.twisted_smc import TwistedSMC

    sampler = TwistedSMC(on_components(_mixture()), num_particles=16)
    few = Selection(share=0.012)
    pieces = [Piece(shard, few) for shard in _shards(folder)]
    draw = functools.partial(draw_piece, sampler, Linear(noise_std=1.0), 0, range(1))
    return lambda executor: executor.total(Draws, draw, pieces)


def _mixture() -> Any:
    from diffprior.priors.from_tasks.components import Components

    means = np.random.default_rng(1).standard_normal((10, 10))
    return Components(np.full(10, 0.1), means, np.stack([np.eye(10)] * 10))


def _seconds(work: Callable[[AbstractExecutor], Any], executor: AbstractExecutor) -> float:
    begin = time.perf_counter()
    work(executor)
    return time.perf_counter() - begin


def learning(folder: Path, where: str, logistic: bool, up_to: str) -> None:
    """Learn from `folder`, and print seconds and the most memory of driver and workers."""
    from diffprior.evidence.families import Linear, Logistic
    from diffprior.learning.ladder import learn
    from diffprior.logs.logs import Logs
    from diffprior.logs.shards import ShardedLogs

    begin = time.perf_counter()
    kinds: dict[str, Any] = {"ray": functools.partial(Ray, "local"), "processes": Processes}
    with kinds[where](num_workers=2) if where in kinds else InProcess() as executor:
        if where == "memory":
            logs: Any = Logs.read(folder / "rows.parquet", **COLUMNS)
        elif where == "statistics":
            logs = Logs.read_statistics(folder / "rows.parquet", **COLUMNS)
        else:
            logs = ShardedLogs.read(folder / "shards", **COLUMNS)
        rewards = Logistic() if logistic else Linear(noise_std=1.0)
        learned = learn(logs, rewards, up_to=up_to, simulate=False, executor=executor)
        seconds = time.perf_counter() - begin
        workers = [f"{gb:.2f}" for gb in executor.map(peak, range(4))] if where in kinds else []
    laps = ", ".join(f"{name} {value:.0f}" for name, value in learned.report.seconds.items())
    print(
        f"{where}: {learned.report.num_tasks} tasks in {seconds:.0f} s ({laps}); driver "
        f"{peak(0):.2f} GB, workers {' '.join(workers) or 'none'}; {learned.report.sentence}",
        flush=True,
    )
    for name in ("Gaussian", learned.report.chosen):
        print(f"  digest of {name}: {learned.families[name].digest[:12]}", flush=True)


def beside(num_tasks: int, dim: int, logistic: bool, up_to: str, wheres: list[str]) -> None:
    """Make rows and shards, and learn from them in fresh processes, one after the other."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.perf_counter()
        make_rows(folder / "rows.parquet", num_tasks, 20, dim, logistic)
        size = (folder / "rows.parquet").stat().st_size / 1e9
        print(f"made {size:.2f} GB in {time.perf_counter() - begin:.0f} s", flush=True)
        code = (
            "import resource, sys, time, diffprior as dp; begin = time.perf_counter();"
            f"dp.ShardedLogs.write(sys.argv[1], sys.argv[2], task='task', tasks_per_file="
            f"{TASKS_PER_FILE}); peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20;"
            "print(f'sharded in {time.perf_counter() - begin:.0f} s, {peak:.2f} GB', flush=True)"
        )
        paths = [str(folder / "rows.parquet"), str(folder / "shards")]
        subprocess.run([sys.executable, "-c", code, *paths], check=True)
        for where in wheres:
            arguments = ["learn", "--folder", name, "--where", where, "--up-to", up_to]
            arguments += ["--logistic"] * logistic
            subprocess.run([sys.executable, "-m", __spec__.name, *arguments], check=True)


def main() -> None:
    """Measure one part."""
    parser = argparse.ArgumentParser(description=__doc__)
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
