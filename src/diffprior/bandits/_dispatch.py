"""How calls reach compiled programs quickly: modules as arrays and a static structure.

A module is partitioned once into arrays and a `Structure`. One program serves all modules of a
structure, and is found again without a walk through the module.
"""

import functools
import os
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import PyTreeDef
from jaxtyping import Array

MAX_PROGRAMS = 96  # held at once; each has up to some 400 memory maps, of which there are 65,530
MAX_POLLS = 400  # of a result, some tenths of a millisecond
# On a CPU, handing many small kernels from thread to thread costs more than they do, so that one
# thread runs them in turn; and more optimization compiles half as fast and runs no faster. Known
# since JAX 0.9.1.
ONE_THREAD: dict[str, str | int] = (
    {
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        "xla_backend_optimization_level": 1,
    }
    if jax.__version_info__ >= (0, 9, 1)
    else {}
)
# Without these a closed form compiles twice as fast and runs about as fast; chains run slower.
QUICK_COMPILATION: dict[str, int] = (
    {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
    if jax.__version_info__ >= (0, 9, 1)
    else {}
)

Module = TypeVar("Module")
Program = TypeVar("Program")
Leaf = Array | np.ndarray


class Structure(Generic[Module]):
    """The static part of a module, which combines arrays into one; its hash is computed once."""

    def __init__(self, arrays: PyTreeDef, others: list[object], rest: PyTreeDef) -> None:
        self._key = (arrays, tuple(others), rest)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        same = self is other
        return same or (isinstance(other, Structure) and self._key == other._key)

    def combine(self, leaves: Sequence[Leaf]) -> Module:
        """The module with these arrays."""
        arrays, others, rest = self._key
        return eqx.combine(jax.tree.unflatten(arrays, leaves), jax.tree.unflatten(rest, others))


def partition(module: Module) -> tuple[list[Leaf], Structure[Module]]:
    """A module, or any tree of them, as its arrays and the structure that combines them again."""
    arrays, others = eqx.partition(module, eqx.is_array)
    leaves, structure = jax.tree.flatten(arrays)
    return leaves, Structure(structure, *jax.tree.flatten(others))


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def compiled(make: Callable[..., Program], *about: Hashable) -> Program:
    """`make(*about)`, a program that is compiled when it is called; the least used are freed."""
    return make(*about)


def awaited(result: jax.Array) -> np.ndarray:
    """A result that is soon there: polled for, as a thread that sleeps meanwhile wakes up late."""
    for _ in range(MAX_POLLS if hasattr(os, "sched_yield") else 0):
        if result.is_ready():  # type: ignore[attr-defined]
            break
        os.sched_yield()
    return np.asarray(result)


_FORKED = (
    "`{}`: expected a process that was started afresh, got one forked after JAX had begun to work, "
    "in which it would never answer; start workers with multiprocessing's 'spawn' or 'forkserver', "
    "or with Gunicorn without --preload, and make or load the bandit in each worker"
)
_forked = False


def check_not_forked(name: str) -> None:
    """Raise if this process was forked from one in which JAX had begun to work, whose threads it
    lacks though it has their locks: the first computation in it would wait for ever.
    """
    if _forked:
        raise RuntimeError(_FORKED.format(name))


def _after_fork() -> None:
    global _forked
    _forked = _forked or _jax_has_begun()


def _jax_has_begun() -> bool:
    """Whether JAX has a backend; where its version cannot say, whether it is imported."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    initialized = getattr(bridge, "backends_are_initialized", None)
    return bool(initialized()) if initialized is not None else "jax" in sys.modules


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_after_fork)
