"""A closed form as a diffusion model: the same distribution."""

import numpy as np

import diffprior as dp
from diffprior.learning.distill import distill
from diffprior.mixture import GaussianMixture

PARTS = GaussianMixture.from_covs(
    np.array([0.3, 0.5, 0.2]),
    np.array([[4.0, 1.0], [-2.0, 0.5], [0.0, -1.0]]),
    np.array([[[0.5, 0.2], [0.2, 0.3]], [[0.1, 0.0], [0.0, 1.0]], [[0.4, -0.3], [-0.3, 0.4]]]),
)


def test_few_components_are_distilled_without_loss() -> None:
    mixture = dp.MixturePrior(PARTS.weights, PARTS.means, PARTS.covs)
    diffusion = distill(PARTS)
    rng = np.random.default_rng(0)
    for strength in (0.0, 0.3, 5.0):
        half = rng.standard_normal((2, 2)) * np.sqrt(strength)
        precision, shift = half @ half.T, strength * rng.standard_normal(2)
        exact, ours = mixture.denoise(precision, shift), diffusion.denoise(precision, shift)
        np.testing.assert_allclose(ours.mean, exact.mean, atol=1e-4)
        np.testing.assert_allclose(ours.cov, exact.cov, atol=1e-4)


def test_a_hedge_widens_what_is_distilled() -> None:
    bare, hedged = (np.asarray(distill(PARTS, share).moments().cov) for share in (0.0, 0.01))
    expected = 1 + 0.01 * (3.0**2 - 1)
    np.testing.assert_allclose(np.diagonal(hedged), expected * np.diagonal(bare), rtol=1e-4)
