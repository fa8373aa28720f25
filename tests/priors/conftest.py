"""One small learned prior for all tests of this folder, and fits in which nothing is learned."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from diffprior.priors import training
from diffprior.priors.denoisers import NetworkDenoiser
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
        recipe = training.Recipe(750, 128, 2e-2, False)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(training, "network_recipe", lambda dim, isotropic: (recipe, 32, 2))
            patch.setattr(training, "HELD_OUT_DRAWS", 2048)
            return dp.DiffusionPrior.fit(samples, progress=False, **options)


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
    """Leave the network as it starts, exact for a Gaussian; the data it was given are kept."""
    given, fit_network = [], training.fit_network

    def fit(train: np.ndarray, held_out: np.ndarray, **options: Any) -> Any:
        given.append((train, held_out))
        return fit_network(train, held_out, **options)

    monkeypatch.setattr("diffprior.priors.fitting.fit_network", fit)
    monkeypatch.setattr(training, "optimise", lambda p, *_: (p, training.Fitted((1.0,), 0)))
    monkeypatch.setattr("diffprior.priors.residuals.RESIDUAL_DRAWS", 256)
    yield given


@pytest.fixture
def untrained() -> dp.DiffusionPrior:
    """A small prior that has not been learned, with a report."""
    network = NetworkDenoiser.initialise(jax.random.key(0), 2, width=6, depth=2, isotropic=False)
    network = jax.tree.map(lambda leaf: leaf.astype(jnp.result_type(float)), network)
    stages = tuple(StageLoss(x, 0.9 / (1 + x * x), 2.0, 1.0, 0.9) for x in (-7.0, 1.0, 9.0))
    return dp.DiffusionPrior(
        jnp.array([1.0, -2.0]),
        jnp.array([[2.0, 0.0], [0.5, 0.1]]),
        network,
        jnp.array([-7.0, 1.0, 9.0]),
        jnp.array([0.9, 0.3, 0.01]),
        dp.Schedule.log_snr(4),
        Metadata(FitReport(100, 20, 1.25, (0.9, 0.8), 1, stages, ("few samples",))),
    )
