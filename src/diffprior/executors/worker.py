"""What a worker does, whoever started it: settings as the driver's, one function, many shards."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from .base import told
from .cores import confine

# Options of JAX that change digits, so that workers must have the driver's.
DIGITS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_disable_most_optimizations",
    "jax_threefry_partitionable",
)


class Settings(NamedTuple):
    """What a worker takes over from the driver before it unpacks anything."""

    options: dict[str, Any]  # of JAX
    flags: str | None  # of XLA, read when it starts
    num_threads: int
    cores: frozenset[int] = frozenset()


class Failure(NamedTuple):
    """An error of the function: what it says, and whether another attempt may help."""

    error: str
    passing: bool


def settings_here(num_threads: int, cores: frozenset[int] = frozenset()) -> Settings:
    """The settings of this process, for a worker with so many threads."""
    import jax

    read = jax.config.read  # which refuses options that can differ by thread: those are attributes
    options = {
        name: getattr(jax.config, name) if hasattr(jax.config, name) else read(name)
        for name in DIGITS
    }
    return Settings(options, os.environ.get("XLA_FLAGS"), num_threads, cores)


class Worker:
    """Runs a function on one shard at a time."""

    def __init__(self) -> None:
        self.function: Callable[[Any], Any] | None = None

    def configure(self, settings: Settings) -> None:
        """Take over settings; flags count only before the first use of XLA."""
        import jax

        confine(settings.num_threads, settings.cores)
        if settings.flags is not None:
            os.environ["XLA_FLAGS"] = settings.flags
        for name, value in settings.options.items():
            jax.config.update(name, value)

    def run(self, shard: Any) -> tuple[Any, Failure | None]:
        """The function of the shard, or how it failed."""
        assert self.function is not None
        try:
            return self.function(shard), None
        except Exception as error:
            return None, Failure(told(error), isinstance(error, OSError | MemoryError))
