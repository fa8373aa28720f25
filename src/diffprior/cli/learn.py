"""`diffprior learn`: a prior from the logs of past tasks, and whether it pays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, Ray, Seed, check_cluster, check_output, executor_of
from .terminal import friendly_errors, say

if TYPE_CHECKING:
    from ..evidence.base import AbstractLikelihood
    from ..logs.logs import Logs
    from ..logs.shards import ShardedLogs
    from ..logs.statistics import TaskStatistics

Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns of features: names or patterns such as 'x*'; repeat, or use commas."
    ),
]


def learn(
    logs: Annotated[
        Path, typer.Argument(help="Rows of past tasks: .csv .parquet, or a folder of shards.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write the prior to.")],
    task: Annotated[str, typer.Option(help="Column of task labels.")] = "task",
    reward: Annotated[str, typer.Option(help="Column of rewards.")] = "reward",
    features: Features = None,
    likelihood: Annotated[
        str, typer.Option(help="linear, logistic, poisson or negative-binomial.")
    ] = "linear",
    noise_std: Annotated[
        float | None, typer.Option(help="Noise of linear rewards; estimated unless given.")
    ] = None,
    dispersion: Annotated[float | None, typer.Option(help="Of negative-binomial rewards.")] = None,
    weight: Annotated[str | None, typer.Option(help="Column of repetitions of a row.")] = None,
    time: Annotated[str | None, typer.Option(help="Column to sort the rows of a task by.")] = None,
    intercept: Annotated[bool, typer.Option("--intercept", help="A feature that is 1.")] = False,
    source: Annotated[
        str, typer.Option("--from", help="rows, or statistics that SQL has summed up.")
    ] = "rows",
    max_rows: Annotated[
        int | None, typer.Option(help="Of a Parquet file, whole tasks up to so many rows.")
    ] = None,
    up_to: Annotated[
        str, typer.Option(help="Last rung of the ladder: gaussian, mixture or diffusion.")
    ] = "diffusion",
    simulate: Annotated[
        bool, typer.Option(help="Simulate what each family saves in regret; minutes.")
    ] = True,
    hedge: Annotated[float, typer.Option(help="Share of a wide Gaussian mixed in.")] = 0.003,
    seed: Seed = 0,
    report: Annotated[Path | None, typer.Option(help="Page of the report: .html")] = None,
    json_file: Json = None,
    ray: Ray = None,
    keep: Annotated[
        Path | None,
        typer.Option(help="Folder for finished passes over shards; a run goes on from them."),
    ] = None,
) -> None:
    """Learn a prior from the logs of past tasks."""
    with friendly_errors():
        check_cluster(ray)
        for name, path in (("output", output), ("report", report), ("json", json_file)):
            if path is not None:
                check_output(name, path, logs)
        if report is not None:
            from ..extras import require

            require("plot", "matplotlib", "jinja2")
        from ..learning.ladder import learn as learn_prior

        table = _read(logs, source, task, reward, features, weight, time, intercept, max_rows)
        rewards = _likelihood(likelihood, noise_std, dispersion)
        with executor_of(ray) as executor:
            learned = learn_prior(
                table,
                rewards,
                seed=seed,
                hedge=hedge,
                up_to=up_to,
                simulate=simulate,
                executor=executor,
                keep=keep,
            )
        learned.prior.save(output)
        say(str(learned.report))
        say(f"wrote {output}")
        if report is not None:
            learned.report.to_html(report)
            say(f"wrote {report}")
        if json_file is not None:
            learned.report.to_json(json_file)
            say(f"wrote {json_file}")


def _read(
    path: Path,
    source: str,
    task: str,
    reward: str,
    features: list[str] | None,
    weight: str | None,
    time: str | None,
    intercept: bool,
    max_rows: int | None,
) -> "Logs | ShardedLogs | TaskStatistics":
    from ..checks import choice
    from ..extras import require
    from ..logs.logs import Logs
    from ..logs.shards import ShardedLogs, is_sharded
    from ..logs.statistics import TaskStatistics

    require("logs", "narwhals", "pyarrow")
    if choice("from", source, ("rows", "statistics")) == "statistics":
        return TaskStatistics.read(path, task=task)
    if is_sharded(path) and max_rows is None:
        return ShardedLogs.read(
            path,
            task=task,
            reward=reward,
            features=split_names(features),
            weight=weight,
            time=time,
            intercept=intercept,
        )
    return Logs.read(
        path,
        task=task,
        reward=reward,
        features=split_names(features),
        weight=weight,
        time=time,
        intercept=intercept,
        max_rows=max_rows,
    )


def split_names(given: list[str] | None) -> list[str]:
    """Names and patterns from options that are repeated or have commas."""
    names = [name.strip() for part in given or () for name in part.split(",") if name.strip()]
    if not names:
        raise ValueError(
            "`features`: expected columns, got none; pass --features 'x*' or the names of columns"
        )
    return names


def _likelihood(
    name: str, noise_std: float | None, dispersion: float | None
) -> "AbstractLikelihood":
    from ..checks import choice
    from ..evidence.families import LIKELIHOODS

    kind = LIKELIHOODS[choice("likelihood", name, tuple(LIKELIHOODS))]
    if name == "linear":
        return kind(noise_std)
    if name == "negative-binomial":
        if dispersion is None:
            raise ValueError(
                "`dispersion`: expected a number with negative-binomial rewards, got none; "
                "pass --dispersion"
            )
        return kind(dispersion)
    return kind()
