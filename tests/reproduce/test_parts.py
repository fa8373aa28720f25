"""Parts are run once, and again when anything about them has changed."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from diffprior.reproduce import parts as module
from diffprior.reproduce.parts import AbstractWatch, Part, Parts

SAMPLES = np.random.default_rng(0).standard_normal((209, 2))


class Counted:
    """Something to run that counts how often it was."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> dict[str, object]:
        self.count += 1
        return {"regret": [1.5, float("nan")], "runs": self.count}


def test_a_part_is_run_once(tmp_path: Path) -> None:
    run = Counted()
    first = Parts(tmp_path).numbers("regret, cross", {"runs": 8, "sizes": (1, 2)}, run)
    again = Parts(tmp_path).numbers("regret, cross", {"sizes": [1, 2], "runs": 8}, run)
    assert run.count == first["runs"] == again["runs"] == 1
    assert np.isnan(again["regret"][1]) and again["regret"][0] == 1.5


@pytest.mark.parametrize(
    ("name", "settings"),
    [("regret, cross", {"runs": 9}), ("regret, rays", {"runs": 8}), ("regret, cross", {})],
)
def test_other_settings_are_another_part(tmp_path: Path, name: str, settings: dict) -> None:
    run = Counted()
    Parts(tmp_path).numbers("regret, cross", {"runs": 8}, run)
    assert Parts(tmp_path).numbers(name, settings, run)["runs"] == 2
    assert Parts(tmp_path).numbers("regret, cross", {"runs": 8}, run)["runs"] == 1


def test_another_version_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Counted()
    Parts(tmp_path).numbers("a", {}, run)
    monkeypatch.setattr(module, "package_version", lambda: "another")
    Parts(tmp_path).numbers("a", {}, run)
    assert run.count == 2


def test_arrays_are_kept_exactly_and_damaged_files_are_not_used(tmp_path: Path) -> None:
    count: list[int] = []

    def run() -> dict[str, np.ndarray]:
        count.append(1)
        return {"rows": SAMPLES, "number": np.array(0.1)}

    parts = Parts(tmp_path)
    for _ in range(2):
        found = parts.arrays("factors", {"seed": 0}, run, shown="factors, cross")
        np.testing.assert_array_equal(found["rows"], SAMPLES)
        assert float(found["number"]) == 0.1
    assert [(part.name, part.kept) for part in parts.done] == [
        ("factors, cross", False),
        ("factors, cross", True),
    ]
    parts.arrays("factors", {"seed": 1}, run)
    (file, other) = sorted(tmp_path.glob("factors-*.arrays"))
    file.write_bytes(file.read_bytes()[:-8])
    other.write_bytes(other.read_bytes()[:-8])
    parts.arrays("factors", {"seed": 0}, run)
    assert len(count) == 3


def test_fresh_runs_again_once(tmp_path: Path) -> None:
    run = Counted()
    Parts(tmp_path).numbers("a", {}, run)
    fresh = Parts(tmp_path, fresh=True)
    assert [fresh.numbers("a", {}, run)["runs"] for _ in range(2)] == [2, 2]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": "b"}'])
def test_a_damaged_file_counts_as_missing(tmp_path: Path, damage: str) -> None:
    run = Counted()
    Parts(tmp_path).numbers("a", {}, run)
    (file,) = tmp_path.glob("*.json")
    file.write_text(damage)
    assert Parts(tmp_path).numbers("a", {}, run)["runs"] == 2
    assert json.loads(file.read_text())["name"] == "a"


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Parts(tmp_path).numbers("a", {}, fail)
    with pytest.raises(TypeError):  # no JSON
        Parts(tmp_path).numbers("a", {}, object)
    assert not list(tmp_path.iterdir())


def test_priors_are_learned_once(tmp_path: Path, unlearned: list[int]) -> None:
    def learn(**options: object) -> object:
        return Parts(tmp_path).prior("prior, cross", SAMPLES, **options)

    first, again = learn(), learn()
    assert len(unlearned) == 1
    np.testing.assert_array_equal(first.denoiser.weights_in, again.denoiser.weights_in)
    assert len(list(tmp_path.glob("*.dprior"))) == 1
    learn(seed=1)
    Parts(tmp_path).prior("prior, cross", SAMPLES[::-1])
    assert len(unlearned) == 3
    for file in tmp_path.glob("*.dprior"):
        file.write_bytes(file.read_bytes()[:-10])
    learn()
    assert len(unlearned) == 4


class Diary(AbstractWatch):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.entries: list[object] = []

    def plan(self, count: int) -> None:
        self.entries.append(count)

    def begin(self, name: str) -> None:
        self.entries.append(name)

    def end(self, part: Part) -> None:
        self.entries.append(part.kept)


def test_a_watch_is_told(tmp_path: Path) -> None:
    run: Callable[[], dict] = Counted()
    diary = Diary()
    parts = Parts(tmp_path, watch=diary)
    parts.watch.plan(2)
    parts.numbers("a", {}, run)
    parts.numbers("a", {}, run)
    assert diary.entries == [2, "a", False, "a", True]
    assert [part.name for part in parts.done] == ["a", "a"]
    assert parts.done[0].seconds == parts.done[1].seconds > 0
