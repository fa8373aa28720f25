"""Expectation maximization against scikit-learn, and the choice of the number of components."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.mixture import GaussianMixture

import diffprior as dp
import reference
from diffprior.fitting import em
from diffprior.fitting.components import (
    SMALLEST_VARIANCE,
    TIED,
    Components,
    log_joint,
    maximize,
    sufficient_statistics,
)
from diffprior.fitting.samples import whitening

WEIGHTS = np.array([0.5, 0.2, 0.3])
MEANS = np.array([[2.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [0.0, -2.0, 1.0]])
SHAPES = np.random.default_rng(3).standard_normal((3, 3, 3))
COVS = 0.1 * np.einsum("kij,klj->kil", SHAPES, SHAPES) + 0.02 * np.eye(3)


def draws(num: int, seed: int = 0) -> np.ndarray:
    """Samples of the mixture above."""
    rng = np.random.default_rng(seed)
    which = rng.choice(3, num, p=WEIGHTS)
    noise = rng.standard_normal((num, 3))
    return MEANS[which] + np.einsum("nij,nj->ni", np.linalg.cholesky(COVS)[which], noise)


def components() -> Components:
    return Components(jnp.log(WEIGHTS), jnp.asarray(MEANS), jnp.asarray(COVS))


def log_density(prior: dp.MixturePrior, x: np.ndarray) -> np.ndarray:
    return reference.mixture_log_density(x, prior.weights, prior.means, prior.covs)


def test_log_joint_is_the_twins_component_by_component() -> None:
    x = draws(20)
    got = log_joint(components(), sufficient_statistics(jnp.asarray(x)))
    for k in range(3):
        own = reference.gaussian_log_density(x, MEANS[k], COVS[k])
        assert_allclose(got[:, k], np.log(WEIGHTS[k]) + own, rtol=1e-9)


def test_the_m_step_is_weighted_moments_drawn_towards_the_pooled() -> None:
    rng, x, pooling = np.random.default_rng(1), draws(50), 3.0
    r = rng.dirichlet(np.ones(3), 50)
    got = maximize(jnp.asarray(r).T @ sufficient_statistics(jnp.asarray(x)), 3, pooling)
    count = r.sum(axis=0)
    own = [np.cov(x.T, aweights=r[:, k], bias=True) for k in range(3)]
    pooled = np.einsum("k,kij->ij", count / 50, own)
    for k in range(3):
        cov = (count[k] * own[k] + pooling * pooled) / (count[k] + pooling)
        assert_allclose(got.means[k], np.average(x, axis=0, weights=r[:, k]))
        assert_allclose(got.covs[k], cov + SMALLEST_VARIANCE * np.eye(3), atol=1e-12)
    assert_allclose(np.exp(got.log_weights), count / 50)


def test_tied_components_have_one_covariance() -> None:
    r = np.random.default_rng(1).dirichlet(np.ones(3), 50)
    statistics = jnp.asarray(r).T @ sufficient_statistics(jnp.asarray(draws(50)))
    covs = maximize(statistics, 3, TIED).covs
    assert_allclose(covs, np.broadcast_to(covs[0], covs.shape), atol=1e-4)


def test_likelihood_is_that_of_scikit_learn() -> None:
    x, fresh = draws(3000), draws(3000, seed=1)
    ours = dp.MixturePrior.fit(x, num_components=3)
    theirs = GaussianMixture(3, n_init=3, random_state=0, tol=1e-6).fit(x)
    assert_allclose(np.mean(log_density(ours, x)), theirs.score(x), atol=2e-3)
    assert_allclose(np.mean(log_density(ours, fresh)), theirs.score(fresh), atol=2e-3)


def test_as_many_components_as_the_samples_justify() -> None:
    x = draws(3000)
    offset, scale = whitening(x)
    found = em.choose_components(np.linalg.solve(scale, (x - offset).T).T, seed=0)
    assert found.num_components == 3 and found.kind == em.Kind(3.0)
    assert found.score > found.gaussian_score + 1
    assert found.scores["2"] < found.score
    fresh = np.mean(reference.mixture_log_density(draws(3000, 1), WEIGHTS, MEANS, COVS))
    chosen = dp.MixturePrior.fit(x)
    assert_allclose(np.mean(log_density(chosen, draws(3000, 1))), fresh, atol=0.03)


@pytest.mark.parametrize(
    ("scores", "last"),
    [
        ((-5.0, -4.0, -4.3, -4.1, -3.0, -3.5, -3.6), 64),  # clearly worse but for its last
        ((-5.0, -4.0, -4.3, -4.4, -3.0), 8),  # clearly worse twice
        ((-5.0, -4.0, -3.9, -3.8, -3.7, -3.6, -4.0, -1.0), 64),  # of many once is enough
    ],
)
def test_doubling_ends_once_it_is_clearly_worse(scores: tuple[float, ...], last: int) -> None:
    """Means of held-out samples for K = 1, 2, 4, ...; a fifth is more than their error."""
    search: Any = SimpleNamespace(
        mean=float,
        clearly_better=lambda one, other: one - other > 0.2,
        held_out=lambda k, kind: scores[k.bit_length() - 1],
    )
    tried: Any = {em.ONE: scores[0]}
    em._climb(search, tried, em.Kind(3.0), 2, 128)
    assert max(k for k, _ in tried) == last


@pytest.mark.parametrize("seed", range(3))
def test_samples_of_a_gaussian_are_given_one(seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal((300, 3))
    prior, gaussian = dp.MixturePrior.fit(x, seed=seed), dp.GaussianPrior.fit(x)
    assert prior.weights.shape == (1,)
    assert_allclose(prior.means[0], gaussian.mean, atol=1e-9)
    assert_allclose(prior.covs[0], gaussian.cov, atol=1e-3)


def test_a_row_that_counts_thrice_is_three_rows() -> None:
    x = draws(2000)
    counts = np.random.default_rng(2).integers(0, 4, 2000)
    repeated = np.repeat(x, counts, axis=0)
    fits = [
        dp.MixturePrior.fit(x, num_components=3, sample_weights=counts),
        dp.MixturePrior.fit(repeated, num_components=3),
        dp.MixturePrior.fit(x, num_components=3),
    ]
    weighted, same, other = ([np.sort(p.weights), np.mean(log_density(p, repeated))] for p in fits)
    assert_allclose(weighted[0], same[0], atol=1e-3)
    assert_allclose(weighted[1], same[1], atol=1e-3)
    assert np.max(np.abs(other[0] - same[0])) > 5e-3


def test_absent_components_stay_absent() -> None:
    search = em._Search.over(draws(200), None, 0)
    padded = search.fit(search.weights, 3, em.Kind(3.0), 1)
    assert np.all(np.isneginf(padded.log_weights[3:]))
    assert np.isclose(jax.nn.logsumexp(padded.log_weights), 0.0)
    assert np.all(np.isfinite(padded.covs))


def test_weights_are_checked() -> None:
    for bad, message in (([-1.0, 1, 1], "non-negative"), ([1.0, 1], "shape"), ([0.0, 0, 1], "two")):
        with pytest.raises(ValueError, match=f"`sample_weights`.*{message}"):
            dp.MixturePrior.fit(np.eye(3), 1, sample_weights=bad)


def test_rows_of_weight_zero_are_as_if_not_there() -> None:
    """However many there are: they are no samples that justify components."""
    x = draws(400)
    weights = np.r_[np.ones(400), np.zeros(30_000)]
    with_others = np.concatenate([x, np.random.default_rng(1).standard_normal((30_000, 3)) + 9])
    got = dp.MixturePrior.fit(with_others, sample_weights=weights)
    assert_allclose(np.asarray(got.means), np.asarray(dp.MixturePrior.fit(x).means))


def test_samples_of_one_task_count_as_one() -> None:
    """Fifty tasks of a hundred draws each are few, and the error of a mean is that over tasks."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(50), 100)
    search = em._Search.over(rng.standard_normal((5000, 2)), None, 0, groups)
    assert search.num_folds == em.FOLDS and search.most_components() == 4
    of_task = rng.standard_normal(50)
    of_task = of_task - np.mean(of_task) + 0.5 * np.std(of_task) / np.sqrt(50)  # half its error
    gain = np.where(search.fold < 0, np.nan, of_task[search.groups])
    assert not search.clearly_better(gain, np.zeros_like(gain))
    alone = search._replace(groups=np.arange(len(gain)))
    assert alone.clearly_better(gain, np.zeros_like(gain))


def test_a_failed_fit_is_clearly_worse() -> None:
    search = em._Search.over(draws(200), None, 0)
    good = np.where(search.fold < 0, np.nan, 0.0)
    bad = np.where(search.fold < 0, np.nan, -np.inf)
    assert search.clearly_better(good, bad)
    assert not search.clearly_better(bad, good) and not search.clearly_better(bad, bad)


def test_samples_of_one_group_are_held_out_together() -> None:
    """Ten near copies of each of 100 points of a Gaussian are no hundred clusters."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 10)
    x = rng.standard_normal((100, 2))[groups] + 0.01 * rng.standard_normal((1000, 2))
    assert em.choose_components(x, largest=32).num_components == 32
    assert em.choose_components(x, largest=32, groups=groups).num_components <= 4
