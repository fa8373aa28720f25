"""Logged decisions: all actions offered, the one taken, its propensity and its reward."""

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from ..checks import real_numbers
from ..tables import arrow, reject_rows, require_column

COLUMNS = ("task", "taken", "reward", "propensity", "created", "learned", "actions", "mask")


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

        Returns:
            The decisions.

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
        for name in COLUMNS:
            require_column(parquet.read_schema(path).names, name, "path")
        if parquet.read_metadata(path).metadata.keys() & {b"candidates"}:
            raise ValueError(
                f"`path`: expected decisions among actions, got choices among items in {path}; "
                "read it with LoggedChoices.read"
            )
        table = parquet.read_table(path, columns=list(COLUMNS)).combine_chunks()
        if not len(table):
            raise ValueError(f"`path`: expected decisions, got none in {path}; export them again")
        features, mask = _padded(table)
        numbers = {name: table[name].to_numpy().astype(np.float64) for name in COLUMNS[1:6]}
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
