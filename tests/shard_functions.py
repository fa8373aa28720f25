"""Functions that workers import by name, and logs in shards, for the tests of executors."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import diffprior as dp

COLUMNS: Any = {"task": "task", "reward": "reward", "features": "x*", "intercept": False}
DIM = 4  # in which no kernels are tried


def scaled(factor: float, shard: int) -> np.ndarray:
    """A result that tells which shard it is of."""
    return factor * np.full(3, shard)


def precision(shard: int) -> str:
    """The precision that numbers have here."""
    return str(jnp.ones(2).dtype) + str(jax.config.read("jax_disable_most_optimizations"))


def place(shard: int) -> tuple[int, int]:
    """The process, and how many cores it counts as its own."""
    from diffprior.executors import num_cores

    time.sleep(0.05)
    return os.getpid(), num_cores()


def rejected(shard: int) -> int:
    """Fails at one shard."""
    if shard == 7:
        raise ValueError("seven is not wanted")
    return shard


def dies_once(folder: str, shard: int) -> int:
    """Ends its own process the first time that it meets shard 3."""
    mark = Path(folder) / "died"
    if shard == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return shard


def dies_always(shard: int) -> int:
    """Ends its own process at shard 3, whenever."""
    if shard == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return shard


def unreadable_twice(folder: str, shard: int) -> int:
    """Cannot be read on the first two attempts."""
    marks = list(Path(folder).glob("try*"))
    if shard == 2 and len(marks) < 2:
        (Path(folder) / f"try{len(marks)}").touch()
        raise OSError("the disk is away")
    return shard


def slow(function: Any, seconds: float, folder: str, shard: Any) -> Any:
    """Another function, after a while; marks its beginning."""
    (Path(folder) / f"began-{os.getpid()}").touch()
    time.sleep(seconds)
    return function(shard)


def count_rows(shard: Any) -> int:
    """Rows of a file."""
    return shard.read().num_rows


def both_places(executor: Any) -> dict[int, int]:
    """The processes of an executor of two workers, once both have started, and their cores."""
    places: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(places) < 2 and time.monotonic() < deadline:
        places |= dict(executor.map(place, range(4)))
    return places


def make_logs(path: Path, num_tasks: int, family: str = "linear") -> dp.Logs:
    """Logs of two kinds of tasks, in a Parquet file as well; in the order of hashes."""
    import pyarrow
    from pyarrow import parquet

    from worlds_of_tasks import rows

    rng = np.random.default_rng(5)
    thetas = 2.0 * rng.choice([-1.0, 1.0], (num_tasks, 1)) + 0.3 * rng.standard_normal(
        (num_tasks, DIM)
    )
    tasks, features, rewards = rows(rng, thetas, 6.0, 0.5)
    if family == "logistic":
        features, rewards = 2 * features, 2 * rewards
        rewards = (rng.random(len(rewards)) < 1 / (1 + np.exp(-rewards))).astype(float)
    columns = {f"x{i}": features[:, i] for i in range(DIM)}
    table = pyarrow.table({"task": [f"t{t}" for t in tasks], "reward": rewards, **columns})
    parquet.write_table(table, path)
    return dp.Logs.read(path, **COLUMNS).by_hash()


def sharded(path: Path, tasks_per_file: int) -> dp.ShardedLogs:
    folder = path.with_suffix(".shards")
    if not folder.exists():
        dp.ShardedLogs.write(path, folder, task="task", tasks_per_file=tasks_per_file)
    return dp.ShardedLogs.read(folder, **COLUMNS)
