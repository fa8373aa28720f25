"""`python -m experiments EXPERIMENT`: run an experiment of the paper."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffprior.cli.options import (
    Json,
    Ray,
    Seed,
    check_cluster,
    check_output,
    executor_of,
    friendly_errors,
    say,
    say_table,
)

if TYPE_CHECKING:
    from diffprior.executors import AbstractExecutor
    from diffprior.files.cache import ResultCache
    from diffprior.reporting.tables import Table

app = typer.Typer(no_args_is_help=True, help="Run the paper's experiments again.")

Out = Annotated[Path, typer.Option(help="Folder for figures, report and kept results.")]
Quick = Annotated[bool, typer.Option("--quick", help="A small version of everything.")]
Runs = Annotated[int | None, typer.Option(min=1, help="Runs of each agent; 512 unless quick.")]
Fresh = Annotated[bool, typer.Option("--fresh", help="Compute kept results again.")]
Folder = Annotated[
    Path | None, typer.Option("--data", help="Folder of the data; DIFFPRIOR_DATA unless given.")
]
Download = Annotated[bool, typer.Option("--download", help="Fetch data that are not there.")]
Problems = Annotated[list[str] | None, typer.Option("--problem", help="One; repeat for more.")]
Agents = Annotated[
    list[str] | None, typer.Option("--agent", help="Such as TS or EvidenceDPS; repeat for more.")
]


@app.command()
def synthetic(
    out: Out = Path("results/synthetic"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    problem: Problems = None,
    agent: Agents = None,
    logistic: Annotated[bool, typer.Option("--logistic", help="Rewards of 0 and 1.")] = False,
    fresh: Fresh = False,
    seed: Seed = 0,
    ray: Ray = None,
) -> None:
    """Regret on the six synthetic problems (Section 6.2 and Appendix C.1)."""

    def run(cache: "ResultCache", executor: "AbstractExecutor | None") -> tuple[Any, list["Table"]]:
        from diffprior.problems.synthetic import SYNTHETIC

        from .agents import NAMES
        from .experiment import Effort
        from .synthetic import run_synthetic

        result = run_synthetic(
            out,
            cache,
            names=tuple(problem or SYNTHETIC),
            agents=tuple(agent or NAMES),
            effort=Effort.of(runs, quick),
            logistic=logistic,
            seed=seed,
            executor=executor,
        )
        return result, result.summary

    conduct(run, out, json_file, fresh, ray)


@app.command()
def ablation(
    out: Out = Path("results/ablation"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    fresh: Fresh = False,
    seed: Seed = 0,
    ray: Ray = None,
) -> None:
    """Regret by training samples and by stages, and the time of stages (Appendix C.3)."""

    def run(cache: "ResultCache", executor: "AbstractExecutor | None") -> tuple[Any, list["Table"]]:
        from .ablation import run_ablation
        from .experiment import Effort

        effort = Effort.of(runs, quick)
        result = run_ablation(out, cache, effort=effort, quick=quick, seed=seed, executor=executor)
        return result, result.summary

    conduct(run, out, json_file, fresh, ray)


@app.command()
def posterior(
    out: Out = Path("results/posterior"),
    json_file: Json = None,
    quick: Quick = False,
    problem: Problems = None,
    fresh: Fresh = False,
    seed: Seed = 0,
    ray: Ray = None,
) -> None:
    """Distance of every sampler from the exact posterior (Appendix C.4)."""

    def run(cache: "ResultCache", executor: "AbstractExecutor | None") -> tuple[Any, list["Table"]]:
        from .posterior import NAMES, run_posterior

        names = tuple(problem or NAMES)
        result = run_posterior(out, cache, names=names, quick=quick, seed=seed, executor=executor)
        return result, result.summary

    conduct(run, out, json_file, fresh, ray)


@app.command()
def movielens(
    data: Folder = None,
    out: Out = Path("results/movielens"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    noise: Annotated[
        str, typer.Option(help="Of linear rewards, or `estimated` from the ratings.")
    ] = "0.75",
    download: Download = False,
    fresh: Fresh = False,
    seed: Seed = 0,
    ray: Ray = None,
) -> None:
    """Regret on MovieLens 1M, and what a diffusion prior is worth there (Section 6.3)."""

    def run(cache: "ResultCache", executor: "AbstractExecutor | None") -> tuple[Any, list["Table"]]:
        from .movielens import movielens_data

        loaded = movielens_data(
            cache, data, noise_std=noise_of(noise), seed=seed, download=download
        )
        return data_result(out, cache, loaded, runs, quick, seed, executor)

    conduct(run, out, json_file, fresh, ray)


@app.command()
def mnist(
    data: Folder = None,
    out: Out = Path("results/mnist"),
    json_file: Json = None,
    quick: Quick = False,
    runs: Runs = None,
    download: Download = False,
    fresh: Fresh = False,
    seed: Seed = 0,
    ray: Ray = None,
) -> None:
    """Regret on MNIST, and what a diffusion prior is worth there (Appendix C.2)."""

    def run(cache: "ResultCache", executor: "AbstractExecutor | None") -> tuple[Any, list["Table"]]:
        from .mnist import mnist_data

        loaded = mnist_data(cache, data, seed=seed, download=download)
        return data_result(out, cache, loaded, runs, quick, seed, executor)

    conduct(run, out, json_file, fresh, ray)


def data_result(
    out: Path,
    cache: "ResultCache",
    data: Any,
    runs: int | None,
    quick: bool,
    seed: int,
    executor: "AbstractExecutor | None",
) -> tuple[Any, list["Table"]]:
    """The experiment on loaded data, and what to say of it."""
    from .data import Measures, data_effort, run_data, summary

    effort, measures = data_effort(runs, quick), Measures.of(quick)
    result = run_data(
        out, cache, data, effort=effort, measures=measures, seed=seed, executor=executor
    )
    return result, summary(result)


def noise_of(text: str) -> float | None:
    """A standard deviation, or None where it is to be estimated."""
    from diffprior.checks import positive

    if text == "estimated":
        return None
    try:
        number = float(text)
    except ValueError:
        raise ValueError(
            f"`noise`: expected a number or estimated, got {text!r}; pass one of those"
        ) from None
    return float(positive("noise", number, "pass a standard deviation"))


def conduct(
    run: Callable[["ResultCache", "AbstractExecutor | None"], tuple[Any, list["Table"]]],
    out: Path,
    json_file: Path | None,
    fresh: bool,
    ray: str | None,
) -> None:
    """Check what an experiment needs, run it, and say where its results are."""
    with friendly_errors():
        from diffprior.checks import require

        require("experiments", "matplotlib", "ot")
        check_cluster(ray)
        if json_file is not None:
            check_output("json", json_file)
        out.mkdir(parents=True, exist_ok=True)
        from diffprior.files.atomic import write_atomic
        from diffprior.files.cache import ResultCache

        from .report import REPORT

        with executor_of(ray) as executor:
            result, tables = run(ResultCache(out / "kept", fresh=fresh), executor)
        if json_file is not None:
            numbers = json.dumps(dataclasses.asdict(result), indent=1)
            write_atomic(json_file, numbers)
            say(f"wrote {json_file}")
        for table in tables:
            say_table(table)
        say(f"the report is {out / REPORT}")


if __name__ == "__main__":
    app()
