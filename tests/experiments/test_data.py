"""Experiments on data, tiny, from files in the official formats."""

import dataclasses
import gzip
import hashlib
import importlib.util
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from diffprior.evaluate.comparison import LogEvidence
from experiments import data, experiment, figures, mnist, movielens
from experiments.data import (
    Data,
    LogEvidenceNumbers,
    Measures,
    RewardsResult,
    data_effort,
    log_evidence_table,
    run_data,
)
from experiments.experiment import Effort
from experiments.movielens import movielens_data
from experiments.results import Results
from handmade import problem, regret

LITTLE = Measures(sizes=(4,), num_tasks=3, num_estimates=2, num_points=20, num_repeats=2)


@pytest.fixture
def ratings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small archive in the form of the official one, and its checksum in the official place."""
    rng = np.random.default_rng(4)
    rated = np.argwhere(rng.random((40, 60)) < 0.8)
    rows = np.column_stack([rated + 1, rng.integers(1, 6, len(rated))])
    lines = [f"{user}::{movie}::{star}::978300760\n" for user, movie, star in rows]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("ml-1m/ratings.dat", "".join(lines))
    (tmp_path / "ml-1m.zip").write_bytes(packed.getvalue())
    checksums = {"ml-1m.zip": hashlib.sha256(packed.getvalue()).hexdigest()}
    monkeypatch.setattr(movielens, "RATINGS", movielens.RATINGS._replace(checksums=checksums))
    return tmp_path


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The four files, small, with their checksums in the official place."""
    rng, files = np.random.default_rng(5), []
    for file in mnist.FILES:
        name = next(iter(file.checksums))
        shape = (300, 5, 6) if "images" in name else (300,)
        array = rng.integers(0, 4, shape).astype(np.uint8)
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        plain = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
        packed = gzip.compress(plain)
        (tmp_path / name).write_bytes(packed)
        files.append(file._replace(checksums={name: hashlib.sha256(packed).hexdigest()}))
    monkeypatch.setattr(mnist, "FILES", tuple(files))
    return tmp_path


def test_movielens(
    ratings: Path,
    effort: Effort,
    results: Results,
    learned: list,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(experiment, "play", lambda *_: regret([2.0, 3.5, 4.0]))
    monkeypatch.setattr(data, "estimate_log_evidence", _log_evidence)
    monkeypatch.setattr(figures, "_umap", lambda points, seed: points[:, :2])
    loaded = movielens_data(results, ratings)
    assert loaded.noise_std == 0.75 and "the paper states 0.75" in loaded.introduction
    assert movielens_data(results, ratings / "none", noise_std=None).noise_std != 0.75  # kept
    agents = ("TS", "DiffTS", "EvidenceDPS")
    found = run_data(results, loaded, agents=agents, effort=effort, measures=LITTLE, seed=0)
    assert [rewards.name for rewards in found["rewards"]] == ["linear", "logistic"]
    for rewards in found["rewards"]:
        assert tuple(rewards.whole.agents) == tuple(rewards.held_out.agents) == agents
        assert list(rewards.log_evidence) == list(data.EXPLAINED)
    assert found["distances"]["Gaussian"].floor > 0
    sizes = {(label, count) for label, count, *_ in learned}
    assert sizes == {("all tasks", 60), ("four in five", 48)}  # with and without those held out
    names = {p.name for p in results.out.iterdir() if p.is_file()}
    assert names == {"movielens.png", "movielens.pdf", "report.html"}
    report = (results.out / "report.html").read_text(encoding="utf-8")
    assert "best baseline" in report and str(results.out) not in report
    json.dumps(found, default=dataclasses.asdict)


def _log_evidence(prior: object, tasks: object, likelihood: object, **_: int) -> LogEvidence:
    return LogEvidence(-np.arange(1.0, 4.0), np.zeros(3))


def test_mnist(digits: Path, results: Results) -> None:
    first = mnist.mnist_data(results, digits, num_tasks=60)
    again = mnist.mnist_data(results, digits / "none", num_tasks=60)  # kept
    assert first.parameters.shape == (60, 8) and first.actions.shape == (600, 8)
    assert first.noise_std == 1.0 and "accuracy" in first.introduction
    np.testing.assert_array_equal(first.parameters, again.parameters)
    assert first.facts == again.facts and isinstance(first, Data)


def test_slow_agents_play_all_runs_unless_it_is_quick() -> None:
    assert data_effort(None, quick=False).slow_share == 1.0
    assert data_effort(None, quick=True).slow_share < 1.0
    assert Measures.of(True).num_tasks < Measures.of(False).num_tasks


def test_gains_of_log_evidence_are_paired_and_bold_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    tasks = -20 + 9 * rng.standard_normal(50)  # tasks differ more than priors

    def numbers(gain: float) -> dict[str, LogEvidenceNumbers]:
        values = tasks + gain + 0.1 * rng.standard_normal(50)
        return {"20": LogEvidenceNumbers(values.mean(), 1.3, 0.0, 0.0, 0, values.tolist())}

    priors = {"Gaussian": numbers(0.0), "mixture, K chosen": numbers(0.5), "default": numbers(0.0)}
    whole = problem(TS=regret([1.0, 2.0]))
    table = log_evidence_table(RewardsResult("linear", whole, whole, priors))
    assert (
        table.marked == {(1, 2)}
        and table.rows[0][2] == ""
        and table.rows[1][2].startswith("+0.499 ±")
    )


def test_plane_without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert figures.embedding_method() == "PCA"
    points = np.random.default_rng(0).standard_normal((200, 4))
    points[:, 3] = points[:, 1]
    plane = figures.on_plane(points, seed=0)
    assert plane.shape == (200, 2)
    correlation = np.corrcoef(plane[:, 0], points[:, 1])[0, 1]
    assert abs(correlation) > 0.95  # the direction that two columns share
