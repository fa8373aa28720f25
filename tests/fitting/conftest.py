"""Samples of two blobs, and a few small fits that the tests of this folder share."""

import dataclasses

import numpy as np
import pytest

import diffprior as dp

WEIGHTS = np.array([0.5, 0.5])
MEANS = np.array([[1.5, 0.5], [-1.5, -0.5]])
COVS = np.stack([0.16 * np.eye(2)] * 2)
TINY = dp.FitConfig.tiny()
GAUSSIAN = dataclasses.replace(TINY, max_components=1, num_steps=0)  # nothing is trained
LEARNED = dataclasses.replace(
    TINY, max_components=1, num_steps=750, width=32, batch_size=128, target_samples=0,
    validation_draws=2048, validation_evidence=512, evidence_pool=4096, residual_draws=4096,
    warm_up_steps=100, averaging=0.995,
)  # fmt: skip


class Blobs:
    """Two blobs and samples of them."""

    weights, means, covs = WEIGHTS, MEANS, COVS
    rng = np.random.default_rng(0)
    samples = MEANS[rng.integers(0, 2, 2000)] + 0.4 * rng.standard_normal((2000, 2))


@pytest.fixture(scope="session")
def blobs() -> Blobs:
    """The two blobs."""
    return Blobs()


@pytest.fixture(scope="session")
def learned(blobs: Blobs) -> dp.DiffusionPrior:
    """A network on a Gaussian, learned from samples of the two blobs."""
    return dp.DiffusionPrior.fit(blobs.samples, config=LEARNED, progress=False)


@pytest.fixture(scope="session")
def mixed(blobs: Blobs) -> dp.DiffusionPrior:
    """A small fit in which everything is tried, to samples in other units."""
    return dp.DiffusionPrior.fit(blobs.samples[:400] * [10.0, 0.5], config=TINY, progress=False)
