"""Files of parameters: every format gives the same numbers; ids and row numbers are questioned."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.testing import assert_array_equal

from diffprior.cli.fit import read_parameters, write_parameters

ROWS = np.random.default_rng(1).standard_normal((30, 2))
NAMES = ("height", "width")
SHUFFLED = 1000 + np.random.default_rng(2).permutation(30)


def text(rows: np.ndarray, header: str = "", separator: str = ",") -> str:
    return header + "\n".join(separator.join(map(repr, row)) for row in rows.tolist()) + "\n"


def test_every_format_gives_the_same_numbers(tmp_path: Path) -> None:
    for name, content, names in (
        ("a.csv", text(ROWS), ("1", "2")),
        ("a.CSV", text(ROWS, "height,width\n"), NAMES),
        ("a.tsv", text(ROWS, "height\twidth\n", "\t"), NAMES),
        ("b.csv", text(ROWS, "\ufeffheight, width \n") + "\n\n", NAMES),
        ("a.csv.gz", text(ROWS, "height,width\n"), NAMES),
        ("a.b.csv", text(ROWS), ("1", "2")),
    ):
        data = content.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        found = read_parameters(tmp_path / name)
        assert_array_equal(found.values, ROWS)
        assert found.names == names and found.notes == ()
    columns = {"height": ROWS[:, 0], "width": ROWS[:, 1].astype(np.float32), "name": ["a"] * 30}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    found = read_parameters(tmp_path / "a.parquet", ("width", "height"))
    assert found.names == ("width", "height") and found.values.dtype == np.float64
    assert_array_equal(found.values[:, 1], ROWS[:, 0])
    np.save(tmp_path / "a.npy", ROWS)
    assert_array_equal(read_parameters(tmp_path / "a.npy", ("2",)).values, ROWS[:, 1:])
    counts = np.random.default_rng(3).integers(0, 9, (40, 2))  # that repeat, so no ids
    np.save(tmp_path / "a.npy", counts)
    assert_array_equal(read_parameters(tmp_path / "a.npy").values, counts)


def test_a_first_row_that_counts_is_a_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for first in ("0,1", "1,2"):
        path.write_text(text(ROWS, f"{first}\n"))
        found = read_parameters(path)
        assert_array_equal(found.values, ROWS)
        assert found.names == tuple(first.split(",")) and "taken for a header" in found.notes[0]
    path.write_text("1\n2\n2\n3\n3\n")  # of one column of integers, a row like the others
    assert len(read_parameters(path).values) == 5


def test_columns_are_chosen_by_name_or_pattern(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{i},shop,{a!r},{b!r}" for i, (a, b) in enumerate(ROWS.tolist())]
    path.write_text("id,name,x1,x2\n" + "\n".join(lines))
    for columns in (("x1", "x2"), ("x*",), ("x?",)):
        assert_array_equal(read_parameters(path, columns).values, ROWS)
    with pytest.raises(ValueError, match="`columns`: expected columns of the table, got 'y'"):
        read_parameters(path, ("y",))


def test_what_looks_like_an_id_is_rejected_unless_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for header, ids, message in (
        ("id,x,y\n", np.arange(30), "'id' is the row number, 0, 1, 2, .*--columns 'x,y'"),
        ("", np.arange(1, 31), "'1' is the row number, 1, 2, 3, .*--columns '2,3'"),
        (",x,y\n", np.tile([1, 2], 15), "'' is the index of pandas"),
        ("shop,x,y\n", SHUFFLED, "'shop' is an id: an integer that is different in every row"),
    ):
        body = [f"{i},{a!r},{b!r}" for i, (a, b) in zip(ids, ROWS.tolist(), strict=True)]
        path.write_text(header + "\n".join(body))
        with pytest.raises(ValueError, match=message):
            read_parameters(path)
        assert read_parameters(path, ("*",)).values.shape == (30, 3)


def test_mistakes_are_explained_with_the_fix(tmp_path: Path) -> None:
    for name, content, message in (
        ("a.csv", "", "Empty CSV file"),
        ("a.csv", "x,y\n", "rows below the header, got none"),
        ("a.csv", "x,y\n1,2\n3\n", "Expected 2 columns, got 1: 3"),
        ("a.csv", "x,y\n1.5,2\n1,n/a\n", r"no missing values in column 'y', got 1 \(row 1\)"),
        ("a.csv", "x,y\n1.5,2\n3,inf\n", r"finite numbers in column 'y', got 1 \(row 1\)"),
        ("a.csv", "x,s\n1.5,a\n2,b\n", "numbers in column 's', got 'a' and the like"),
        ("a.txt", "1,2\n", "expected .csv or .tsv .also .gz., or .parquet, got a.txt"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=message):
            read_parameters(tmp_path / name)


def test_no_half_table_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "draws.csv"
    write_parameters(path, ROWS, NAMES)
    found = read_parameters(path)
    assert_array_equal(found.values, ROWS)
    assert found.names == NAMES

    def full(file: object, *_: object, **__: object) -> None:
        file.write(b"0.5,")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savetxt", full)
    with pytest.raises(OSError, match="no space"):
        write_parameters(path, ROWS[:1])
    assert [file.name for file in tmp_path.iterdir()] == ["draws.csv"]
    assert_array_equal(read_parameters(path).values, ROWS)
