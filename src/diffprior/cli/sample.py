"""`diffprior sample`: draws from a prior."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Seed, check_output
from .terminal import friendly_errors, say


def sample(
    prior: Annotated[Path, typer.Argument(help="File that `diffprior learn` or `fit` wrote.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".npy or .csv")],
    num_samples: Annotated[
        int, typer.Option("--num-samples", "-n", min=1, help="How many draws.")
    ] = 1000,
    seed: Seed = 0,
) -> None:
    """Draw parameters from a prior."""
    with friendly_errors():
        from .tables import check_ending, write_table

        check_ending(output)
        check_output("output", output, prior)
        import jax
        import numpy as np

        from ..files.base import load
        from ..priors.base import AbstractPrior

        found = load(prior)
        if not isinstance(found, AbstractPrior):
            raise ValueError(
                f"`prior`: expected the file of a prior, got one of {type(found).__name__}; pass "
                "what `diffprior learn`, `fit` or `prior.save` wrote"
            )
        draws = np.asarray(found.sample(jax.random.key(seed), num_samples))
        names = getattr(getattr(found, "metadata", None), "names", ())
        write_table(output, draws, names)
    say(f"wrote {draws.shape[0]} draws of {draws.shape[1]} parameters to {output}")
