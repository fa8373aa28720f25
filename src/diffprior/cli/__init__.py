"""The command line: one file for each command, registered here.

A command's file imports only Typer at its top, and the package inside its function, so that
`diffprior --help` answers at once.
"""

from typing import Annotated

import typer

from . import evaluate, export, fit, learn, sample, serve, shard, statistics
from .options import print_version

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Cold start from your past tasks: learn a prior from them, and decide in new ones.",
)
app.command()(learn.learn)
app.command()(statistics.statistics)
app.command()(shard.shard)
app.command()(fit.fit)
app.command()(sample.sample)
app.add_typer(evaluate.app, name="evaluate")
app.command()(serve.serve)
app.command()(serve.rebuild)
app.command()(export.export)
app.add_typer(serve.token_app, name="token")


@app.callback()
def main(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version."),
    ] = None,
) -> None:
    """Take options that stand before a command."""
