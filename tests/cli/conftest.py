"""A prior on the command line that takes no time to learn."""

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from diffprior.checks import choice
from diffprior.fitting.report import FitReport, FitWarning, StageLoss
from diffprior.priors.diffusion import Metadata

SAMPLES = np.random.default_rng(0).standard_normal((300, 2)) * [1.0, 3.0] + [0.0, 5.0]


@pytest.fixture
def samples() -> np.ndarray:
    return SAMPLES


@pytest.fixture
def fitted(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """Priors are Gaussian and take no time; the list is of what they are learned from."""
    asked: list[np.ndarray] = []

    def fit(values: np.ndarray, *, preset: str, seed: int) -> dp.DiffusionPrior:
        choice("preset", preset, ("default", "paper"))
        asked.append(values)
        warnings.warn("`samples`: some are odd", FitWarning, stacklevel=2)
        stages = (StageLoss(0.0, 0.5, 1.0, 1.0, 0.5),)
        report = FitReport(len(values), 60, 1.0, (1.0,), 0, stages, ("some are odd",))
        prior = dp.DiffusionPrior.from_prior(dp.GaussianPrior.fit(values))
        return dataclasses.replace(prior, metadata=Metadata(report))

    monkeypatch.setattr(dp.DiffusionPrior, "fit", fit)
    return asked


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "samples.npy"
    np.save(path, SAMPLES)
    return path
