"""Experiments small enough for a test: priors are not learned, which is exact for a Gaussian."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from diffprior.priors import training
from diffprior.reproduce.parts import Parts


@pytest.fixture
def unlearned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Leave networks as they start; counts how many there were."""
    count: list[int] = []

    def optimise(params: object, *_: object) -> tuple[object, training.Fitted]:
        count.append(1)
        return params, training.Fitted((1.0,), 0)

    monkeypatch.setattr(training, "optimise", optimise)
    yield count


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "parts")
