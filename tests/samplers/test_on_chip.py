"""The kernel that keeps chains on chip, interpreted: its draws are those of the samplers."""

from typing import Any

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
from cases import LINEAR, LOGISTIC, corrected, problem, standing_on, tolerance
from chains import BLOBS
from diffprior.samplers.on_chip import sample_on_chip

KEY = jax.random.key(4)
NUM_SAMPLES = 256


def prior() -> dp.DiffusionPrior:
    return corrected(standing_on(*BLOBS))


@pytest.mark.float32
@pytest.mark.parametrize("num_rows", [1, 30])
@pytest.mark.parametrize(
    "make",
    [lambda **o: dp.EvidenceDPS(prior(), steps=5, **o), lambda **o: dp.FewPasses(prior(), **o)],
)
def test_draws_are_those_of_the_sampler(make: Any, num_rows: int) -> None:
    """In single precision a number at the edge of two components may fall into either."""
    sampler, history = make(temperature=0.7), problem(num_rows, 2, num_rows).evidence(LINEAR.make())
    draws = sample_on_chip(sampler, KEY, history, NUM_SAMPLES, interpret=True)
    expected = sampler.sample_many(KEY, history, NUM_SAMPLES)[0]
    assert draws.dtype == expected.dtype
    near = np.abs(np.asarray(draws - expected)).max(axis=1) < tolerance(1e-9, 1e-4)
    assert np.mean(near) >= tolerance(1.0, 0.98)
    assert_allclose(np.mean(draws, axis=0), np.mean(expected, axis=0), atol=tolerance(1e-9, 0.05))


def test_what_the_kernel_does_not_know_is_refused() -> None:
    history = problem(1, 2, 5).evidence(LINEAR.make())
    binary = problem(1, 2, 5, LOGISTIC).evidence(LOGISTIC.make())
    plain = dp.FewPasses(standing_on(*BLOBS))
    for sampler, evidence in (
        (plain, history),
        (dp.FewPasses(prior(), passes=3), history),
        (dp.FewPasses(prior()), binary),
    ):
        with pytest.raises(
            ValueError, match="^`sampler`: expected EvidenceDPS, or FewPasses in two"
        ):
            sample_on_chip(sampler, KEY, evidence, NUM_SAMPLES, interpret=True)
    with pytest.raises(ValueError, match="^`num_samples`: expected a multiple of 128, got 100"):
        sample_on_chip(dp.FewPasses(prior()), KEY, history, 100, interpret=True)
