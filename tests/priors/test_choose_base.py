"""Which base a fit stands on: two blobs are a mixture, in any units."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from diffprior.priors import choose_base
from diffprior.priors.corrected import CorrectedDenoiser
from diffprior.priors.descent import Recipe

UNITS = np.array([10.0, 0.5])


def test_a_mixture_is_chosen_and_exact_in_any_units(
    blobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = choose_base.Plan(Recipe(20, 32, 1e-2, False, 16), 8, 2, (-4.0, 3.0))
    monkeypatch.setattr(choose_base, "correction_plan", lambda dim, mixed: plan)
    monkeypatch.setattr(choose_base, "MOST_IN_THE_PLANE", 4)
    monkeypatch.setattr(choose_base, "HELD_OUT_DRAWS", 1024)
    prior = dp.DiffusionPrior.fit(blobs.samples * UNITS, progress=False)
    kept, alone = prior.report.base, prior.report.candidates
    assert kept.base == "mixture" and 2 <= kept.num_components <= 4
    assert kept.loss < 0.9 * alone[0].loss and alone[0].base == "Gaussian"
    assert 0 <= prior.report.network_gain < 0.05 and f"a mixture of {kept.num_components}" in str(
        prior.report
    )
    assert isinstance(prior.denoiser, CorrectedDenoiser)
    means, covs = blobs.means * UNITS, blobs.covs * np.outer(UNITS, UNITS)
    precision, shift = np.diag([0.01, 1.0]), np.array([0.02, 0.3])
    twin = reference.mixture_denoise(blobs.weights, means, covs, precision, shift)
    got = prior.denoise(precision, shift)
    assert_allclose(got.mean / UNITS, twin[0] / UNITS, atol=0.15)
    assert_allclose(got.cov / np.outer(UNITS, UNITS), twin[1] / np.outer(UNITS, UNITS), atol=0.15)
