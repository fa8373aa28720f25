"""Samplers against exact posteriors, by closed form and by grid."""

import numpy as np

import diffprior as dp
from diffprior.evaluate import Tasks, posterior_quality
from diffprior.evaluate.posterior import exact_posteriors
from statistic import Z

BLOBS = dp.example_mixture("blobs")


def test_exact_sampling_is_at_the_floor_and_a_narrow_one_is_not() -> None:
    samplers = {"exact": dp.Exact(BLOBS), "narrow": dp.Exact(BLOBS, temperature=0.2)}
    seen: list[str] = []
    rows = posterior_quality(BLOBS, samplers, [3], num_histories=16, num_draws=100,
                             callback=lambda row: seen.append(row.sampler))  # fmt: skip
    exact, narrow = rows
    assert seen == ["exact", "narrow"] and exact.num_observations == 3 and exact.failed == 0
    assert abs(exact.distance.ratio - 1) < Z * exact.distance.standard_error
    assert narrow.distance.ratio - 1 > Z * narrow.distance.standard_error
    assert narrow.trace_ratio < 0.6 < 0.9 < exact.trace_ratio < 1.1
    assert "distance over floor" in str(exact)


def test_the_grid_agrees_with_the_closed_form() -> None:
    """A family that is linear in disguise is sent to the grid."""
    exact = Tasks.simulate(BLOBS, dp.Linear(0.5), num_tasks=3, num_observations=4)
    disguised = Tasks(exact.logs, dp.Identity(0.5))
    ours, true = (exact_posteriors(BLOBS, t, 4000, 0) for t in (disguised, exact))
    error = np.sqrt(ours.var(axis=1) / 4000 + true.var(axis=1) / 4000)
    assert np.all(np.abs(ours.mean(axis=1) - true.mean(axis=1)) < Z * error)
    np.testing.assert_allclose(ours.std(axis=1), true.std(axis=1), rtol=0.1)
