"""Files in deploy/: what they name exists."""

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

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
