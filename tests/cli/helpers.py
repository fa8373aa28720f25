"""The command line as a user runs it."""

from typing import Any

from typer.testing import CliRunner

from diffprior.cli import app


def run(*arguments: Any, code: int = 0) -> str:
    """Output of a command that ended with this exit code; line breaks are spaces."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())
