"""Files in deploy/: what they name exists."""

import json
import re
import subprocess
import sys
from importlib.metadata import requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from diffprior.service.metrics import Metrics

DEPLOY = Path(__file__).parents[2] / "deploy"


def test_alerts_are_about_metrics_that_there_are() -> None:
    metrics = Metrics()
    metrics.http("GET", 200, 0.1)
    known = set(re.findall(r"^# TYPE (\w+)", metrics.text().decode(), re.MULTILINE))
    known |= {f"{name}_bucket" for name in known}
    rules = (DEPLOY / "alerts.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"diffprior_\w+", rules))
    assert len(named) > 5 and named <= known, named - known


def test_the_bill_of_materials_lists_what_is_installed(tmp_path: Path) -> None:
    path = tmp_path / "build" / "sbom.json"
    subprocess.run([sys.executable, str(DEPLOY / "sbom.py"), str(path)], check=True)
    bill = json.loads(path.read_text(encoding="utf-8"))
    found = {each["name"]: each["version"] for each in bill["components"]}
    assert found["numpy"] == version("numpy") and found["fastapi"] == version("fastapi")
    assert bill["metadata"]["component"]["name"] == "diffprior" and "diffprior" not in found


def packages_needed(name: str, extras: frozenset[str]) -> set[str]:
    """What is installed because of a package, by name."""
    found, waiting = set(), [(name, extras)]
    while waiting:
        each, wanted = waiting.pop()
        for text in requires(each) or ():
            need = Requirement(text)
            marks = [{"extra": extra} for extra in (*wanted, "")]
            if need.marker is None or any(need.marker.evaluate(mark) for mark in marks):
                found.add(canonicalize_name(need.name))
                waiting.append((need.name, frozenset(need.extras)))
    return found


def test_what_the_container_installs_is_pinned_with_hashes() -> None:
    """All that the service needs, in the versions of the constraints."""
    constraints = (DEPLOY.parent / "constraints.txt").read_text(encoding="utf-8").split()
    for name in ("requirements.txt", "build.txt"):
        text = (DEPLOY / name).read_text(encoding="utf-8")
        assert "://" not in text
        packages = [part.split() for part in text.replace("\\\n", " ").splitlines()]
        assert {pin for pin, *_ in packages} <= set(constraints)
        for _, *hashes in packages:
            assert hashes and all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", h) for h in hashes)
        pinned = {pin.partition("==")[0] for pin, *_ in packages}
        if name == "requirements.txt":
            assert packages_needed("diffprior", frozenset({"serve"})) <= pinned
        else:
            assert "hatchling" in pinned
