"""Experiments small enough for a test: what is learned is not, or not really."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from diffprior.priors import residuals, training
from diffprior.reproduce.parts import Part, Parts


@pytest.fixture
def unlearned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Leave networks as they start, exact for a Gaussian, and hardly look at their residuals.

    Counts how many there were.
    """
    count: list[int] = []

    def optimise(params: object, *_: object) -> tuple[object, training.Fitted]:
        count.append(1)
        return params, training.Fitted((1.0,), 0)

    monkeypatch.setattr(training, "optimise", optimise)
    monkeypatch.setattr(residuals, "RESIDUAL_DRAWS", 50)
    yield count


@pytest.fixture(scope="session")
def gaussian() -> dp.DiffusionPrior:
    """A prior with its exact denoiser, which takes no time to learn."""
    return dp.DiffusionPrior.from_denoiser(dp.GaussianPrior(np.zeros(2), np.eye(2)))


@pytest.fixture
def closed_form(
    gaussian: dp.DiffusionPrior, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """Learned priors are this Gaussian; the list is of what they should have been learned with."""
    asked: list[dict[str, Any]] = []

    def prior(parts: Parts, name: str, samples: np.ndarray, **options: Any) -> dp.DiffusionPrior:
        asked.append({"name": name, "samples": len(samples), **options})
        parts.done.append(Part(name, 1.0, False))
        return gaussian

    monkeypatch.setattr(Parts, "prior", prior)
    return asked


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path / "parts")
