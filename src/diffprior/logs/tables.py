"""Tables in files or of any dataframe library: columns chosen by name or pattern, and checked."""

import fnmatch
import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from ..checks import require

if TYPE_CHECKING:
    import narwhals

    Frame = narwhals.DataFrame[Any]

READABLE = ".csv or .tsv (also .gz), or .parquet"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SHOWN_ROWS, SHOWN_NAMES = 5, 12  # in an error message
DROP_OR_FILL = "drop those rows or fill them in"


def read_table(source: object, argument: str = "source", header: bool = True) -> "Frame":
    """Read a .csv, .tsv (also .gz) or .parquet file or folder, or a pandas, polars or Arrow table.

    Without `header`, columns of a text file are called 1, 2, ...; `argument` is for messages.
    """
    require("logs", "narwhals", "pyarrow")
    import narwhals

    native: Any = source
    if isinstance(source, str | Path):
        native = _read_file(Path(source), argument, header)
    try:
        frame = narwhals.from_native(native)
    except TypeError as error:
        raise ValueError(
            f"`{argument}`: expected a file or a table, got {type(source).__name__}; pass a path "
            "to a .csv or .parquet file, or a pandas, polars or Arrow table"
        ) from error
    collected: Frame = frame.collect() if isinstance(frame, narwhals.LazyFrame) else frame
    return collected


def choose_columns(
    available: Sequence[str],
    patterns: str | Sequence[str],
    reserved: Sequence[str] = (),
    argument: str = "features",
) -> list[str]:
    """Choose columns by name, or by patterns such as "x*", which never match reserved columns."""
    chosen: dict[str, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = [pattern] if pattern in available else fnmatch.filter(available, pattern)
        matches = [name for name in matches if name == pattern or name not in reserved]
        if not matches:
            raise ValueError(
                f"`{argument}`: expected columns of the table, got {pattern!r}, which matches none "
                f"of {_listed(available)}; check the name or the pattern"
            )
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def numeric_column(frame: "Frame", name: str, argument: str) -> Float[np.ndarray, " n"]:
    """Return a column as float64, without missing values."""
    require_column(frame.columns, name, argument)
    return to_numbers(frame[name].to_numpy(), name, argument)


def to_numbers(values: np.ndarray, name: str, argument: str) -> Float[np.ndarray, " n"]:
    """Convert the cells of a column to float64, rejecting missing and infinite ones by row."""
    missing = f"no missing values in column {name!r}"
    if values.dtype == object:
        reject_rows(np.array([v is None or v != v for v in values]), argument, missing)
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{argument}`: expected numbers in column {name!r}, got {str(values[0])!r} and the "
            "like; convert it, one-hot encode it, or choose other columns"
        ) from error
    reject_rows(np.isnan(numbers), argument, missing)
    reject_rows(~np.isfinite(numbers), argument, f"finite numbers in column {name!r}", "fix them")
    return numbers


def label_column(frame: "Frame", name: str) -> np.ndarray:
    """Return the column of task labels, none of them missing."""
    require_column(frame.columns, name, "task")
    column = frame[name]
    missing = np.asarray(column.is_null().to_numpy(), bool)
    reject_missing_labels(missing, name)
    labels: np.ndarray = column.to_numpy()
    return labels


def reject_missing_labels(missing: Bool[np.ndarray, " n"], name: str) -> None:
    """Raise if the task of any row is missing."""
    fix = "give every row its task, or drop it"
    reject_rows(missing, "task", f"no missing labels in {name!r}", fix)


def require_column(available: Sequence[str], name: str, argument: str) -> None:
    """Raise if there is no column of this name."""
    if name not in available:
        raise ValueError(
            f"`{argument}`: expected a column of the table, got {name!r}; "
            f"it has {_listed(available)}"
        )


def reject_rows(
    bad: Bool[np.ndarray, " n"], argument: str, expected: str, fix: str = DROP_OR_FILL
) -> None:
    """Raise if any row is bad, naming the first of them, counted from 0."""
    if bad.any():
        rows = np.flatnonzero(bad)
        shown = ", ".join(map(str, rows[:SHOWN_ROWS])) + (", ..." if len(rows) > SHOWN_ROWS else "")
        plural = "s" if len(rows) > 1 else ""
        raise ValueError(
            f"`{argument}`: expected {expected}, got {len(rows)} (row{plural} {shown}); {fix}"
        )


def arrow(module: str) -> ModuleType:
    """Import a module of pyarrow."""
    require("logs", "pyarrow")
    return importlib.import_module(f"pyarrow.{module}")


def _read_file(path: Path, argument: str, header: bool) -> Any:
    if not path.exists():
        raise ValueError(f"`{argument}`: expected a file, found none at {path}; check the name")
    endings = [ending.lower() for ending in path.suffixes]
    ending = (endings[-2:-1] if endings[-1:] == [".gz"] else endings[-1:]) or [""]
    try:
        if path.is_dir() or ending[0] in (".parquet", ".pq"):
            return arrow("parquet").read_table(path)
        if ending[0] in SEPARATORS:
            return _read_text(path, SEPARATORS[ending[0]], header)
    except arrow("lib").ArrowInvalid as error:
        raise ValueError(
            f"`{argument}`: expected a table, got {path} ({error}); fix the file"
        ) from error
    raise ValueError(f"`{argument}`: expected {READABLE}, got {path.name}; convert it")


def _read_text(path: Path, separator: str, header: bool) -> Any:
    csv = arrow("csv")
    table = csv.read_csv(
        path,
        csv.ReadOptions(autogenerate_column_names=not header),
        csv.ParseOptions(delimiter=separator),
    )
    names = (
        [name.strip() for name in table.column_names]
        if header
        else range(1, len(table.columns) + 1)
    )
    return table.rename_columns([str(name) for name in names])


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_NAMES
    return ", ".join(map(repr, names[:SHOWN_NAMES])) + (f" and {more} more" if more > 0 else "")
