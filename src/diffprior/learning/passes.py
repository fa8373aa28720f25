"""Passes over all tasks: where they run, how far they are, and what is kept of each on disk."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..executors import AbstractExecutor, Result, Shard
from ..files.base import Serializable
from ..files.cache import Kept, ResultCache, array_digest

UNSIGNED = "unsigned_"


class Passes(AbstractExecutor):
    """An executor whose sums are kept in a folder, so that a run that was ended goes on from them.

    Everything between two passes is computed again, and comes to the same: a pass that is found in
    the folder is of the same function of the same numbers, over the same shards.
    """

    def __init__(
        self,
        executor: AbstractExecutor,
        tell: Callable[[str], None] = lambda text: None,
        cache: ResultCache | None = None,
        about: str = "",
    ) -> None:
        self.executor, self.tell, self.cache, self.about = executor, tell, cache, about
        self.num_passes = 0

    def map(self, function: Callable[[Shard], Result], shards: Sequence[Shard]) -> Iterator[Result]:
        """As the executor's; tells of every shard."""
        self.num_passes += 1
        for number, result in enumerate(self.executor.map(function, shards)):
            self.tell(f"pass {self.num_passes}, shard {number + 1} of {len(shards)}")
            yield result

    def total(
        self, kind: Any, function: Callable[[Shard], Result], shards: Sequence[Shard]
    ) -> Result:
        """The results of all shards added, or what an earlier run has kept of this very pass."""
        if self.cache is None:
            return kind.total(self.map(function, shards))

        def compute() -> dict[str, np.ndarray]:
            return _as_arrays(kind.total(self.map(function, shards)))

        settings = {"function": _told(function), "shards": _digest(shards), "about": self.about}
        return _from_arrays(kind, self.cache.arrays(f"pass, {kind.__name__}", settings, compute))

    def keep(
        self, name: str, settings: dict[str, Any], compute: Callable[[], Kept], *parts: Serializable
    ) -> Kept:
        """What has a file format, computed from `parts` and settings, or kept from earlier."""
        if self.cache is None:
            return compute()
        known = {"about": self.about, "parts": [part.digest for part in parts]}
        return self.cache.object(name, {**settings, **known}, compute)


def _as_arrays(result: Any) -> dict[str, np.ndarray]:
    """The fields as arrays of kinds that files have: hashes as signed numbers of the same bits."""
    found = {}
    for field in dataclasses.fields(result):
        array = np.asarray(getattr(result, field.name))
        unsigned = array.dtype == np.uint64
        found[UNSIGNED * unsigned + field.name] = array.view(np.int64) if unsigned else array
    return found


def _from_arrays(kind: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Numbers are kept as arrays without axes."""
    fields = {}
    for name, array in arrays.items():
        value = array.view(np.uint64) if name.startswith(UNSIGNED) else array
        fields[name.removeprefix(UNSIGNED)] = value if value.ndim else value.item()
    return kind(**fields)


def _told(value: Any) -> Any:
    """What tells a function with its bound arguments from others, in words."""
    if isinstance(value, functools.partial):
        return [_told(value.func), *map(_told, value.args), _told(value.keywords)]
    if isinstance(value, dict):
        return {name: _told(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return array_digest(value)
    if isinstance(value, Serializable):
        return value.digest
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_told(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value.__qualname__ if callable(value) else repr(value)


def _digest(shards: Sequence[Any]) -> str:
    return hashlib.sha256("\n".join(map(repr, shards)).encode()).hexdigest()
