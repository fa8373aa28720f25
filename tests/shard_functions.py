"""Functions that workers import by name, for the tests of executors."""

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def scaled(factor: float, shard: int) -> np.ndarray:
    """A result that tells which shard it is of."""
    return factor * np.full(3, shard)


def precision(shard: int) -> str:
    """The precision that numbers have here."""
    return str(jnp.ones(2).dtype) + str(jax.config.read("jax_disable_most_optimizations"))


def place(shard: int) -> tuple[int, int]:
    """The process, and how many cores it counts as its own."""
    from diffprior.executors.cores import num_cores

    time.sleep(0.05)
    return os.getpid(), num_cores()


def refused(shard: int) -> int:
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


def slowed(function: Any, seconds: float, folder: str) -> Any:
    """The same function, slower."""
    return functools.partial(slow, function, seconds, folder)


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
