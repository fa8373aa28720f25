"""Tables of parameters in files: read with their column names, questioned, and written whole."""

import csv
import fnmatch
import gzip
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..extras import require
from ..files.atomic import write_whole

READ = ".csv, .tsv (also .gz), .npy or .parquet"
SEPARATORS = {".csv": ",", ".tsv": "\t"}
UNNAMED = "unnamed"
PANDAS_INDEX = (f"{UNNAMED} 1", "Unnamed: 0", "__index_level_0__")
FEWEST_IDS = 20  # rows from which different integers are questioned


@dataclass(frozen=True)
class Table:
    """Columns of numbers with their names, and what a reader should know about the reading."""

    names: tuple[str, ...]
    values: np.ndarray  # (n, d)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Cells:
    """A file as it is: names, and columns of text or of numbers."""

    names: list[str]
    columns: list[np.ndarray]
    notes: tuple[str, ...] = ()


def read_table(path: Path, columns: Sequence[str] = ()) -> Table:
    """Read rows of parameters.

    Args:
        path: A .csv or .tsv file with or without a header, also packed by gzip; .npy or .parquet.
        columns: Names or patterns of the columns to take, such as `x*`; all unless given. Columns
            without names are called 1, 2, ...

    Returns:
        The columns as double-precision numbers, with their names.

    Raises:
        ValueError: The file, a column or a cell is not what it should be; or, where `columns` are
            not given, one looks like a row number or an id rather than a parameter.
    """
    if not path.is_file():
        raise ValueError(f"`samples`: expected a file, found none at {path}; check the name")
    cells = _read(path)
    chosen = _choose(cells.names, columns)
    values = [_numbers(cells, index) for index in chosen]
    names = tuple(cells.names[index] for index in chosen)
    if not columns:
        _question(names, values)
    return Table(names, np.column_stack(values), cells.notes)


def write_table(path: Path, rows: np.ndarray, names: Sequence[str] = ()) -> None:
    """Write rows of numbers to .npy or .csv, whole or not at all; `names` head a .csv."""
    check_ending(path)
    content = io.BytesIO()
    if path.suffix.lower() == ".npy":
        np.save(content, rows)
    else:
        np.savetxt(content, rows, delimiter=",", header=",".join(names), comments="")
    write_whole(path, content.getvalue())


def check_ending(path: Path) -> None:
    """Check that a table can be written under this name."""
    if path.suffix.lower() not in (".npy", ".csv"):
        raise ValueError(f"`output`: expected .npy or .csv, got {path.name}; name it so")


def _read(path: Path) -> _Cells:
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    packed = bool(endings) and endings[-1] == ".gz"
    ending = (endings[:-1] if packed else endings or [""])[-1:] or [""]
    if ending[0] in SEPARATORS:
        return _read_text(path, SEPARATORS[ending[0]], packed)
    if ending[0] == ".npy" and not packed:
        return _unnamed(np.load(path, allow_pickle=False))
    if ending[0] == ".parquet" and not packed:
        return _read_parquet(path)
    raise ValueError(f"`samples`: expected {READ}, got {path.name}; convert it")


def _read_text(path: Path, separator: str, packed: bool) -> _Cells:
    opened: Any = gzip.open if packed else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=separator)
        rows = [[cell.strip() for cell in row] for row in reader if any(map(str.strip, row))]
    if not rows:
        raise ValueError(f"`samples`: expected rows of numbers, got the empty file {path}; fill it")
    _check_widths(rows, separator)
    names, notes = _header(rows)
    body = rows[1:] if names else rows
    if not body:
        raise ValueError(f"`samples`: expected rows below the header, got none in {path}; add some")
    columns = [np.array(column) for column in zip(*body, strict=True)]
    return _Cells(names or _numbered(len(columns)), columns, notes)


def _check_widths(rows: list[list[str]], separator: str) -> None:
    width = len(rows[0])
    for line, row in enumerate(rows, start=1):
        if len(row) != width:
            raise ValueError(
                f"`samples`: expected {width} cells in line {line} as in the first, got "
                f"{len(row)}; complete the line or remove it"
            )
    if width == 1 and any(other in rows[0][0] for other in {",", ";", "\t"} - {separator}):
        raise ValueError(
            f"`samples`: expected cells separated by {separator!r}, got the first line "
            f"{rows[0][0]!r}; save it with commas as .csv or with tabs as .tsv"
        )


def _header(rows: list[list[str]]) -> tuple[list[str], tuple[str, ...]]:
    """The names in the first row, if that is what it holds, and a note where that was a guess."""
    first = rows[0]
    if not all(map(_is_number, first)):
        return [name or f"{UNNAMED} {place}" for place, name in enumerate(first, start=1)], ()
    counts = [[str(i) for i in range(start, start + len(first))] for start in (0, 1)]
    below = [cell for row in rows[1:] for cell in row]
    differs = any(not _is_whole(cell) for cell in below)
    if first in counts and below and (differs or len(first) > 1):
        shown = ",".join(first)
        return first, (f"the first row, {shown}, counts the columns and is taken for a header",)
    return [], ()


def _read_parquet(path: Path) -> _Cells:
    require("logs", "pyarrow")
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    columns = [column.to_numpy() for column in table.columns]
    return _Cells(list(table.column_names), columns)


def _unnamed(array: np.ndarray) -> _Cells:
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiub":
        raise ValueError(
            f"`samples`: expected numbers of shape (n, d), got {array.dtype} of shape "
            f"{array.shape}; save one row for each task"
        )
    columns = list(array.reshape(len(array), -1).T)
    return _Cells(_numbered(len(columns)), columns)


def _numbered(count: int) -> list[str]:
    return [str(place) for place in range(1, count + 1)]


def _choose(names: list[str], columns: Sequence[str]) -> list[int]:
    """Places of the columns of these names or patterns, in the order asked for."""
    patterns = [part.strip() for column in columns for part in column.split(",") if part.strip()]
    if not patterns:
        return list(range(len(names)))
    chosen: dict[int, None] = {}
    for pattern in patterns:
        found = [i for i, name in enumerate(names) if name == pattern] or [
            i for i, name in enumerate(names) if fnmatch.fnmatchcase(name, pattern)
        ]
        if not found:
            raise ValueError(
                f"`columns`: expected names or patterns of {', '.join(names)}, got {pattern!r}; "
                "pick from those"
            )
        chosen |= dict.fromkeys(found)
    return list(chosen)


def _numbers(cells: _Cells, index: int) -> np.ndarray:
    """A column as numbers, all of them finite."""
    name, column = cells.names[index], cells.columns[index]
    try:
        numbers = column.astype(np.float64)
        wrong = ~np.isfinite(numbers)
    except (ValueError, TypeError):
        wrong = np.array([not _is_number(cell) for cell in column])
    if wrong.all():
        others = [n for n in cells.names if n != name]
        raise ValueError(
            f"`samples`: expected numbers in column {name!r}, got {str(column[0])!r} and the like; "
            f"name the columns that are parameters, such as --columns '{','.join(others)}'"
        )
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(
            f"`samples`: expected a finite number in row {row + 1} (the first below the header is "
            f"1), column {name!r}, got {str(column[row])!r}; fill it in, remove the row, or leave "
            "the column out with --columns"
        )
    return numbers


def _question(names: Sequence[str], columns: Sequence[np.ndarray]) -> None:
    """Refuse what looks like a row number or an id, which would be learned as a parameter."""
    odd = {name: why for name, c in zip(names, columns, strict=True) if (why := _odd(c))}
    odd |= {n: "pandas' index" for n in names if n in PANDAS_INDEX}
    if not odd:
        return
    kept = ",".join(name for name in names if name not in odd) or "NAME,..."
    listed = ", ".join(f"{name!r} is {why}" for name, why in odd.items())
    raise ValueError(
        f"`samples`: expected parameters only, but column {listed}; name the columns to learn "
        f"from with --columns '{kept}', or all of them with --columns '*'"
    )


def _odd(column: np.ndarray) -> str:
    """What a column seems to be instead of a parameter, if anything."""
    whole = np.all(column == np.round(column))
    if not whole or len(column) < 3:
        return ""
    if np.all(np.diff(column) == 1):
        return f"the row number, {column[0]:.0f}, {column[1]:.0f}, {column[2]:.0f}, ..."
    if len(column) >= FEWEST_IDS and len(np.unique(column)) == len(column):
        return "an id: an integer that is different in every row"
    return ""


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


def _is_whole(cell: str) -> bool:
    return _is_number(cell) and float(cell).is_integer()
