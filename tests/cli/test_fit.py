"""`fit` and `sample`: files in, files out, and everything checked before the first work."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
from cli.helpers import run
from diffprior.cli.fit import read_parameters


def test_fit_writes_a_prior(
    table: Path, tmp_path: Path, fitted: list[np.ndarray], samples: np.ndarray
) -> None:
    file = tmp_path / "prior.dprior"
    printed = run("fit", table, "-o", file, "--seed", 3)
    assert "300 samples, 60 of them held out" in printed
    assert printed.count("some are odd") == 1  # by the report, not as a warning too
    assert_array_equal(fitted[0], samples)
    prior = dp.DiffusionPrior.load(file)
    assert_allclose(prior.offset, samples.mean(axis=0), rtol=1e-6)
    draws = {seed: tmp_path / f"{seed}.csv" for seed in (1, 2)}
    for seed, out in draws.items():
        printed = run("sample", file, "-n", 50, "-o", out, "--seed", seed)
        assert "wrote 50 draws of 2 parameters" in printed
    first, other = (read_parameters(out).values for out in draws.values())
    assert first.shape == (50, 2) and np.all(first != other)
    run("sample", file, "-n", 50, "-o", tmp_path / "again.npy", "--seed", 1)
    assert_array_equal(np.load(tmp_path / "again.npy"), first)


def test_fit_learns_from_the_columns_named(
    tmp_path: Path, fitted: list[np.ndarray], samples: np.ndarray
) -> None:
    path = tmp_path / "tasks.csv"
    lines = [f"{i},{a!r},{b!r}" for i, (a, b) in enumerate(samples.tolist())]
    path.write_text("id,height,width\n" + "\n".join(lines))
    assert "--columns 'height,width'" in run("fit", path, "-o", tmp_path / "p", code=2)
    run("fit", path, "-o", tmp_path / "p", "--columns", "*t*", "--columns", "height")
    assert_array_equal(fitted[-1], samples)
    run("sample", tmp_path / "p", "-n", 30, "-o", tmp_path / "draws.csv")
    assert read_parameters(tmp_path / "draws.csv").names == ("height", "width")  # kept in the prior


def test_errors_come_before_any_work(table: Path, tmp_path: Path, fitted: list[np.ndarray]) -> None:
    out, missing = tmp_path / "out.npy", tmp_path / "missing" / "out.npy"
    before, evidence = table.read_bytes(), tmp_path / "evidence"
    dp.Linear(1.0).observe(dim=2).save(evidence)
    cases: list[tuple[tuple[Any, ...], str]] = [
        (("fit", tmp_path / "absent.npy", "-o", out), "expected a file, found none"),
        (("fit", tmp_path, "-o", out), "expected a file"),
        (("fit", table, "-o", missing), "`output`: expected a file in a folder that exists"),
        (("fit", table, "-o", tmp_path), "`output`: expected a file, got the folder"),
        (("fit", table, "-o", table), "expected another file than the input"),
        (("fit", table, "-o", tmp_path / "." / table.name), "expected another file than the input"),
        (("fit", table, "-o", out, "--preset", "best"), "`preset`: expected one of"),
        (("sample", table, "-o", missing), "in a folder that exists"),
        (("sample", table, "-o", table), "expected another file than the input"),
        (("sample", table, "-o", tmp_path / "out.txt"), "expected one of .npy, .csv, got out.txt"),
        (("sample", tmp_path / "absent", "-o", out), "error:"),
        (("sample", table, "-o", out), "error:"),
        (
            ("sample", evidence, "-o", out),
            "expected the file of a prior or a model, got one of LinearEv",
        ),
    ]
    for arguments, message in cases:
        assert message in run(*arguments, code=2)
    assert not fitted
    assert table.read_bytes() == before and {p.name for p in tmp_path.iterdir()} == {
        table.name,
        "evidence",
    }


def test_a_link_to_the_input_is_the_input(table: Path, tmp_path: Path) -> None:
    os.symlink(table, tmp_path / "link.npy")
    assert "than the input" in run("fit", table, "-o", tmp_path / "link.npy", code=2)
