"""Logs for off-policy estimates: all actions offered, and how likely the one taken was."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from ..checks import real_numbers
from .columns import arrow, refuse_rows, require_column

COLUMNS = ("task", "taken", "reward", "propensity", "created", "learned", "actions", "mask")


@dataclass(frozen=True)
class LoggedDecisions:
    """Decisions with their propensities and rewards, grouped by task, in the order of rewards.

    Args:
        tasks: The number of its task for each decision (n,), ascending.
        features: Of all actions (n, K, d); zeros beyond the actions that there were.
        mask: Which actions could be taken (n, K).
        actions: The action taken, a row of `features` (n,).
        rewards: What it paid (n,).
        propensities: With which probability it was taken (n,); NaN where that is not known: such
            decisions are evidence of their task, and nothing is estimated from them.
        num_known: How many rewards of its task were known when the decision was taken (n,).
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
        tasks: Any,
        features: Any,
        actions: Any,
        rewards: Any,
        propensities: Any,
        *,
        mask: Any = None,
        created: Any = None,
        learned: Any = None,
    ) -> "LoggedDecisions":
        """Logged decisions in any order of tasks.

        Args:
            tasks: The task of each decision, numbers or text (n,).
            features: Of all actions (n, K, d).
            actions: The action taken, a row of `features` (n,).
            rewards: What it paid (n,).
            propensities: With which probability it was taken (n,), above 0 and at most 1; NaN
                where that is not known.
            mask: Which actions could be taken (n, K); all by default.
            created: When the decision was taken (n,). By default decisions of a task follow each
                other as given, each reward known before the next decision.
            learned: When its reward became known (n,), later than `created`.

        Returns:
            The decisions.

        Raises:
            ValueError: Shapes do not agree, or a number is impossible.
        """
        features = np.asarray(
            real_numbers("features", features, ("n", "K", "d"), "all actions of each decision"),
            np.float64,
        )
        n, num_actions = features.shape[:2]
        rewards = _numbers("rewards", rewards, n)
        chosen = _numbers("actions", actions, n).astype(np.int64)
        allowed = np.ones((n, num_actions), bool) if mask is None else np.asarray(mask)
        if allowed.shape != (n, num_actions) or allowed.dtype != bool:
            raise ValueError(
                f"`mask`: expected booleans of shape {(n, num_actions)}, got {allowed.dtype} of "
                f"shape {allowed.shape}; true where an action could be taken"
            )
        inside = (chosen >= 0) & (chosen < num_actions)
        refuse_rows(~inside, "`actions`", f"0 to {num_actions - 1}", "number the actions so")
        known = _propensities(propensities, n)
        taken = allowed[np.arange(n), chosen]
        fix = "allow the actions that were taken"
        refuse_rows(~taken & ~np.isnan(known), "`mask`", "actions that could be taken", fix)
        labels, numbers = np.unique(np.asarray(tasks).astype(str), return_inverse=True)
        if numbers.shape != (n,):
            raise ValueError(f"`tasks`: expected shape ({n},), got {np.shape(tasks)}; one for each")
        if created is None:
            created, learned = np.arange(n), np.arange(n) + 0.5
        created, learned = _numbers("created", created, n), _numbers("learned", learned, n)
        refuse_rows(learned <= created, "`learned`", "times after `created`", "correct the times")
        order = np.lexsort((learned, numbers))
        counts = _num_known(numbers[order], created[order], learned[order], len(labels))
        return LoggedDecisions(
            numbers[order],
            features[order],
            allowed[order],
            chosen[order],
            rewards[order],
            known[order],
            counts,
        )

    @staticmethod
    def read(path: str | Path) -> "LoggedDecisions":
        """The decisions of a Parquet file that `diffprior export` has written.

        Args:
            path: The file.

        Returns:
            The decisions.

        Raises:
            ValueError: The file is missing, or has other columns.
            ImportError: pyarrow is missing.
        """
        if not Path(path).is_file():
            raise ValueError(f"`path`: expected a file, found none at {path}; check the name")
        parquet = arrow("parquet")
        for name in COLUMNS:
            require_column(parquet.read_schema(path).names, name, "path")
        table = parquet.read_table(path, columns=list(COLUMNS)).combine_chunks()
        if not len(table):
            raise ValueError(f"`path`: expected decisions, got none in {path}; export them again")
        features, mask = _padded(table)
        numbers = {name: _column(table, name) for name in COLUMNS[1:6]}
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

    def __len__(self) -> int:
        """Number of decisions n."""
        return len(self.rewards)

    @property
    def starts(self) -> Int[np.ndarray, " n"]:
        """Where the task of each decision begins."""
        return np.searchsorted(self.tasks, self.tasks)


def _num_known(
    tasks: np.ndarray, created: np.ndarray, learned: np.ndarray, num_tasks: int
) -> Int[np.ndarray, " n"]:
    """Rewards of the same task that came before each decision; rows are in order of `learned`."""
    known = np.zeros(len(tasks), np.int64)
    starts = np.searchsorted(tasks, np.arange(num_tasks + 1))
    for first, end in zip(starts, starts[1:], strict=False):
        known[first:end] = np.searchsorted(learned[first:end], created[first:end], side="right")
    return known


def _numbers(name: str, values: Any, n: int) -> Float[np.ndarray, " n"]:
    return np.asarray(real_numbers(name, values, (n,), "one for each decision"), np.float64)


def _propensities(values: Any, n: int) -> Float[np.ndarray, " n"]:
    array = np.array(values, np.float64)
    if array.shape != (n,):
        raise ValueError(
            f"`propensities`: expected shape ({n},), got {array.shape}; one for each decision"
        )
    impossible = ~np.isnan(array) & ~((array > 0) & (array <= 1))
    fix = "pass NaN where a propensity is not known"
    refuse_rows(impossible, "`propensities`", "probabilities above 0", fix)
    return array


def _column(table: Any, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(np.float64)


def _padded(table: Any) -> tuple[Float[np.ndarray, "n k d"], Bool[np.ndarray, "n k"]]:
    """Lists of actions and of what is allowed as arrays, with room for the longest."""
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
