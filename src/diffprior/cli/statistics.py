"""`diffprior statistics`: the SQL that sums up linear rewards in one's own warehouse."""

from pathlib import Path
from typing import Annotated

import typer

from .learn import Features, split_names
from .terminal import friendly_errors


def statistics(
    task: Annotated[str, typer.Option(help="Column of task labels.")],
    reward: Annotated[str, typer.Option(help="Column of rewards.")],
    features: Features = None,
    columns: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file whose column names patterns are matched with."),
    ] = None,
    table: Annotated[str, typer.Option(help="Name of the table in the warehouse.")] = "logs",
    dialect: Annotated[
        str, typer.Option(help="duckdb, postgres, snowflake, bigquery or spark.")
    ] = "duckdb",
    weight: Annotated[str | None, typer.Option(help="Column of repetitions of a row.")] = None,
    intercept: Annotated[bool, typer.Option("--intercept", help="A feature that is 1.")] = False,
) -> None:
    """Print the SQL whose result `diffprior learn --from statistics` takes."""
    with friendly_errors():
        from ..logs.statistics import statistics_sql

        names = split_names(features)
        if columns is not None:
            from ..logs.tables import choose_columns, read_table

            available = list(read_table(columns).columns)
            names = choose_columns(available, names, [n for n in (task, reward, weight) if n])
        wild = [name for name in names if set(name) & set("*?[")]
        if wild:
            raise ValueError(
                f"`features`: expected names, got the pattern {wild[0]!r}; name the columns, or "
                "pass --columns with a file that has them"
            )
        typer.echo(
            statistics_sql(
                names,
                task=task,
                reward=reward,
                table=table,
                dialect=dialect,
                intercept=intercept,
                weight=weight,
            )
        )
