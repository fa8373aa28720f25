"""The command line: files in, files out, and refusals with a message and exit code 2."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from typer.testing import CliRunner

import diffprior as dp
from diffprior import cli
from diffprior.priors import training

SAMPLES = np.random.default_rng(0).standard_normal((300, 2)) * [1.0, 3.0] + [0.0, 5.0]


def run(*arguments: Any, code: int = 0) -> str:
    """What the command printed, having ended with this exit code."""
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return " ".join(result.output.split())


@pytest.fixture(autouse=True)
def unlearned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the network as it starts, which is exact for a Gaussian."""
    optimise = lambda params, *_: (params, training.Fitted((1.0,), 0))  # noqa: E731
    monkeypatch.setattr(training, "optimise", optimise)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npy"
    np.save(path, SAMPLES)
    return path


@pytest.fixture
def saved(table: Path, tmp_path: Path) -> Path:
    run("fit", table, "-o", tmp_path / "prior.safetensors", "--seed", 3)
    return tmp_path / "prior.safetensors"


def test_fit_writes_a_prior_and_a_picture(table: Path, tmp_path: Path) -> None:
    file, picture = tmp_path / "prior.safetensors", tmp_path / "prior.png"
    printed = run("fit", table, "-o", file, "--plot", picture, "--seed", 3)
    assert "300 samples, 60 of them held out" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
    prior, expected = dp.DiffusionPrior.load(file), dp.DiffusionPrior.fit(SAMPLES, seed=3)
    assert_array_equal(prior.denoiser.weights_in, expected.denoiser.weights_in)
    assert_allclose(prior.offset, SAMPLES.mean(axis=0), rtol=1e-6)


def test_fit_knows_the_paper_preset(table: Path, tmp_path: Path) -> None:
    run("fit", table, "-o", tmp_path / "prior", "--preset", "paper")
    assert dp.DiffusionPrior.load(tmp_path / "prior").schedule == dp.Schedule.constant()


@pytest.mark.parametrize("suffix", [".npy", ".csv"])
def test_sample_writes_draws(saved: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"draws{suffix}"
    assert "wrote 400 draws of 2 parameters" in run("sample", saved, "-n", 400, "-o", out)
    draws = cli.read_table(out)
    assert draws.shape == (400, 2)
    assert np.all(np.abs(draws.mean(axis=0) - SAMPLES.mean(axis=0)) < 5 * draws.std(axis=0) / 20)


def test_same_seed_same_draws(saved: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.npy" for index in range(3)]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        run("sample", saved, "-n", 50, "-o", file, "--seed", seed)
    first, again, other = (np.load(file) for file in files)
    assert_array_equal(first, again)
    assert np.all(first != other)


@pytest.mark.parametrize("header", ["", "height,width\n"])
def test_csv_is_read_with_or_without_a_header(tmp_path: Path, header: str) -> None:
    path = tmp_path / "samples.csv"
    path.write_text(header + "\n".join(f"{a!r},{b!r}" for a, b in SAMPLES.tolist()) + "\n")
    assert_array_equal(cli.read_table(path), SAMPLES)


def test_parquet_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in for pyarrow, an extra; without it the user is told what to install."""
    path = tmp_path / "samples.parquet"
    path.touch()
    columns = {"a": SAMPLES[:, 0].tolist(), "b": SAMPLES[:, 1].tolist()}
    read = lambda _: SimpleNamespace(to_pydict=lambda: columns)  # noqa: E731
    parquet = SimpleNamespace(read_table=read)
    monkeypatch.setitem(sys.modules, "pyarrow", SimpleNamespace(parquet=parquet))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", parquet)
    assert_array_equal(cli.read_table(path), SAMPLES)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match="needs pyarrow; `pip install"):
        cli.read_table(path)


def test_refusals_say_what_is_wrong(table: Path, saved: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.npy"
    np.save(few, SAMPLES[:5])
    words = tmp_path / "words.csv"
    words.write_text("a,b\nc,d\n")
    objects = tmp_path / "objects.npy"
    np.save(objects, np.array([{}], dtype=object), allow_pickle=True)
    out = tmp_path / "out.npy"
    for arguments, message in [
        (("fit", tmp_path / "absent.npy", "-o", out), "expected a file, found none"),
        (("fit", tmp_path, "-o", out), "expected a file"),
        (("fit", few, "-o", out), "at least 20 rows, got 5"),
        (("fit", words, "-o", out), "error:"),
        (("fit", objects, "-o", out), "error:"),
        (("fit", table, "-o", out, "--preset", "best"), "`preset`: expected one of"),
        (("fit", saved, "-o", out), "expected .npy, .csv or .parquet"),
        (("sample", tmp_path / "absent", "-o", out), "expected a file, found none"),
        (("sample", table, "-o", out), "not a complete safetensors file"),
        (("sample", saved, "-o", out, "-n", 0), "expected a positive integer, got 0"),
        (("sample", saved, "-o", tmp_path / "out.txt"), "expected .npy or .csv, got out.txt"),
    ]:
        assert message in run(*arguments, code=2)
    assert not out.exists()


def test_warnings_are_in_the_report(tmp_path: Path) -> None:
    few = tmp_path / "few.npy"
    np.save(few, SAMPLES[:25])
    printed = run("fit", few, "-o", tmp_path / "prior")
    assert "warning: 25 samples are few" in printed


def test_no_arguments_is_a_request_for_help() -> None:
    result = CliRunner().invoke(cli.app, [])
    assert all(name in result.output for name in ("fit", "sample"))
