"""Columns of a table, whatever library it comes from: chosen by name or pattern, and checked."""

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

SHOWN = 5  # rows named in a message


def open_table(source: Any) -> Any:
    """A narwhals frame of a CSV or Parquet file, or of a pandas, polars or Arrow table."""
    narwhals = _narwhals()
    if isinstance(source, str | Path):
        source = _read_file(Path(source))
    try:
        frame = narwhals.from_native(source)
    except TypeError as error:
        raise ValueError(
            f"`source`: expected a file or a table, got {type(source).__name__}; pass a path to "
            ".csv or .parquet, or a pandas, polars or Arrow table"
        ) from error
    return frame.collect() if isinstance(frame, narwhals.LazyFrame) else frame


def chosen_columns(
    available: Sequence[str], features: str | Sequence[str], taken: Sequence[str] = ()
) -> list[str]:
    """The columns that `features` names: names, or patterns such as "x*", in the table's order."""
    wanted = [features] if isinstance(features, str) else list(features)
    names: list[str] = []
    for pattern in wanted:
        matches = [pattern] if pattern in available else _matching(available, pattern, taken)
        if not matches:
            raise ValueError(
                f"`features`: expected columns of the table, got {pattern!r}, which matches none "
                f"of {_listed(available)}; check the name or the pattern"
            )
        names += [name for name in matches if name not in names]
    return names


def numbers(frame: Any, name: str, argument: str) -> np.ndarray:
    """A column as float64, without missing values."""
    require_column(list(frame.columns), name, argument)
    return as_numbers(frame[name].to_numpy(), name, argument)


def as_numbers(values: np.ndarray, name: str, argument: str) -> np.ndarray:
    """Values of a column as float64; missing ones and what is no number are refused, by row."""
    if values.dtype == object:
        missing = np.array([_is_missing(value) for value in values])
        refuse_rows(missing, f"`{argument}`", f"no missing values in column {name!r}", FILL)
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{argument}`: expected numbers in column {name!r}, got {values.dtype}; "
            "convert it, or one-hot encode categories first"
        ) from error
    refuse_rows(np.isnan(array), f"`{argument}`", f"no missing values in column {name!r}", FILL)
    refuse_rows(
        ~np.isfinite(array), f"`{argument}`", f"finite numbers in column {name!r}", "repair them"
    )
    return array


def labels_of(frame: Any, name: str) -> np.ndarray:
    """The column of task labels, none of them missing."""
    require_column(list(frame.columns), name, "task")
    column = frame[name]
    refuse_rows(
        np.asarray(column.is_null().to_numpy(), bool), "`task`", f"no missing labels in {name!r}",
        "give every row its task, or drop it",
    )  # fmt: skip
    return column.to_numpy()


def require_column(available: Sequence[str], name: str, argument: str) -> None:
    """Refuse the name of a column that is not there."""
    if name not in available:
        raise ValueError(
            f"`{argument}`: expected a column of the table, got {name!r}; "
            f"it has {_listed(available)}"
        )


def refuse_rows(bad: np.ndarray, argument: str, expected: str, fix: str) -> None:
    """Raise if any row is bad, naming the first of them (rows are counted from 0)."""
    if bad.any():
        rows = np.flatnonzero(bad)
        shown = ", ".join(map(str, rows[:SHOWN])) + (", ..." if len(rows) > SHOWN else "")
        raise ValueError(
            f"{argument}: expected {expected}, got {len(rows)} (row"
            f"{'s' if len(rows) > 1 else ''} {shown}); {fix}"
        )


FILL = "drop those rows or fill them in"


def _matching(available: Sequence[str], pattern: str, taken: Sequence[str]) -> list[str]:
    return [n for n in available if fnmatch.fnmatchcase(n, pattern) and n not in taken]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:12]))
    return shown + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and np.isnan(value))


def _read_file(path: Path) -> Any:
    if not path.exists():
        raise ValueError(f"`source`: expected a file, found none at {path}; check the name")
    if path.suffix == ".csv":
        return arrow("csv").read_csv(path)
    if path.suffix in (".parquet", ".pq") or path.is_dir():
        return arrow("parquet").read_table(path)
    raise ValueError(f"`source`: expected .csv or .parquet, got {path.name}; convert it")


def arrow(module: str) -> Any:
    """A module of pyarrow, or how to get it."""
    import importlib

    try:
        return importlib.import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise ImportError(f"reading tables {_EXTRA}") from error


def _narwhals() -> Any:
    try:
        import narwhals
    except ImportError as error:
        raise ImportError(f"reading tables {_EXTRA}") from error
    return narwhals


_EXTRA = "needs narwhals and pyarrow; `pip install 'diffprior[logs]'` brings them"
