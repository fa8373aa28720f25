"""The command line: `diffprior fit`, `sample`, `evaluate`, `reproduce` and `bench`."""

import warnings
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

from .bench.commands import bench
from .priors.diffusion import DiffusionPrior
from .priors.report import FitWarning
from .reproduce import commands
from .reproduce.plots import prior_scatter
from .terminal import console, refusals

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Posterior sampling with a diffusion-model prior learned from your past tasks.",
)
evaluate = typer.Typer(no_args_is_help=True, help="Judge samplers against exact posteriors.")
evaluate.command()(commands.posterior)
app.add_typer(evaluate, name="evaluate")
app.add_typer(commands.app, name="reproduce")
app.command()(bench)

Seed = Annotated[int, typer.Option(help="Seed of everything random.")]


@app.command()
def fit(
    samples: Annotated[Path, typer.Argument(help="Past tasks' parameters: .npy .csv .parquet")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write the prior to.")],
    preset: Annotated[
        str, typer.Option(help="default, or paper: T = 100, alpha = 0.97.")
    ] = "default",
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of data against prior samples.")
    ] = None,
) -> None:
    """Learn a prior from the parameters of past tasks."""
    with refusals(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the report repeats them
        data = read_table(samples)
        prior = DiffusionPrior.fit(data, preset=preset, seed=seed)
        prior.save(output)
        console.print(str(prior.report))
        console.print(f"wrote {output}")
        if plot is not None:
            draws = np.asarray(prior.sample(jax.random.key(seed), min(len(data), 5000)))
            prior_scatter(data[:5000], draws, plot)
            console.print(f"wrote {plot}")


@app.command()
def sample(
    prior: Annotated[Path, typer.Argument(help="File that `diffprior fit` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".npy or .csv")],
    num_samples: Annotated[int, typer.Option("--num-samples", "-n", help="How many draws.")] = 1000,
    seed: Seed = 0,
) -> None:
    """Draw parameters from a prior."""
    with refusals():
        draws = np.asarray(DiffusionPrior.load(prior).sample(jax.random.key(seed), num_samples))
        write_table(output, draws)
    console.print(f"wrote {draws.shape[0]} draws of {draws.shape[1]} parameters to {output}")


def read_table(path: Path) -> np.ndarray:
    """Rows of numbers from .npy, .csv (with or without a header) or .parquet."""
    if not path.is_file():
        raise ValueError(f"`samples`: expected a file, found none at {path}; check the name")
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    if path.suffix == ".csv":
        return _read_csv(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    raise ValueError(f"`samples`: expected .npy, .csv or .parquet, got {path.name}; convert it")


def write_table(path: Path, rows: np.ndarray) -> None:
    """Rows of numbers to .npy or .csv."""
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".csv":
        np.savetxt(path, rows, delimiter=",")
    else:
        raise ValueError(f"`output`: expected .npy or .csv, got {path.name}; name it so")


def _read_csv(path: Path) -> np.ndarray:
    with path.open() as file:
        first = file.readline().strip().split(",")
    try:
        [float(cell) for cell in first]
        header = 0
    except ValueError:
        header = 1
    return np.loadtxt(path, delimiter=",", skiprows=header, ndmin=2)


def _read_parquet(path: Path) -> np.ndarray:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "`samples`: .parquet needs pyarrow; `pip install 'diffprior[experiments]'` brings it"
        ) from error
    columns = pyarrow.parquet.read_table(path).to_pydict().values()
    return np.column_stack([np.asarray(column, np.float64) for column in columns])


if __name__ == "__main__":
    app()
