"""Everything that is kept comes back as it was, in either precision."""

import copy
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

import diffprior as dp
from diffprior.evidence import base
from diffprior.files.base import digest_content, import_kinds, kind_of, known_kinds
from files.helpers import (
    EXAMPLES,
    assert_same,
    bandit,
    contents,
    example,
    forged,
    learned,
    paper,
    put_together,
    take_apart,
)

NAMES = list(EXAMPLES)
OF_ARRAYS = (
    *("linear-evidence", "logistic-evidence", "gaussian", "mixture", "empirical", "conditional"),
    *("learned", "mixture-base", "paper", "twisted-smc", "thompson", "encoder", "model", "items"),
)
PRIOR = dp.GaussianPrior(np.zeros(3), np.eye(3))


def kinds_within(value: Any) -> set[str]:
    """The names of the classes of an object and of all that it holds."""
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
        return {value[0]} | kinds_within(tuple(value[1].values()))
    if isinstance(value, tuple):
        return set().union(*map(kinds_within, value))
    return set()


def test_there_is_an_example_of_every_kind() -> None:
    import_kinds()
    tried = set().union(*(kinds_within(contents(value)) for value in map(example, EXAMPLES)))
    ours = {kind for kind, cls in known_kinds().items() if cls.__module__.startswith("diffprior")}
    now = {kind for kind in ours if kind_of(known_kinds()[kind]) == kind}
    assert now - {"WrappedPrior"} <= tried


def test_bytes_and_files_are_exact(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for name in NAMES:
        value: Any = example(name)
        value.save(path)
        keep = {"keep_seed": True} if name == "bandit" else {}
        assert_same(type(value).from_bytes(value.to_bytes(), **keep), value)
        assert_same(type(value).load(path, **keep), value)
        assert path.read_bytes() == value.to_bytes()
        assert type(dp.load(path)) is type(dp.load_bytes(value.to_bytes())) is type(value)


def test_the_other_precision_reads_them() -> None:
    for name in OF_ARRAYS:
        check_other_precision(example(name))


def check_other_precision(value: Any) -> None:
    """Written here and read in the other precision, then back; and both digests are the same."""
    double = bool(jax.config.read("jax_enable_x64"))
    with jax.enable_x64(not double):
        other = dp.load_bytes(value.to_bytes())
        floats = [leaf for leaf in jax.tree.leaves(other) if hasattr(leaf, "dtype")]
        wanted = jnp.float32 if double else jnp.float64
        assert all(leaf.dtype == wanted for leaf in floats if leaf.dtype.kind == "f")
        assert other.digest == value.digest
        blob = other.to_bytes()
    back = dp.load_bytes(blob)
    assert_same(back, value, rtol=1e-6)
    assert back.digest == value.digest


def test_a_bandit_is_read_in_the_other_precision() -> None:
    ours = bandit(PRIOR)
    with jax.enable_x64(not jax.config.read("jax_enable_x64")):
        other = dp.Bandit.from_bytes(ours.to_bytes(), seed=1)
        assert 0 <= other.decide(np.eye(3)).action < 3
    assert_same(other.evidence, ours.evidence, rtol=1e-6)


def test_abstract_classes_read_what_is_below_them() -> None:
    blob = dp.Logistic().to_bytes()
    assert isinstance(dp.AbstractLikelihood.from_bytes(blob), dp.Logistic)
    with pytest.raises(ValueError, match="`blob`: this holds a Logistic, not a Poisson"):
        dp.Poisson.from_bytes(blob)
    with pytest.raises(ValueError, match="`blob`: expected bytes, got str"):
        dp.load_bytes("prior.dprior")


def test_weights_of_single_precision_take_no_more_room_in_double() -> None:
    header, _, _ = take_apart(learned().to_bytes())
    assert {header[name]["dtype"] for name in header if "weights" in name} == {"F32"}
    assert {header["offset"]["dtype"]} == {"F64" if jax.config.read("jax_enable_x64") else "F32"}


@pytest.mark.parametrize("capacity", [1024, 2048])
def test_rows_not_in_use_take_no_room(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless there is so much room that a file may not ask for it without holding it."""
    monkeypatch.setattr(base, "SMALL_ROOM", 2**13)
    ours = dp.Logistic().empty(3, capacity).extend(np.eye(3), np.ones(3))
    header, _, _ = take_apart(ours.to_bytes())
    assert header["features"]["shape"] == [3 if capacity == 1024 else 2048, 3]
    assert_same(dp.load_bytes(ours.to_bytes()), ours)
    assert dp.load_bytes(ours.to_bytes()).capacity == ours.capacity


# ---- digests


def test_digest_tells_priors_apart() -> None:
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    others = [
        dp.GaussianPrior(np.array([0.0, 1e-3]), np.eye(2)),
        dp.GaussianPrior(np.zeros(2), 2 * np.eye(2)),
        dp.GaussianPrior(np.zeros(3), np.eye(3)),
        dp.EmpiricalPrior(np.eye(2)),
        learned(),
        paper(),
    ]
    digests = {prior.digest, *(other.digest for other in others)}
    assert len(digests) == 7 and all(len(digest) == 32 for digest in digests)
    assert prior.digest == dp.GaussianPrior(np.zeros(2), np.eye(2)).digest


def test_digest_is_the_same_in_another_process(tmp_path: Path) -> None:
    learned().save(tmp_path / "prior")
    code = "import sys, diffprior as dp; print(dp.load(sys.argv[1]).digest)"
    command = [sys.executable, "-c", code, str(tmp_path / "prior")]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == learned().digest


@pytest.mark.parametrize("sampler", [dp.Exact, dp.EvidenceDPS], ids=["exact", "wrapped"])
def test_a_bandit_names_its_prior(sampler: Any, tmp_path: Path) -> None:
    prior = dp.GaussianPrior(np.arange(3.0), np.eye(3))
    ours, path = bandit(sampler(prior)), tmp_path / "file"
    ours.save(path, prior="digest")
    assert path.stat().st_size < len(ours.to_bytes())
    assert "agent.sampler.prior.mean" not in take_apart(path.read_bytes())[0]
    assert_same(dp.Bandit.load(path, prior=prior, keep_seed=True), ours)
    other = dp.GaussianPrior(np.arange(3.0) + 1e-3, np.eye(3))
    for given in (None, other):
        with pytest.raises(ValueError, match=f"`path`: .* of digest '{prior.digest}'"):
            dp.Bandit.load(path, prior=given)


def test_a_learned_prior_is_named() -> None:
    prior = learned()
    ours = bandit(dp.TwistedSMC(prior, num_particles=2, steps=2))
    blob = ours.to_bytes(prior="digest")
    assert_same(dp.Bandit.from_bytes(blob, prior=prior, keep_seed=True), ours)
    with pytest.raises(ValueError, match="`prior`: expected one of 'whole', 'digest'"):
        ours.to_bytes(prior="name")


# ---- copies


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))]
)
def test_copies_of_a_bandit_live(duplicate: Any) -> None:
    ours = bandit(PRIOR)
    ours.decide(np.eye(3))
    theirs = duplicate(ours)
    assert_same(theirs, ours)
    features = np.random.default_rng(0).standard_normal((4, 3))
    assert [theirs.decide(features).action for _ in range(3)] == [
        ours.decide(features).action for _ in range(3)
    ]
    theirs.update(features, np.ones(4))
    assert theirs.evidence.count == 7 and ours.evidence.count == 3


def test_a_copy_brings_classes_of_ones_own_along() -> None:
    """A new process imports the modules of the classes before it reads the bytes."""
    restore, (kind, blob, kinds) = dp.Bandit(PRIOR, Mine(2)).__reduce__()
    assert {Mine, dp.GaussianPrior, dp.Exact} <= set(kinds) and kind is dp.Bandit
    assert restore(kind, blob, kinds).likelihood.what == 2


# ---- classes of one's own, and fields that are added later


class Mine(dp.AbstractLikelihood):
    """Holds a bit of everything."""

    what: Any
    added: float = eqx.field(static=True, default=2.5)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return eta

    def log_density(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return -((y - eta) ** 2)

    def sample(self, key: Any, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return eta

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any."""

    def empty(self, dim: int, capacity: int = 0) -> dp.LinearEvidence:
        return dp.Linear(1.0).empty(dim)


class Pair(NamedTuple):
    """More than a tuple."""

    a: int
    b: int


def nothing() -> None:
    """A function."""


def test_a_class_of_ones_own_is_kept() -> None:
    ours = Mine((1, "ä", None, True, np.arange(3), {"b": (jnp.ones(2), float("-inf"))}))
    assert_same(dp.load_bytes(ours.to_bytes()), ours)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (nothing, "got function at what"),
        ((1, [2]), "got list at what.1"),
        ({1: 2}, "got dict at what"),
        (jax.Array.__new__, "got builtin_function_or_method at what"),
        (Pair(1, 2), "got Pair at what"),
        (jnp.array([jnp.nan]), "`what`: expected finite numbers"),
        (np.array(["a"]), "got <U1 at what"),
        (np.zeros(1, np.longdouble), "got (long double|float128|longdouble) at what"),
        (tuple("x" * 60 for _ in range(20_000)), "at most 1048576 bytes besides arrays"),
    ],
    ids=["function", "list", "dict", "method", "pair", "nan", "text", "longdouble", "long"],
)
def test_what_cannot_be_kept_is_rejected(what: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"`save`: .*{message}"):
        Mine(what).save(tmp_path / "file")
    assert not list(tmp_path.iterdir())


class Foreign:
    """A prior that is none of ours."""

    dim = 2

    def sample(self, key: Any, num_samples: int) -> np.ndarray:
        return np.zeros((num_samples, 2))

    def denoise(self, precision: Any, shift: Any) -> dp.Gaussian:
        return self.moments()

    def moments(self) -> dp.Gaussian:
        return dp.Gaussian.standard(2)


def test_a_foreign_prior_is_not_kept() -> None:
    with pytest.raises(ValueError, match="`save`: expected a prior derived .*, got Foreign"):
        dp.DiffusionPrior.from_prior(Foreign()).to_bytes()


def test_a_field_with_a_default_reads_old_files() -> None:
    old = forged(Mine(1, 7.0).to_bytes(), lambda _, about: about["object"]["fields"].pop("added"))
    assert dp.load_bytes(old).added == 2.5
    assert Mine(1).digest != Mine(1, added=7.0).digest
    assert "added" not in digest_content(Mine(1))[1], "as before the field was added"


class Later(dp.Linear):
    """Was called by another name, and had a variance."""

    former_kinds = ("Former",)
    file_version = 3

    @classmethod
    def upgrade(cls, fields: dict[str, Any], version: int) -> dict[str, Any]:
        if version < 2:
            fields = {"noise_var": fields.pop("variance")}
        if version < 3:
            fields = {"noise_std": fields.pop("noise_var") ** 0.5}
        return fields


def test_older_versions_are_upgraded_and_newer_ones_rejected() -> None:
    header, about, data = take_apart(Mine(jnp.asarray(9.0)).to_bytes())
    header["variance"] = header.pop("what")
    about["object"] = {"kind": "Former", "version": 1, "fields": {"variance": {"array": "jax"}}}
    found = dp.load_bytes(put_together(header, about, data))
    assert type(found) is Later and found.noise_std == 3.0
    about["object"]["version"] = 4
    with pytest.raises(ValueError, match="a Later of version 4, this program knows .* up to 3"):
        dp.load_bytes(put_together(header, about, data))
    about["object"] |= {"version": 3}
    with pytest.raises(ValueError, match=r"fields \['noise_std', 'variance'\] missing or unknown"):
        dp.load_bytes(put_together(header, about, data))


def test_other_programs_read_the_arrays(tmp_path: Path) -> None:
    """The container is a safetensors file like any other."""
    from safetensors import safe_open

    prior = learned()
    prior.save(tmp_path / "prior")
    with safe_open(tmp_path / "prior", framework="numpy") as file:
        np.testing.assert_array_equal(file.get_tensor("offset"), prior.offset)
        assert json.loads(file.metadata()["diffprior"])["object"]["kind"] == "DiffusionPrior"
