"""`python -m diffprior.cli`."""

from . import app

app()
