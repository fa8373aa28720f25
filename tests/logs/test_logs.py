"""Logs: grouping, checks, tables of every kind, splits by task."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from diffprior.logs.decisions import LoggedDecision, LoggedDecisions, write_parquet
from diffprior.logs.statistics import folds, held_out, label_hashes, unpacked
from diffprior.tables import read_table

pd = pytest.importorskip("pandas")


def table(n: int = 60, num_tasks: int = 7, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "campaign": np.array([f"c{i}" for i in rng.integers(num_tasks, size=n)]),
        "x1": rng.standard_normal(n),
        "x2": rng.standard_normal(n),
        "click": rng.integers(2, size=n).astype(float),
        "when": np.arange(n)[::-1].astype(float),
    }


def rows_of(logs: dp.Logs, label: str) -> np.ndarray:
    i = list(logs.labels).index(label)
    part = slice(logs.starts[i], logs.starts[i + 1])
    return np.column_stack([logs.features[part], logs.rewards[part]])


def test_rows_are_grouped_by_task_in_their_order() -> None:
    data = table()
    features = np.column_stack([data["x1"], data["x2"]])
    logs = dp.Logs(data["campaign"], features, data["click"])
    assert (logs.num_tasks, logs.num_rows, logs.dim) == (7, 60, 2)
    for label in set(data["campaign"]):
        own = data["campaign"] == label
        expected = np.column_stack([features[own], data["click"][own]])
        np.testing.assert_array_equal(rows_of(logs, label), expected)
    timed = dp.Logs(data["campaign"], features, data["click"], times=data["when"])
    np.testing.assert_array_equal(rows_of(timed, "c3"), rows_of(logs, "c3")[::-1])


def test_every_kind_of_table_gives_the_same_logs(tmp_path: Path) -> None:
    import polars
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = table()
    frame, arrow = pd.DataFrame(data), pa.table(data)
    frame.to_csv(tmp_path / "logs.csv", index=False)
    pq.write_table(arrow, tmp_path / "logs.parquet")
    frame.to_csv(tmp_path / "logs.tsv.gz", index=False, sep="\t")
    expected = dp.Logs(
        data["campaign"], np.column_stack([data["x1"], data["x2"]]), data["click"], intercept=True
    )
    sources: list[tuple[Any, dict[str, Any]]] = [
        (tmp_path / "logs.csv", {}),
        (tmp_path / "logs.tsv.gz", {}),
        (str(tmp_path / "logs.parquet"), {}),
        (tmp_path / "logs.parquet", {"max_rows": 1000}),
        (frame, {}),
        (polars.DataFrame(data), {}),
        (polars.LazyFrame(data), {}),
        (arrow, {}),
    ]
    for source, options in sources:
        logs = dp.Logs.read(source, task="campaign", reward="click", features="x*", **options)
        assert logs.feature_names == ("intercept", "x1", "x2")
        assert list(logs.labels) == list(expected.labels)
        np.testing.assert_allclose(logs.features, expected.features, rtol=1e-12)
        np.testing.assert_array_equal(logs.hashes, expected.hashes)


def test_files_that_are_not_tables_are_rejected(tmp_path: Path) -> None:
    for name, content, words in (
        ("a.csv", "", "expected a table, got .*Empty CSV"),
        ("a.csv", "x,y\n1,2\n3\n", "Expected 2 columns, got 1"),
        ("a.txt", "1,2\n", "expected .csv or .tsv .also .gz., or .parquet, got a.txt"),
        ("a.parquet", "x", "expected a table, got"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=f"`source`: .*{words}"):
            read_table(tmp_path / name)
    with pytest.raises(ValueError, match="`source`: expected a file, found none at"):
        read_table(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="`source`: expected a file or a table, got int"):
        read_table(7)


def read(frame: Any, **changes: Any) -> dp.Logs:
    return dp.Logs.read(
        frame, **({"task": "campaign", "reward": "click", "features": "x*"} | changes)
    )


def test_wrong_columns_are_rejected_by_name() -> None:
    for change, words in (
        ({"task": "user"}, "`task`: expected a column of the table, got 'user'; it has 'campaign'"),
        ({"features": "z*"}, r"`features`: expected columns of the table, got 'z\*'"),
        ({"reward": "campaign"}, "`reward`: expected another column than that of tasks"),
    ):
        with pytest.raises(ValueError, match=words):
            read(pd.DataFrame(table()), **change)


def test_missing_features_are_encoded_and_other_cells_rejected_by_row() -> None:
    data = table()
    data["x2"][[4, 17]] = np.nan
    encoded = read(pd.DataFrame(data))
    assert encoded.feature_names == ("intercept", "x1", "x2") and np.all(
        encoded.features[:, 0] == 1
    )
    data["click"][[4, 17]] = np.nan
    with pytest.raises(ValueError, match=r"column 'click', got 2 \(rows 4, 17\)"):
        read(pd.DataFrame(data))
    labels = pd.DataFrame(table())
    labels.loc[3, "campaign"] = None
    with pytest.raises(ValueError, match=r"`task`.*got 1 \(row 3\)"):
        read(labels)


def test_features_that_cannot_be_told_apart_are_rejected() -> None:
    data = pd.DataFrame(table())
    with pytest.raises(ValueError, match="got constant x3"):
        read(data.assign(x3=2.0))
    with pytest.raises(ValueError, match="collinear x1, x2, x3"):
        read(data.assign(x3=data.x1 - 2 * data.x2))
    with pytest.raises(ValueError, match="collinear intercept, x3"):
        read(data.assign(x3=1.0), intercept=True)
    assert read(data, intercept=True).feature_names == ("intercept", "x1", "x2")
    assert read(data.assign(x0=1.0)).dim == 3  # one's own intercept


def test_first_rows_and_selections_keep_tasks_in_order() -> None:
    labels, features = np.array(["b", "a", "b", "c", "a", "b"]), np.arange(12.0).reshape(6, 2)
    thetas = np.array([[1.0], [2.0], [3.0]])
    logs = dp.Logs(labels, features, np.arange(6.0), parameters=thetas)
    assert logs.labels.tolist() == ["b", "a", "c"] and logs.counts.tolist() == [3, 2, 1]
    assert logs.rewards.tolist() == [0, 2, 5, 1, 4, 3]
    assert logs.features[:, 0].tolist() == [0, 4, 10, 2, 8, 6]
    assert logs.first_rows(2).rewards.tolist() == [0, 2, 1, 4, 3]
    assert logs.first_rows(0).num_rows == 0 and logs.first_rows(0).num_tasks == 3
    some = logs.select(np.array([2, 0]))
    assert some.labels.tolist() == ["c", "b"] and some.rewards.tolist() == [3, 0, 2, 5]
    assert some.parameters is not None and some.parameters[:, 0].tolist() == [3, 1]
    with pytest.raises(ValueError, match="`parameters`.*one row per task"):
        dp.Logs(labels, features, np.arange(6.0), parameters=np.zeros((2, 2)))


def test_a_task_for_every_row_is_rejected() -> None:
    data = table()
    with pytest.raises(ValueError, match="60 tasks in 60 rows; choose the column"):
        dp.Logs(np.arange(60), np.column_stack([data["x1"], data["x2"]]), data["click"])


def test_statistics_are_sums_over_the_rows_of_each_task() -> None:
    data = table()
    weights = np.random.default_rng(1).integers(0, 4, 60).astype(float)
    features = np.column_stack([data["x1"], data["x2"]])
    logs = dp.Logs(data["campaign"], features, data["x1"] + 1, weights=weights)
    statistics = logs.statistics()
    for i, label in enumerate(statistics.labels):
        own = data["campaign"] == label
        x, y, w = features[own], data["x1"][own] + 1, weights[own]
        np.testing.assert_allclose(unpacked(statistics.xx[i : i + 1])[0], (x.T * w) @ x)
        np.testing.assert_allclose(statistics.xy[i], (x.T * w) @ y)
        np.testing.assert_allclose(statistics.yy[i], w @ y**2)
        assert statistics.counts[i] == w.sum()


def test_parts_keep_whole_tasks_and_labels_decide_the_split() -> None:
    data = table(400, 40)
    logs = dp.Logs(data["campaign"], np.column_stack([data["x1"], data["x2"]]), data["click"])
    out = held_out(logs.hashes, 0.3)
    inside, outside = logs.select(~out), logs.select(out)
    assert not set(inside.labels) & set(outside.labels)
    assert inside.num_rows + outside.num_rows == logs.num_rows
    label = outside.labels[0]
    np.testing.assert_array_equal(rows_of(outside, label), rows_of(logs, label))
    shuffled = np.random.default_rng(0).permutation(logs.num_tasks)
    np.testing.assert_array_equal(held_out(logs.select(shuffled).hashes, 0.3), out[shuffled])
    first = logs.select_rows(np.arange(logs.num_rows) == logs.starts[logs.row_tasks])
    assert first.num_tasks == logs.num_tasks and np.all(first.counts == 1)


def test_shares_of_a_split_are_what_was_asked_and_labels_of_any_type_agree() -> None:
    hashes = label_hashes(np.arange(20_000))
    assert abs(held_out(hashes, 0.1).mean() - 0.1) < 5 * np.sqrt(0.09 / 20_000)
    sizes = np.bincount(folds(hashes, 5))
    assert np.all(np.abs(sizes - 4000) < 5 * np.sqrt(3200))
    both = held_out(hashes, 0.5, salt=1) & held_out(hashes, 0.5, salt=2)
    assert abs(both.mean() - 0.25) < 5 * np.sqrt(0.1875 / 20_000)  # splits are independent
    texts, floats = np.array(["7", "12"]), np.array([7.0, 12.0])
    np.testing.assert_array_equal(label_hashes(texts), label_hashes(floats))


def test_decisions_are_written_in_row_groups_and_read_again(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rng, path = np.random.default_rng(0), tmp_path / "log.parquet"
    decisions = [
        LoggedDecision(
            f"d{i}",
            f"t{i % 2}",
            1,
            rng.standard_normal((3, 2)),
            np.array([True, i % 2 > 0, True]),
            2,
            "c",
            None if i % 5 == 4 else 0.5,
            float(i),
            *("shop", 0.5, i, i + 0.5),
        )
        for i in range(30)
    ]
    with path.open("wb") as file:
        write_parquet(file, 2, decisions, buffer_size=100)
    assert pq.ParquetFile(path).num_row_groups > 2
    again = LoggedDecisions.read(path)
    assert len(again) == 30 and list(again.tasks) == [0] * 15 + [1] * 15
    np.testing.assert_array_equal(again.rewards[:15], np.arange(0, 30, 2))
    np.testing.assert_array_equal(again.num_known[:15], np.arange(15))
    assert np.isnan(again.propensities).sum() == 6
    assert not again.mask[0, 1] and again.mask[15].all()
