"""The documentation runs: pages print what they say, signatures are those of the code."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffprior

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/bandits.md", "docs/choosing.md", "docs/extending.md")
SIGNATURES = re.findall(
    r"^`([\w.]+)\((.*)\)`$",
    (ROOT / "docs" / "api.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)

# Runs the blocks that it reads, each on its own, and prints what each of them printed.
RUNNER = """
import contextlib, io, json, sys
printed = []
for block in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as text:
        exec(compile(block, "block", "exec"), {"__name__": "__main__"})
    printed.append(text.getvalue())
print(json.dumps(printed))
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """Python blocks of a page, each with the text block that follows it."""
    found = re.findall(
        r"^```python\n(.*?)^```\n(?:\s*```text\n(.*?)^```)?",
        (ROOT / page).read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
    return [(code, output) for code, output in found]


def run(*command: str, given: str = "", folder: Path = ROOT) -> str:
    """What a program prints, run as a reader would: in a process of its own, with no settings."""
    result = subprocess.run(
        [sys.executable, *command],
        input=given,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    learns = page == "README.md"  # and so runs long; the others are compiled quickly, not well
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", str(int(not learns)))
    examples = blocks(page)
    assert examples
    given = json.dumps([code for code, _ in examples])
    printed = json.loads(run("-c", RUNNER, given=given, folder=tmp_path))
    for (code, expected), got in zip(examples, printed, strict=True):
        assert got == expected, code


def test_no_page_with_examples_is_forgotten() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert [p for p in pages if "```python" in p.read_text(encoding="utf-8")] == [
        ROOT / page for page in PAGES
    ]


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    printed = run("examples/exact_inference.py")
    rows = re.findall(r"^(linear|logistic) +(\S.*?)  +([\d.]+) +(\d+)%$", printed, re.MULTILINE)
    errors = {(model, prior): float(error) for model, prior, error, _ in rows}
    for model in ("linear", "logistic"):
        assert errors[model, "mixture"] < errors[model, "Gaussian"] < errors[model, "N(0, I)"]


@pytest.mark.parametrize(("name", "arguments"), SIGNATURES, ids=[name for name, _ in SIGNATURES])
def test_documented_signature_is_the_codes(name: str, arguments: str) -> None:
    parts = [argument.partition("=")[0].strip() for argument in arguments.split(",")]
    documented = [part for part in parts if part not in ("", "*")]
    target = diffprior
    for part in name.split("."):
        target = getattr(target, part)
    if inspect.isclass(target) and issubclass(target, Warning):
        return  # built in Python, which keeps no signature
    assert [p for p in inspect.signature(target).parameters if p != "self"] == documented
