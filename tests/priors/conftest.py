"""One small learned prior for all tests of this folder, and fits in which nothing is learned."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from diffprior.priors import choose_base
from diffprior.priors.corrected import CorrectedDenoiser
from diffprior.priors.correction import Correction
from diffprior.priors.descent import Fitted, Recipe
from diffprior.priors.diffusion import Metadata
from diffprior.priors.report import FitReport, StageLoss

WEIGHTS = np.array([0.5, 0.5])
MEANS = np.array([[1.5, 0.5], [-1.5, -0.5]])
COVS = np.stack([0.16 * np.eye(2)] * 2)


class Blobs:
    """Two blobs, samples of them, and a quick way to learn a prior from samples."""

    weights, means, covs = WEIGHTS, MEANS, COVS
    rng = np.random.default_rng(0)
    samples = MEANS[rng.integers(0, 2, 2000)] + 0.4 * rng.standard_normal((2000, 2))

    @staticmethod
    def fit(
        samples: Any, steps: int = 750, orthogonal: bool = False, **options: Any
    ) -> dp.DiffusionPrior:
        """A fit of a small network, for which a few seconds suffice."""
        recipe = Recipe(750, 128, 2e-2, False)
        plan = choose_base.TrainingPlan(recipe, 32, 2, (-4.0, 3.0))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(choose_base, "training_plan", lambda dim, mixed: plan)
            patch.setattr(choose_base, "HELD_OUT_DRAWS", 2048)
            patch.setattr(choose_base, "choose_components", one_gaussian)
            return dp.DiffusionPrior.fit(samples, progress=False, **options)


def one_gaussian(unit: np.ndarray, *_: Any, **__: Any) -> Any:
    """In place of EM: no mixture is better."""
    return SimpleNamespace(num_components=1)


@pytest.fixture(scope="session")
def blobs() -> Blobs:
    """The two blobs."""
    return Blobs()


@pytest.fixture(scope="session")
def learned(blobs: Blobs) -> dp.DiffusionPrior:
    """A prior learned from samples of the two blobs."""
    return blobs.fit(blobs.samples)


@pytest.fixture
def unlearned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """Nothing is learned, so that one Gaussian stays; the data it was given are kept."""
    given, fit_corrected = [], choose_base.fit_corrected

    def fit(train: Any, held_out: Any, **options: Any) -> Any:
        given.append(tuple(np.asarray(part.samples) for part in (train, held_out)))
        return fit_corrected(train, held_out, **options)

    monkeypatch.setattr("diffprior.priors.fitting.fit_corrected", fit)
    monkeypatch.setattr(choose_base, "optimize", lambda p, *_: (p, Fitted((1.0,), 0)))
    monkeypatch.setattr(choose_base, "choose_components", one_gaussian)
    monkeypatch.setattr(choose_base, "HELD_OUT_DRAWS", 64)
    monkeypatch.setattr(choose_base, "JUDGED_EVIDENCE", 8)
    monkeypatch.setattr("diffprior.priors.correction_loss.LARGEST_POOL", 256)
    monkeypatch.setattr("diffprior.priors.residuals.RESIDUAL_DRAWS", 256)
    yield given


@pytest.fixture
def untrained() -> dp.DiffusionPrior:
    """A small prior that has not been learned, with a report."""
    correction = Correction.initialize(jax.random.key(0), 2, 1, width=6, depth=2)
    correction = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), correction)
    stages = tuple(StageLoss(x, 0.9 / (1 + x * x), 2.0, 1.0, 0.9) for x in (-7.0, 1.0, 9.0))
    return dp.DiffusionPrior(
        jnp.array([1.0, -2.0]),
        jnp.array([[2.0, 0.0], [0.5, 0.1]]),
        CorrectedDenoiser(None, correction, None, 2),
        jnp.array([-7.0, 1.0, 9.0]),
        jnp.array([0.9, 0.3, 0.01]),
        dp.Schedule.log_snr(4),
        Metadata(FitReport(100, 20, 1.25, (0.9, 0.8), 1, stages, ("few samples",))),
    )
