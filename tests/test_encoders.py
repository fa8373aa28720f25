"""Encoders of raw columns: one result for every kind of table, finite numbers or a named column."""

import datetime
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp

pytestmark = pytest.mark.filterwarnings("ignore::diffprior.EncodingWarning")
N = 300


def raw(n: int = N, seed: int = 0) -> dict[str, list[Any]]:
    """Columns of every type, some with missing cells."""
    rng = np.random.default_rng(seed)
    ages = [None if rng.random() < 0.1 else float(age) for age in rng.normal(40, 10, n)]
    levels = ["ios", "web", "android", None]
    genres = ["Action|Comedy", "Action", "Drama|Comedy", "Drama", "Comedy", ""]
    return {
        "id": [f"u{i}" for i in range(n)],
        "age": ages,
        "device": [levels[i] for i in rng.choice(4, n, p=[0.2, 0.5, 0.2, 0.1])],
        "genres": [genres[i] for i in rng.integers(6, size=n)],
        "vip": (rng.random(n) < 0.3).tolist(),
        "one": [1] * n,
        "price": rng.lognormal(size=n).tolist(),
    }


def as_rows(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def test_every_kind_of_table_is_encoded_alike(tmp_path: Path) -> None:
    import duckdb
    import pandas as pd
    import polars
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = raw()
    frame = pd.DataFrame(columns)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";", decimal=",")
    frame.assign(city="Mülheim").to_csv(tmp_path / "c.tsv.gz", sep="\t", encoding="cp1252")
    frame.to_csv(tmp_path / "d.csv", index=False, encoding="utf-16")
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    sources = [
        frame.astype({"device": "category"}),
        polars.DataFrame(columns),
        polars.LazyFrame(columns),
        pa.table(columns),
        duckdb.sql("SELECT * FROM frame"),
        as_rows(columns),
        *sorted(tmp_path.iterdir()),
    ]
    encoder = dp.Encoder.fit(frame, [*columns, "age*device"])
    features = encoder.encode(frame)
    for source in sources:
        ours = dp.Encoder.fit(source, [*columns, "age*device"])
        assert ours.names == encoder.names
        np.testing.assert_allclose(ours.encode(source), features, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(encoder.encode(source), features, rtol=1e-9, atol=1e-9)
    again = dp.Encoder.from_bytes(encoder.to_bytes())
    assert again == encoder
    for row, expected in zip(as_rows(columns)[:20], features, strict=False):
        np.testing.assert_array_equal(again.encode(row), expected)
    assert np.linalg.matrix_rank(features) == encoder.dim


def test_features_have_names_and_meanings() -> None:
    columns = raw()
    encoder = dp.Encoder.fit(as_rows(columns))
    assert encoder.names[:6] == (
        *("intercept", "age", "age is missing"),
        *("device=ios", "device=android", "device is missing"),
    )
    assert encoder.left_out == ("id", "one")
    assert [re.findall("`(.*?)`", text)[0] for text in encoder.warnings] == ["id", "one"]
    features = dict(zip(encoder.names, encoder.encode(as_rows(columns)).T, strict=True))
    known = np.array([age is not None for age in columns["age"]])
    ages = np.array([age for age in columns["age"] if age is not None])
    np.testing.assert_allclose(features["age"][known], (ages - ages.mean()) / ages.std())
    np.testing.assert_array_equal(features["age"][~known], 0)
    np.testing.assert_array_equal(features["age is missing"], ~known)
    np.testing.assert_array_equal(features["device=ios"] == 1, np.array(columns["device"]) == "ios")
    action = np.array(["Action" in cell for cell in columns["genres"]])
    np.testing.assert_array_equal(features["genres=Action"] == 1, action)
    np.testing.assert_array_equal(features["vip"], columns["vip"])
    row = as_rows(columns)[0] | {"device": "fridge", "genres": ["Drama", "Western"], "age": 1e300}
    encoded = dict(zip(encoder.names, encoder.encode(row), strict=True))
    shares = [np.mean([d == x for d in columns["device"] if d]) for x in ("android", "ios")]
    assert (encoded["device=android"], encoded["device=ios"]) == pytest.approx(tuple(shares))
    assert encoded["genres=Drama"] == 1 and encoded["genres=Action"] == 0
    assert encoded["age"] == pytest.approx(max(abs(features["age"])), rel=50)


def test_rare_levels_are_others_and_extreme_numbers_are_clipped() -> None:
    rows = [{"city": "ABCDE"[i % 2] if i % 8 else f"town {i % 5}", "pay": i % 7} for i in range(80)]
    rows[3]["pay"] = 10**9
    encoder = dp.Encoder.fit(rows, min_count=5)
    assert encoder.names == ("intercept", "city=other", "city=A", "pay")
    unseen = encoder.encode([{"city": "Rome", "pay": 1}, {"city": "town 0", "pay": 10**12}])
    assert unseen[0, 1] == unseen[1, 1] == 1 and 5 < unseen[1, 3] < 100
    assert "`pay`: 1 of 80 numbers are clipped" in encoder.warnings[0]


def test_numbers_without_missing_cells_are_used_as_they_are() -> None:
    rng = np.random.default_rng(0)
    rows = [{"x": x, "y": bool(x > 0), "n": n} for n, x in enumerate(rng.standard_normal(50))]
    encoder = dp.Encoder.fit(rows, ["x", "y", "n"], intercept=False)
    assert encoder.names == ("x", "y", "n") and encoder.plain
    np.testing.assert_array_equal(encoder.encode(rows), [[r["x"], r["y"], r["n"]] for r in rows])
    assert dp.Encoder.fit(rows).left_out == ("n",)
    asked = dp.Encoder.fit(rows, ["x", "y"])
    assert asked.names == ("intercept", "x", "y") and asked.plain
    with_ones = [row | {"one": 1.0} for row in rows]
    assert dp.Encoder.fit(with_ones, ["one", "x"]).names == ("one", "x")
    np.testing.assert_allclose(asked.encode(rows)[:, 1], [row["x"] for row in rows])
    standard = dp.Encoder.fit(rows, "x", intercept=False, standardize=True).encode(rows)
    np.testing.assert_allclose([standard.mean(), standard.std()], [0, 1], atol=1e-12)


def test_wrong_columns_and_cells_are_named() -> None:
    def rejected(call: Any, *words: str) -> None:
        with pytest.raises(ValueError, match=".*".join(words)):
            call()

    rows = [{"age": i % 30 + 0.5, "device": "ab"[i % 2], "new": bool(i % 3)} for i in range(60)]
    encoder, good = dp.Encoder.fit(rows), rows[0]
    for change, words in (
        ({"age": "31"}, ("`age`: expected a number, got str '31'", "row 0")),
        ({"age": float("inf")}, ("`age`: expected finite numbers",)),
        ({"age": None}, ("`age`: expected a number in every row, got 1 missing",)),
        ({"new": "maybe"}, ("`new`: expected true or false, got str 'maybe'",)),
        ({"new": 2}, ("`new`: expected true or false",)),
        ({"device": ["a"]}, ("`device`: expected a category", "got list")),
        ({"devise": "a"}, ("`devise`: expected one of the columns 'age', 'device', 'new'",)),
    ):
        rejected(lambda change=change: encoder.encode(good | change), *words)
    rejected(lambda: encoder.encode({"age": 3}), "`device`: expected a category", "no such column")
    rejected(lambda: encoder.encode(np.eye(3)), "`rows`: expected a file or a table")
    for name, cells, words in (
        ("day", [datetime.date(2026, 1, 1)] * 60, "got dates such as 2026-01-01; leave it out"),
        ("day", ["2026-01-01T12:00"] * 60, "got dates"),
        ("text", [f"this is comment number {i}" for i in range(60)], "got free text such as"),
        ("mixed", [1, "a"] * 30, "of one type in all rows, got int 1 and str 'a'"),
        ("pay", [*(f"{i}.5" for i in range(59)), "N/A"], "got text such as 'N/A' among them"),
        ("half", [{"a": 1}] * 60, "expected numbers, booleans, text or lists"),
        (
            "city",
            [f"city {i % 70}" for i in range(60)] * 3,
            "at most 64 features .* of this column",
        ),
    ):
        table = [dict(row) for row in rows * (len(cells) // 60)]
        for row, cell in zip(table, cells, strict=True):
            row[name] = cell
        options = {"min_count": 1, "max_features": 40} if name == "city" else {}
        words = words.replace("64", "40")
        rejected(lambda t=table, o=options: dp.Encoder.fit(t, **o), f"`{name}`: .*{words}")


CELLS = (
    *(None, float("nan"), "", " ", 0, 1, -3, 2.5, 1e300, -1e-300, 10**400, float("inf"), True),
    *(False, "a", "b", "other", "Action|Comedy", "|", "true", "12", "2026-01-01", "é", "a=b"),
    *(
        ["x", "y"],
        [],
        [1],
        {"k": 1},
        b"z",
        datetime.date(2026, 1, 1),
        np.float32(3),
        np.bool_(True),
    ),
)
GROUPS = ((4, 5, 6, 7), (7, 8, 9, 4), (12, 13), (14, 15, 16), (17, 14, 15), (14, 18, 22), (24, 25))


def fuzzed(rng: np.random.Generator, names: list[str], n: int) -> list[dict[str, Any]]:
    """Rows whose columns mostly have cells of one type."""
    columns = []
    for _ in names:
        group = [*GROUPS[rng.integers(len(GROUPS))], *[0] * int(rng.integers(2))]
        if rng.random() < 0.15:
            group.append(int(rng.integers(len(CELLS))))
        columns.append([CELLS[i] for i in rng.choice(group, n)])
    return [dict(zip(names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def test_fuzzed_tables_and_rows_give_finite_numbers_or_name_the_column() -> None:
    rng, encoders, rejected = np.random.default_rng(0), 0, 0
    for round_ in range(2000):
        names = [f"c{i}" for i in range(rng.integers(1, 5))]
        rows = fuzzed(rng, names, int(rng.integers(1, 30)))
        options = {"min_count": int(rng.integers(1, 8))}
        chosen = [*names, f"{names[0]}*{names[-1]}"] if rng.random() < 0.2 else None
        try:
            encoder = dp.Encoder.fit(rows, chosen, **options)
        except ValueError as error:
            named = re.search(r"`c\d(\*c\d)?`", str(error))
            assert named or not rows, f"{round_}: {error}"
            rejected += 1
            continue
        encoders += 1
        assert np.all(np.isfinite(encoder.encode(rows))) and encoder.dim == len(encoder.names)
        new = fuzzed(rng, names, 1)[0]
        new |= {str(rng.choice([*names, "c9"])): CELLS[rng.integers(len(CELLS))]}
        try:
            assert np.all(np.isfinite(encoder.encode(new)))
        except ValueError as error:
            assert re.search(r"`c\d`: expected .*, got .*; ", str(error)), error
        if round_ % 10 == 0:
            assert dp.Encoder.from_bytes(encoder.to_bytes()) == encoder
    assert encoders > 400 and rejected > 100


def test_logs_keep_their_encoders() -> None:
    columns = raw()
    rows = as_rows(columns)
    for i, row in enumerate(rows):
        row |= {"task": i % 30, "reward": float(i % 5), "kind": "xyz"[i % 3], "size": i % 30 % 7}
    logs = dp.Logs.read(
        rows,
        task="task",
        reward="reward",
        attributes=["kind", "size"],
        features=["age", "device", "genres", "vip"],
    )
    assert logs.encoder is not None and logs.attribute_encoder is not None
    assert logs.feature_names == logs.encoder.names and logs.feature_names[0] == "intercept"
    order = np.argsort([i % 30 for i in range(N)], kind="stable")
    np.testing.assert_array_equal(logs.features, logs.encoder.encode(rows)[order])
    assert logs.attributes is not None and logs.attributes.shape == (
        30,
        4,
    )  # no intercept: every kind
    some = logs.select(np.array([4, 2]))
    assert some.encoder is logs.encoder and some.attributes is not None
    np.testing.assert_array_equal(some.attributes, logs.attribute_encoder.encode(_only(rows, 4, 2)))
    with pytest.raises(ValueError, match="`age`: expected one value per task"):
        dp.Logs.read(rows, task="task", reward="reward", features="vip", attributes=["age"])


def _only(rows: list[dict[str, Any]], *places: int) -> list[dict[str, Any]]:
    return [{name: rows[i][name] for name in ("kind", "size")} for i in places]
