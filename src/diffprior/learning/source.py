"""Tasks to learn from, in memory or in files, and checkpointed passes over them."""

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt64

from ..encoders import Encoder
from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..executors import AbstractExecutor, Result, Sum
from ..executors import Shard as AnyShard
from ..files.base import Serializable
from ..files.cache import Checkpoints, Saved, SavedArrays, array_digest
from ..fitting.config import LearningConfig
from ..fitting.em import AbstractBlock
from ..fitting.rows import AnyLogs, RowTasks, blocks_of
from ..logs.logs import Logs, check_several_rows, check_varying, grouped_logs
from ..logs.shards import Shard, ShardedLogs
from ..logs.statistics import Selection, check_gram

PIECE_TASKS = 1024  # per piece of logs in memory
CACHED_BYTES = 2**31  # of shards that a process keeps for the next pass
UNSIGNED = "unsigned_"
SAMPLE = ("hashes", "counts", "features", "rewards", "weights", "times")


class Passes(AbstractExecutor):
    """An executor that saves sums in a folder, so that an interrupted run resumes from them.

    Everything between two passes is computed again, with the same result: a pass found in the
    folder is of the same function of the same numbers, over the same shards.
    """

    def __init__(
        self,
        executor: AbstractExecutor,
        report: Callable[[str], None] | None = None,
        cache: Checkpoints | None = None,
        data_digest: str = "",
    ) -> None:
        """Wrap an executor; `report` receives the progress of passes, `cache` saves their sums."""
        self.executor, self.report, self.cache = executor, report, cache
        self.data_digest, self.num_passes = data_digest, 0

    def map(
        self, function: Callable[[AnyShard], Result], shards: Sequence[AnyShard]
    ) -> Iterator[Result]:
        self.num_passes += 1
        for number, result in enumerate(self.executor.map(function, shards)):
            if self.report is not None:
                self.report(f"pass {self.num_passes}, shard {number + 1} of {len(shards)}")
            yield result

    def total(
        self, kind: type[Sum], function: Callable[[AnyShard], Sum], shards: Sequence[AnyShard]
    ) -> Sum:
        if self.cache is None:
            return super().total(kind, function, shards)
        compute = functools.partial(super().total, kind, function, shards)
        digest = hashlib.sha256("\n".join(map(repr, shards)).encode()).hexdigest()
        settings = {"function": _described(function), "shards": digest, "about": self.data_digest}
        name = f"pass, {kind.__name__}"
        saved = self.cache.get(name, settings, lambda: SavedArrays(_as_arrays(compute())))
        found: Sum = _from_arrays(kind, saved.arrays)
        return found

    def checkpoint(
        self,
        name: str,
        settings: dict[str, object],
        compute: Callable[[], Saved],
        *parts: Serializable,
    ) -> Saved:
        """Compute an object from `parts` and settings, or load it from an earlier run."""
        if self.cache is None:
            return compute()
        known = {"about": self.data_digest, "parts": [part.digest for part in parts]}
        return self.cache.get(name, {**settings, **known}, compute)


@dataclass(frozen=True, eq=False)
class Source:
    """All tasks to learn from.

    The `sample` is in memory, chosen by labels: all tasks unless they are too many. Numbers are of
    all tasks, `rows_per_task` the smallest, median and largest. `shards` is None in memory.
    """

    sample: AnyLogs
    num_tasks: int
    num_rows: int
    rows_per_task: tuple[float, float, float]
    shards: tuple[Shard, ...] | None = None
    encoder: Encoder | None = None

    @staticmethod
    def of(
        logs: AnyLogs | ShardedLogs, likelihood: object, passes: Passes, config: LearningConfig
    ) -> "Source":
        """Make a source of logs in memory, or in files, of which a first pass takes a sample."""
        if not isinstance(logs, ShardedLogs):
            counts = np.asarray(logs.counts, float)
            rows = float(counts.min()), float(np.median(counts)), float(counts.max())
            return Source(
                logs, logs.num_tasks, logs.num_rows, rows, encoder=getattr(logs, "encoder", None)
            )
        names = logs.feature_names
        numbers = logs.num_rows * (len(names) + 2)
        share = min(1.0, config.sample_tasks / logs.num_tasks, config.sample_numbers / numbers)
        function = functools.partial(summarize, share, likelihood)
        found = passes.total(DatasetSummary, function, logs.shards)
        num_tasks, num_rows = int(found.sizes.sum()), int(found.lengths @ found.sizes)
        check_several_rows(num_tasks, num_rows)
        check_varying(found.low, found.high, names)
        check_gram(found.gram, names, num_rows)
        sample = grouped_logs(
            found.hashes,
            found.counts,
            found.features,
            found.rewards,
            found.weights,
            found.times if len(found.times) else None,
            names,
        )
        return Source(sample, num_tasks, num_rows, found.rows_per_task(), logs.shards, logs.encoder)

    def blocks(
        self, likelihood: AbstractLikelihood, selection: Selection
    ) -> Sequence[AbstractBlock]:
        """Evidence of all chosen tasks."""
        if self.shards is None:
            logs = self.sample
            return blocks_of(logs.select(selection.mask(logs.hashes)), likelihood)
        chosen = [dataclasses.replace(shard, selection=selection) for shard in self.shards]
        return [ShardBlock(shard, likelihood, likelihood.digest) for shard in chosen]

    def pieces(
        self, selection: Selection, piece_tasks: int = PIECE_TASKS
    ) -> Sequence[Logs | Shard]:
        """All chosen tasks in pieces, in the order of hashes."""
        if self.shards is not None:
            return [dataclasses.replace(shard, selection=selection) for shard in self.shards]
        assert isinstance(self.sample, Logs)
        logs = self.sample.by_hash(selection)
        starts = range(0, logs.num_tasks, piece_tasks)
        return [logs.select(np.arange(s, min(s + piece_tasks, logs.num_tasks))) for s in starts]


@dataclass(frozen=True, eq=False)
class ShardBlock(AbstractBlock):
    """The chosen tasks of one file, read on demand; a process keeps what it has read if it can."""

    shard: Shard
    likelihood: AbstractLikelihood
    likelihood_digest: str

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether the evidence of its tasks has a closed form."""
        return isinstance(self.likelihood, Linear)

    def load(self) -> list[RowTasks]:
        """Its tasks, read now or in an earlier pass."""
        return LOADED.get(self)

    def __str__(self) -> str:
        return str(self.shard)

    def __repr__(self) -> str:
        return f"{self.shard!r} {self.likelihood_digest}"


class _Cache:
    """Tasks of shards that a process has read, as many as fit, all of one likelihood and table."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()

    def get(self, block: ShardBlock) -> list[RowTasks]:
        """The tasks of a block, cached or read."""
        about = (block.shard.columns, block.shard.selection, block.likelihood_digest)
        if about != self.about:
            self.clear(about)
        with self.lock:
            if block.shard.path in self.found:
                return self.found[block.shard.path]
        found = blocks_of(block.shard.read(), block.likelihood)
        parts = [tasks if tasks.rows is None else tasks.rows for tasks in found]
        arrays = (value for part in parts for value in vars(part).values())
        size = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
        with self.lock:
            if about == self.about and self.num_bytes + size <= CACHED_BYTES:
                self.found[block.shard.path] = found
                self.num_bytes += size
        return found

    def clear(self, about: object = None) -> None:
        """Let go of all, for tasks of another table or likelihood."""
        with self.lock:
            self.about, self.num_bytes = about, 0
            self.found: dict[str, list[RowTasks]] = {}


LOADED = _Cache()


@dataclass(frozen=True, eq=False)
class DatasetSummary:
    """Sizes and ranges of all tasks, and a sample of them, from a first pass.

    `sizes` says how many tasks have each of the `lengths`; `gram` sums products of features, whose
    ranges are `low` to `high`. The other fields are of the sample; `times` may be empty.
    """

    lengths: Int[np.ndarray, " l"]
    sizes: Int[np.ndarray, " l"]
    gram: Float[np.ndarray, "d d"]
    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    hashes: UInt64[np.ndarray, " t"]
    counts: Int[np.ndarray, " t"]
    features: Float[np.ndarray, "n d"]
    rewards: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    times: Float[np.ndarray, " m"]

    @staticmethod
    def total(parts: Iterable["DatasetSummary"]) -> "DatasetSummary":
        """Combine summaries of different tasks."""
        every = list(parts)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in every])

        lengths, which = np.unique(joined("lengths"), return_inverse=True)
        return DatasetSummary(
            lengths,
            np.bincount(which, joined("sizes"), minlength=len(lengths)).astype(np.int64),
            np.sum([part.gram for part in every], axis=0),
            np.min([part.low for part in every], axis=0),
            np.max([part.high for part in every], axis=0),
            *(joined(name) for name in SAMPLE),
        )

    def rows_per_task(self) -> tuple[float, float, float]:
        """Smallest, median and largest number of rows per task."""
        ends = np.cumsum(self.sizes)
        middle = np.array([(ends[-1] - 1) // 2, ends[-1] // 2])
        pair = self.lengths[np.searchsorted(ends, middle, side="right")]
        return float(self.lengths[0]), float(np.mean(pair)), float(self.lengths[-1])


def summarize(share: float, likelihood: object, shard: Shard) -> DatasetSummary:
    """Summarize one file, with the rows of the tasks of smallest hash as its part of the sample."""
    logs = shard.read()
    if isinstance(likelihood, AbstractFamily):
        likelihood.check_rewards(logs.rewards)
    order = np.argsort(logs.hashes, kind="stable")
    small = order if share >= 1 else order[logs.hashes[order] < np.uint64(int(share * 2.0**64))]
    few = logs.select(small)
    lengths, sizes = np.unique(logs.counts, return_counts=True)
    return DatasetSummary(
        lengths,
        sizes,
        logs.features.T @ logs.features,
        logs.features.min(axis=0),
        logs.features.max(axis=0),
        few.hashes,
        few.counts,
        few.features,
        few.rewards,
        few.weights,
        np.zeros(0) if few.times is None else few.times,
    )


def _as_arrays(result: object) -> dict[str, np.ndarray]:
    """Fields as arrays that files can hold: hashes as signed numbers of the same bits."""
    found = {}
    for field in dataclasses.fields(result):  # type: ignore[arg-type]
        array = np.asarray(getattr(result, field.name))
        unsigned = array.dtype == np.uint64
        found[UNSIGNED * unsigned + field.name] = array.view(np.int64) if unsigned else array
    return found


def _from_arrays(kind: Any, arrays: dict[str, np.ndarray]) -> Any:
    fields = {}
    for name, array in arrays.items():
        value = array.view(np.uint64) if name.startswith(UNSIGNED) else array
        fields[name.removeprefix(UNSIGNED)] = value if value.ndim else value.item()
    return kind(**fields)


def _described(value: Any) -> Any:
    """A description that distinguishes a function with its bound arguments from others."""
    if isinstance(value, functools.partial):
        return [_described(value.func), *map(_described, value.args), _described(value.keywords)]
    if isinstance(value, dict):
        return {name: _described(item) for name, item in value.items()}
    if isinstance(value, np.ndarray):
        return array_digest(value)
    if isinstance(value, Serializable):
        return value.digest
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [_described(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return value.__qualname__ if callable(value) else repr(value)
