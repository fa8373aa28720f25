"""`diffprior evaluate PRIOR LOGS`: a user's own prior on a user's own tasks."""

import json
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from cli.helpers import run
from diffprior.cli.evaluate import verdict

KINDS = np.array([[-2.0, 1.0], [2.0, 0.5]])
MIXTURE = dp.MixturePrior([0.5, 0.5], KINDS, np.stack([0.09 * np.eye(2)] * 2))
OPTIONS = ("--task", "campaign", "--reward", "paid", "--features", "x1,x2", "--noise-std", "0.5")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A prior, and the logs of many tasks that follow it."""
    tasks = dp.evaluate.simulate_tasks(MIXTURE, dp.Linear(0.5), num_tasks=160, num_observations=4)
    labels = np.repeat(np.arange(160), 4)
    rows = np.column_stack([labels, tasks.features, tasks.rewards])
    logs, prior = tmp_path / "logs.csv", tmp_path / "mine.dprior"
    np.savetxt(logs, rows, delimiter=",", header="campaign,x1,x2,paid", comments="")
    MIXTURE.save(prior)
    return prior, logs


def test_a_prior_is_scored_beside_a_gaussian_and_a_mixture(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    prior, logs = files
    out = tmp_path / "scores.json"
    namesake = tmp_path / "other" / prior.name
    namesake.parent.mkdir()
    dp.GaussianPrior(np.zeros(2), np.eye(2)).save(namesake)
    page = tmp_path / "page.html"
    more = ("--against", namesake, "--json", out, "--report", page)
    printed = run("evaluate", prior, logs, *OPTIONS, *more)
    shown = page.read_text(encoding="utf-8")
    assert shown.index("pays: +") < shown.index("after rows") < shown.index("diffprior serve")
    assert "160 tasks, 640 rows, 2 features" in printed
    assert printed.index("over cold start") < printed.index("over Gaussian")
    assert "after rows" in printed
    found = json.loads(out.read_text(encoding="utf-8"))
    table = found["log_evidence"]
    assert table["baseline"] == "Gaussian"
    assert list(table["priors"])[-2:] == [str(prior), str(namesake)]
    mine = table["priors"][str(prior)]
    assert mine["over_cold_start"] > mine["difference"] > 5 * mine["difference_standard_error"] > 0
    direct = dp.evaluate.log_evidence(
        MIXTURE,
        dp.Logs.read(logs, task="campaign", reward="paid", features="x*", intercept=False),
        dp.Linear(0.5),
    )
    assert mine["log_evidence"] == pytest.approx(direct.mean(), rel=1e-6)
    assert [row["num_rows"] for row in found["next_reward"]["rows"]] == [0, 1, 2]


def test_the_verdict_names_a_contradiction() -> None:
    """Predictions that gain do not hide first choices that lose."""
    spread = np.linspace(-0.1, 0.1, 20)
    scores = {"cold start": spread, "mine": 1 + 2 * spread}
    evidence = {n: dp.evaluate.LogEvidence(v, np.zeros(20)) for n, v in scores.items()}
    for lost, words in ((0.0, "mine pays: +1.00"), (0.5, "its first choices disagree: +1.00")):
        rewards = {"cold start": spread, "mine": 3 * spread - lost}
        found = dp.evaluate.Comparison(evidence, rewards, "cold start", np.full(20, 4))
        assert words in verdict("mine", found).text


def test_what_is_missing_is_named_before_any_work(files: tuple[Path, Path], tmp_path: Path) -> None:
    prior, logs = files
    columns = OPTIONS[:6]
    for arguments, message in [
        ((prior, logs, *columns), "`likelihood`: expected a likelihood, which the prior in"),
        ((prior, logs, *columns, "--likelihood", "linear"), "`noise-std`: expected a number"),
        ((prior, logs, *columns, "--likelihood", "bell"), "`likelihood`: expected one of"),
        ((prior, logs, *columns, "--likelihood", "logistic"), "`rewards`: expected 0 or 1"),
        ((tmp_path / "none", logs, *OPTIONS), "none"),
        ((prior, logs, *OPTIONS, "--json", tmp_path / "no" / "a.json"), "`json`: expected a file"),
        ((prior, tmp_path / "none.csv", *OPTIONS), "none.csv"),
    ]:
        assert message in run("evaluate", *arguments, code=2)
