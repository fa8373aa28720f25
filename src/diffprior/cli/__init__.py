"""The command line: every command is registered here.

Modules import only Typer at the top, and the package inside functions, so that `diffprior --help`
answers at once.
"""

from typing import Annotated

import typer

from . import evaluate, fit, learn, serve
from .options import print_version

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Learn a prior from past tasks, and make decisions in new ones with it.",
)
app.command()(learn.learn)
app.command()(learn.statistics)
app.command()(learn.shard)
app.command()(fit.fit)
app.command()(fit.sample)
app.add_typer(evaluate.app, name="evaluate")
app.command(context_settings={"allow_extra_args": True})(serve.serve)
app.command()(serve.rebuild)
app.command("import")(serve.import_logs)
app.command()(serve.prune)
app.command()(serve.retire)
app.command()(serve.export)
app.add_typer(serve.token_app, name="token")


@app.callback()
def main(
    version: Annotated[
        bool | None,
        typer.Option("--version", callback=print_version, is_eager=True, help="Show the version."),
    ] = None,
) -> None:
    """Handle options before a command."""
