"""Which denoiser a fit keeps: two blobs are a mixture, in any units."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from diffprior.denoisers.base import RESIDUAL_STAGES, held_out_residual
from diffprior.denoisers.network import CorrectedDenoiser
from diffprior.fitting.report import Candidate
from diffprior.fitting.samples import split_rows, whitened, whitening
from diffprior.fitting.selection import (
    Scored,
    select_denoiser,
    simplest_as_good,
    worth_correcting,
)
from diffprior.fitting.training import CorrectionLoss, RandomEvidence, TrainingResult, pool_size
from diffprior.mixture import GaussianMixture

TINY = dp.FitConfig.tiny()
MIXTURES = dataclasses.replace(TINY, prefer_mixture=True)
UNITS = np.array([10.0, 0.5])
BASE = GaussianMixture(jnp.zeros(1), jnp.zeros((1, 2)), jnp.eye(2)[None], jnp.ones((1, 2)))


def scored(base: GaussianMixture | None, loss: float) -> Scored:
    """A base alone, with the same error of every held-out sample."""
    candidate = Candidate("Gaussian" if base is None else "mixture", 1, False, 0.0, loss)
    denoiser = CorrectedDenoiser(base, None, None, 2)
    return Scored(denoiser, TrainingResult((), 0), np.full(50, loss), candidate)


def test_first_of_about_equally_good_candidates_is_kept() -> None:
    """Of mixtures only, where they are preferred."""
    gaussian = scored(None, 1.0)
    for loss, config, first in ((1.0005, TINY, True), (1.1, TINY, False), (1.1, MIXTURES, True)):
        mixture = scored(BASE, loss)
        kept = simplest_as_good([mixture, gaussian], config)
        assert kept is (mixture if first else gaussian)
    assert simplest_as_good([gaussian], MIXTURES) is gaussian


def test_bases_worth_correcting() -> None:
    for losses, components, config, corrected in (
        ((10.0, 7.0), 8, TINY, "mixture"),
        ((10.0, 9.5), 8, TINY, "Gaussian"),
        ((10.0, 8.5), 8, TINY, "both"),
        ((58.0, 53.0), 8, TINY, "both"),  # a small share with many parameters, but much in all
        ((10.0, 9.5), 8, MIXTURES, "mixture"),
        ((10.0, 7.0), 2**17, TINY, "none"),
        ((10.0, 8.5), 2**17, TINY, "Gaussian"),
        ((10.0, 7.0), 256, TINY, "mixture"),
        ((10.0, 7.0), 2 * 192, TINY, "none"),  # the mean of two mixtures
        ((10.0, 7.0), 2 * 192, MIXTURES, "none"),
        ((10.0, 8.5), 2 * 192, TINY, "Gaussian"),
    ):
        shapes = ((components,), (components, 2), (components, 2, 2), (components, 2))
        base = GaussianMixture(*(np.zeros(shape) for shape in shapes))
        found = worth_correcting([None, base], list(losses), config)
        expected = {"mixture": [base], "Gaussian": [None], "both": [None, base], "none": []}
        assert found == expected[corrected], (losses, components)
        alone = worth_correcting([base], [1.0], config)
        assert alone == ([] if components > 256 else [base])


def test_a_mixture_is_chosen_and_exact_in_any_units(mixed: dp.DiffusionPrior, blobs: Any) -> None:
    report = mixed.report
    kept, candidates = report.base, report.candidates
    assert kept.base == "mixture" and 2 <= kept.num_components <= 4
    assert candidates[0].base == "Gaussian" and kept.loss < 0.95 * candidates[0].loss
    assert 0 <= report.network_gain < 0.05
    assert f"a mixture of {kept.num_components}" in str(report)
    assert len(candidates) <= 3 and not any(
        c.base == "Gaussian" and c.corrected for c in candidates
    )
    means, covs = blobs.means * UNITS, blobs.covs * np.outer(UNITS, UNITS)
    precision, shift = np.diag([0.01, 1.0]), np.array([0.02, 0.3])
    twin = reference.mixture_denoise(blobs.weights, means, covs, precision, shift)
    got = mixed.denoise(precision, shift)
    assert_allclose(got.mean / UNITS, twin[0] / UNITS, atol=0.25)
    assert_allclose(got.cov / np.outer(UNITS, UNITS), twin[1] / np.outer(UNITS, UNITS), atol=0.25)


def test_a_preferred_mixture_draws_in_two_passes(blobs: Any) -> None:
    prior = dp.DiffusionPrior.fit(blobs.samples[:400] * UNITS, config=MIXTURES, progress=False)
    assert prior.report.base.base == "mixture" and dp.FewPasses(prior).passes == 2


def test_a_mixture_that_stays_alone_is_fitted_to_all_samples_and_scored_on_unseen_ones(
    blobs: Any,
) -> None:
    """EM gives a mixture the mean of the samples it has seen: zero for all, in unit coordinates.

    The residual of the prior is that of the mixture that has not seen the held-out rows.
    """
    samples, config = blobs.samples[:400], dataclasses.replace(TINY, num_steps=0)
    unit = whitened(samples, *whitening(samples))
    train, held_out, _ = split_rows(unit, None, None, seed=0)
    found = select_denoiser(train, held_out, config, seed=0, progress=False)
    means = [np.exp(one.base.log_weights) @ one.base.means for one in found[:2]]
    assert found.denoiser.correction is None and found.candidates[found.chosen].base == "mixture"
    assert_allclose(means[0], 0.0, atol=1e-5)
    assert_allclose(means[1], np.mean(train.samples, axis=0), atol=1e-4)
    assert np.max(np.abs(means[1])) > 1e-3
    prior = dp.DiffusionPrior.fit(samples, config=config, progress=False)
    assert "drawn from as one" in str(prior.report)
    grid = dp.Schedule.log_snr(RESIDUAL_STAGES)
    residuals = [held_out_residual(one, grid, *held_out, 256, 0) for one in found[:2]]
    assert_allclose(prior.residual, residuals[1], rtol=1e-5)
    assert np.max(np.abs(residuals[0] / residuals[1] - 1)) > 1e-3


def test_candidates_are_scored_under_the_same_evidence() -> None:
    """Pools of any size begin alike; a large base has memory for fewer pieces."""
    evidence, rng = RandomEvidence.of(2, 0), np.random.default_rng
    pools = [
        CorrectionLoss.create(rng(0), base, evidence, 0, size).first(8).pool
        for base, size in ((None, 64), (None, 32), (BASE.on_device(jnp.float32), 16))
    ]
    for pool in pools:
        assert_allclose(pool.log_precision, pools[0].log_precision, atol=1e-5)
        assert_allclose(pool.vectors, pools[0].vectors, atol=1e-6)
    large = GaussianMixture(*(np.zeros(s) for s in ((512,), (512, 9), (512, 9, 9), (512, 9))))
    assert [pool_size(base, dp.FitConfig()) for base in (None, large)] == [4096, 404]
    assert pool_size(large, TINY) == 64


@pytest.mark.parametrize("labeled", [False, True])
def test_rows_come_with_the_labels_of_their_tasks(blobs: Any, labeled: bool) -> None:
    """By pairs along the first parameter: labels are in order where rows are."""
    samples = blobs.samples[:400]
    groups = np.argsort(np.argsort(samples[:, 0])) // 2 if labeled else None
    train, held_out, tasks = split_rows(samples, None, groups, seed=3)
    rows = np.concatenate([train.samples, held_out.samples])
    order = np.argsort(rows[:, 0])
    assert_allclose(rows[order], samples[np.argsort(samples[:, 0])], atol=1e-5)
    assert len(held_out.samples) == 80
    if labeled:
        assert np.all(np.diff(tasks[order]) >= 0)
        assert not set(tasks[:320]) & set(tasks[320:])
    else:
        assert tasks is None
        other, _, _ = split_rows(samples, None, None, seed=4)
        assert np.any(np.asarray(other.samples) != np.asarray(train.samples))
