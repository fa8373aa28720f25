"""Options of several commands, checks before any work begins, and messages on the terminal."""

import contextlib
import importlib.metadata
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..evidence.base import AbstractLikelihood
    from ..executors import AbstractExecutor
    from ..learning.model import Model
    from ..priors.base import AbstractPrior
    from ..reporting.tables import Table

Output = Annotated[Path, typer.Option("--output", "-o", help="File to write.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]
Json = Annotated[Path | None, typer.Option("--json", help="Also write the results as JSON.")]
Ray = Annotated[
    str | None, typer.Option("--ray", help="Run on a Ray cluster: its address, or `local`.")
]
Task = Annotated[str, typer.Option(help="Column of task labels.")]
Reward = Annotated[str, typer.Option(help="Column of rewards.")]
Features = Annotated[
    list[str] | None,
    typer.Option(
        help="Columns of features: names, patterns such as 'x*' and interactions such as "
        "'age*device', separated by commas; by default all columns without another role."
    ),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(help="Columns of what is known of a task before its first reward."),
]
Weight = Annotated[str | None, typer.Option(help="Column with the number of observations per row.")]
Time = Annotated[str | None, typer.Option(help="Column by which to sort the rows of a task.")]
Intercept = Annotated[
    bool | None,
    typer.Option(
        "--intercept/--no-intercept",
        help="Add a feature that is always 1; by default, unless a column is constant.",
    ),
]
Likelihood = Annotated[
    str | None,
    typer.Option(
        help="linear, logistic, poisson, negative-binomial or zero-inflated; `learn` also takes "
        "auto; of a model, its own by default."
    ),
]
NoiseStd = Annotated[
    float | None, typer.Option(help="Standard deviation of the noise of linear rewards.")
]
Dispersion = Annotated[float | None, typer.Option(help="Of negative-binomial rewards.")]


def print_version(wanted: bool | None) -> None:
    """Print the version and exit."""
    if wanted:
        typer.echo(f"diffprior {importlib.metadata.version('diffprior')}")
        raise typer.Exit()


def say(message: str, style: str | None = None) -> None:
    """Print text on standard error, without markup or wrapping."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    console.print(message, style=style, markup=False, soft_wrap=True)


def say_table(table: "Table") -> None:
    """Print a table on standard error, highlighted cells in bold on a terminal."""
    typer.echo(f"\n{table.to_text(bold=True)}", err=True)  # strips escape codes from a file


def write_json(path: Path | None, results: Mapping[str, object]) -> None:
    """Write results as JSON, if a file was named."""
    if path is not None:
        from ..files.atomic import write_atomic

        write_atomic(path, json.dumps(results, indent=1) + "\n")
        say(f"wrote {path}")


@contextlib.contextmanager
def friendly_errors() -> Iterator[None]:
    """Turn an error that the user can fix into a message and exit code 2."""
    try:
        yield
    except (ValueError, OSError, ImportError) as error:
        say(f"error: {error}", style="red")
        raise typer.Exit(2) from error


def split_names(given: list[str] | None) -> list[str]:
    """Split names and patterns from options that are repeated or contain commas."""
    return [name.strip() for part in given or () for name in part.split(",") if name.strip()]


def make_likelihood(
    name: str | None,
    noise_std: float | None,
    dispersion: float | None,
    *,
    estimate_noise: bool = False,
    of: str = "a prior",
) -> "AbstractLikelihood":
    """Make a likelihood from its name and options; `of` says what does not know it."""
    from ..checks import choice
    from ..evidence.families import LIKELIHOODS, missing_likelihood

    if name is None and noise_std is not None:
        name = "linear"  # alone has it
    if name is None and dispersion is not None:
        name = "negative-binomial"
    if name is None:
        raise missing_likelihood(of)
    kind = LIKELIHOODS[choice("likelihood", name, tuple(LIKELIHOODS))]
    if name == "zero-inflated":
        raise ValueError(
            "`likelihood`: expected a model with zero-inflated rewards, which knows their amounts, "
            f"got {of}; learn one by `diffprior learn --likelihood zero-inflated`"
        )
    options = {"linear": ("noise-std", noise_std), "negative-binomial": ("dispersion", dispersion)}
    if name not in options:
        return kind()
    option, value = options[name]
    if value is None and not (name == "linear" and estimate_noise):
        raise ValueError(
            f"`{option}`: expected a number with {name} rewards, got none; pass --{option}"
        )
    return kind(value)


def load_prior(path: Path) -> "AbstractPrior":
    """Load the prior in the file of a prior or a model."""
    from ..files.base import load
    from ..learning.model import Model
    from ..priors.base import AbstractPrior

    found = load(path)
    prior = found.prior if isinstance(found, Model) else found
    if not isinstance(prior, AbstractPrior):
        raise ValueError(
            f"`prior`: expected the file of a prior or a model, got one of {type(prior).__name__} "
            f"in {path}; pass a file written by `diffprior learn`, `fit` or `save`"
        )
    return prior


def load_model(
    path: Path, likelihood: str | None, noise_std: float | None, dispersion: float | None
) -> "Model":
    """Load a model, which knows its likelihood, or a prior, whose likelihood must be given."""
    from ..files.base import load
    from ..learning.model import Model

    found = load(path)
    if not isinstance(found, Model):
        of = f"the prior in {path}"
        return Model(load_prior(path), make_likelihood(likelihood, noise_std, dispersion, of=of))
    if likelihood is None and noise_std is None and dispersion is None:
        return found
    given = make_likelihood(likelihood, noise_std, dispersion, estimate_noise=True)
    if given.digest != found.likelihood.digest:
        raise ValueError(
            f"`likelihood`: expected that of the model in {path}, {found.likelihood!r}, got "
            f"{given!r}; leave out --likelihood, --noise-std and --dispersion"
        )
    return found


@contextlib.contextmanager
def executor_of(ray: str | None) -> "Iterator[AbstractExecutor | None]":
    """Connect to the cluster at an address, if there is one, until the work is done."""
    if ray is None:
        yield None
        return
    from ..executors import Ray as Cluster

    with Cluster(ray) as executor:
        yield executor


def check_output(option: str, path: Path | None, *inputs: Path) -> None:
    """Check that a file can be written, and that it is none of the inputs."""
    if path is None:
        return
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(
            f"`{option}`: expected a file in a folder that exists, got {path}; make the folder "
            f"with `mkdir -p {folder}`, or name another"
        )
    if path.is_dir():
        raise ValueError(f"`{option}`: expected a file, got the folder {path}; name a file in it")
    if any(path.exists() and path.samefile(given) for given in inputs if given.exists()):
        raise ValueError(
            f"`{option}`: expected another file than the input, got {path} for both; it would be "
            "overwritten, so name another"
        )
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise ValueError(f"`{option}`: expected a writable file, got {path}; name another")


def check_ending(option: str, path: Path, endings: Sequence[str]) -> None:
    """Check that the name of a file has one of these endings."""
    if path.suffix.lower() not in endings:
        raise ValueError(
            f"`{option}`: expected one of {', '.join(endings)}, got {path.name}; rename it"
        )
