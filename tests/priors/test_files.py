"""Files: what is saved is loaded, whole or not at all, and what is not ours is refused."""

import dataclasses
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from safetensors import safe_open
from safetensors.numpy import save_file

import diffprior as dp
from diffprior.priors import files
from diffprior.priors.denoisers import StagewiseDenoiser
from diffprior.priors.diffusion import Metadata


def rewrite(
    path: Path,
    header: Callable[[dict], None] = lambda _: None,
    arrays: Callable[[dict], None] = lambda _: None,
    *,
    consistent: bool = False,
) -> None:
    """Change header and arrays of a file; if `consistent`, the header lists the new shapes."""
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["diffprior"])
        values = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    header(about)
    arrays(values)
    if consistent:
        about["shapes"] = {name: list(array.shape) for name, array in values.items()}
    save_file(values, path, metadata={"diffprior": json.dumps(about)})


@pytest.fixture
def saved(tmp_path: Path, untrained: dp.DiffusionPrior) -> Path:
    path = tmp_path / "prior.safetensors"
    untrained.save(path)
    return path


def assert_same(first: dp.DiffusionPrior, second: dp.DiffusionPrior) -> None:
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for ours, expected in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert_array_equal(ours, expected)
        assert ours.dtype == expected.dtype


def test_round_trip_is_exact(learned: dp.DiffusionPrior, tmp_path: Path) -> None:
    learned.save(tmp_path / "prior")
    loaded = dp.DiffusionPrior.load(str(tmp_path / "prior"))
    assert_same(loaded, learned)
    assert loaded.report == learned.report and loaded.schedule == learned.schedule
    key = jax.random.key(0)
    assert_array_equal(loaded.sample(key, 100), learned.sample(key, 100))


@pytest.fixture
def paper(untrained: dp.DiffusionPrior) -> dp.DiffusionPrior:
    """The paper's T = 100 with regressors of full width."""
    grid = dp.Schedule.constant()
    shapes = ((100, 2, 100), (100, 100), (100, 100, 100), (100, 100), (100, 100, 2), (100, 2))
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(shape).astype(np.float32).astype(float) for shape in shapes)
    denoiser = StagewiseDenoiser(*map(jnp.asarray, weights), grid)
    fields = {f.name: getattr(untrained, f.name) for f in dataclasses.fields(untrained)}
    return dp.DiffusionPrior(
        **fields | {"denoiser": denoiser, "schedule": grid, "metadata": Metadata(None)}
    )


def test_paper_prior_is_kept_in_less_than_ten_megabytes(
    paper: dp.DiffusionPrior, tmp_path: Path
) -> None:
    path = tmp_path / "prior"
    paper.save(path)
    assert path.stat().st_size < 10e6
    assert_same(dp.DiffusionPrior.load(path), paper)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_mode_follows_the_umask(untrained: dp.DiffusionPrior, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        untrained.save(tmp_path / "prior")
    finally:
        os.umask(before)
    assert (tmp_path / "prior").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(
    untrained: dp.DiffusionPrior, saved: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    old = saved.read_bytes()

    def fail(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, step, fail)
    with pytest.raises(OSError, match="no space left"):
        untrained.save(saved)
    assert saved.read_bytes() == old
    assert list(saved.parent.iterdir()) == [saved]


def test_closed_forms_are_not_saved(tmp_path: Path) -> None:
    prior = dp.DiffusionPrior.from_denoiser(dp.GaussianPrior(np.zeros(2), np.eye(2)))
    with pytest.raises(ValueError, match="`save`: expected a learned prior, got a closed form"):
        prior.save(tmp_path / "prior")
    assert not list(tmp_path.iterdir())


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="`path`: expected a file, found none at .*absent"):
        dp.DiffusionPrior.load(tmp_path / "absent")


@pytest.mark.parametrize("kept", [0, 7, 100, 0.5, 0.999])
def test_truncated_file_is_refused(saved: Path, kept: float) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[: kept if isinstance(kept, int) else int(kept * len(data))])
    with pytest.raises(ValueError, match="`path`: .* truncated, damaged or of another program"):
        dp.DiffusionPrior.load(saved)


class Trap:
    """Unpickling this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_no_code_is_run(saved: Path) -> None:
    trap = saved.parent / "sprung"
    saved.write_bytes(pickle.dumps(Trap(trap)))
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        dp.DiffusionPrior.load(saved)
    assert not trap.exists()


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"diffprior": "{"}])
def test_foreign_file_is_refused(saved: Path, metadata: dict[str, str] | None) -> None:
    save_file({"weight": np.zeros(3)}, saved, metadata=metadata)
    with pytest.raises(ValueError, match="no diffprior header; it was written by another program"):
        dp.DiffusionPrior.load(saved)


@pytest.mark.parametrize("text", ["[]", "3", "null", '"kind"', "[" * 100_000])
def test_header_that_is_no_table_is_refused(saved: Path, text: str) -> None:
    save_file({"offset": np.zeros(2)}, saved, metadata={"diffprior": text})
    with pytest.raises(ValueError, match="`path`: .*header"):
        dp.DiffusionPrior.load(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "diffprior.Result"}, "expected a file of diffprior.DiffusionPrior, got .*Result"),
        ({"version": files.VERSION + 1}, "expected format version 1, got 2; upgrade"),
        ({"version": None}, "expected format version 1, got None"),
    ],
)
def test_other_kinds_and_versions_are_refused(saved: Path, change: dict, message: str) -> None:
    rewrite(saved, header=lambda about: about.update(change))
    with pytest.raises(ValueError, match=f"`path`: {message}"):
        dp.DiffusionPrior.load(saved)


@pytest.mark.parametrize("key", ["denoiser", "isotropic", "alpha_bar", "report", "shapes"])
def test_header_without_a_key_is_refused(saved: Path, key: str) -> None:
    rewrite(saved, header=lambda about: about.pop(key))
    with pytest.raises(ValueError, match="`path`: "):
        dp.DiffusionPrior.load(saved)


@pytest.mark.parametrize(
    "change",
    [
        {"denoiser": "os.system"},
        {"denoiser": ["NetworkDenoiser"]},
        {"denoiser": "StagewiseDenoiser"},
        {"isotropic": "no"},
        {"isotropic": True},
        {"alpha_bar": 3},
        {"alpha_bar": ["1", "x"]},
        {"alpha_bar": [0.5, 0.2]},
        {"report": [1]},
        {"report": {}},
    ],
    ids=str,
)
def test_header_with_odd_values_is_refused(saved: Path, change: dict[str, Any]) -> None:
    rewrite(saved, header=lambda about: about.update(change))
    with pytest.raises(ValueError, match="`path`: "):
        dp.DiffusionPrior.load(saved)


@pytest.mark.parametrize("consistent", [False, True], ids=["arrays", "arrays-and-header"])
@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("offset"),
        lambda arrays: arrays.pop("denoiser.bias_in"),
        lambda arrays: arrays.update(offset=np.zeros(3)),
        lambda arrays: arrays.update({"denoiser.bias_in": np.zeros(5, np.float32)}),
        lambda arrays: arrays.update(residual=np.ones(2)),
        lambda arrays: arrays.update(more=np.zeros(2)),
    ],
    ids=["no-offset", "no-bias", "offset-shape", "bias-shape", "residual-shape", "one-more"],
)
def test_altered_arrays_are_refused(saved: Path, change: Callable, consistent: bool) -> None:
    rewrite(saved, arrays=change, consistent=consistent)
    with pytest.raises(ValueError, match="`path`: "):
        dp.DiffusionPrior.load(saved)


@pytest.mark.parametrize("name", ["offset", "denoiser.weights_out"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(saved: Path, name: str, value: float) -> None:
    rewrite(saved, arrays=lambda arrays: arrays[name].fill(value))
    with pytest.raises(ValueError, match=f"not finite in .*{name}"):
        dp.DiffusionPrior.load(saved)
