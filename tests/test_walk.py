"""The walkthroughs of CONTRIBUTING, and the tutorial on the whole loop, run as a reader would."""

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from diffprior.service.server import free_port
from test_structure import FOLDERS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "tutorials" / "loop.md"


def script() -> str:
    """The blocks of the page as one shell script."""
    text = PAGE.read_text(encoding="utf-8")
    lines = ["set -e"]
    for kind, title, code in re.findall(
        r'^```(py|sh)(?: title="(.*?)")?\n(.*?)^```', text, re.M | re.S
    ):
        if kind == "sh":
            lines.append(code)
        else:
            lines.append(f"cat > {title or 'block.py'} <<'END_OF_BLOCK'\n{code}END_OF_BLOCK")
            lines += [] if title else ["python block.py"]
    return "\n".join(lines)


def commands(folder: Path) -> None:
    """`python` and `diffprior` as in an environment that has the package."""
    for name, call in (("python", ""), ("diffprior", "-m diffprior.cli ")):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {call}"$@"\n')
        path.chmod(0o755)


def test_the_walk_of_the_tutorial_ends_with_less_regret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_ENABLE_X64", raising=False)
    (tmp_path / "bin").mkdir()
    commands(tmp_path / "bin")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PORT": str(free_port()),
        "TASKS": os.environ.get("WALK_TASKS", "80"),
        "ROUNDS": os.environ.get("WALK_ROUNDS", "10"),
    }
    with (tmp_path / "out").open("w+") as out:
        process = subprocess.Popen(
            ["bash", "-c", script()],
            stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path, env=environment,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(1200)  # a minute, where nothing else runs
        finally:
            os.killpg(process.pid, signal.SIGTERM)
        out.seek(0)
        said = out.read()
    assert code == 0, said
    shown = re.findall(r"^(\w[\w ]*): regret (\S+) \+- (\S+) in", said, re.M)
    found = {name: (float(mean), float(error)) for name, mean, error in shown}
    assert set(found) == {"before", "version 1", "version 2", "after"}
    assert found["after"][0] < found["before"][0]  # by about five standard errors
    # Of so few decisions some logs cannot tell, which follows from the service's own seed.
    assert re.search(r"doubly robust +-?\d|this log cannot tell", said)
    assert "none left out" in said
    assert "version 1 earned" in said and "version 2 earned" in said


def walks() -> dict[str, str]:
    """The walkthroughs of CONTRIBUTING by title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    text = text.split("## Walkthroughs")[1].split("\n## ")[0]
    return dict(re.findall(r"^- \*\*(.+?)\*\*: (.*?)(?=^- |\Z)", text, re.M | re.S))


def steps(text: str) -> list[tuple[str, str]]:
    """File and function of every step."""
    return re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", text)


def test_walks_take_few_files_and_name_functions_that_exist() -> None:
    titles = ("Decide", "Update", "Fit", "Learn", "Save and load", "Simulate", "An HTTP decision")
    assert tuple(walks()) == titles
    for title, text in walks().items():
        assert len({file for file, _ in steps(text)}) <= 10, title
        for file, name in steps(text):
            module = file.removesuffix(".py").replace("/", ".")
            target = importlib.import_module(f"diffprior.{module}")
            for part in name.split("."):
                assert hasattr(target, part), f"{title}: {file} has no {name}"
                target = getattr(target, part)


def test_walks_go_one_way() -> None:
    """An arrow leads to the same folder or to one above it; a semicolon begins another way."""
    for title, text in walks().items():
        for way in text.split(";"):
            folders = [re.split(r"[/.]", file)[0] for file, _ in steps(way)]
            places = [FOLDERS.index(folder) for folder in folders]
            assert places == sorted(places, reverse=True), f"{title}: {folders}"
