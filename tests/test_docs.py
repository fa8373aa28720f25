"""The documentation runs: README prints what it says, signatures are those of the code."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import diffprior

ROOT = Path(__file__).parents[1]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```\n(?:\s*```text\n(.*?)^```)?",
    (ROOT / "README.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE | re.DOTALL,
)
SIGNATURES = re.findall(
    r"^`([\w.]+)\((.*)\)`$",
    (ROOT / "docs" / "api.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE,
)


def run(*command: str) -> str:
    """What a program prints, run as a reader would: in a process of its own, with no settings."""
    result = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_readme_has_examples() -> None:
    assert BLOCKS and any(output for _, output in BLOCKS)


@pytest.mark.parametrize(("code", "output"), BLOCKS)
def test_readme_example_prints_what_it_says(
    code: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    assert run("-c", code) == output


def test_the_demo_runs(monkeypatch: pytest.MonkeyPatch) -> None:
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
