"""Logged choices among items that each have parameters of their own, and sets of candidates."""

import hashlib
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from ..tables import arrow, require_column

COLUMNS = ("task", "reward", "propensity", "created", "learned", "taken", "actions", "candidates")
NOTHING = np.empty(0, np.int64)


class CandidateSet(NamedTuple):
    """A set of items that choices were among, as logs refer to it: its id, and its items packed."""

    id: str
    items: bytes

    @staticmethod
    def of(ids: Int[np.ndarray, " k"]) -> "CandidateSet":
        """The set of items of these ids, in any order."""
        steps = np.diff(np.sort(ids), prepend=0).astype("<i8").tobytes()
        return CandidateSet(
            hashlib.blake2b(steps, digest_size=16).hexdigest(), zlib.compress(steps)
        )


def candidate_ids(items: bytes) -> Int[np.ndarray, " k"]:
    """The ids of packed items, in ascending order."""
    return np.cumsum(np.frombuffer(zlib.decompress(items), "<i8"))


@dataclass(frozen=True)
class LoggedChoices:
    """Choices among items, with propensities and rewards, in the order in which they were made.

    Attributes:
        names: Names of the items, which are numbered in this order.
        contexts: Features of each visitor (n, d).
        taken: The item that was shown (n,).
        rewards: Its reward (n,).
        propensities: The probability with which it was shown (n,); NaN if unknown. Such choices,
            and decisions of an item among actions, are evidence alone.
        candidates: The items of each choice that it might take; choices may share an array.
        created: When each choice was made (n,).
        learned: When its reward became known (n,).
    """

    names: tuple[str, ...]
    contexts: Float[np.ndarray, "n d"]
    taken: Int[np.ndarray, " n"]
    rewards: Float[np.ndarray, " n"]
    propensities: Float[np.ndarray, " n"]
    candidates: tuple[Int[np.ndarray, "..."], ...]
    created: Float[np.ndarray, " n"]
    learned: Float[np.ndarray, " n"]

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.contexts.shape[1])

    @property
    def tasks(self) -> Int[np.ndarray, " n"]:
        """All are of one catalog: what is left of rewards given its items is independent."""
        return np.zeros(len(self), np.int64)

    def __len__(self) -> int:
        """Number of choices n."""
        return len(self.rewards)

    @staticmethod
    def are_in(path: str | Path) -> bool:
        """Whether the Parquet file at `path` has choices among items."""
        return b"candidates" in (arrow("parquet").read_metadata(path).metadata or {})

    @staticmethod
    def read(path: str | Path) -> "LoggedChoices":
        """Read the Parquet file at `path`, which `diffprior export` wrote.

        Raises:
            ValueError: The file has no choices, or other columns.
            ImportError: pyarrow is not installed.
        """
        parquet = arrow("parquet")
        if not Path(path).is_file() or not LoggedChoices.are_in(path):
            raise ValueError(f"`path`: expected a file with choices, found none in {path}")
        schema, about = parquet.read_schema(path), parquet.read_metadata(path).metadata
        for name in COLUMNS:
            require_column(schema.names, name, "path")
        table = parquet.read_table(path).sort_by("created")
        ids, names = zip(*json.loads(about[b"items"]).items(), strict=True)
        numbers = {int(task): number for number, task in enumerate(ids)}
        of_name = {name: number for number, name in enumerate(names)}
        packed = json.loads(about[b"candidates"])
        sets = {
            name: np.array([numbers[i] for i in candidate_ids(bytes.fromhex(items)).tolist()])
            for name, items in packed.items()
        }
        candidates = []
        pairs = zip(table["candidates"].to_pylist(), table["excluded"].to_pylist(), strict=True)
        for name, excluded in pairs:
            among = NOTHING if name is None else sets[name]
            out = [numbers[task] for task in excluded or ()]
            candidates.append(np.setdiff1d(among, out) if out else among)
        features = [c for c in schema.names if c.startswith("x") and c[1:].isdecimal()]
        numeric = {
            name: table[name].to_numpy().astype(np.float64)
            for name in ("reward", "propensity", "created", "learned", *features)
        }
        propensities = numeric["propensity"].copy()
        propensities[[len(some) == 0 for some in candidates]] = np.nan
        return LoggedChoices(
            tuple(names),
            np.column_stack([numeric[name] for name in features]),
            np.array([of_name[name] for name in table["task"].to_pylist()]),
            numeric["reward"],
            propensities,
            tuple(candidates),
            numeric["created"],
            numeric["learned"],
        )
