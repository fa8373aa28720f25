"""Logs as other systems write them: Open Bandit, Vowpal Wabbit's DSJSON, tables of estimates."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .columns import chosen_columns, labels_of, numbers, open_table, refuse_rows, require_column
from .grouping import times_of
from .labels import label_hashes
from .logs import Logs
from .statistics import TaskStatistics, triangle


def read_open_bandit(
    source: Any,
    *,
    task: str = "item_id",
    features: str | Sequence[str] = "user_feature_*",
    intercept: bool = True,
) -> Logs:
    """Logs from a table of the Open Bandit Dataset: rewards are clicks.

    Args:
        source: path to the CSV or Parquet file, or the table.
        task: column of tasks; the item that was shown, by default.
        features: columns or patterns. Hashed categories (user_feature_0, ...) become one-hot
            columns without the commonest category; numbers (user-item_affinity_0, ...) stay.
        intercept: put a feature that is always 1 before the others.

    References:
        Saito et al. (2021), Open Bandit Dataset and Pipeline. Propensities are not needed: given
        the actions, the policy does not depend on the parameters.
    """
    frame = open_table(source)
    require_column(list(frame.columns), "click", "source")
    columns: list[np.ndarray] = []
    names: list[str] = []
    for name in chosen_columns(list(frame.columns), features, (task, "click")):
        values = frame[name].to_numpy()
        if values.dtype.kind in "fiub":
            columns.append(numbers(frame, name, "features"))
            names.append(name)
        else:
            encoded, categories = _one_hot(values.astype(str))
            columns += encoded
            names += [f"{name}={category}" for category in categories]
    times = times_of(frame["timestamp"].to_numpy()) if "timestamp" in frame.columns else None
    return Logs(
        labels_of(frame, task),
        np.stack(columns, axis=1),
        numbers(frame, "click", "reward"),
        times=times,
        feature_names=names,
        intercept=intercept,
    )


def read_dsjson(path: str | Path, *, task: str, intercept: bool = True) -> Logs:
    """Logs from Vowpal Wabbit's decision service JSON lines: rewards are minus `_label_cost`.

    Args:
        path: file with one JSON object a line.
        task: field of the shared context that names the task, such as "user" or "User.id".
        intercept: put a feature that is always 1 before the others.

    Features are those of the action taken, numbers as they are and text as indicator columns, less
    the commonest value of each field.
    Lines that were not activated (`_skipLearn`) and lines without a decision are left out.
    """
    tasks, rewards, rows = [], [], []
    for number, line in _events(Path(path)):
        shared, actions = _context(line)
        chosen = int(line["_labelIndex"]) if "_labelIndex" in line else int(line["a"][0]) - 1
        if task not in shared:
            raise ValueError(
                f"`task`: expected a field of the shared context, got {task!r} (line {number}); "
                f"it has {', '.join(sorted(shared)[:12])}"
            )
        tasks.append(shared[task])
        rewards.append(-float(line["_label_cost"]))
        rows.append(_features(actions[chosen]))
    if not rows:
        raise ValueError(f"`path`: expected decisions with costs, found none in {path}")
    names = _informative(rows)
    features = np.array([[row.get(name, 0.0) for name in names] for row in rows])
    return Logs(
        np.array(tasks), features, np.array(rewards), feature_names=names, intercept=intercept
    )


def read_estimates(
    source: Any,
    *,
    estimates: str | Sequence[str],
    standard_errors: str | Sequence[str],
    task: str | None = None,
) -> TaskStatistics:
    """Statistics from a table of one row a task: an estimate of each parameter, and its error.

    An estimate with standard error s is linear evidence of precision 1 / s^2; a missing pair says
    nothing. The noise is known, 1 in these units.

    Args:
        source: CSV or Parquet file, or a pandas, polars or Arrow table.
        estimates: columns of estimates, names or patterns.
        standard_errors: columns of standard errors, in the same order.
        task: column of labels; row numbers by default.
    """
    frame = open_table(source)
    available = list(frame.columns)
    values = chosen_columns(available, estimates, [task] if task else [])
    errors = chosen_columns(available, standard_errors, [*values, *([task] if task else [])])
    if len(values) != len(errors):
        raise ValueError(
            f"`standard_errors`: expected {len(values)} columns, one for each estimate, "
            f"got {len(errors)}; name them in the same order"
        )
    b, s = (_with_gaps(frame, names) for names in (values, errors))
    refuse_rows(np.any(s <= 0, axis=1), "`standard_errors`", "positive numbers", "repair them")
    precision = np.where(np.isnan(b) | np.isnan(s), 0.0, 1.0 / s**2)
    b = np.where(precision > 0, b, 0.0)
    labels = np.arange(len(b)) if task is None else labels_of(frame, task)
    places = triangle(len(values))
    xx = np.stack([precision[:, i] * (i == j) for i, j in places], axis=1)
    counts = (precision > 0).sum(axis=1).astype(np.float64)
    yy = (precision * b**2).sum(axis=1)
    names = tuple(values)
    return TaskStatistics(
        labels, label_hashes(labels), counts, xx, precision * b, yy, names, noise_std=1.0
    )


def _one_hot(values: np.ndarray) -> tuple[list[np.ndarray], list[str]]:
    """Indicator columns of all categories but the commonest."""
    categories, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    kept = [i for i in range(len(categories)) if i != int(np.argmax(counts))]
    return [(inverse == i).astype(float) for i in kept], [str(categories[i]) for i in kept]


def _events(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"`path`: expected one JSON object a line, got another thing in line {number} "
                    f"of {path}; convert the file to DSJSON"
                ) from error
            if "_label_cost" in event and "c" in event and not event.get("_skipLearn", False):
                yield number, event


def _context(event: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    context = event["c"]
    shared = {
        name: value for name, value in _flat(context) if not name.split(".")[0].startswith("_")
    }
    return shared, context["_multi"]


def _flat(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields under their full names, a.b for b in a; and under their own."""
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{prefix}{name}.")
        elif not isinstance(item, list):
            yield prefix + name, item
            if prefix:
                yield name, item


def _features(action: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """Numbers as they are, arrays by position, text as an indicator; no name begins with _."""
    found: dict[str, float] = {}
    for name, item in action.items():
        full = prefix + name
        if name.startswith("_"):
            continue
        if isinstance(item, dict):
            found |= _features(item, f"{full}.")
        elif isinstance(item, bool | int | float):
            found[full] = float(item)
        elif isinstance(item, list):
            found |= {f"{full}.{i}": float(x) for i, x in enumerate(item)}
        else:
            found[f"{full}={item}"] = 1.0
    return found


def _informative(rows: list[dict[str, float]]) -> list[str]:
    """Names of features that vary, of each text field all values but the commonest."""
    counts = Counter(name for row in rows for name in row)
    commonest: dict[str, str] = {}
    for name, _ in counts.most_common():
        if "=" in name:
            commonest.setdefault(name.split("=")[0], name)
    values = {name: {row.get(name, 0.0) for row in rows} for name in counts}
    dropped = set(commonest.values())
    return sorted(n for n, found in values.items() if len(found) > 1 and n not in dropped)


def _with_gaps(frame: Any, names: list[str]) -> np.ndarray:
    """Columns of numbers in which values may be missing."""
    columns = [np.asarray(frame[name].to_numpy(), dtype=object) for name in names]
    return np.array([[np.nan if x is None else float(x) for x in c] for c in columns]).T
