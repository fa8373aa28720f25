"""One table of a run, beside rivals, limits and the run before; and the pieces of a call."""

from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from benchmarks import pieces
from benchmarks.arithmetic import multiply_adds, over_limit
from benchmarks.section import Bench, Measurement
from benchmarks.sections import SECTIONS
from benchmarks.summary import HEADLINES, keep_run, read_last_run, summary
from diffprior.files.cache import ResultCache

NOW = {
    "runs": [
        Measurement("a", {"seconds": 0.3, "NumPy TS, s": 0.1, "over arithmetic limit": 2.0}),
        Measurement("b", {"seconds": 0.3, "over arithmetic limit": "no network"}),
    ],
    "decisions": [
        Measurement("a", {"median, ms": 0.2}),
        Measurement("a, d = 8", {"median, ms": 0.4}),
        Measurement("bayesianbandits, d = 2", {"median, ms": 0.1}),
        Measurement("bayesianbandits, d = 8", {"median, ms": 0.5}),
    ],
    "draws": [Measurement("a", {"draws a second": 1200.0})],
}
BEFORE = {
    "runs": [Measurement("a", {"seconds": 0.29})],
    "decisions": [Measurement("a", {"median, ms": 0.4})],
    "draws": [Measurement("a", {"draws a second": 2400.0})],
}


def test_figures_stand_beside_rival_limit_and_what_they_were() -> None:
    rows = {(row[0], row[1]): row[2:] for row in summary(NOW, BEFORE).rows}
    assert rows["runs", "a"] == ["0.3", "seconds", "0.1", "3", "2", "0.29", "same"]
    assert rows["runs", "b"][2:] == ["", "", "", "", ""]
    assert rows["decisions", "a"][2:] == ["0.1", "2", "", "0.4", "-50% (better)"]
    assert rows["decisions", "a, d = 8"][2:4] == ["0.5", "0.8"]
    assert rows["decisions", "bayesianbandits, d = 2"][2:] == ["", "", "", "", ""]
    assert rows["draws", "a"][-1] == "-50% (worse)"
    assert set(HEADLINES) <= set(SECTIONS)


def test_a_run_is_kept_for_the_next(tmp_path: Path) -> None:
    assert read_last_run(tmp_path / "new") == {}
    keep_run(tmp_path / "new", BEFORE)
    keep_run(tmp_path / "new", {"draws": NOW["draws"]})
    assert read_last_run(tmp_path / "new") == {**BEFORE, "draws": NOW["draws"]}


def test_pieces_add_up_to_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = dp.DiffusionPrior.from_prior(dp.GaussianPrior(np.zeros(2), np.eye(2)))
    monkeypatch.setattr(Bench, "prior", lambda *_: prior)
    bench = Bench(ResultCache(tmp_path), quick=True)
    found = {m.case: m.quantities["microseconds"] for m in pieces.pieces(bench)}
    own = sum(found[f"{part}, d = 2"] for part in PARTS)
    assert own == pytest.approx(found["all but the program, d = 2"])
    assert found["program, d = 2"] > 0
    cases = [m.case for m in pieces.updates(bench)]
    assert cases == ["linear, d = 2", "logistic, d = 2"]


PARTS = ("checks", "padding", "packing", "dispatch and transfer", "reply")


def test_a_sampler_without_a_network_has_no_limit() -> None:
    sampler = dp.EvidenceDPS(dp.DiffusionPrior.fit(_gaussian_samples(), config=dp.FitConfig.tiny()))
    assert multiply_adds(sampler) == 0
    assert over_limit(sampler, 1.0, 1.0) == "no network"


def _gaussian_samples() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((400, 2))
