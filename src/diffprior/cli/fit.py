"""`diffprior fit`: a prior from the parameters of past tasks; `diffprior sample`: draws of it."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from .options import (
    Output,
    Seed,
    check_ending,
    check_output,
    friendly_errors,
    load_prior,
    say,
    split_names,
)

if TYPE_CHECKING:
    import numpy as np

    from ..priors.diffusion import DiffusionPrior
    from ..tables import Frame

MIN_IDS = 20  # rows from which a column of different integers looks like an id
PANDAS_INDEX = ("", "Unnamed: 0", "__index_level_0__")


class Parameters(NamedTuple):
    """Parameters of past tasks, a row each."""

    names: tuple[str, ...]
    values: "np.ndarray"  # (n, d)
    notes: tuple[str, ...] = ()  # about how the file was read


def fit(
    samples: Annotated[
        Path, typer.Argument(help="Parameters of past tasks, a row each: .csv .tsv .npy .parquet")
    ],
    output: Output,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Columns of parameters: names or patterns, separated by commas."),
    ] = None,
    preset: Annotated[
        str, typer.Option(help="default, or paper: T = 100, alpha = 0.97.")
    ] = "default",
    seed: Seed = 0,
) -> None:
    """Fit a prior to the parameters of past tasks."""
    with friendly_errors():
        check_output("output", output, samples)
        table = read_parameters(samples, split_names(columns))
        for note in table.notes:
            say(f"note: {note}")
        prior = _fit(table, preset, seed)
        prior.save(output)
        say(f"{prior.report}\nwrote {output}")


def sample(
    prior: Annotated[Path, typer.Argument(help="File written by `diffprior learn` or `fit`.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".npy or .csv")],
    num_samples: Annotated[
        int, typer.Option("--num-samples", "-n", min=1, help="Number of draws.")
    ] = 1000,
    seed: Seed = 0,
) -> None:
    """Draw parameters from a prior."""
    with friendly_errors():
        check_ending("output", output, (".npy", ".csv"))
        check_output("output", output, prior)
        import jax
        import numpy as np

        loaded = load_prior(prior)
        draws = np.asarray(loaded.sample(jax.random.key(seed), num_samples))
        write_parameters(output, draws, getattr(getattr(loaded, "metadata", None), "names", ()))
    say(f"wrote {draws.shape[0]} draws of {draws.shape[1]} parameters to {output}")


def read_parameters(path: Path, columns: Sequence[str] = ()) -> Parameters:
    """Read parameters of past tasks from a .csv or .tsv (also .gz), .npy or .parquet file.

    Columns without names are called 1, 2, ...; unless `columns` are given, those that look like a
    row number or an id are rejected.
    """
    import numpy as np

    from ..tables import choose_columns, numeric_column, read_table, to_numbers

    notes: tuple[str, ...] = ()
    if path.suffix.lower() == ".npy" and path.is_file():
        array = np.load(path, allow_pickle=False)
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiub":
            raise ValueError(
                f"`samples`: expected numbers of shape (n, d), got {array.dtype} of shape "
                f"{array.shape}; save one row for each task"
            )
        array = array.reshape(len(array), -1)
        available = [str(place + 1) for place in range(array.shape[1])]
        names = choose_columns(available, columns or "*", argument="columns")
        values = [to_numbers(array[:, int(name) - 1], name, "samples") for name in names]
    else:
        if path.is_dir():
            raise ValueError(f"`samples`: expected a file, got the folder {path}; name a file")
        frame = read_table(path, "samples")
        if all(map(_is_number, frame.columns)):
            numbered = [[str(i + k) for i in range(len(frame.columns))] for k in (0, 1)]
            if list(frame.columns) in numbered and _is_header(frame):
                shown = ",".join(frame.columns)
                notes = (f"the first row, {shown}, counts the columns and is taken for a header",)
            else:
                frame = read_table(path, "samples", header=False)
        if not len(frame):
            raise ValueError(f"`samples`: expected rows below the header, got none in {path}")
        names = choose_columns(frame.columns, columns or "*", argument="columns")
        values = [numeric_column(frame, name, "samples") for name in names]
    if not columns:
        _reject_ids(names, values)
    return Parameters(tuple(names), np.column_stack(values), notes)


def write_parameters(path: Path, rows: "np.ndarray", names: Sequence[str] = ()) -> None:
    """Write rows of numbers to a .npy or .csv file, completely or not at all."""
    import numpy as np

    from ..files.atomic import write_atomic

    content = io.BytesIO()
    if path.suffix.lower() == ".npy":
        np.save(content, rows)
    else:
        np.savetxt(content, rows, delimiter=",", header=",".join(names), comments="")
    write_atomic(path, content.getvalue())


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_header(frame: "Frame") -> bool:
    """A single column of whole numbers below such a row may be data as well."""
    columns = [column.to_numpy() for column in frame.iter_columns()]
    return len(columns) > 1 or bool(columns and columns[0].dtype.kind == "f")


def _reject_ids(names: Sequence[str], columns: "Sequence[np.ndarray]") -> None:
    """Raise if a column looks like a row number or an id, which would be fitted as a parameter."""
    looks = {name: found for name, c in zip(names, columns, strict=True) if (found := _looks_of(c))}
    looks |= {name: "the index of pandas" for name in names if name in PANDAS_INDEX}
    if looks:
        others = ",".join(name for name in names if name not in looks) or "NAME,..."
        listed = ", ".join(f"{name!r} is {found}" for name, found in looks.items())
        raise ValueError(
            f"`samples`: expected parameters only, but column {listed}; name the columns of "
            f"parameters with --columns '{others}', or all of them with --columns '*'"
        )


def _looks_of(column: "np.ndarray") -> str:
    import numpy as np

    if len(column) < 3 or not np.all(column == np.round(column)):
        return ""
    if np.all(np.diff(column) == 1):
        return f"the row number, {column[0]:.0f}, {column[1]:.0f}, {column[2]:.0f}, ..."
    if len(column) >= MIN_IDS and len(np.unique(column)) == len(column):
        return "an id: an integer that is different in every row"
    return ""


def _fit(table: Parameters, preset: str, seed: int) -> "DiffusionPrior":
    import dataclasses
    import warnings

    from ..fitting.report import FitWarning
    from ..priors.diffusion import DiffusionPrior, Metadata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the report repeats them
        prior = DiffusionPrior.fit(table.values, preset=preset, seed=seed)
    names = () if table.names[0] == "1" else table.names
    return dataclasses.replace(prior, metadata=Metadata(prior.report, names))
