"""Which base a fit stands on: two blobs are a mixture, in any units."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from diffprior.mixture import GaussianMixture
from diffprior.priors import choose_base, correction_loss
from diffprior.priors.corrected import CorrectedDenoiser
from diffprior.priors.correction_loss import CorrectionLoss
from diffprior.priors.descent import Fitted, Recipe
from diffprior.priors.report import Candidate

UNITS = np.array([10.0, 0.5])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little training, of a few components."""
    plan = choose_base.TrainingPlan(Recipe(20, 32, 1e-2, False, 16), 8, 2, (-4.0, 3.0))
    monkeypatch.setattr(choose_base, "training_plan", lambda dim, mixed: plan)
    monkeypatch.setattr(choose_base, "MOST_IN_THE_PLANE", 4)
    monkeypatch.setattr(choose_base, "HELD_OUT_DRAWS", 1024)


def trained(base: GaussianMixture | None, loss: float) -> choose_base._Trained:
    """A base alone, with the same error of every held-out sample."""
    candidate = Candidate("Gaussian" if base is None else "mixture", 1, False, 0.0, loss)
    denoiser = CorrectedDenoiser(base, None, None, 2)
    return choose_base._Trained(denoiser, Fitted((), 0), np.full(50, loss), candidate)


def test_the_first_of_about_as_good_is_kept_and_of_mixtures_if_draws_are_to_be_fast() -> None:
    base = GaussianMixture(jnp.zeros(1), jnp.zeros((1, 2)), jnp.eye(2)[None], jnp.ones((1, 2)))
    gaussian = trained(None, 1.0)
    for loss, fast, first in ((1.0005, False, True), (1.1, False, False), (1.1, True, True)):
        mixture = trained(base, loss)
        kept = choose_base._first_as_good([mixture, gaussian], fast)
        assert kept is (mixture if first else gaussian)
    assert choose_base._first_as_good([gaussian], fast=True) is gaussian


def test_a_mixture_goes_before_one_gaussian_alone(
    blobs: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few are held out to judge by, more have chosen the mixture; a correction must do better."""
    alone = lambda trainer, base, like: trained(base, 1.0 if base is None else 1.1)  # noqa: E731
    monkeypatch.setattr(choose_base._Trainer, "alone", alone)
    for loss, kept in ((1.2, "mixture"), (0.9, "Gaussian")):
        corrected = [trained(None, loss)]
        monkeypatch.setattr(choose_base._Trainer, "corrected", lambda *_, c=corrected: c)
        prior = dp.DiffusionPrior.fit(blobs.samples, progress=False)
        assert prior.report.base.base == kept


def test_of_about_as_good_a_fit_keeps_the_mixture(
    blobs: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choose_base, "as_good", lambda *_: True)
    usual, fast = (
        dp.DiffusionPrior.fit(blobs.samples, progress=False, fast=fast) for fast in (False, True)
    )
    for prior in (usual, fast):
        assert prior.report.base.base == "mixture" and not prior.report.base.corrected
        assert "drawn from as one" in str(prior.report)
    assert not any(c.base == "Gaussian" and c.corrected for c in fast.report.candidates)
    assert dp.FewPasses(fast).passes == 2
    with pytest.raises(ValueError, match="^`fast`: expected False with the paper's preset"):
        dp.DiffusionPrior.fit(blobs.samples, preset="paper", fast=True)


def test_a_mixture_is_chosen_and_exact_in_any_units(blobs: Any, quick: None) -> None:
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


def test_a_mixture_that_stays_alone_is_fitted_to_all_samples(
    blobs: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EM gives a mixture the mean of the samples it has seen, and in unit coordinates that of all
    samples is zero; nine tenths of them are off by a hundred times as much."""
    monkeypatch.setattr(choose_base, "as_good", lambda *_: True)
    monkeypatch.setattr(choose_base._Trainer, "corrected", lambda *_: [])
    prior = dp.DiffusionPrior.fit(blobs.samples, progress=False, fast=True)
    assert prior.report.base.base == "mixture" and not prior.report.base.corrected
    base = prior.denoiser.base
    assert_allclose(np.exp(base.log_weights) @ base.means, 0.0, atol=1e-5)


def test_a_mixture_is_chosen_among_all_samples_and_judged_by_those_it_has_not_seen(
    blobs: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come with the labels of their own tasks, and the first base to be judged has the mean of
    the rows to train on."""
    chosen, judged, choose = [], [], choose_base.choose_components

    def spy(samples: np.ndarray, weights: Any, **options: Any) -> Any:
        chosen.append((samples, options["groups"]))
        return choose(samples, weights, **options)

    def alone(trainer: Any, base: GaussianMixture | None, like: Any) -> Any:
        judged.append((trainer.train.samples, base))
        return trained(base, 1.0)

    monkeypatch.setattr(choose_base, "choose_components", spy)
    monkeypatch.setattr(choose_base._Trainer, "alone", alone)
    monkeypatch.setattr(choose_base._Trainer, "corrected", lambda *_: [])
    groups = np.argsort(np.argsort(blobs.samples[:, 0])) // 2  # by pairs along the first parameter
    dp.DiffusionPrior.fit(blobs.samples, groups=groups, progress=False)
    (samples, labels), (train, base) = chosen[0], judged[-1]
    assert samples.shape == blobs.samples.shape and len(train) < len(samples)
    assert np.all(np.diff(labels[np.argsort(samples[:, 0])]) >= 0)
    assert_allclose(np.exp(base.log_weights) @ base.means, np.mean(train, axis=0), atol=1e-4)
    assert np.max(np.abs(np.mean(train, axis=0))) > 1e-3


def test_all_are_judged_under_the_same_evidence(
    blobs: Any, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a large base there is memory for few pieces, so the others are judged under those too."""
    monkeypatch.setattr(correction_loss, "POOL_NUMBERS", 64)
    monkeypatch.setattr(correction_loss, "SMALLEST_POOL", 8)
    monkeypatch.setattr(choose_base, "_worth_correcting", lambda bases, *_: bases)
    seen, judge = [], choose_base._errors

    def spy(loss: CorrectionLoss, *rest: Any) -> Any:
        seen.append(np.asarray(loss.pool.log_precision))
        return judge(loss, *rest)

    monkeypatch.setattr(choose_base, "_errors", spy)
    dp.DiffusionPrior.fit(blobs.samples, progress=False)
    for pool in seen:
        assert_allclose(pool, seen[0], atol=1e-5)


@pytest.mark.parametrize(
    ("losses", "components", "fast", "corrected"),
    [
        ((10.0, 7.0), 8, False, "mixture"),
        ((10.0, 9.5), 8, False, "Gaussian"),
        ((10.0, 8.5), 8, False, "both"),
        ((58.0, 53.0), 8, False, "both"),  # little of many parameters, but much in all
        ((10.0, 9.5), 8, True, "mixture"),
        ((10.0, 7.0), 2**17, False, "none"),
        ((10.0, 8.5), 2**17, False, "Gaussian"),
        ((10.0, 7.0), 256, False, "mixture"),
        ((10.0, 7.0), 2 * 192, False, "none"),  # the mean of two mixtures
        ((10.0, 7.0), 2 * 192, True, "none"),
        ((10.0, 8.5), 2 * 192, False, "Gaussian"),
    ],
)
def test_what_is_worth_correcting(
    losses: tuple[float, float], components: int, fast: bool, corrected: str
) -> None:
    shapes = ((components,), (components, 2), (components, 2, 2), (components, 2))
    base = GaussianMixture(*(jnp.zeros(shape) for shape in shapes))
    found = choose_base._worth_correcting([None, base], *losses, fast)
    assert (
        found
        == {"mixture": [base], "Gaussian": [None], "both": [None, base], "none": []}[corrected]
    )
