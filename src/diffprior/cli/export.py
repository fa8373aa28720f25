"""`diffprior export`: the service's log for other tools, and for learning the next prior."""

from pathlib import Path
from typing import Annotated

import typer

from .options import check_output, friendly_errors, say
from .serve import DEFAULT_DATABASE, Database, check_database


def export(
    model: Annotated[str, typer.Option(help="Name of the model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    database: Database = DEFAULT_DATABASE,
    format: Annotated[
        str,
        typer.Option(help="parquet, dsjson (Vowpal Wabbit) or obd (Open Bandit arrays, .npz)."),
    ] = "parquet",
) -> None:
    """Write the decisions of a model with their rewards and propensities.

    `diffprior learn` takes the Parquet file: --features 'x*'. The service may be running.
    """
    with friendly_errors():
        check_output("output", output)
        from ..checks import require

        require("serve", "sqlalchemy")
        if format == "parquet":
            require("logs", "pyarrow")
        from ..service.export import export as write
        from ..service.store import Database as OpenDatabase

        check_database(database)
        opened = OpenDatabase(database)
        exported = write(opened, model, format, output)
        opened.close()
        say(str(exported))
        say(f"wrote {output}")
