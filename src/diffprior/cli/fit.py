"""`diffprior fit`: a prior from the parameters of past tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Seed, check_output, check_picture
from .terminal import friendly_errors, say

if TYPE_CHECKING:
    from ..priors.diffusion import DiffusionPrior
    from .tables import Table

NUM_SHOWN = 5000  # points of a picture


def fit(
    samples: Annotated[
        Path, typer.Argument(help="Past tasks' parameters, a row each: .csv .tsv .npy .parquet")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write the prior to.")],
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Columns that are parameters: names or patterns; repeat, or use commas."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="default, or paper: T = 100, alpha = 0.97.")
    ] = "default",
    seed: Seed = 0,
    plot: Annotated[
        Path | None, typer.Option(help="Picture of past tasks against draws of the prior.")
    ] = None,
) -> None:
    """Learn a prior from the parameters of past tasks."""
    with friendly_errors():
        check_output("output", output, samples)
        if plot is not None:
            check_picture("plot", plot, samples, output)
        from .tables import read_table

        table = read_table(samples, tuple(columns or ()))
        for note in table.notes:
            say(f"note: {note}")
        prior = _learn(table, preset, seed)
        prior.save(output)
        say(str(prior.report))
        say(f"wrote {output}")
        if plot is not None:
            _draw(prior, table, plot, seed)
            say(f"wrote {plot}")


def _learn(table: "Table", preset: str, seed: int) -> "DiffusionPrior":
    import dataclasses
    import warnings

    from ..fitting.report import FitWarning
    from ..priors.diffusion import DiffusionPrior, Metadata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the report repeats them
        prior = DiffusionPrior.fit(table.values, preset=preset, seed=seed)
    names = () if table.names[0] == "1" else table.names
    return dataclasses.replace(prior, metadata=Metadata(prior.report, names))


def _draw(prior: "DiffusionPrior", table: "Table", path: Path, seed: int) -> None:
    import jax
    import numpy as np

    from ..reporting.figures import save_prior_figure

    shown = table.values[:NUM_SHOWN]
    draws = np.asarray(prior.sample(jax.random.key(seed), len(shown)))
    save_prior_figure(path, shown, draws, table.names)
