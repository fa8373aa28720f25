"""`diffprior fit`: a prior from the parameters of past tasks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Seed, check_output, check_picture
from .terminal import friendly_errors, say

if TYPE_CHECKING:
    from ..priors.diffusion import DiffusionPrior
    from ..priors.report import FitReport
    from ..reporting.tables import Table as PageTable
    from .tables import Table

NUM_LEVELS, LOUDEST = 8, 6.0  # rows of the report, and log signal-to-noise ratios that it shows
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
        if prior.report is not None:
            _say_report(prior.report)
        say(f"wrote {output}")
        if plot is not None:
            _draw(prior, table, plot, seed)
            say(f"wrote {plot}")


def _learn(table: "Table", preset: str, seed: int) -> "DiffusionPrior":
    import warnings

    from ..priors.diffusion import DiffusionPrior
    from ..priors.report import FitWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the report repeats them
        return DiffusionPrior.fit(table.values, preset=preset, seed=seed)


def _say_report(report: "FitReport") -> None:
    """What was learned, in a table that explains itself."""
    from ..reporting.tables import for_terminal

    say(f"{report.num_samples} past tasks, {report.num_held_out} of them held out to judge by")
    say(for_terminal(fit_table(report)))
    for warning in report.warnings:
        say(f"warning: {warning}")


def fit_table(report: "FitReport") -> "PageTable":
    """How well the prior guesses parameters of tasks that were held out, by noise."""
    import numpy as np

    from ..reporting.tables import Table as PageTable

    every = max(1, len(report.stages) // NUM_LEVELS)
    stages = [s for s in report.stages if abs(s.log_snr) < LOUDEST][::every] or report.stages
    rows = [
        (
            f"{np.exp(-s.log_snr / 2):.2g}",
            *(f"{error:.3f}" for error in (s.learned, s.linear, s.noisy, s.constant)),
        )
        for s in stages
    ]
    ours, gaussian = (sum(getattr(s, key) for s in stages) for key in ("learned", "linear"))
    columns = ("noise", "learned prior", "a Gaussian prior", "the reading itself", "the mean")
    caption = (
        "Somebody reads a new task's parameters with noise of this standard deviation; the prior "
        "guesses what they are. Mean squared error per parameter on held-out tasks, both in units "
        "of the parameters' own spread. In all, the learned prior's error is "
        f"{100 * ours / gaussian:.0f} % of a Gaussian's: where that is about 100, a Gaussian prior "
        "says as much."
    )
    return PageTable(columns, rows, caption)


def _draw(prior: "DiffusionPrior", table: "Table", path: Path, seed: int) -> None:
    import jax
    import numpy as np

    from ..reporting.figures import save_prior_figure

    shown = table.values[:NUM_SHOWN]
    draws = np.asarray(prior.sample(jax.random.key(seed), len(shown)))
    save_prior_figure(path, shown, draws, table.names)
