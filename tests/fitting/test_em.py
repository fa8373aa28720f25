"""Expectation maximization against scikit-learn, the twin and closed forms, and the search."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.mixture import GaussianMixture as TheirMixture

import diffprior as dp
import reference
from diffprior.fitting.em import (
    HERE,
    CovarianceModel,
    Samples,
    expectations,
    fit_gaussian,
    fit_mixture,
    initial_mixture,
    k_means,
    maximize,
)
from diffprior.fitting.search import (
    GAUSSIAN,
    MixtureCandidate,
    SearchConfig,
    Splits,
    _climb,
    _Tried,
    fit_candidate,
    fit_samples,
    gaussian_of,
    search_samples,
)
from diffprior.mixture import GaussianMixture

WEIGHTS = np.array([0.5, 0.2, 0.3])
MEANS = np.array([[2.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [0.0, -2.0, 1.0]])
SHAPES = np.random.default_rng(3).standard_normal((3, 3, 3))
COVS = 0.1 * np.einsum("kij,klj->kil", SHAPES, SHAPES) + 0.02 * np.eye(3)
MIXTURE = GaussianMixture.from_covs(WEIGHTS, MEANS, COVS)
FREE = CovarianceModel(3.0)

DIM, NUM_FLAT = 6, 4
MAKE = np.random.default_rng(8)
FLAT_MEANS = 2.0 * MAKE.standard_normal((NUM_FLAT, DIM))
FACTORS = MAKE.standard_normal((NUM_FLAT, DIM, 1))
NOISE = np.cov(0.3 * MAKE.standard_normal((DIM, 30)))
FLAT_COVS = FACTORS @ FACTORS.transpose(0, 2, 1) + NOISE
FLAT = GaussianMixture.from_covs(np.full(NUM_FLAT, 1 / NUM_FLAT), FLAT_MEANS, FLAT_COVS)


def draws(num: int, seed: int = 0, mixture: GaussianMixture = MIXTURE) -> np.ndarray:
    return mixture.draw(np.random.default_rng(seed), num)


def mean_log_density(mixture: GaussianMixture, x: np.ndarray) -> float:
    return float(np.mean(mixture.log_density(x)))


def of_prior(prior: dp.MixturePrior) -> GaussianMixture:
    weights, means, covs = (
        np.asarray(a, np.float64) for a in (prior.weights, prior.means, prior.covs)
    )
    return GaussianMixture.from_covs(weights, means, covs)


def sheet(num: int, seed: int) -> np.ndarray:
    """A curved surface in eight dimensions, with a little noise, in units of its spread."""
    rng = np.random.default_rng(5)
    first, second = rng.standard_normal((2, 16)), rng.standard_normal((16, 8)) / 4

    def surface(num: int, rng: np.random.Generator) -> np.ndarray:
        x = np.tanh(rng.standard_normal((num, 2)) @ first) @ second
        return x + 0.02 * rng.standard_normal(x.shape)

    return surface(num, np.random.default_rng([5, seed])) / surface(20_000, rng).std(axis=0)


def test_densities_are_the_twins_by_either_route() -> None:
    x = draws(20)
    expected = reference.mixture_log_density(x, WEIGHTS, MEANS, COVS)
    assert_allclose(MIXTURE.log_density(x), expected, rtol=1e-9)
    assert_allclose(Samples(x).log_evidence(MIXTURE), expected, rtol=1e-9)
    assert_allclose(MIXTURE.on_device().log_density(x), expected, rtol=1e-5)
    wider = reference.mixture_log_density(x, WEIGHTS, MEANS, COVS + 0.04 * np.eye(3))
    blurred = Samples(x, blur=0.2, seed=1).scoring()
    blurred.x, blurred._statistics = x, Samples(x)._statistics
    assert_allclose(blurred.log_evidence(MIXTURE), wider, rtol=1e-9)


def test_the_m_step_is_weighted_moments_drawn_towards_the_pooled() -> None:
    x, weights = draws(50), np.random.default_rng(2).random(50)
    log_joint = np.stack(
        [
            np.log(WEIGHTS[k]) + reference.gaussian_log_density(x, MEANS[k], COVS[k])
            for k in range(3)
        ]
    )
    r = weights[:, None] * np.exp(log_joint - np.logaddexp.reduce(log_joint, axis=0)).T
    sums = expectations([Samples(x, weights)], MIXTURE)
    assert_allclose(sums.log_evidence, weights @ np.logaddexp.reduce(log_joint, axis=0))
    got, _ = maximize(MIXTURE, sums, FREE, 0.01 * np.eye(3))
    count = r.sum(axis=0)
    own = [np.cov(x.T, aweights=r[:, k], bias=True) for k in range(3)]
    pooled = np.einsum("k,kij->ij", count / count.sum(), own)
    for k in range(3):
        cov = (count[k] * own[k] + 3.0 * pooled) / (count[k] + 3.0)
        assert_allclose(got.means[k], np.average(x, axis=0, weights=r[:, k]))
        assert_allclose(got.covs[k], cov + 0.01 * np.eye(3), atol=1e-10)
    assert_allclose(got.weights, count / count.sum())
    tied = maximize(MIXTURE, sums, CovarianceModel(np.inf))[0].covs
    assert_allclose(tied, np.broadcast_to(pooled, tied.shape), atol=1e-10)


@pytest.mark.parametrize("rank", [None, 1])
def test_every_step_raises_the_likelihood(rank: int | None) -> None:
    """As EM must, when nothing is pooled; an error in the noise's update lowers it."""
    x, model = draws(400, mixture=FLAT), CovarianceModel(0.0, rank)
    start = GaussianMixture.from_covs(
        np.full(4, 0.25), FLAT_MEANS + 0.5, np.tile(np.eye(DIM), (4, 1, 1))
    )
    mixture, noise, found = start, np.eye(DIM), []
    for _ in range(40):
        sums = expectations([Samples(x)], mixture)
        mixture, noise = maximize(mixture, sums, model, 0.0, noise)
        found.append(sums.log_evidence / 400)
    assert np.min(np.diff(found)) > -1e-9
    assert found[-1] > found[0] + 0.1


def test_one_component_is_the_mean_and_covariance() -> None:
    x, weights = draws(300), np.random.default_rng(2).integers(0, 4, 300).astype(float)
    fit = fit_gaussian([Samples(x, weights)])
    assert_allclose(fit.mixture.means[0], np.average(x, axis=0, weights=weights), atol=1e-9)
    expected = np.cov(x.T, aweights=weights, bias=True)
    assert_allclose(fit.mixture.covs[0], expected, atol=1e-9)


def test_the_noise_and_the_factors_are_found() -> None:
    x = draws(20_000, 1, FLAT)
    candidate = MixtureCandidate(NUM_FLAT, CovarianceModel(2.0, 1))
    found = fit_candidate([Samples(x)], gaussian_of([Samples(x)]), candidate)
    order = [int(np.argmin(np.sum((found.means - mean) ** 2, axis=1))) for mean in FLAT_MEANS]
    assert sorted(order) == list(range(NUM_FLAT))
    made_up = found.noise + found.loadings @ found.loadings.swapaxes(1, 2)
    assert found.loadings.shape == (NUM_FLAT, DIM, 1)
    assert_allclose(found.covs, made_up, atol=1e-12)
    both = GaussianMixture.average([found, found], [0.5, 0.5])
    assert both.noise.shape == (2, DIM, DIM) and both.select(slice(3)).noise is None
    assert_allclose(found.select(slice(1)).loadings, found.loadings[:1])
    sizes = np.einsum("kii,kjj->kij", FLAT_COVS, FLAT_COVS) + FLAT_COVS**2
    errors = np.sqrt(sizes / (20_000 / NUM_FLAT))  # standard errors of a free covariance
    assert np.max(np.abs(found.covs[order] - FLAT_COVS) / errors) < 4
    for gap in (found.covs[0] - found.covs[1], found.covs[1] - found.covs[2]):
        values = np.sort(np.abs(np.linalg.eigvalsh(gap)))
        assert np.all(values[:4] < 1e-6 * values[-1])  # one factor each, so two of six


def test_few_samples_leave_more_to_new_ones_than_free_covariances() -> None:
    for seed in range(3):
        x, fresh = draws(150, seed, FLAT), draws(4000, 100 + seed, FLAT)
        models = CovarianceModel(2.0, 1), CovarianceModel(float(DIM))
        ours, free = (
            mean_log_density(fit_samples(x, None, MixtureCandidate(4, model), seed=seed), fresh)
            for model in models
        )
        assert free < ours < mean_log_density(FLAT, fresh)


def test_clusters_are_nearest_to_their_own_means() -> None:
    x, weights = draws(500).astype(np.float32), np.ones(500)
    labels = k_means(x, weights, 3, np.random.default_rng(0))
    centers = np.stack([x[labels == k].mean(axis=0) for k in range(3)])
    squares = np.sum((x[:, None] - centers) ** 2, axis=2)
    assert np.mean(np.argmin(squares, axis=1) == labels) > 0.99
    assert np.sum(squares.min(axis=1)) < 0.4 * np.sum((x - x.mean(axis=0)) ** 2)


def test_a_component_without_tasks_stays_absent() -> None:
    far = GaussianMixture.from_covs(
        np.array([0.5, 0.5]), np.array([[0.0] * 3, [1e3] * 3]), np.stack([np.eye(3)] * 2)
    )
    fit = fit_mixture([Samples(draws(200))], far, FREE)
    assert fit.mixture.num_components == 1 and np.isfinite(fit.log_evidence)


def test_likelihood_is_that_of_scikit_learn() -> None:
    x, fresh = draws(1500), draws(3000, seed=1)
    ours = of_prior(dp.MixturePrior.fit(x, num_components=3))
    theirs = TheirMixture(3, n_init=3, random_state=0, tol=1e-6).fit(x)
    assert_allclose(mean_log_density(ours, x), theirs.score(x), atol=2e-3)
    assert_allclose(mean_log_density(ours, fresh), theirs.score(fresh), atol=2e-3)


def test_as_many_components_as_the_samples_justify() -> None:
    x = draws(1500)
    found = search_samples(x / x.std(axis=0), seed=0)
    assert str(found.candidate) == "3" and found.gain > 1 and found.pays
    assert found.scores[MixtureCandidate(2, FREE)] < found.score
    fresh = draws(3000, 1)
    ours = mean_log_density(found.mixture, fresh / x.std(axis=0)) - np.log(x.std(axis=0)).sum()
    assert_allclose(ours, mean_log_density(MIXTURE, fresh), atol=0.03)


@pytest.mark.parametrize(
    ("scores", "last"),
    [
        ((-5.0, -4.0, -4.3, -3.9, -3.0, -3.5, -3.6), 64),  # clearly worse but for its last
        ((-5.0, -4.0, -4.3, -4.4, -3.0), 8),  # clearly worse twice
        ((-5.0, -4.0, -3.9, -3.8, -3.7, -3.6, -4.0, -1.0), 64),  # of many once is enough
    ],
)
def test_doubling_ends_once_it_is_clearly_worse(scores: tuple[float, ...], last: int) -> None:
    """Means of held-out samples for K = 1, 2, 4, ..., without error."""
    splits = Splits((), np.ones(1), np.zeros(1, int))
    values = {
        MixtureCandidate(2**i, FREE) if i else GAUSSIAN: np.array([score])
        for i, score in enumerate(scores)
    }

    class Known(_Tried):
        def add(self, *candidates: MixtureCandidate) -> None:
            self.values.update({one: values[one] for one in candidates})

    tried = Known(splits, 0, HERE)
    tried.add(GAUSSIAN)
    _climb(tried, FREE, 2, 2 ** (len(scores) - 1))
    assert max(one.num_components for one in tried.values) == last


def test_samples_of_a_gaussian_are_given_one() -> None:
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((300, 3))
        prior, gaussian = dp.MixturePrior.fit(x, seed=seed), dp.GaussianPrior.fit(x)
        assert prior.weights.shape == (1,)
        assert_allclose(prior.means[0], gaussian.mean, atol=1e-6)
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
    weighted, same, other = (
        [np.sort(p.weights), mean_log_density(of_prior(p), repeated)] for p in fits
    )
    assert_allclose(weighted[0], same[0], atol=1e-3)
    assert_allclose(weighted[1], same[1], atol=1e-3)
    assert np.max(np.abs(other[0] - same[0])) > 5e-3


def test_weights_are_checked() -> None:
    for bad, message in (([-1.0, 1, 1], "non-negative"), ([1.0, 1], "shape"), ([0.0, 0, 1], "two")):
        with pytest.raises(ValueError, match=f"`sample_weights`.*{message}"):
            dp.MixturePrior.fit(np.eye(3), 1, sample_weights=bad)


def test_rows_of_weight_zero_are_as_if_not_there() -> None:
    """However many there are: they are no samples that justify components."""
    x = draws(150)
    weights = np.r_[np.ones(150), np.zeros(2000)]
    with_others = np.concatenate([x, np.random.default_rng(1).standard_normal((2000, 3)) + 9])
    got = dp.MixturePrior.fit(with_others, sample_weights=weights)
    assert_allclose(np.asarray(got.means), np.asarray(dp.MixturePrior.fit(x).means))


def test_the_error_of_a_mean_is_that_over_tasks() -> None:
    """Fifty tasks of a hundred draws each are few."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(50), 100)
    of_task = rng.standard_normal(50)
    of_task = of_task - np.mean(of_task) + 0.5 * np.std(of_task) / np.sqrt(50)  # half its error
    gain, none = of_task[groups], np.zeros(5000)
    weights = np.full(5000, 1 / 5000)
    assert not Splits((), weights, groups).clearly_better(gain, none)
    assert Splits((), weights, np.arange(5000)).clearly_better(gain, none)


def test_a_failed_fit_is_clearly_worse() -> None:
    splits = Splits((), np.full(2, 0.5), np.arange(2))
    good, bad = np.zeros(2), np.array([0.0, -np.inf])
    assert splits.clearly_better(good, bad)
    assert not splits.clearly_better(bad, good) and not splits.clearly_better(bad, bad)


def test_samples_of_one_group_are_held_out_together() -> None:
    """Ten near copies of each of 100 points of a Gaussian are no hundred clusters."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 10)
    x = rng.standard_normal((100, 2))[groups] + 0.01 * rng.standard_normal((1000, 2))
    limits = SearchConfig(max_components=16, num_folds=2)
    assert search_samples(x, config=limits).candidate.num_components == 16
    found = search_samples(x, config=limits, groups=groups)
    assert found.candidate.num_components <= 4


def test_a_sheet_is_given_flat_components_and_the_mean_of_two_runs() -> None:
    """New samples are likelier under it than under either run."""
    limits = SearchConfig(max_components=32, average_from=16, num_folds=2)
    x, fresh = sheet(1500, seed=1), sheet(2000, seed=2)
    found = search_samples(x, config=limits)
    chosen, (free, *_) = found.candidate, [k for k in found.scores if str(k) == "32"]
    assert chosen.model.rank is not None and chosen.num_runs == 2
    assert found.mixture.num_components == 2 * chosen.num_components
    assert_allclose(found.score, max(found.scores.values()))
    assert found.score > found.scores[free] + 0.03
    alone = MixtureCandidate(chosen.num_components, chosen.model)
    one = fit_samples(x, None, alone)
    assert mean_log_density(found.mixture, fresh) > mean_log_density(one, fresh) + 0.05
    again = fit_samples(x, None, chosen)
    assert_allclose(again.means, found.mixture.means, atol=1e-6)
    half = found.mixture.num_components // 2
    densities = [
        np.exp(found.mixture.select(own).log_density(fresh))
        for own in (slice(half), slice(half, None))
    ]
    assert_allclose(np.exp(found.mixture.log_density(fresh)), sum(densities), rtol=1e-6)


def test_starts_are_in_units_of_the_gaussian() -> None:
    """So the start of scaled samples is the scaled start."""
    x, scale = draws(500), np.diag([1.0, 100.0, 0.01])
    found = []
    for samples in (x, x @ scale):
        gaussian = gaussian_of([Samples(samples)])
        rng = np.random.default_rng(0)
        start = initial_mixture(samples, np.ones(500), gaussian, 3, FREE, rng)
        found.append(np.sort(start.log_density(samples)))
    assert_allclose(found[0] - found[1], np.log(np.linalg.det(scale)), atol=0.3)
