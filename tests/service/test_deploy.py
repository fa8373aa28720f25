"""Files in deploy/: what they name exists."""

import re
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
