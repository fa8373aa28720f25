"""`diffprior learn`, and `shard` and `statistics`, which prepare large logs for it."""

import functools
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import (
    Attributes,
    Dispersion,
    Features,
    Intercept,
    Json,
    Likelihood,
    Output,
    Ray,
    Reward,
    Seed,
    Task,
    Time,
    Weight,
    check_ending,
    check_output,
    executor_of,
    friendly_errors,
    make_likelihood,
    say,
    split_names,
)


def learn(
    logs: Annotated[
        Path, typer.Argument(help="Rows of past tasks: .csv, .parquet, or a folder of shards.")
    ],
    output: Output,
    task: Task = "task",
    reward: Reward = "reward",
    features: Features = None,
    likelihood: Likelihood = None,
    noise_std: Annotated[
        float | None, typer.Option(help="Noise of linear rewards; estimated by default.")
    ] = None,
    dispersion: Dispersion = None,
    weight: Weight = None,
    time: Time = None,
    attributes: Attributes = None,
    intercept: Intercept = None,
    source: Annotated[
        str, typer.Option("--from", help="rows, or statistics (the result of the SQL).")
    ] = "rows",
    max_rows: Annotated[
        int | None, typer.Option(help="Read whole tasks of a Parquet file up to this many rows.")
    ] = None,
    families: Annotated[
        list[str] | None,
        typer.Option(help="Families to choose from: gaussian, mixture, diffusion; all by default."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Stop after a Gaussian and mixtures: takes seconds.")
    ] = False,
    simulate: Annotated[
        bool | None,
        typer.Option(
            help="Simulate the regret of each family, which takes minutes; by default if a "
            "diffusion model was fitted."
        ),
    ] = None,
    hedge: Annotated[float, typer.Option(help="Weight of a cold start mixed in.")] = 0.02,
    seed: Seed = 0,
    report: Annotated[Path | None, typer.Option(help="Also write the report as .html")] = None,
    json_file: Json = None,
    ray: Ray = None,
    checkpoint_dir: Annotated[
        Path | None,
        typer.Option(help="Folder for finished passes over shards, from which a run resumes."),
    ] = None,
) -> None:
    """Learn a model from the logs of past tasks: a prior, with its likelihood and encoder."""
    with friendly_errors(), executor_of(ray) as executor:
        for option, path in (("output", output), ("report", report), ("json", json_file)):
            check_output(option, path, logs)
        from ..checks import choice, require
        from ..encoders import EncodingWarning
        from ..learning.learn import learn as learn_prior
        from ..learning.likelihoods import likelihood_advice
        from ..logs.logs import Logs
        from ..logs.shards import ShardedLogs, is_sharded
        from ..logs.statistics import TaskStatistics

        if report is not None:
            check_ending("report", report, (".html", ".htm"))
            require("plot", "matplotlib", "jinja2")
        table: Logs | ShardedLogs | TaskStatistics
        sharded = is_sharded(logs) and max_rows is None
        if attributes and (sharded or source == "statistics"):
            raise ValueError(
                "`attributes`: expected none with shards or statistics, which carry none, got "
                f"{', '.join(attributes)}; learn from one file, or from some of its tasks with "
                "--max-rows"
            )
        if choice("from", source, ("rows", "statistics")) == "statistics":
            table = TaskStatistics.read(logs, task=task)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", EncodingWarning)  # the report repeats them
                read: Any = ShardedLogs.read
                if not sharded:
                    read = functools.partial(
                        Logs.read, attributes=split_names(attributes), max_rows=max_rows
                    )
                table = read(
                    logs,
                    task=task,
                    reward=reward,
                    features=split_names(features) or None,
                    weight=weight,
                    time=time,
                    intercept=intercept,
                )
        if likelihood is None and noise_std is None and dispersion is None:
            known = table.shards[0].read() if isinstance(table, ShardedLogs) else table
            likelihood, why = likelihood_advice(known)
            if isinstance(known, Logs):
                raise ValueError(
                    f"`likelihood`: expected a likelihood, got none; {why}, so pass "
                    f"--likelihood {likelihood}, or another that fits"
                )
        by_name = likelihood is not None and noise_std is None and dispersion is None
        options = (likelihood, noise_std, dispersion)
        learned = learn_prior(
            table,
            str(likelihood) if by_name else make_likelihood(*options, estimate_noise=True),
            families=split_names(families) or None,
            seed=seed,
            hedge=hedge,
            quick=quick,
            simulate=simulate,
            executor=executor,
            checkpoint_dir=checkpoint_dir,
        )
        learned.save(output)
        assert learned.report is not None
        say(f"{learned.report}\nwrote {output}")
        if report is not None:
            learned.report.to_html(report, output)
            say(f"wrote {report}")
        if json_file is not None:
            learned.report.to_json(json_file)
            say(f"wrote {json_file}")


def shard(
    logs: Annotated[Path, typer.Argument(help="Rows of past tasks: .parquet, or a folder of them")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the files; new or empty.")
    ],
    task: Task = "task",
    tasks_per_file: Annotated[
        int, typer.Option(min=1, help="Approximate; a file must fit into a worker's memory.")
    ] = 10_000,
) -> None:
    """Distribute logs over files by task, for `diffprior learn --ray`."""
    with friendly_errors():
        from ..logs.shards import ShardedLogs

        ShardedLogs.write(logs, output, task=task, tasks_per_file=tasks_per_file)
        say(f"wrote {len(list(output.glob('*.parquet')))} files in {output}")


def statistics(
    task: Task,
    reward: Reward,
    features: Features = None,
    columns: Annotated[
        Path | None,
        typer.Option(help="A .csv or .parquet file with the column names that patterns match."),
    ] = None,
    table: Annotated[str, typer.Option(help="Name of the table in the warehouse.")] = "logs",
    dialect: Annotated[
        str, typer.Option(help="duckdb, postgres, snowflake, bigquery or spark.")
    ] = "duckdb",
    weight: Weight = None,
    intercept: Annotated[
        bool, typer.Option("--intercept/--no-intercept", help="Add a feature that is always 1.")
    ] = True,
) -> None:
    """Print the SQL whose result `diffprior learn --from statistics` reads."""
    with friendly_errors():
        from ..logs.statistics import statistics_sql
        from ..tables import choose_columns, read_table

        names = split_names(features)
        if not names:
            raise ValueError(
                "`features`: expected columns, got none; pass --features 'x*' or their names"
            )
        if columns is not None:
            reserved = [name for name in (task, reward, weight) if name]
            names = choose_columns(read_table(columns).columns, names, reserved)
        patterns = [name for name in names if set(name) & set("*?[")]
        if patterns:
            raise ValueError(
                f"`features`: expected names, got the pattern {patterns[0]!r}; name the columns, "
                "or pass --columns with a file that has them"
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
