"""Where the tasks are that a prior is learned from: in memory, or in files that workers read."""

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, Int, UInt64

from ..evidence.base import AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..logs.labels import Selection
from ..logs.logs import Logs, check_several_rows, check_varying
from ..logs.shards import Shard, ShardedLogs
from ..logs.statistics import check_gram, packed, unpacked
from ..priors.from_tasks.block import AbstractBlock
from ..priors.from_tasks.data import AnyLogs, blocks_of
from ..priors.from_tasks.shards import KEPT, ShardBlock
from .passes import Passes

SAMPLE_TASKS = 50_000  # in memory, to choose and to judge with; all tasks refine the result
SAMPLE_NUMBERS = 50_000_000  # in their rows, at most
PIECE = 1024  # tasks of logs in memory that are drawn at once


@dataclass(frozen=True)
class Piece:
    """Some tasks of one file."""

    shard: Shard
    selection: Selection

    def read(self) -> Logs:
        """Their logs, in the order of hashes."""
        return by_hash(self.shard.read(), self.selection)

    def __str__(self) -> str:
        return str(self.shard)


class AbstractSource(abc.ABC):
    """All tasks: a sample in memory, blocks of everything, pieces of everything.

    Attributes:
        sample: tasks in memory, chosen by their labels; all of them, unless they are too many.
        num_tasks: tasks in all.
        num_rows: rows in all.
    """

    sample: AnyLogs
    num_tasks: int
    num_rows: int

    @property
    def larger(self) -> bool:
        """Whether there are more tasks than the sample has."""
        return self.num_tasks > self.sample.num_tasks

    @abc.abstractmethod
    def rows_per_task(self) -> tuple[float, float, float]:
        """Least, median and most rows of a task."""

    @abc.abstractmethod
    def blocks(
        self, likelihood: AbstractLikelihood, selection: Selection
    ) -> Sequence[AbstractBlock]:
        """Evidence of all chosen tasks."""

    @abc.abstractmethod
    def pieces(self, selection: Selection) -> Sequence[Logs | Piece]:
        """All chosen tasks, in the order of hashes, for `logs_of`."""

    def close(self) -> None:
        """Let go of what was kept in this process."""
        return None


class InMemory(AbstractSource):
    """Logs in memory."""

    def __init__(self, logs: AnyLogs) -> None:
        self.sample, self.num_tasks, self.num_rows = logs, logs.num_tasks, logs.num_rows

    def rows_per_task(self) -> tuple[float, float, float]:
        counts = np.asarray(self.sample.counts, float)
        return float(counts.min()), float(np.median(counts)), float(counts.max())

    def blocks(
        self, likelihood: AbstractLikelihood, selection: Selection
    ) -> Sequence[AbstractBlock]:
        logs = self.sample
        return blocks_of(logs.select(selection.mask(logs.hashes)), likelihood)

    def pieces(self, selection: Selection) -> Sequence[Logs | Piece]:
        assert isinstance(self.sample, Logs)
        logs = by_hash(self.sample, selection)
        starts = range(0, logs.num_tasks, PIECE)
        return [logs.select(np.arange(s, min(s + PIECE, logs.num_tasks))) for s in starts]


class InShards(AbstractSource):
    """Logs in files, of which a first pass has taken a sample."""

    def __init__(self, logs: ShardedLogs, likelihood: Any, passes: Passes) -> None:
        numbers = logs.num_rows * (len(logs.feature_names) + 2)
        share = min(1.0, SAMPLE_TASKS / logs.num_tasks, SAMPLE_NUMBERS / numbers)
        census = passes.total(Census, partial(survey, share, likelihood), logs.shards)
        check_several_rows(census.num_tasks, census.num_rows)
        check_varying(census.low, census.high, logs.feature_names)
        check_gram(unpacked(census.gram[None])[0], logs.feature_names, census.num_rows)
        self.shards, self.census = logs.shards, census
        self.num_tasks, self.num_rows = census.num_tasks, census.num_rows
        self.sample = Logs.from_grouped(
            census.hashes,
            census.counts,
            census.features,
            census.rewards,
            census.weights,
            census.times if len(census.times) else None,
            logs.feature_names,
        )

    def rows_per_task(self) -> tuple[float, float, float]:
        lengths, sizes = self.census.lengths, self.census.sizes
        middle = (self.num_tasks - 1) / 2
        ends = np.cumsum(sizes)
        pair = [lengths[np.searchsorted(ends, place, side="right")] for place in _near(middle)]
        return float(lengths[0]), float(np.mean(pair)), float(lengths[-1])

    def blocks(
        self, likelihood: AbstractLikelihood, selection: Selection
    ) -> Sequence[AbstractBlock]:
        digest, exact = likelihood.digest, isinstance(likelihood, Linear)
        return [ShardBlock(shard, selection, likelihood, digest, exact) for shard in self.shards]

    def pieces(self, selection: Selection) -> Sequence[Logs | Piece]:
        return [Piece(shard, selection) for shard in self.shards]

    def close(self) -> None:
        KEPT.clear()


def logs_of(piece: Logs | Piece) -> Logs:
    """The logs of a piece, read now where they are in a file."""
    return piece if isinstance(piece, Logs) else piece.read()


def by_hash(logs: Logs, selection: Selection) -> Logs:
    """Chosen tasks in the order of their hashes, which is the same from any shards."""
    order = np.argsort(logs.hashes, kind="stable")
    return logs.select(order[selection.mask(logs.hashes)[order]])


@dataclass(frozen=True, eq=False)
class Census:
    """What a first pass finds: how many, how long, whether features vary; and a sample.

    Attributes:
        num_tasks: tasks.
        num_rows: rows.
        lengths: numbers of rows that tasks have, ascending.
        sizes: how many tasks have each.
        gram: summed products of features, the lower triangle.
        low: least value of every feature.
        high: greatest value of every feature.
        hashes, counts, features, rewards, weights, times: the sample, as of `Logs.from_grouped`; no
            times where there are none.
    """

    num_tasks: int
    num_rows: int
    lengths: Int[np.ndarray, " l"]
    sizes: Int[np.ndarray, " l"]
    gram: Float[np.ndarray, " p"]
    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    hashes: UInt64[np.ndarray, " t"]
    counts: Int[np.ndarray, " t"]
    features: Float[np.ndarray, "n d"]
    rewards: Float[np.ndarray, " n"]
    weights: Float[np.ndarray, " n"]
    times: Float[np.ndarray, " m"]

    @staticmethod
    def total(parts: Iterable["Census"]) -> "Census":
        """All of them as one."""
        every = list(parts)

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in every])

        lengths, which = np.unique(joined("lengths"), return_inverse=True)
        sizes = np.bincount(which, joined("sizes"), minlength=len(lengths)).astype(np.int64)
        sample = ("hashes", "counts", "features", "rewards", "weights", "times")
        return Census(
            sum(part.num_tasks for part in every),
            sum(part.num_rows for part in every),
            lengths,
            sizes,
            np.sum([part.gram for part in every], axis=0),
            np.min([part.low for part in every], axis=0),
            np.max([part.high for part in every], axis=0),
            *(joined(name) for name in sample),
        )


def survey(share: float, likelihood: Any, shard: Shard) -> Census:
    """The census of one file: of all its tasks, and the rows of those of smallest hash."""
    logs = shard.read()
    if isinstance(likelihood, AbstractFamily):
        likelihood.check_rewards(logs.rewards)
    order = np.argsort(logs.hashes, kind="stable")
    small = order if share >= 1 else order[logs.hashes[order] < np.uint64(int(share * 2.0**64))]
    few = logs.select(small)
    lengths, sizes = np.unique(logs.counts, return_counts=True)
    return Census(
        logs.num_tasks,
        logs.num_rows,
        lengths,
        sizes,
        packed(logs.features.T @ logs.features),
        logs.features.min(axis=0),
        logs.features.max(axis=0),
        few.hashes,
        few.counts,
        few.features,
        few.rewards,
        few.weights,
        np.zeros(0) if few.times is None else few.times,
    )


def _near(place: float) -> tuple[int, int]:
    return int(np.floor(place)), int(np.ceil(place))
