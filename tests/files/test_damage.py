"""Damaged and forged files: rejected with a message or loaded equal, fast and in little memory."""

import copy
import json
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from files.helpers import (
    bandit,
    example,
    forged,
    learned,
    paper,
    put_together,
    take_apart,
)

SMALL = dp.GaussianPrior(np.array([1.0, 0.1]), np.eye(2))


# ---- damage


def test_flipped_bits_of_large_arrays_are_rejected() -> None:
    blob, rng = paper().to_bytes(), random.Random(0)
    header = int.from_bytes(blob[:8], "little") + 8
    for _ in range(100):
        damaged = bytearray(blob)
        damaged[rng.randrange(header, len(blob))] ^= 1 << rng.randrange(8)
        with pytest.raises(ValueError, match="wrong checksum of '"):
            dp.load_bytes(bytes(damaged))


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_no_code_is_run(tmp_path: Path) -> None:
    trap, path = tmp_path / "sprung", tmp_path / "file"
    path.write_bytes(pickle.dumps(Trap(trap)))
    with pytest.raises(ValueError, match="`path`: .*is not a complete diffprior file"):
        dp.load(path)
    for name in (
        "os.system",
        "builtins.eval",
        "diffprior.files.atomic.write_atomic",
        "Serializable",
    ):
        forgery = forged(SMALL.to_bytes(), lambda _, a, n=name: a["object"].update(kind=n))
        with pytest.raises(ValueError, match=f"names a class '{name}' that is not defined"):
            dp.load_bytes(forgery)
    assert not trap.exists()


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`path`: expected a file, found none at .*absent"):
        dp.load(tmp_path / "absent")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="`path`: expected a file, got a folder or device"):
            dp.GaussianPrior.load(path)


# ---- forgery: checksums that fit, and a content that does not


def fields(about: dict[str, Any], *path: str) -> dict[str, Any]:
    """The fields of an object within the file."""
    node = about["object"]
    for name in path:
        node = node["fields"][name]
    return node["fields"]


def values(blob: bytes, name: str, new: Any) -> bytes:
    """The file with the numbers of one array replaced."""
    header, about, data = take_apart(blob)
    start, stop = header[name]["data_offsets"]
    code = {"F32": "<f4", "F64": "<f8", "I32": "<i4"}[header[name]["dtype"]]
    numbers = np.full(header[name]["shape"], new, code).tobytes()
    assert len(numbers) == stop - start
    return put_together(header, about, data[:start] + numbers + data[stop:])


FORGED_NUMBERS = [
    ("gaussian", "mean", np.nan, "expected finite numbers"),
    ("gaussian", "cov", np.inf, "expected finite numbers"),
    ("gaussian", "cov", -1.0, "negative eigenvalue"),
    ("gaussian", "cov", np.arange(9.0).reshape(3, 3), "symmetric"),
    ("mixture", "weights", -0.5, "probabilities"),
    ("mixture", "weights", 0.5, "probabilities"),
    ("mixture", "covs", -1.0, "negative eigenvalue"),
    ("empirical", "log_weights", 0.0, "logarithms of probabilities"),
    ("empirical", "log_weights", np.nan, "logarithms of probabilities"),
    ("empirical", "atoms", np.nan, "expected finite numbers"),
    ("learned", "residual", 0.0, "positive numbers at increasing"),
    ("learned", "residual_log_snr", 1.0, "positive numbers at increasing"),
    ("learned", "scale", 0.0, "triangular matrix"),
    ("learned", "denoiser.weights_out", np.inf, "expected finite numbers"),
    ("linear", "noise_std", 0.0, "positive number"),
    ("linear-evidence", "count", -1.0, "negative count"),
    ("linear-evidence", "precision", -1.0, "negative eigenvalue"),
    ("linear-evidence", "noise_std", -1.0, "positive `noise_std`"),
    ("logistic-evidence", "weights", -1.0, "none below 0"),
    ("logistic-evidence", "rewards", 0.5, "expected 0 or 1"),
    ("poisson-evidence", "rewards", -1.0, "counts"),
    ("linucb", "width", 0.0, "positive number"),
    ("epsilon", "epsilon", 1.5, "probability"),
]


def test_forged_numbers_are_rejected() -> None:
    for name, field, new, message in FORGED_NUMBERS:
        with pytest.raises(ValueError, match=f"`blob`: .*{message}"):
            dp.load_bytes(values(example(name).to_bytes(), field, new))


Change = Callable[[dict[str, Any], dict[str, Any]], Any]
FORGED_HEADERS: list[tuple[str, Change, str]] = [
    ("bandit", lambda h, a: fields(a).update(num_decisions=None), "num_decisions is None"),
    ("bandit", lambda h, a: fields(a).update(num_decisions=-1), "expected none below 0, got -1"),
    ("bandit", lambda h, a: fields(a).update(num_decisions=True), "num_decisions is True"),
    ("bandit", lambda h, a: fields(a).update(num_decisions=1.5), "num_decisions is 1.5"),
    ("bandit", lambda h, a: fields(a).update(max_rows="all"), "max_rows is 'all'"),
    ("bandit", lambda h, a: fields(a).update(max_rows=3), "`max_rows`"),
    ("bandit", lambda h, a: fields(a).update(seed="x"), "seed is 'x'"),
    ("bandit", lambda h, a: fields(a).pop("seed"), r"fields \['seed'\] missing"),
    ("bandit", lambda h, a: fields(a).update(agent=None), "agent is None"),
    ("learned", lambda h, a: fields(a).update(extra=1), r"fields \['extra'\] missing or unknown"),
    ("learned", lambda h, a: fields(a, "schedule").update(alpha_bar=3), "alpha_bar is 3"),
    ("learned", lambda h, a: fields(a, "schedule").update(alpha_bar=[1.0, "x"]), "alpha_bar is"),
    ("learned", lambda h, a: fields(a, "schedule").update(alpha_bar=[1.0, 2.0]), "decreasing"),
    ("learned", lambda h, a: fields(a, "denoiser").update(isotropic="no"), "isotropic is 'no'"),
    ("learned", lambda h, a: fields(a, "denoiser").update(isotropic=True), "expected 5 inputs"),
    ("learned", lambda h, a: fields(a).update(metadata={"float": "nan"}), "metadata is nan"),
    ("learned", lambda h, a: a["object"].update(version=99), "of version 99"),
    ("learned", lambda h, a: a["object"].update(version="1"), "of version '1'"),
    ("learned", lambda h, a: a["object"].update(kind=["x"]), "class .* not defined"),
    ("learned", lambda h, a: a["object"].update(kind="AbstractPrior"), "not defined"),
    ("learned", lambda h, a: a.update(object=[]), "class None that is not"),
    ("learned", lambda h, a: a.update(format=3), "has format 3, expected 2"),
    ("learned", lambda h, a: a["object"].update(fields=[]), "has no meaning at ''"),
    ("logistic-evidence", lambda h, a: fields(a).update(num_rows=-5), "expected 0 to 128, got -5"),
    ("logistic-evidence", lambda h, a: fields(a).update(num_rows="abc"), "num_rows is 'abc'"),
    ("logistic-evidence", lambda h, a: fields(a).update(num_rows=6), "expected 0 to 128, got 6"),
    ("logistic-evidence", lambda h, a: fields(a).update(num_rows=3), "none beyond `num_rows`"),
    ("logistic-evidence", lambda h, a: fields(a).update(capacity=4), "expected 0 to 4, got 5"),
    ("logistic-evidence", lambda h, a: fields(a).update(capacity=100), "expected 0 to 100"),
    ("logistic-evidence", lambda h, a: fields(a).update(capacity=2**40), "expected room for 5"),
    ("laplace-dps", lambda h, a: fields(a).update(covariance="x"), "`covariance`"),
    ("twisted-smc", lambda h, a: fields(a).update(num_particles=0), "`num_particles`"),
    ("particle-filter", lambda h, a: fields(a).update(num_rounds=-1), "`num_rounds`"),
    ("gaussian", lambda h, a: fields(a).update(mean="abc"), "mean is 'abc'"),
    ("gaussian", lambda h, a: fields(a).update(mean={"array": "cov"}), "no meaning at 'mean'"),
    ("gaussian", lambda h, a: h["mean"].update(dtype="I32"), "deserializing|mean is"),
    ("gaussian", lambda h, a: h["mean"].update(dtype="I8"), "deserializing|has dtype"),
    ("gaussian", lambda h, a: h["mean"].update(shape=[-3]), "deserializing"),
    ("gaussian", lambda h, a: h["mean"].update(shape=[3] + 9 * [1]), "mean is an array"),
    ("gaussian", lambda h, a: h["mean"].update(shape=[3, 1]), "mean is an array"),
    ("gaussian", lambda h, a: h["mean"].update(shape=[0, 2**63], data_offsets=[0, 0]), "covered"),
    ("gaussian", lambda h, a: h["mean"].update(data_offsets=[0, 1]), "deserializing"),
    ("gaussian", lambda h, a: h.pop("mean"), "deserializing"),
    ("gaussian", lambda h, a: h.update(mean=h["cov"]), "deserializing"),
]


def test_forged_headers_are_rejected() -> None:
    for name, change, message in FORGED_HEADERS:
        with pytest.raises(ValueError, match=f"`blob`: .*({message})"):
            dp.load_bytes(forged(example(name).to_bytes(), change))


NO_OBJECTS = [
    "[]",
    "3",
    "null",
    '"kind"',
    "{",
    "[" * 100_000,
    "\ud800",
]


def test_a_header_that_is_no_object_is_rejected() -> None:
    for text in NO_OBJECTS:
        raw = text.encode(errors="surrogatepass")
        with pytest.raises(ValueError, match="`blob`: this is not a complete diffprior file"):
            dp.load_bytes(len(raw).to_bytes(8, "little") + raw)
        with pytest.raises(ValueError, match="`blob`: this "):
            dp.load_bytes(put_together({}, text, b""))


def test_shapes_must_agree_within_an_object() -> None:
    """Three means of two numbers for two components of three: each shape alone is possible."""

    def transpose(header: dict[str, Any], _: Any) -> None:
        header["means"]["shape"] = header["means"]["shape"][::-1]

    prior = dp.MixturePrior(np.ones(2) / 2, np.zeros((2, 3)), np.stack([np.eye(3)] * 2))
    with pytest.raises(ValueError, match=r"means is an array of float.. of shape \(3, 2\)"):
        dp.load_bytes(forged(prior.to_bytes(), transpose))


def test_parts_must_fit_together() -> None:
    """Honest parts of two files, put into one."""
    header, about, data = take_apart(learned().to_bytes())
    for name in ("denoiser.bias_out", "denoiser.weights_out"):
        wide = copy.deepcopy(header)
        wide[name]["shape"][-1:] = [wide[name]["shape"][-1], 1]
        with pytest.raises(ValueError, match="`blob`: .*is an array of float.. of shape"):
            dp.load_bytes(put_together(wide, about, data))
    ours = bandit(dp.GaussianPrior(np.zeros(3), np.eye(3)))
    logistic = dp.Bandit(dp.GaussianPrior(np.zeros(3), np.eye(3)), dp.Logistic(), seed=0)
    room = forged(logistic.to_bytes(), lambda h, a: fields(a).update(max_rows=10**10))
    with pytest.raises(ValueError, match="`max_rows`: expected as many as there is room for"):
        dp.load_bytes(room)
    header, about, data = take_apart(ours.to_bytes())
    other = take_apart(logistic.to_bytes())[1]
    fields(about, "agent")["likelihood"] = fields(other, "agent")["likelihood"]
    keep = {k: v for k, v in header.items() if k != "agent.likelihood.noise_std"}
    with pytest.raises(ValueError, match="`blob`: "):
        dp.load_bytes(put_together(keep, about, data))


# ---- all of it in one process of its own, without checked annotations, where memory is measured


def test_every_malicious_file_is_rejected_in_little_time_and_memory() -> None:
    """Flipped, truncated and crafted files, and files that claim to be large."""
    command = [sys.executable, str(Path(__file__).with_name("probe.py"))]
    report = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    for name in ("gaussian", "bandit"):
        for damage, least in (("flipped", 450), ("truncated", 450)):
            found = report[f"{damage} {name}"]
            assert found["tried"] > least and found["loaded"] == [], (damage, name)
    crafted = report["crafted"]  # what loads can be saved again and is then the same
    assert crafted["tried"] == 500 and crafted["loaded"] < 100 and crafted["changed"] == 0
    assert report["bombs"]["tried"] == 10 and report["bombs"]["loaded"] == []
    assert report["megabytes"] < 100 and report["seconds"] < 60
