"""A prior on the command line that takes no time to learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp

SAMPLES = np.random.default_rng(0).standard_normal((300, 2)) * [1.0, 3.0] + [0.0, 5.0]


@pytest.fixture
def samples() -> np.ndarray:
    return SAMPLES


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Priors are learned in few steps; the list is of what they are learned from."""
    asked: list[np.ndarray] = []
    fit = dp.DiffusionPrior.fit

    def short(values: np.ndarray, **options: Any) -> dp.DiffusionPrior:
        asked.append(values)
        return fit(values, **options, num_steps=25, width=8, depth=2)

    monkeypatch.setattr(dp.DiffusionPrior, "fit", short)
    return asked


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npy"
    np.save(path, SAMPLES)
    return path
