"""The Gaussian mixture of NumPy arrays: draws and averages."""

import numpy as np

from diffprior.mixture import GaussianMixture

NUM_DRAWS = 40_000


def correlated(shift: float = 0.0) -> GaussianMixture:
    means = np.array([[0.0, 0.0], [3.0, -1.0]]) + shift
    covs = np.array([[[1.0, 0.9], [0.9, 2.0]], [[0.5, -0.3], [-0.3, 0.4]]])
    return GaussianMixture.from_covs(np.array([0.3, 0.7]), means, covs)


def test_draws_have_the_moments_of_the_mixture() -> None:
    mixture = correlated()
    draws = mixture.draw(np.random.default_rng(0), NUM_DRAWS)
    mean, cov = mixture.moments()
    away = draws - mean
    products = away[:, :, None] * away[:, None, :]
    for values, expected in ((draws, mean), (products, cov)):
        error = np.std(values, axis=0) / np.sqrt(NUM_DRAWS)
        assert np.all(np.abs(values.mean(axis=0) - expected) < 5 * error)


def test_draws_of_one_component_have_its_correlation() -> None:
    single = GaussianMixture.single(np.zeros(2), np.array([[1.0, 0.9], [0.9, 2.0]]))
    draws = single.draw(np.random.default_rng(1), NUM_DRAWS)
    products = draws[:, :, None] * draws[:, None, :]
    error = np.std(products, axis=0) / np.sqrt(NUM_DRAWS)
    assert np.all(np.abs(products.mean(axis=0) - single.covs[0]) < 5 * error)


def test_an_average_weighs_each_mixture_by_its_share() -> None:
    both = GaussianMixture.average([correlated(), correlated(1.0)], [0.2, 0.8])
    np.testing.assert_allclose(both.weights, [0.06, 0.14, 0.24, 0.56])
    x = np.random.default_rng(2).normal(size=(5, 2))
    apart = [np.exp(one.log_density(x)) for one in (correlated(), correlated(1.0))]
    np.testing.assert_allclose(np.exp(both.log_density(x)), 0.2 * apart[0] + 0.8 * apart[1])
