"""How calls reach compiled programs quickly: modules as arrays, few arguments, one result.

A module is partitioned once into arrays and a `Structure`. One program serves all modules of a
structure, and is found again without a walk through the module. A program takes longer to call the
more arrays it is passed, so small ones are packed into one.
"""

import functools
import math
import os
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import PyTreeDef
from jaxtyping import Array, Float, UInt32

MAX_PACKED = 2**14  # numbers of an array that is packed with others
MAX_PROGRAMS = 96  # held at once; each has up to some 400 memory maps, of which there are 65,530
ALIGNMENT = 64  # bytes, by which memory must be aligned for programs to read it without a copy
# On a CPU, handing many small kernels from thread to thread costs more than they do, so that one
# thread runs them in turn. Known since JAX 0.9.1; results do not change.
ONE_THREAD = ("xla_cpu_scheduler_type", "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED")
MAX_POLLS = 400  # of a result, some tenths of a millisecond
MIN_ROW = 32  # numbers of a result; programs of a smaller one take up to a third longer
HALVES = 2  # 16-bit numbers that hold a 32-bit one, exact in any precision


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


class PackedStructure(Generic[Module]):
    """As `Structure`, where the small arrays of a dtype are one array."""

    def __init__(
        self, structure: Structure[Module], groups: list[list[int]], leaves: list[Leaf]
    ) -> None:
        places = tuple((tuple(group), tuple(leaves[i].shape for i in group)) for group in groups)
        self._key = (structure, places)
        self._hash = hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedStructure) and self._key == other._key

    def combine(self, packed: Sequence[Leaf]) -> Module:
        """The module with these arrays."""
        structure, places = self._key
        leaves: dict[int, Leaf] = {}
        for array, (group, shapes) in zip(packed, places, strict=True):
            start = 0
            for index, shape in zip(group, shapes, strict=True):
                size = math.prod(shape)
                alone = len(group) == 1
                leaves[index] = array if alone else array[start : start + size].reshape(shape)
                start += size
        return structure.combine([leaves[index] for index in range(len(leaves))])


def packed_partition(module: Module) -> tuple[list[Leaf], PackedStructure[Module]]:
    """As `partition`, with fewer arrays."""
    leaves, structure = partition(module)
    groups: dict[Any, list[int]] = {}
    for index, leaf in enumerate(leaves):
        small = leaf.size <= MAX_PACKED and leaf.dtype in (np.float32, np.float64)
        groups.setdefault(leaf.dtype if small else index, []).append(index)
    packed = [_joined([leaves[i] for i in group]) for group in groups.values()]
    return packed, PackedStructure(structure, list(groups.values()), leaves)


def _joined(arrays: list[Leaf]) -> Leaf:
    if len(arrays) == 1:
        return arrays[0]
    return jax.device_put(np.concatenate([np.asarray(array).ravel() for array in arrays]))


class Layout(NamedTuple):
    """Shape and dtype of several arrays, and how many numbers they have in all."""

    arrays: tuple[tuple[tuple[int, ...], str], ...]
    size: int

    @staticmethod
    def of(leaves: Sequence[Leaf]) -> "Layout":
        """The layout of these arrays."""
        arrays = tuple((leaf.shape, leaf.dtype.str) for leaf in leaves)
        return Layout(arrays, sum(leaf.size for leaf in leaves))

    def unpack(self, numbers: Float[Array, " n"]) -> list[Array]:
        """The arrays that `pack` wrote, inside a program."""
        ends = np.cumsum([math.prod(shape) for shape, _ in self.arrays])
        parts = zip(jnp.split(numbers, ends[:-1]), self.arrays, strict=True)
        return [part.reshape(shape).astype(dtype) for part, (shape, dtype) in parts]


def pack(arrays: Sequence[np.ndarray], out: Float[np.ndarray, " n"]) -> None:
    """Write all numbers of these arrays into one. Integers among them must be below 2^24."""
    np.concatenate([array.ravel() for array in arrays], out=out, casting="unsafe")


class Fields:
    """How a program returns a named tuple of arrays, and whether it failed, as one row of floats.

    Known once the program has been traced.
    """

    def __init__(self) -> None:
        self._kind: Any = None
        self._fields: list[tuple[tuple[int, ...], np.dtype]] = []

    def row(self, named_tuple: object, failed: Array) -> Float[Array, " n"]:
        """The row, inside a program."""
        fields: Any = named_tuple
        self._kind, self._fields = type(fields), [(f.shape, f.dtype) for f in fields]
        dtype = jnp.result_type(float)
        words = [_halves(f) if f.dtype == jnp.uint32 else f for f in fields]
        numbers = [word.astype(dtype).reshape(-1) for word in (failed, *words)]
        padding = max(0, MIN_ROW - sum(part.size for part in numbers))
        return jnp.concatenate([*numbers, jnp.zeros(padding, dtype)])

    def read(self, rows: Float[np.ndarray, "*n size"]) -> tuple[Any, Any]:
        """The named tuple, with the leading axes of the rows, and what failed."""
        start, found = 1, []
        for shape, dtype in self._fields:
            wide = HALVES if dtype == np.uint32 else 1
            end = start + wide * math.prod(shape)
            numbers = rows[..., start:end]
            if wide > 1:
                high, low = np.split(numbers.astype(np.uint32), HALVES, axis=-1)
                numbers = (high << 16) | low
            found.append(numbers.reshape((*rows.shape[:-1], *shape)).astype(dtype, copy=False))
            start = end
        return self._kind(*found), rows[..., 0] > 0.0


def _halves(words: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    return jnp.stack([words >> jnp.uint32(16), words & jnp.uint32(0xFFFF)])


class Scratch(threading.local):
    """Memory that one thread uses again: asking for it anew takes longer than writing to it."""

    def __init__(self) -> None:
        self._array = np.empty(0)

    def numbers(self, size: int, dtype: np.dtype) -> np.ndarray:
        """So many numbers, those of the last call."""
        if self._array.size < size or self._array.dtype != dtype:
            memory = np.empty(size * dtype.itemsize + ALIGNMENT, np.uint8)
            start = -memory.ctypes.data % ALIGNMENT
            self._array = memory[start : start + size * dtype.itemsize].view(dtype)
        return self._array[:size]


@functools.cache
def known_options(name: str, value: str | bool) -> dict[str, str | bool]:
    """An option of the compiler, or none where it is not known."""
    options = {name: value}
    try:
        jax.jit(lambda x: x, compiler_options=options).lower(0.0).compile()
    except RuntimeError:
        return {}
    return options


@functools.lru_cache(maxsize=MAX_PROGRAMS)
def compiled(make: Callable[..., Program], *about: Hashable) -> Program:
    """`make(*about)`, a program that is compiled when it is called; the least used are freed."""
    return make(*about)


def awaited(result: jax.Array) -> np.ndarray:
    """A result that is soon there. A thread that sleeps until it is wakes up late, by as much time
    as a small program takes; so it polls for a while.
    """
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
    """Raise if this process was forked from one in which JAX had begun to work.

    A forked child has the locks of JAX's threads but not the threads, so the first computation in
    it would wait for ever.
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
