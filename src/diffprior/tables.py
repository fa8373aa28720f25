"""Tables in files or of any dataframe library: columns chosen by name or pattern, and checked."""

import fnmatch
import gzip
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from .checks import require

if TYPE_CHECKING:
    import narwhals

    Frame = narwhals.DataFrame[Any]

READABLE = ".csv or .tsv (also .gz), or .parquet"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
HEAD_BYTES = 2**16  # by which the separator and the encoding of a text file are recognized
DECIMAL_COMMA = re.compile(r"(^|;)\s*[-+]?\d+,\d+\s*(;|$)")
SHOWN_ROWS, SHOWN_NAMES = 5, 12  # in an error message
DROP_OR_FILL = "drop those rows or fill them in"


def read_table(source: object, argument: str = "source", header: bool = True) -> "Frame":
    """Read a file or folder, a table of any library, or a list of dicts.

    Files are .csv or .tsv (also .gz), whose separator and encoding are recognized, or .parquet.
    Without `header`, columns of a text file are called 1, 2, ...; `argument` is for messages.
    """
    require("logs", "narwhals", "pyarrow")
    import narwhals

    native: Any = source
    if isinstance(source, str | Path):
        native = _read_file(Path(source), argument, header)
    elif isinstance(source, list) and source and all(isinstance(row, Mapping) for row in source):
        native = _table_of(source, argument)
    try:
        frame = narwhals.from_native(native)
    except TypeError as error:
        raise ValueError(
            f"`{argument}`: expected a file or a table, got {type(source).__name__}; pass a path "
            "to a .csv or .parquet file, a table of pandas, polars, Arrow or DuckDB, or a list of "
            "dicts"
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
                f"of {listed(available)}; check the name or the pattern"
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


def column_cells(column: "narwhals.Series[Any]") -> np.ndarray:
    """Cells of a column: numbers with NaN where they are missing, or objects of Python."""
    import narwhals

    if column.dtype.is_numeric():
        return column.cast(narwhals.Float64).to_numpy()
    cells = column.to_list()
    if column.dtype in (narwhals.Categorical, narwhals.Enum):
        cells = [None if cell is None or cell != cell else text_of(cell) for cell in cells]
    return np.fromiter(cells, dtype=object, count=len(cells))


def text_of(cell: object) -> str:
    """The text of a label or level: the integer 7, the float 7.0 and the text "7" are the same."""
    if isinstance(cell, bytes | np.bytes_):
        return bytes(cell).decode("utf-8", "replace")
    if isinstance(cell, float | np.floating) and float(cell).is_integer():
        return str(int(cell))
    return str(cell)


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
    if not isinstance(name, str):
        raise ValueError(
            f"`{argument}`: expected the name of a column, got {type(name).__name__}; "
            f"the table has {listed(available)}"
        )
    if name not in available:
        raise ValueError(
            f"`{argument}`: expected a column of the table, got {name!r}; "
            f"it has {listed(available)}"
        )


def reject_rows(
    bad: Bool[np.ndarray, " n"],
    argument: str,
    expected: str,
    fix: str = DROP_OR_FILL,
    found: str = "",
) -> None:
    """Raise if any row is bad, naming the first of them, counted from 0, and what they are."""
    if bad.any():
        rows = np.flatnonzero(bad)
        shown = ", ".join(map(str, rows[:SHOWN_ROWS])) + (", ..." if len(rows) > SHOWN_ROWS else "")
        plural = "s" if len(rows) > 1 else ""
        raise ValueError(
            f"`{argument}`: expected {expected}, got {len(rows)}{found and ' '}{found} "
            f"(row{plural} {shown}); {fix}"
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
    """A text file; the separator is the one in its first line, and its encoding is recognized."""
    with (gzip.open if path.suffix.lower() == ".gz" else open)(path, "rb") as file:
        start = file.read(HEAD_BYTES)
    encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    lines = start.decode(encoding, "replace").splitlines()
    if separator == "," and lines and lines[0].count(",") < max(map(lines[0].count, ";\t")):
        separator = max(";\t", key=lines[0].count)
    comma = separator == ";" and any(DECIMAL_COMMA.search(line) for line in lines[1:])

    def read(encoding: str) -> Any:
        csv = arrow("csv")
        options = csv.ReadOptions(autogenerate_column_names=not header, encoding=encoding)
        convert = csv.ConvertOptions(decimal_point="," if comma else ".")
        return csv.read_csv(path, options, csv.ParseOptions(delimiter=separator), convert)

    try:
        table = read(encoding)
        names = [name.strip() for name in table.column_names]
        text = arrow("types").is_binary
        is_utf8 = not any(text(field.type) for field in table.schema)
    except UnicodeDecodeError:
        is_utf8 = False
    if not is_utf8:
        table = read("cp1252")  # of Windows, the usual one that is not UTF-8
        names = [name.strip() for name in table.column_names]
    return table.rename_columns(names if header else list(map(str, range(1, len(names) + 1))))


def _table_of(rows: list[Any], argument: str) -> Any:
    """An Arrow table of dicts; a name that some lack is missing there."""
    names = dict.fromkeys(name for row in rows for name in row)
    columns: dict[str, Any] = {}
    for name in names:
        try:
            columns[str(name)] = arrow("lib").array([row.get(name) for row in rows])
        except arrow("lib").ArrowException as error:
            raise ValueError(
                f"`{argument}`: expected cells of one type in column {name!r}, got a mixture "
                f"({error}); convert them"
            ) from error
    return arrow("lib").table(columns)


def listed(names: Sequence[str]) -> str:
    """Names in quotes, the first of them if there are many."""
    more = len(names) - SHOWN_NAMES
    return ", ".join(map(repr, names[:SHOWN_NAMES])) + (f" and {more} more" if more > 0 else "")
