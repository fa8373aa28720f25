"""Results are computed once, and again when anything that could change them has changed."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from diffprior.files import cache as module
from diffprior.files.cache import array_digest, source_digest
from experiments.cache import ResultCache


@dataclass(frozen=True)
class Numbers:
    regret: list[float]
    count: int


class Counted:
    """Something to compute that counts how often it was."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Numbers:
        self.count += 1
        return Numbers([1.5, float("nan")], self.count)


def get(
    folder: Path, compute: Counted, name: str = "a", fresh: bool = False, **settings: Any
) -> int:
    return ResultCache(folder, fresh=fresh).numbers(Numbers, name, settings, compute).count


def test_a_result_is_computed_once(tmp_path: Path) -> None:
    compute = Counted()
    for sizes in ((1, 2), [1, 2]):
        found = ResultCache(tmp_path).numbers(Numbers, "a, b", {"sizes": sizes}, compute)
        assert found.count == 1 and found.regret[0] == 1.5 and np.isnan(found.regret[1])


def test_other_settings_are_another_result(tmp_path: Path) -> None:
    compute = Counted()
    assert get(tmp_path, compute, runs=8) == 1
    assert get(tmp_path, compute, runs=9) == 2
    assert get(tmp_path, compute, "b", runs=8) == 3
    assert get(tmp_path, compute, runs=8) == 1


def test_changed_code_computes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, kept, compute = tmp_path / "package", tmp_path / "kept", Counted()
    (package / "inner").mkdir(parents=True)
    (package / "inner" / "a.py").write_text("x = 1")
    monkeypatch.setattr(module, "PACKAGE", package)
    source_digest.cache_clear()
    assert get(kept, compute) == get(kept, compute) == 1
    for changed, name in (("x = 2", "a.py"), ("x = 2", "b.py")):
        (package / "inner" / name).write_text(changed)
        source_digest.cache_clear()
        before = compute.count
        assert get(kept, compute) == before + 1
    (package / "inner" / "b.py").rename(package / "b.py")
    source_digest.cache_clear()
    assert get(kept, compute) == 4
    (package / "notes.txt").write_text("no code")
    source_digest.cache_clear()
    assert get(kept, compute) == 4
    source_digest.cache_clear()


def test_fresh_computes_again_once(tmp_path: Path) -> None:
    compute = Counted()
    get(tmp_path, compute)
    fresh = ResultCache(tmp_path, fresh=True)
    assert [fresh.numbers(Numbers, "a", {}, compute).count for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"seconds": 1}', '{"result": {"x": 1}}'])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: str) -> None:
    compute = Counted()
    get(tmp_path, compute)
    (file,) = tmp_path.glob("*.json")
    file.write_text(damage)
    assert get(tmp_path, compute) == 2
    assert json.loads(file.read_text())["result"]["count"] == 2


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> Numbers:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ResultCache(tmp_path / "kept").numbers(Numbers, "a", {}, fail)
    assert not (tmp_path / "kept").exists()


def test_arrays_are_kept_exactly(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((9, 2)).T  # not contiguous
    count: list[int] = []

    def compute() -> dict[str, np.ndarray]:
        count.append(1)
        return {"rows": rows, "number": np.array(0.1)}

    cache = ResultCache(tmp_path)
    for _ in range(2):
        found = cache.arrays("factors", {"seed": 0}, compute)
        np.testing.assert_array_equal(found["rows"], rows)
        assert float(found["number"]) == 0.1
    assert [entry.reused for entry in cache.entries] == [False, True]
    assert cache.entries[0].seconds == cache.entries[1].seconds > 0
    (file,) = tmp_path.glob("*.dprior")
    file.write_bytes(file.read_bytes()[:-8])
    cache.arrays("factors", {"seed": 0}, compute)
    assert len(count) == 2


def test_objects_are_kept_in_their_own_format(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    for mean in (1.0, 2.0):
        prior = cache.object("a", {}, lambda mean=mean: dp.GaussianPrior([mean], [[1.0]]))
        assert isinstance(prior, dp.GaussianPrior) and float(prior.mean[0]) == 1.0


def test_digests_tell_arrays_apart() -> None:
    a = np.arange(6.0)
    assert array_digest(a) == array_digest(np.arange(6)) != array_digest(a.reshape(2, 3))
    assert array_digest(a) != array_digest(a + 1e-12)
