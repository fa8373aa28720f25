"""Closed-form priors against brute force: grids, reweighted atoms, and fits by other libraries."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import special, stats
from sklearn.mixture import GaussianMixture

import diffprior as dp
import reference
from cases import LINEAR, LOGISTIC, LikelihoodCase, tolerance
from laplace import next_terms
from statistic import assert_distribution

WEIGHTS = np.array([0.3, 0.7])
MEANS = np.array([[-1.0, 0.5], [1.0, -0.5]])
COVS = np.array([[[0.5, 0.2], [0.2, 0.3]], [[0.2, -0.1], [-0.1, 0.6]]])
BOX = (-7.0, 7.0, 200)


def mixture() -> dp.MixturePrior:
    return dp.MixturePrior(WEIGHTS, MEANS, COVS)


@pytest.mark.float32
@pytest.mark.parametrize("num_atoms", [3, 60, 5000])
def test_atoms_are_drawn_by_their_weights(num_atoms: int) -> None:
    """A chi-squared test over ten groups of atoms; an atom of weight zero is never drawn."""
    rng = np.random.default_rng(num_atoms)
    weights = rng.gamma(0.5, size=num_atoms) * (np.arange(num_atoms) % 3 > 0)
    atoms = np.arange(num_atoms, dtype=float)[:, None]
    draws = dp.EmpiricalPrior(atoms, weights).sample(jax.random.key(1), 20_000)
    drawn = np.asarray(draws)[:, 0].astype(int)
    assert np.all(weights[drawn] > 0)
    groups = np.arange(num_atoms) % 10
    expected = np.bincount(groups, weights / weights.sum()) * len(drawn)
    counts = np.bincount(groups[drawn], minlength=len(expected))
    assert stats.chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-6


def history(case: LikelihoodCase, num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(num_rows)
    features = rng.standard_normal((num_rows, 2))
    return features, case.draw(rng, features @ np.array([0.8, -0.4]))


def log_likelihoods(
    points: np.ndarray, case: LikelihoodCase, features: np.ndarray, rewards: np.ndarray
) -> np.ndarray:
    """log p(h | theta) at many points, from the definition of the family."""
    eta = points @ features.T
    exponent = rewards * eta - reference.family_cumulant(eta, case.family)
    base = reference.family_base(rewards, case.family, case.dispersion)
    return np.sum(exponent / case.dispersion + base, axis=1)


def log_evidence_on_grid(component: int, case: LikelihoodCase, rows: tuple) -> float:
    def log_joint(points: np.ndarray) -> np.ndarray:
        prior = reference.gaussian_log_density(points, MEANS[component], COVS[component])
        return prior + log_likelihoods(points, case, *rows)

    return reference.grid_moments_2d(log_joint, *BOX)[2]


@pytest.mark.float32
@pytest.mark.parametrize("num_rows", [0, 1, 3, 20])
def test_linear_mixture_posterior_is_that_on_a_grid(num_rows: int) -> None:
    rows = history(LINEAR, num_rows)
    posterior, log_evidence = mixture().posterior(LINEAR.make().observe(*rows))
    fit = lambda points: log_likelihoods(points, LINEAR, *rows)  # noqa: E731
    weights = reference.mixture_component_weights_on_grid(WEIGHTS, MEANS, COVS, fit, *BOX)
    assert_allclose(posterior.weights, weights, atol=tolerance(1e-9, 1e-4))
    log_prior = lambda points: reference.mixture_log_density(points, WEIGHTS, MEANS, COVS)  # noqa: E731
    mean, cov, expected = reference.grid_moments_2d(lambda t: log_prior(t) + fit(t), *BOX)
    assert_allclose(posterior.moments().mean, mean, atol=tolerance(1e-9, 1e-4))
    assert_allclose(posterior.moments().cov, cov, atol=tolerance(1e-9, 1e-4))
    assert_allclose(log_evidence, expected, atol=tolerance(1e-9, 1e-3))


def test_linear_mixture_posterior_is_the_twins() -> None:
    rows = history(LINEAR, 5)
    posterior, log_evidence = mixture().posterior(LINEAR.make().observe(*rows))
    expected = reference.mixture_posterior(WEIGHTS, MEANS, COVS, *rows, np.sqrt(LINEAR.dispersion))
    got = (posterior.weights, posterior.means, posterior.covs, log_evidence)
    for ours, twins in zip(got, expected, strict=True):
        assert_allclose(ours, twins, rtol=1e-10)


@pytest.mark.parametrize("num_rows", [1, 5, 20, 80])
def test_logistic_mixture_weights_are_those_on_a_grid(num_rows: int) -> None:
    """To the error of Laplace's approximation, known from the terms that come next.

    They correct each log evidence by c_k, the sum of terms whose sizes sum to t_k; 0.3 t_k is
    allowed for all that follows. So the log evidences are wrong by at most |c_k| + 0.3 t_k and the
    weights, whose derivative in either is at most 1/4, by at most a quarter of their sum.
    """
    rows = history(LOGISTIC, num_rows)
    evidence, exact, bounds = LOGISTIC.make().observe(*rows), [], []
    for k in range(2):
        gaussian = dp.Gaussian(jnp.asarray(MEANS[k]), jnp.asarray(COVS[k]))
        posterior, log_evidence = evidence.condition(gaussian)
        terms = next_terms(rows[0], posterior.mean, posterior.cov)
        rest = 0.3 * np.sum(np.abs(terms))
        exact.append(log_evidence_on_grid(k, LOGISTIC, rows))
        assert_allclose(log_evidence + np.sum(terms), exact[k], rtol=0, atol=rest)
        bounds.append(abs(np.sum(terms)) + rest)
    weights = special.softmax(np.log(WEIGHTS) + exact)
    atol = sum(bounds) / 4
    assert atol < 0.03  # so the comparison says something
    assert_allclose(mixture().posterior(evidence)[0].weights, weights, rtol=0, atol=atol)


@pytest.mark.float32
@pytest.mark.parametrize("case", [LINEAR, LOGISTIC], ids=lambda case: case.name)
def test_empirical_posterior_reweights_the_atoms(case: LikelihoodCase) -> None:
    rows, atoms = history(case, 6), np.random.default_rng(0).standard_normal((50, 2))
    prior_weights = np.arange(50.0)
    prior = dp.EmpiricalPrior(atoms, prior_weights)
    posterior, log_evidence = prior.posterior(case.make().observe(*rows))
    likelihood = np.exp(log_likelihoods(atoms, case, *rows))
    joint = prior_weights / prior_weights.sum() * likelihood
    rtol = tolerance(1e-10, 1e-4)
    assert_allclose(np.exp(posterior.log_weights), joint / joint.sum(), rtol=rtol, atol=1e-12)
    assert_allclose(log_evidence, np.log(joint.sum()), rtol=rtol)


def test_mixture_samples_follow_the_mixture() -> None:
    """Along directions: the moments alone hardly see how each component is turned."""
    draws = np.asarray(mixture().sample(jax.random.key(0), 100_000))
    for direction in np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, -1.0]]):
        stds = np.sqrt(np.einsum("i,kij,j->k", direction, COVS, direction))
        standardized = ((draws @ direction)[:, None] - MEANS @ direction) / stds
        assert_distribution(stats.norm.cdf(standardized) @ WEIGHTS)


def test_zero_weights_are_no_component() -> None:
    evidence = LINEAR.make().observe(*history(LINEAR, 4))
    alone = dp.MixturePrior([1.0], MEANS[:1], COVS[:1])
    padded = dp.MixturePrior([1.0, 0.0], MEANS, COVS)
    assert_allclose(padded.posterior(evidence)[0].weights, [1.0, 0.0])
    assert_allclose(padded.posterior(evidence)[1], alone.posterior(evidence)[1])
    draws = padded.sample(jax.random.key(0), 1_000)
    assert_allclose(draws, alone.sample(jax.random.key(0), 1_000))


def test_one_component_is_a_gaussian_prior() -> None:
    evidence = LINEAR.make().observe(*history(LINEAR, 9))
    gaussian, expected = dp.GaussianPrior(MEANS[0], COVS[0]).posterior(evidence)
    mixed, log_evidence = dp.MixturePrior([2.0], MEANS[:1], COVS[:1]).posterior(evidence)
    assert_allclose(mixed.means[0], gaussian.mean, rtol=1e-12)
    assert_allclose(mixed.covs[0], gaussian.cov, rtol=1e-12)
    assert_allclose(log_evidence, expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 3])
def test_gaussian_fit_is_maximum_likelihood(dim: int) -> None:
    samples = np.random.default_rng(1).standard_normal((200, dim)) * 3 + 1
    prior = dp.GaussianPrior.fit(samples)
    assert_allclose(prior.mean, samples.mean(axis=0))
    centered = samples - samples.mean(axis=0)
    assert_allclose(prior.cov, centered.T @ centered / 200)


def test_mixture_fit_finds_the_components_in_any_units() -> None:
    rng, units = np.random.default_rng(2), np.array([1e-3, 1e4])
    blobs = zip(MEANS, COVS / 20, (600, 1_400), strict=True)
    samples = np.concatenate([rng.multivariate_normal(*blob) for blob in blobs])
    prior = dp.MixturePrior.fit(samples * units, num_components=2, seed=0)
    order = np.argsort(np.asarray(prior.means)[:, 0])
    expected = GaussianMixture(2, random_state=0, tol=1e-6).fit(samples)
    twin = np.argsort(expected.means_[:, 0])
    assert_allclose(np.asarray(prior.weights)[order], expected.weights_[twin], atol=1e-3)
    assert_allclose(np.asarray(prior.means)[order] / units, expected.means_[twin], atol=1e-3)
    covs = np.asarray(prior.covs)[order] / np.outer(units, units)
    assert_allclose(covs, expected.covariances_[twin], atol=1e-3)


def test_empirical_fit_keeps_the_samples() -> None:
    samples = np.random.default_rng(3).standard_normal((6, 2))
    prior = dp.EmpiricalPrior.fit(samples)
    assert_allclose(prior.atoms, samples)
    assert_allclose(np.exp(prior.log_weights), 1 / 6)
