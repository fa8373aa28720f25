"""Logged decisions and choices: what was offered and taken, propensity, reward; their formats."""

import contextlib
import hashlib
import itertools
import json
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..checks import real_numbers
from ..tables import arrow, reject_rows, require_column

DECISION_COLUMNS = (
    "task",
    "taken",
    "reward",
    "propensity",
    "created",
    "learned",
    "actions",
    "mask",
)
CHOICE_COLUMNS = (
    "task",
    "reward",
    "propensity",
    "created",
    "learned",
    "taken",
    "actions",
    "candidates",
)


class LoggedDecision(NamedTuple):
    """One decision with its reward.

    `propensity` is None if it is unknown. `version` is that of the model that decided; `learned` is
    when the policy received the reward; `raw` are the raw columns of the action taken and of its
    task. A choice among items is one of the item taken, with its context alone in `features`; it
    names the set that it was among, the items of it (their ids) that it might not take and, where
    the format needs them, the names of the others.
    """

    decision_id: str
    task: str
    version: int
    features: Float[np.ndarray, "k d"]
    mask: Bool[np.ndarray, " k"]
    taken: int
    action: str
    propensity: float | None
    reward: float
    source: str
    predicted: float
    created: float
    learned: float
    raw: dict[str, float | bool | str | None] | None = None
    candidates: str | None = None
    excluded: tuple[int, ...] = ()
    items: tuple[str, ...] = ()


def counted_propensity(share: float, num_draws: int) -> float:
    """Propensity for importance weights, from the share of `num_draws` further draws, in logs of
    before draws ended at a number of wins.

    The draw that decided is counted with the others: (hits + 1) / (draws + 1). It is never zero,
    and for an action of probability p its inverse has mean (1 - (1 - p)^(draws + 1)) / p, almost
    1 / p; the inverse of the share itself has no mean, because no draw may have hit.
    """
    return (share * num_draws + 1.0) / (num_draws + 1.0)


@dataclass(frozen=True)
class LoggedDecisions:
    """Decisions with propensities and rewards, grouped by task, in the order of rewards.

    Attributes are as of `from_arrays`, sorted, and `num_known`, how many rewards of its task were
    known when each decision was made. Decisions without a propensity are evidence for their task,
    and nothing is estimated from them.
    """

    tasks: Int[np.ndarray, " n"]
    features: Float[np.ndarray, "n k d"]
    mask: Bool[np.ndarray, "n k"]
    actions: Int[np.ndarray, " n"]
    rewards: Float[np.ndarray, " n"]
    propensities: Float[np.ndarray, " n"]
    num_known: Int[np.ndarray, " n"]

    @staticmethod
    def from_arrays(
        tasks: ArrayLike,
        features: ArrayLike,
        actions: ArrayLike,
        rewards: ArrayLike,
        propensities: ArrayLike,
        *,
        mask: ArrayLike | None = None,
        created: ArrayLike | None = None,
        learned: ArrayLike | None = None,
    ) -> "LoggedDecisions":
        """Make logged decisions of arrays, with tasks in any order.

        Args:
            tasks: Task per decision, numbers or text (n,).
            features: Features of all actions (n, K, d).
            actions: The action taken, a row of `features` (n,).
            rewards: Its reward (n,).
            propensities: The probability with which it was taken (n,), above 0 and at most 1; NaN
                if unknown.
            mask: Which actions could be taken (n, K); all by default.
            created: When the decision was made (n,). By default decisions of a task follow each
                other as given, each reward known before the next decision.
            learned: When its reward became known (n,), later than `created`.

        Raises:
            ValueError: Shapes do not agree, or a number is impossible.
        """
        phi = np.asarray(
            real_numbers("features", features, ("n", "K", "d"), "all actions of each decision"),
            np.float64,
        )
        n, num_actions = phi.shape[:2]
        taken = _numbers("actions", actions, n).astype(np.int64)
        allowed = np.ones((n, num_actions), bool) if mask is None else np.asarray(mask)
        if allowed.shape != (n, num_actions) or allowed.dtype != bool:
            raise ValueError(
                f"`mask`: expected booleans of shape {(n, num_actions)}, got {allowed.dtype} of "
                f"shape {allowed.shape}; true where an action could be taken"
            )
        outside = (taken < 0) | (taken >= num_actions)
        reject_rows(outside, "actions", f"0 to {num_actions - 1}", "number the actions so")
        known = np.array(propensities, np.float64)
        if known.shape != (n,):
            raise ValueError(
                f"`propensities`: expected shape ({n},), got {known.shape}; one for each decision"
            )
        fix = "pass NaN where a propensity is unknown"
        wrong = ~np.isnan(known) & ~((known > 0) & (known <= 1))
        reject_rows(wrong, "propensities", "probabilities above 0", fix)
        impossible = ~allowed[np.arange(n), taken] & ~np.isnan(known)
        fix = "allow the actions that were taken"
        reject_rows(impossible, "mask", "actions that could be taken", fix)
        labels, numbers = np.unique(np.asarray(tasks).astype(str), return_inverse=True)
        if numbers.shape != (n,):
            raise ValueError(f"`tasks`: expected shape ({n},), got {np.shape(tasks)}; one for each")
        if created is None or learned is None:
            created, learned = np.arange(n), np.arange(n) + 0.5
        begin, end = _numbers("created", created, n), _numbers("learned", learned, n)
        reject_rows(end <= begin, "learned", "times after `created`", "correct the times")
        order = np.lexsort((end, numbers))
        num_known = np.zeros(n, np.int64)
        starts = np.searchsorted(numbers[order], np.arange(len(labels) + 1))
        for own in (order[a:b] for a, b in itertools.pairwise(starts)):
            num_known[own] = np.searchsorted(end[own], begin[own], side="right")
        return LoggedDecisions(
            numbers[order],
            phi[order],
            allowed[order],
            taken[order],
            _numbers("rewards", rewards, n)[order],
            known[order],
            num_known[order],
        )

    @staticmethod
    def read(path: str | Path) -> "LoggedDecisions":
        """Read the Parquet file at `path`, which `diffprior export` wrote.

        Raises:
            ValueError: The file is missing, or has other columns.
            ImportError: pyarrow is not installed.
        """
        if not Path(path).is_file():
            raise ValueError(f"`path`: expected a file, found none at {path}; check the name")
        parquet = arrow("parquet")
        for name in DECISION_COLUMNS:
            require_column(parquet.read_schema(path).names, name, "path")
        if parquet.read_metadata(path).metadata.keys() & {b"candidates"}:
            raise ValueError(
                f"`path`: expected decisions among actions, got choices among items in {path}; "
                "read it with LoggedChoices.read"
            )
        table = parquet.read_table(path, columns=list(DECISION_COLUMNS)).combine_chunks()
        if not len(table):
            raise ValueError(f"`path`: expected decisions, got none in {path}; export them again")
        features, mask = _padded(table)
        numbers = {
            name: table[name].to_numpy().astype(np.float64) for name in DECISION_COLUMNS[1:6]
        }
        return LoggedDecisions.from_arrays(
            table["task"].to_numpy(),
            features,
            numbers["taken"],
            numbers["reward"],
            numbers["propensity"],
            mask=mask,
            created=numbers["created"],
            learned=numbers["learned"],
        )

    @property
    def dim(self) -> int:
        """Number of features d."""
        return int(self.features.shape[2])

    def __len__(self) -> int:
        """Number of decisions n."""
        return len(self.rewards)

    @property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where the task of each decision begins."""
        return np.searchsorted(self.tasks, self.tasks)


def _numbers(name: str, values: ArrayLike, n: int) -> Float[np.ndarray, " n"]:
    return np.asarray(real_numbers(name, values, (n,), "one for each decision"), np.float64)


def _padded(table: Any) -> tuple[Float[np.ndarray, "n k d"], Bool[np.ndarray, "n k"]]:
    """Lists of actions and masks as arrays, with room for the longest."""
    actions = table["actions"].combine_chunks()
    sizes = np.diff(actions.offsets.to_numpy())
    rows = actions.flatten()
    dim = int(np.diff(rows.offsets.to_numpy())[0])
    present = np.arange(sizes.max()) < sizes[:, None]
    features = np.zeros((*present.shape, dim))
    features[present] = rows.flatten().to_numpy().reshape(-1, dim)
    mask = np.zeros(present.shape, bool)
    mask[present] = table["mask"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return features, mask


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
        for name in CHOICE_COLUMNS:
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


BUFFER_SIZE = 2**21  # numbers in memory before they are written


def write_parquet(
    file: BinaryIO,
    dim: int,
    decisions: Iterable[LoggedDecision],
    raw: Mapping[str, str] | None = None,
    metadata: Callable[[], Mapping[str, bytes]] = dict,
    buffer_size: int = BUFFER_SIZE,
) -> None:
    """Write a table with one row per decision.

    Columns are `task`, `reward`, `propensity`, `x1`, `x2`, ... of the action taken, and `actions`
    and `mask`, all that was offered; and those of `raw`, a type by name. The metadata of the file
    are asked for in the end.
    """
    types = arrow("lib")
    number, text, integer = types.float64(), types.string(), types.int32()
    names = [f"x{i + 1}" for i in range(dim)]
    columns = {"task": text, "decision_id": text, "version": integer, "action": text}
    columns |= {"taken": integer, **dict.fromkeys(names, number)}
    columns |= dict.fromkeys(("reward", "propensity", "predicted"), number)
    columns |= {"source": text, "created": number, "learned": number}
    columns |= {"actions": types.list_(types.list_(number)), "mask": types.list_(types.bool_())}
    columns |= {"candidates": text, "excluded": types.list_(types.int64())}
    kinds = {"number": number, "boolean": types.bool_()}
    columns |= {name: kinds.get(kind, text) for name, kind in (raw or {}).items()}
    schema = types.schema(list(columns.items()))
    rows: list[dict[str, Any]] = []
    size = 0
    with arrow("parquet").ParquetWriter(file, schema) as writer:

        def flush() -> None:
            if rows:
                writer.write_batch(types.RecordBatch.from_pylist(rows, schema=schema))
            rows.clear()

        for decision in decisions:
            fields = decision._asdict()
            features, mask = fields.pop("features"), fields.pop("mask")
            fields |= fields.pop("raw") or {}
            del fields["items"]
            fields |= zip(names, features[decision.taken].tolist(), strict=True)
            rows.append(fields | {"actions": features.tolist(), "mask": mask.tolist()})
            size += features.size + len(schema)
            if size > buffer_size:
                flush()
                size = 0
        flush()
        writer.add_key_value_metadata(dict(metadata()))


def write_dsjson(file: BinaryIO, dim: int, decisions: Iterable[LoggedDecision]) -> None:
    """Write Vowpal Wabbit's format, one JSON object per line.

    The cost is minus the reward, the probability the propensity; actions that were not allowed are
    left out. Of a choice among items, the features are shared, and an action is an item's name.
    """
    for decision in decisions:
        rows = [
            {"x": {f"x{i + 1}": x for i, x in enumerate(row)}}
            for row in decision.features[decision.mask].tolist()
        ]
        actions = [{"i": {name: 1}} for name in decision.items] or rows
        shared = rows[0] if decision.items else {"task": decision.task}
        if decision.items:
            place = decision.items.index(decision.action)
        else:
            place = int(np.sum(decision.mask[: decision.taken]))
        when = datetime.fromtimestamp(decision.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        event = {
            "_label_cost": -decision.reward,
            "_label_probability": decision.propensity,
            "_label_Action": place + 1,
            "_labelIndex": place,
            "Timestamp": when,
            "Version": "1",
            "EventId": decision.decision_id,
            "a": [place + 1],
            "c": {**shared, "_multi": actions},
            "p": [decision.propensity],
        }
        file.write(json.dumps(event, allow_nan=False).encode() + b"\n")


def write_open_bandit(file: BinaryIO, dim: int, decisions: Iterable[LoggedDecision]) -> None:
    """Write arrays of Open Bandit Pipeline in one .npz file.

    They are `action`, `reward`, `pscore`, `position`, `context` (features of all actions, side by
    side) and `action_context` (which action it is); and `mask`, `version`, `task_number` and `task`
    (a name per number), which the pipeline does not need. Decisions must have the same number of
    actions, which is all that its arrays can hold.
    """
    columns: dict[str, tuple[Any, np.dtype[Any], tuple[int, ...]]] = {}  # on disk until the end
    tasks: dict[str, int] = {}
    count = num_actions = 0
    with contextlib.ExitStack() as stack:
        for decision in decisions:
            num_actions = num_actions or len(decision.mask)
            if len(decision.mask) != num_actions:
                raise ValueError(
                    "`format`: expected as many actions in every decision, which Open Bandit "
                    f"needs, got {num_actions} and {len(decision.mask)}; export parquet or dsjson"
                )
            count += 1
            number = tasks.setdefault(decision.task, len(tasks))
            row: dict[str, np.ndarray] = {
                "action": np.asarray(decision.taken, np.int64),
                "position": np.asarray(0, np.int64),
                "task_number": np.asarray(number, np.int64),
                "version": np.asarray(decision.version, np.int64),
                "reward": np.asarray(decision.reward),
                "pscore": np.asarray(decision.propensity),
                "context": decision.features.ravel(),
                "mask": decision.mask,
            }
            for name, value in row.items():
                if name not in columns:
                    spool = stack.enter_context(tempfile.TemporaryFile())
                    columns[name] = (spool, value.dtype, value.shape)
                columns[name][0].write(value.tobytes())
        whole: dict[str, np.ndarray] = {
            name: np.memmap(column, dtype, "r", shape=(count, *shape))
            for name, (column, dtype, shape) in columns.items()
            if count
        }
        whole |= {"task": np.array(list(tasks), dtype=str), "action_context": np.eye(num_actions)}
        whole |= {"n_rounds": np.asarray(count), "n_actions": np.asarray(num_actions)}
        archive = stack.enter_context(zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED))
        for name, value in whole.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, value, allow_pickle=False)


FORMATS: dict[str, Callable[[BinaryIO, int, Iterable[LoggedDecision]], None]] = {
    "parquet": write_parquet,
    "dsjson": write_dsjson,
    "obd": write_open_bandit,
}
