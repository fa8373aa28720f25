"""Rows grouped by task, their times and weights checked."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..checks import real_numbers
from .columns import refuse_rows


def check_several_rows(num_tasks: int, num_rows: int) -> None:
    """Refuse logs in which every row is a task of its own."""
    if num_tasks == num_rows and num_rows > 1:
        raise ValueError(
            f"`tasks`: expected several rows in some tasks, got {num_tasks} tasks in {num_rows} "
            "rows; choose the column that says which rows belong together (campaign, user, item), "
            "not a row number"
        )


def times_of(values: np.ndarray) -> Float[np.ndarray, " n"]:
    """Times as numbers: datetimes in seconds, numbers as they are, text by its order."""
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]").astype(np.int64) / 1e6
    if values.dtype.kind in "iuf":
        return values.astype(np.float64)
    return np.unique(values.astype(str), return_inverse=True)[1].astype(np.float64)


def grouped(labels: np.ndarray, times: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order that groups rows by task, the labels in order of appearance, and the starts."""
    kinds = labels.astype(str) if labels.dtype == object else labels
    _, first, inverse = np.unique(kinds, return_index=True, return_inverse=True)
    n, num_tasks = len(labels), len(first)
    by_appearance = np.argsort(first, kind="stable")
    rank = np.empty(num_tasks, np.int64)
    rank[by_appearance] = np.arange(num_tasks)
    task = rank[inverse.reshape(-1)]
    keys = (task,) if times is None else (checked_times(times, n), task)
    order = np.lexsort(keys)
    counts = np.bincount(task, minlength=num_tasks)
    return order, labels[first[by_appearance]], np.concatenate([[0], np.cumsum(counts)])


def checked_times(times: Any, n: int) -> Float[np.ndarray, " n"]:
    array = times_of(np.asarray(times))
    if array.shape != (n,):
        raise ValueError(f"`times`: expected shape ({n},), got {array.shape}; one for each row")
    refuse_rows(np.isnan(array), "`times`", "no missing times", "drop those rows")
    return array


def checked_weights(weights: Any, n: int) -> Float[np.ndarray, " n"]:
    if weights is None:
        return np.ones(n)
    array = np.asarray(real_numbers("weights", weights, (n,), "one for each row"), np.float64)
    refuse_rows(array < 0, "`weights`", "no negative weights", "a weight counts repetitions")
    return array
