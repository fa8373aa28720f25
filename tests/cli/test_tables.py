"""Tables in files: every format gives the same numbers; what is no parameter is questioned."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from numpy.testing import assert_array_equal

from diffprior.cli.tables import read_table, write_table

ROWS = np.random.default_rng(1).standard_normal((30, 2))


def text(rows: np.ndarray, header: str = "", separator: str = ",") -> str:
    return header + "\n".join(separator.join(map(repr, row)) for row in rows.tolist()) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("a.csv", text(ROWS), ("1", "2")),
        ("a.CSV", text(ROWS, "height,width\n"), ("height", "width")),
        ("a.tsv", text(ROWS, "height\twidth\n", "\t"), ("height", "width")),
        ("a.csv", text(ROWS, "\ufeffheight, width \n") + "\n\n", ("height", "width")),
        ("a.csv.gz", text(ROWS, "height,width\n"), ("height", "width")),
        ("a.b.csv", text(ROWS), ("1", "2")),
    ],
)
def test_text(tmp_path: Path, name: str, content: str, names: tuple[str, ...]) -> None:
    path = tmp_path / name
    data = content.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    table = read_table(path)
    assert_array_equal(table.values, ROWS)
    assert table.names == names and table.notes == ()


def test_parquet_and_npy(tmp_path: Path) -> None:
    columns = {"height": ROWS[:, 0], "width": ROWS[:, 1].astype(np.float32), "name": ["a"] * 30}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet", ("width,height",))
    assert table.names == ("width", "height") and table.values.dtype == np.float64
    assert_array_equal(table.values[:, 1], ROWS[:, 0])
    np.save(tmp_path / "a.npy", ROWS)
    assert_array_equal(read_table(tmp_path / "a.npy", ("2",)).values, ROWS[:, 1:])


@pytest.mark.parametrize("first", ["0,1", "1,2"])
def test_a_first_row_that_counts_is_a_header(tmp_path: Path, first: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text(ROWS, f"{first}\n"))
    table = read_table(path)
    assert_array_equal(table.values, ROWS)
    assert table.names == tuple(first.split(",")) and "taken for a header" in table.notes[0]
    path.write_text("1\n2\n2\n3\n3\n")  # of one column of integers, a row like the others
    assert len(read_table(path).values) == 5


@pytest.mark.parametrize("columns", [("x1", "x2"), ("x1,x2",), ("x*",), ("x?",)])
def test_columns_are_chosen_by_name_or_pattern(tmp_path: Path, columns: tuple[str, ...]) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{i},shop,{a!r},{b!r}" for i, (a, b) in enumerate(ROWS.tolist())]
    path.write_text("id,name,x1,x2\n" + "\n".join(lines))
    assert_array_equal(read_table(path, columns).values, ROWS)
    with pytest.raises(ValueError, match="expected names or patterns of id, name, x1, x2, got 'y'"):
        read_table(path, ("y",))


SHUFFLED = 1000 + np.random.default_rng(2).permutation(30)


@pytest.mark.parametrize(
    ("header", "ids", "message"),
    [
        ("id,x,y\n", np.arange(30), "'id' is the row number, 0, 1, 2, .*--columns 'x,y'"),
        ("", np.arange(1, 31), "'1' is the row number, 1, 2, 3, .*--columns '2,3'"),
        (",x,y\n", np.tile([1, 2], 15), "'unnamed 1' is pandas' index"),
        ("shop,x,y\n", SHUFFLED, "'shop' is an id: an integer that is different in every row"),
    ],
)
def test_what_is_no_parameter_is_questioned(
    tmp_path: Path, header: str, ids: np.ndarray, message: str
) -> None:
    path = tmp_path / "a.csv"
    body = [f"{i},{a!r},{b!r}" for i, (a, b) in zip(ids, ROWS.tolist(), strict=True)]
    path.write_text(header + "\n".join(body))
    with pytest.raises(ValueError, match=message):
        read_table(path)
    assert read_table(path, ("*",)).values.shape == (30, 3)  # unless it is asked for


def test_integers_that_repeat_are_parameters(tmp_path: Path) -> None:
    counts = np.random.default_rng(3).integers(0, 9, (40, 2))
    np.save(tmp_path / "a.npy", counts)
    assert_array_equal(read_table(tmp_path / "a.npy").values, counts)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "", "the empty file"),
        ("a.csv", "x,y\n", "rows below the header, got none"),
        ("a.csv", "x,y\n1,2\n3\n", "expected 2 cells in line 3 as in the first, got 1"),
        ("a.csv", "x,y\n1.5,2\n1,n/a\n", "in row 2 .*column 'y', got 'n/a'; fill it in, remove"),
        ("a.csv", "x,y\n1.5,2\n3,nan\n", "in row 2 .*got 'nan'"),
        ("a.csv", "x,s\n1.5,a\n2,b\n", "in column 's', got 'a' and the like; .*--columns 'x'"),
        ("a.csv", "x;y\n1;2\n", "expected cells separated by ',', got the first line 'x;y'"),
        ("a.txt", "1,2\n", "expected .csv, .tsv .also .gz., .npy or .parquet, got a.txt"),
    ],
)
def test_mistakes_are_told_with_the_fix(
    tmp_path: Path, name: str, content: str, message: str
) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / name)


def test_no_half_table_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "draws.csv"
    write_table(path, ROWS, ("height", "width"))
    table = read_table(path)
    assert_array_equal(table.values, ROWS)
    assert table.names == ("height", "width")

    def full(file: object, *_: object, **__: object) -> None:
        file.write(b"0.5,")  # type: ignore[attr-defined]
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savetxt", full)
    with pytest.raises(OSError, match="no space"):
        write_table(path, ROWS[:1])
    assert [file.name for file in tmp_path.iterdir()] == ["draws.csv"]
    assert_array_equal(read_table(path).values, ROWS)
