"""Logs: grouping, checks, tables of every kind, splits by task."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from diffprior.logs.formats import read_dsjson, read_estimates, read_open_bandit
from diffprior.logs.labels import folds, held_out, label_hashes
from diffprior.logs.statistics import packed, unpacked

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


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "polars", "arrow", "sampled"])
def test_every_kind_of_table_gives_the_same_logs(kind: str, tmp_path: Path) -> None:
    import polars
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = table()
    frame, arrow = pd.DataFrame(data), pa.table(data)
    frame.to_csv(tmp_path / "logs.csv", index=False)
    pq.write_table(arrow, tmp_path / "logs.parquet")
    source: Any = {
        "csv": tmp_path / "logs.csv",
        "parquet": str(tmp_path / "logs.parquet"),
        "pandas": frame,
        "polars": polars.DataFrame(data),
        "arrow": arrow,
        "sampled": tmp_path / "logs.parquet",
    }[kind]
    options: dict[str, Any] = {"max_rows": 1000} if kind == "sampled" else {}
    logs = dp.Logs.read(source, task="campaign", reward="click", features="x*", **options)
    expected = dp.Logs(data["campaign"], np.column_stack([data["x1"], data["x2"]]), data["click"])
    assert logs.feature_names == ("x1", "x2")
    assert list(logs.labels) == list(expected.labels)
    np.testing.assert_allclose(logs.features, expected.features, rtol=1e-12)
    np.testing.assert_array_equal(logs.hashes, expected.hashes)


def read(frame: Any, **changes: Any) -> dp.Logs:
    return dp.Logs.read(
        frame, **({"task": "campaign", "reward": "click", "features": "x*"} | changes)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "user"}, "`task`: expected a column of the table, got 'user'; it has 'campaign'"),
        ({"features": "z*"}, "`features`: expected columns of the table, got 'z*'"),
        ({"reward": "campaign"}, "`reward`: expected numbers in column 'campaign'"),
    ],
)
def test_wrong_columns_are_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("*", r"\*")):
        read(pd.DataFrame(table()), **change)


def test_missing_values_are_refused_with_their_rows() -> None:
    data = table()
    data["x2"][[4, 17]] = np.nan
    with pytest.raises(ValueError, match=r"column 'x2', got 2 \(rows 4, 17\)"):
        read(pd.DataFrame(data))
    labels = pd.DataFrame(table())
    labels.loc[3, "campaign"] = None
    with pytest.raises(ValueError, match=r"`task`.*got 1 \(row 3\)"):
        read(labels)


def test_features_that_cannot_be_told_apart_are_refused() -> None:
    data = pd.DataFrame(table())
    with pytest.raises(ValueError, match="got constant x3"):
        read(data.assign(x3=2.0))
    with pytest.raises(ValueError, match="collinear x1, x2, x3"):
        read(data.assign(x3=data.x1 - 2 * data.x2))
    with pytest.raises(ValueError, match="collinear intercept, x3"):
        read(data.assign(x3=1.0), intercept=True)
    assert read(data, intercept=True).feature_names == ("intercept", "x1", "x2")
    assert read(data.assign(x0=1.0)).dim == 3  # one's own intercept


def test_a_task_for_every_row_is_refused() -> None:
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
    np.testing.assert_array_equal(packed(unpacked(statistics.xx)), statistics.xx)


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
    first = logs.rows(np.arange(logs.num_rows) == logs.starts[logs.row_tasks])
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


def test_open_bandit_tables_are_read() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "timestamp": pd.date_range("2019-11-24", periods=200, freq="min").astype(str),
            "item_id": rng.integers(5, size=200),
            "position": 1,
            "click": rng.integers(2, size=200),
            "propensity_score": 0.1,
            "user_feature_0": rng.choice(["a", "b", "c"], 200, p=[0.5, 0.3, 0.2]),
        }
    )
    logs = read_open_bandit(frame)
    assert logs.feature_names == ("intercept", "user_feature_0=b", "user_feature_0=c")
    assert logs.num_tasks == 5 and logs.times is not None


def test_decision_service_lines_are_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for i in range(40):
        actions = [{"i": {"size": float(rng.normal()), "kind": k}} for k in ("red", "blue")]
        lines.append(
            {
                "_label_cost": -float(i % 3),
                "_label_Action": 1 + i % 2,
                "_labelIndex": i % 2,
                "a": [1 + i % 2, 2 - i % 2],
                "c": {"User": {"id": f"u{i % 4}"}, "_multi": actions},
                "_skipLearn": i == 5,
            }
        )
    path = tmp_path / "events.json"
    path.write_text("\n".join(map(json.dumps, lines)))
    logs = read_dsjson(path, task="User.id")
    assert logs.feature_names == ("intercept", "i.kind=blue", "i.size")
    assert logs.num_rows == 39 and logs.rewards.max() == 2.0


def test_estimates_with_standard_errors_are_linear_evidence() -> None:
    frame = pd.DataFrame({"b1": [1.0, 2.0], "b2": [0.5, None], "s1": [0.5, 1.0], "s2": [2.0, None]})
    statistics = read_estimates(frame, estimates="b*", standard_errors="s*")
    np.testing.assert_allclose(unpacked(statistics.xx), [np.diag([4.0, 0.25]), np.diag([1.0, 0.0])])
    np.testing.assert_allclose(statistics.xy, [[4.0, 0.125], [2.0, 0.0]])
    assert statistics.noise_std == 1.0 and list(statistics.counts) == [2.0, 1.0]
