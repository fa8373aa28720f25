"""The scripts of the folder of examples run one after another, as their docstrings say."""

import functools
import runpy
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_examples_from_logs_to_decisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import shop

    fewer = functools.partial(shop.past_visits, num_campaigns=60)  # unless a script says how many
    monkeypatch.setattr(shop, "past_visits", fewer)

    def run(name: str) -> str:
        runpy.run_path(str(EXAMPLES / f"{name}.py"))
        return capsys.readouterr().out

    assert "Gaussian given attributes" in run("logs_to_model")
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "effect_of_gift" in run("batch_scoring") and (tmp_path / "offers.parquet").exists()
    assert run("off_policy_check").count("doubly robust") == 2
    lines = run("catalog").splitlines()
    assert float(lines[-2].split()[0]) > 0.4 and (tmp_path / "catalog.items").exists()

    served = runpy.run_path(str(EXAMPLES / "fastapi_app.py"))
    for visits in (1, 2):  # the second time, with what was learned in the first
        with TestClient(served["app"]) as client:
            offer = client.post("/toys-1/offer").json()
            assert offer in shop.OFFERS
            sent = {"offer": offer, "bought": 1}
            assert client.post("/toys-1/reward", json=sent).status_code == 200
            assert int(served["bandits"]["toys-1"].evidence.num_rows) == visits
        served["bandits"].clear()
