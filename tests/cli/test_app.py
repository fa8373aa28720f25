"""The command line as a whole: help, version, and what it needs to start."""

import importlib.metadata
import subprocess
import sys

from cli.helpers import run

WITHOUT_RESOURCE = """
import sys
sys.modules["resource"] = None  # as on Windows
import diffprior.cli
slow = {"matplotlib", "pandas", "sklearn", "ot", "pyarrow"} & set(sys.modules)
assert not slow, slow
"""


def test_help_and_version() -> None:
    printed = run("--help")
    assert all(name in printed for name in ("fit", "sample", "learn", "serve"))
    assert run("--version") == f"diffprior {importlib.metadata.version('diffprior')}"


def test_it_starts_without_resource_and_without_extras() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_RESOURCE], check=True)
