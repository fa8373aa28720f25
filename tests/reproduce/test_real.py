"""The experiments on data, tiny, from files in the official formats; and what they conclude."""

import gzip
import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import diffprior as dp
from diffprior import cli
from diffprior.evaluate.estimates import LogEvidence
from diffprior.problems import mnist, movielens
from diffprior.reproduce import commands, data, overlap, real
from diffprior.reproduce import study as study_module
from diffprior.reproduce.claims import evidence_verdict, paper_claims, what_pays
from diffprior.reproduce.commands import noise_of
from diffprior.reproduce.parts import Part, Parts
from diffprior.reproduce.study import Effort

FEW = ("TS", "TunedTS", "MixTS", "DiffTS", "EvidenceDPS")
TINY = Effort(num_runs=3, num_rounds=5, temperatures=(0.5,), temperature_runs=3)
LITTLE = real.Measures(
    sizes=(4,),
    num_tasks=3,
    num_estimates=2,
    num_points=20,
    num_repeats=2,
    long_rounds=7,
    long_runs=2,
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Little effort, few agents, and one Gaussian for all learned priors.

    The list is of the samples that they should have been learned from.
    """
    given: list[np.ndarray] = []
    learned = dp.DiffusionPrior.from_denoiser(dp.GaussianPrior(np.zeros(5), np.eye(5)))

    def prior(parts: Parts, name: str, samples: np.ndarray, **_: Any) -> dp.DiffusionPrior:
        given.append(samples)
        parts.done.append(Part(name, 1.0, False))
        return learned

    def mixture(samples: np.ndarray, num_components: int, seed: int) -> dp.MixturePrior:
        one = dp.GaussianPrior.fit(samples)
        return dp.MixturePrior([1.0], np.asarray(one.mean)[None], np.asarray(one.cov)[None])

    experiment = real.real_experiment
    monkeypatch.setattr(Parts, "prior", prior)
    monkeypatch.setattr(dp.MixturePrior, "fit", mixture)
    monkeypatch.setattr(Effort, "of", lambda runs, quick: TINY)
    monkeypatch.setattr(real.Measures, "of", lambda quick: LITTLE)
    monkeypatch.setattr(
        commands, "real_experiment", lambda *a, **k: experiment(*a, agents=FEW, **k)
    )
    for module in (real, study_module):
        monkeypatch.setattr(module, "play", _play)
    monkeypatch.setattr(real, "estimate_log_evidence", _log_evidence)
    monkeypatch.setattr(overlap, "_umap", lambda points, seed: points[:, :2])
    return given


def _play(problem: Any, agent: Any, num_runs: int, num_rounds: int, seed: int) -> dict[str, Any]:
    """What a simulation returns; the real one is tested with the other experiments."""
    curve = list(np.arange(1.0, num_rounds + 1))
    return {
        "regret": curve[-1],
        "standard_error": 0.1,
        "regret_curve": curve,
        "standard_error_curve": [0.1] * num_rounds,
        "final": list(curve[-1] + np.arange(num_runs)),
        "seconds": 1.0,
        "compile_seconds": 1.0,
        "failures": 0,
    }


def _log_evidence(prior: Any, tasks: Any, **_: int) -> LogEvidence:
    return LogEvidence(-np.arange(1.0, len(tasks) + 1), np.zeros(len(tasks)))


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
    rng, checksums = np.random.default_rng(5), {}
    for name in mnist.CHECKSUMS:
        shape = (300, 5, 6) if "images" in name else (300,)
        array = rng.integers(0, 4, shape).astype(np.uint8)
        sizes = b"".join(size.to_bytes(4, "big") for size in shape)
        plain = bytes([0, 0, 8, array.ndim]) + sizes + array.tobytes()
        packed = gzip.compress(plain)
        (tmp_path / f"{name}.gz").write_bytes(packed)
        checksums[name] = tuple(hashlib.sha256(d).hexdigest() for d in (packed, plain))
    monkeypatch.setattr(mnist, "CHECKSUMS", checksums)
    monkeypatch.setattr(data, "one_against_rest", _few_tasks)
    return tmp_path


def _few_tasks(features: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    return mnist.one_against_rest(features, labels, 60, seed=seed)


def run(*arguments: Any, code: int = 0) -> str:
    """What the command printed, having ended with this exit code."""
    result = CliRunner().invoke(cli.app, ["reproduce", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


def test_movielens(ratings: Path, tiny: list[np.ndarray], tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "numbers.json"
    options = ["--data", ratings, "--out", out, "--json", file]
    printed = run("movielens", *options)
    assert printed.endswith(f"the report is {out / 'report.html'}")
    assert {path.name for path in out.iterdir() if path.is_file()} == {
        *("movielens.png", "movielens.pdf", "movielens-priors.png", "movielens-priors.pdf"),
        "report.html",
    }
    numbers = json.loads(file.read_text())
    assert [rewards["name"] for rewards in numbers["rewards"]] == ["linear", "logistic"]
    for rewards in numbers["rewards"]:
        assert list(rewards["all"]["agents"]) == list(rewards["held_out"]["agents"]) == list(FEW)
        assert list(rewards["all"]["agents"]["TS"]["temperatures"]) == ["0.5"]
        assert list(rewards["log_evidence"]) == list(real.EXPLAINED)
    assert len(numbers["rewards"][1]["long"]["DiffTS"]["final"]) == 2
    assert numbers["distances"]["Gaussian"]["floor"] > 0
    assert numbers["settings"]["noise of linear rewards"].startswith("0.750; ")
    assert "GiB" in numbers["settings"]["peak memory"]
    assert {len(samples) for samples in tiny} == {60, 48}  # with and without those held out
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "the paper states 0.75" in report and "At equal temperature EvidenceDPS" in report
    assert str(tmp_path) not in report
    (ratings / "ml-1m.zip").unlink()
    again = run("movielens", *options)
    assert "factors, movielens: kept from before" in again and " s " not in again
    assert json.loads(file.read_text())["rewards"] == numbers["rewards"]


def test_mnist(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[data.Data] = []

    def experiment(out: Path, parts: Parts, loaded: data.Data, **_: Any) -> dict[str, Any]:
        asked.append(loaded)
        return {}

    monkeypatch.setattr(commands, "real_experiment", experiment)
    out = tmp_path / "out"
    assert "embeddings, mnist: " in run("mnist", "--data", digits, "--out", out)
    assert "embeddings, mnist: kept" in run("mnist", "--data", tmp_path / "none", "--out", out)
    first, again = asked
    assert first.parameters.shape == (60, 8) and first.actions.shape == (600, 8)
    assert first.noise_std == 1.0 and "accuracy" in first.introduction
    np.testing.assert_array_equal(first.parameters, again.parameters)
    assert first.facts == again.facts


def test_parts_are_as_many_as_planned(
    ratings: Path, tiny: list[np.ndarray], tmp_path: Path
) -> None:
    parts = Parts(tmp_path / "parts")
    loaded = data.movielens_data(parts, ratings, noise_std=None)
    assert loaded.noise_std != 0.75
    options: dict[str, Any] = {"effort": TINY, "measures": LITTLE, "agents": ("DiffTS",)}
    linear = real.Rewards(loaded, dp.Linear(0.5), parts, **options)
    logistic = real.Rewards(loaded, dp.Logistic(), parts, lender=linear, **options)
    for rewards in (linear, logistic):
        done = len(parts.done)
        rewards.run()
        assert len(parts.done) - done == rewards.num_parts()
    assert len(tiny) == 3  # the paper's prior twice, the default one without those held out


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIFFPRIOR_DATA", raising=False)
    for arguments, message in [
        (("movielens",), "`folder`: expected a folder with ml-1m.zip"),
        (("mnist", "--data", tmp_path), "`folder`: expected train-images-idx3-ubyte.gz"),
        (("movielens", "--noise", "much"), "`noise`: expected a number or estimated, got 'much'"),
        (("movielens", "--noise", "0"), "`noise`: expected a positive number, got 0"),
    ]:
        assert message in run(*arguments, "--out", tmp_path / "out", code=2)
    assert noise_of("estimated") is None and noise_of("0.5") == 0.5


def test_plane_without_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap.importlib.util, "find_spec", lambda name: None)
    assert overlap.method() == overlap.AXES and "pip install" in overlap.MISSING
    points = np.random.default_rng(0).standard_normal((200, 4))
    points[:, 3] = points[:, 1]
    plane = overlap.on_plane(points, seed=0)
    assert plane.shape == (200, 2)
    correlation = np.corrcoef(plane[:, 0], points[:, 1])[0, 1]
    assert abs(correlation) > 0.95  # the direction that two columns share


def study(**regrets: float) -> dict[str, Any]:
    """Agents with these mean regrets, whose runs differ by little noise of their own."""
    rng = np.random.default_rng(0)
    return {
        "name": "linear",
        "agents": {
            name: {"regret": regret, "final": list(regret + 0.1 * rng.standard_normal(50))}
            for name, regret in regrets.items()
        },
    }


def test_claims_follow_the_numbers() -> None:
    wins = " ".join(paper_claims(study(TunedTS=10.0, MixTS=9.8, DiffTS=8.0)))
    assert "DiffTS has a lower regret than all baselines" in wins
    assert "barely better, as the paper says" in wins
    loses = " ".join(paper_claims(study(TunedTS=7.0, MixTS=7.5, DiffTS=8.0, EvidenceDPS=6.0)))
    assert "DiffTS does not have the lowest regret: TunedTS is lower by 0.99 ± 0.02" in loses
    assert "Of all agents, EvidenceDPS has the lowest" in loses and "it is worse" in loses
    assert "more than barely" in " ".join(paper_claims(study(TunedTS=9.0, MixTS=7.0, DiffTS=8.0)))
    equal = " ".join(paper_claims(study(TunedTS=8.0, MixTS=8.0, DiffTS=8.0)))
    assert "nothing beyond chance" in equal


def tempered(found: dict[str, Any], at_half: dict[str, float]) -> dict[str, Any]:
    for name, regret in at_half.items():
        cooled = study(**{name: regret})["agents"][name]
        found["agents"][name]["temperatures"] = {"0.5": cooled}
    return found


def values(mean: float) -> dict[str, Any]:
    return {"20": {"values": list(mean + 0.1 * np.random.default_rng(1).standard_normal(50))}}


def test_what_pays_follows_the_numbers() -> None:
    regrets = {"TunedTS": 10.0, "MixTS(10)": 10.0, "DiffTS": 8.0, "EvidenceDPS": 9.9}
    cooled = {"TunedTS": 7.9, "MixTS(10)": 7.9, "DiffTS": 7.0, "EvidenceDPS": 7.9}
    evidence = {"Gaussian": values(-5.0), "mixture of 10": values(-4.0), "default": values(-4.5)}
    result = {
        "name": "linear",
        "all": tempered(study(**regrets), cooled),
        "held_out": tempered(study(**{**regrets, "EvidenceDPS": 6.0}), cooled),
        "log_evidence": evidence,
    }
    text = " ".join(what_pays(result))
    assert "need not come from its prior" in text
    everything, held_out = text.split(" On tasks held out: ")
    assert "saves over TunedTS +0.1" in everything and "(beyond chance at 1);" in everything
    assert "saves over TunedTS +4.0" in held_out
    assert text.endswith(": a better prior than the Gaussian.")
    evidence["default"] = values(-6.0)
    assert evidence_verdict(result).endswith("no better prior than either.")
    cooled = {**cooled, "TunedTS": 9.5}
    result["all"] = tempered(study(**regrets), cooled)
    assert "which leaves DiffTS 1.5" in " ".join(what_pays(result))
