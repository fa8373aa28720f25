"""Statistics: from a warehouse's SQL, from Parquet in batches, from rows in memory: the same."""

from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from diffprior.logs.statistics import DIALECTS, statistics_sql


def write_rows(path: Path, num_rows: int = 500) -> dp.Logs:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    data = {
        "user id": rng.integers(30, size=num_rows),
        "x1": rng.standard_normal(num_rows),
        "x2": rng.standard_normal(num_rows),
        "rating": rng.standard_normal(num_rows),
        "times": rng.integers(1, 4, num_rows),
    }
    pq.write_table(pa.table(data), path)
    return dp.Logs.read(
        path, task="user id", reward="rating", features="x*", weight="times", intercept=True
    )


def same(left: dp.TaskStatistics, right: dp.TaskStatistics) -> None:
    a, b = np.argsort(left.labels), np.argsort(right.labels)
    np.testing.assert_array_equal(left.labels[a], right.labels[b])
    np.testing.assert_array_equal(left.hashes[a], right.hashes[b])
    for name in ("counts", "xx", "xy", "yy"):
        np.testing.assert_allclose(getattr(left, name)[a], getattr(right, name)[b], rtol=1e-12)


def test_batches_of_a_parquet_file_sum_to_the_same_statistics(tmp_path: Path) -> None:
    from diffprior.logs.streams import LogColumns, first_frame, stream_statistics

    path = tmp_path / "rows.parquet"
    logs = write_rows(path)
    columns = LogColumns.fit(first_frame(path), "user id", "rating", "x*", "times", intercept=True)
    same(stream_statistics(path, columns, batch_rows=64), logs.statistics())
    same(
        dp.Logs.read_statistics(
            path, task="user id", reward="rating", features="x*", weight="times", intercept=True
        ),
        logs.statistics(),
    )


def test_a_batch_may_have_thousands_of_new_tasks(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, num_tasks = tmp_path / "rows.parquet", 3000
    rows = {"task": np.arange(num_tasks), "reward": np.ones(num_tasks), "x1": np.ones(num_tasks)}
    pq.write_table(pa.table(rows), path)
    found = dp.Logs.read_statistics(path, task="task", reward="reward", features="x1")
    assert found.num_tasks == num_tasks and np.all(found.counts == 1)


def test_the_statement_makes_the_same_statistics_in_a_warehouse(tmp_path: Path) -> None:
    import duckdb

    path = tmp_path / "rows.parquet"
    logs = write_rows(path)
    sql = statistics_sql(
        ["x1", "x2"],
        task="user id",
        reward="rating",
        weight="times",
        intercept=True,
        table=f"'{path}'",
    )
    table = duckdb.sql(sql).to_arrow_table()
    same(dp.TaskStatistics.read(table), logs.statistics())


@pytest.mark.parametrize("dialect", DIALECTS)
def test_columns_are_quoted_in_every_dialect(dialect: str) -> None:
    sql = statistics_sql(["a b"], task="t", reward="y", dialect=dialect)
    assert ("`a b`" in sql) == (dialect in ("bigquery", "spark"))
    assert sql.endswith(("GROUP BY `t`", 'GROUP BY "t"'))


def test_samples_of_a_file_are_whole_tasks_chosen_by_label(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    whole = write_rows(path)
    names = {"task": "user id", "reward": "rating", "features": "x*"}
    small = dp.Logs.read(path, max_rows=200, **names)
    smaller = dp.Logs.read(path, max_rows=100, **names)
    assert 100 < small.num_rows <= 200 and smaller.num_rows <= 100
    assert set(smaller.labels) < set(small.labels)
    count = dict(zip(whole.labels, whole.counts, strict=True))
    assert [count[label] for label in small.labels] == list(small.counts)
    with pytest.raises(ValueError, match="`max_rows`: expected room for one task"):
        dp.Logs.read(path, max_rows=1, **names)


def test_a_task_twice_in_a_table_of_statistics_is_refused() -> None:
    import pandas as pd

    row = {"task": "a", "n": 2, "yy": 1.0, "xy_1": 0.5, "xx_1_1": 1.0}
    with pytest.raises(ValueError, match="expected each task once, got 2 rows for 1 tasks"):
        dp.TaskStatistics.read(pd.DataFrame([row, row]))
    with pytest.raises(ValueError, match="`source`: expected a column of the table, got 'xy_1'"):
        dp.TaskStatistics.read(pd.DataFrame([{"task": "a"}]))
