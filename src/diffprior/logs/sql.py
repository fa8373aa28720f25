"""The statement that sums up linear rewards in the user's own warehouse."""

from collections.abc import Sequence

from ..checks import choice
from .statistics import triangle

DIALECTS = {  # quote, and the name of a double
    "duckdb": ('"', "DOUBLE"),
    "postgres": ('"', "DOUBLE PRECISION"),
    "snowflake": ('"', "DOUBLE"),
    "bigquery": ("`", "FLOAT64"),
    "spark": ("`", "DOUBLE"),
}


def statistics_sql(
    features: Sequence[str],
    *,
    task: str,
    reward: str,
    table: str = "logs",
    dialect: str = "duckdb",
    intercept: bool = False,
    weight: str | None = None,
) -> str:
    """SQL whose result `TaskStatistics.read` takes: one row a task, d (d + 3) / 2 + 3 columns.

    Args:
        features: columns of features, in order.
        task: column of task labels.
        reward: column of rewards.
        table: name of the table, as it stands after FROM.
        dialect: duckdb, postgres, snowflake, bigquery or spark.
        intercept: put a feature that is always 1 before the others.
        weight: column of the number of observations that a row stands for.
    """
    quote, double = DIALECTS[choice("dialect", dialect, tuple(DIALECTS))]

    def name(column: str) -> str:
        return f"{quote}{column.replace(quote, 2 * quote)}{quote}"

    def number(column: str) -> str:
        return f"CAST({name(column)} AS {double})"

    x = ["1.0"] * intercept + [number(column) for column in features]
    y, w = number(reward), "" if weight is None else f"{number(weight)} * "
    total = "COUNT(*)" if weight is None else f"SUM({number(weight)})"
    columns = [f"{name(task)} AS {name('task')}", f"{total} AS n", f"SUM({w}{y} * {y}) AS yy"]
    columns += [f"SUM({w}{a} * {y}) AS xy_{i + 1}" for i, a in enumerate(x)]
    columns += [f"SUM({w}{x[i]} * {x[j]}) AS xx_{i + 1}_{j + 1}" for i, j in triangle(len(x))]
    body = ",\n  ".join(columns)
    return f"SELECT\n  {body}\nFROM {table}\nGROUP BY {name(task)}"
