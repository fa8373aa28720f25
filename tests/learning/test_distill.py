"""A closed form as a diffusion model: the same distribution."""

import numpy as np

import diffprior as dp
from diffprior.fitting.config import LearningConfig
from diffprior.learning.distill import FOLD_SALT, distill, learning_tasks
from diffprior.learning.scoring import family_of, first_halves, hedged
from diffprior.logs.statistics import folds, held_out, label_hashes
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


def test_a_hedge_is_a_wide_gaussian_and_the_cold_start() -> None:
    """Second moments are averages; the prior's own is left where the share is zero."""
    cold = family_of("cold start", GaussianMixture.single(np.zeros(2), 5.0 * np.eye(2)))
    assert hedged(PARTS, 0.0, cold) is PARTS
    mean, cov = hedged(PARTS, 0.1, cold).moments()
    own, spread = PARTS.moments()
    np.testing.assert_allclose(mean, 0.95 * own)
    second = 0.9 * spread + 0.05 * 9 * np.diag(np.diagonal(spread)) + 0.05 * 5.0 * np.eye(2)
    np.testing.assert_allclose(cov + np.outer(mean, mean), second + 0.95 * np.outer(own, own))


def test_a_round_learns_from_tasks_that_neither_report_nor_score_uses() -> None:
    hashes, config = label_hashes(np.arange(5000)), LearningConfig(round_tasks=2500)
    chosen = [learning_tasks(5000, round_, config).mask(hashes) for round_ in range(2)]
    scored = folds(hashes, config.num_folds, FOLD_SALT) == 0
    for mask in chosen:
        assert not np.any(mask & (held_out(hashes, config.report_share) | scored))
        assert abs(mask.mean() - 0.5 * 0.9 * 8 / 9) < 5 * np.sqrt(0.24 / 5000)
    assert np.any(chosen[0] != chosen[1])


def test_first_halves_are_rounded_down() -> None:
    tasks = np.repeat(np.arange(4), [1, 2, 3, 4])
    logs = dp.Logs(tasks, np.arange(10.0)[:, None] + 1.0, np.arange(10.0), check_features=False)
    first, mask = first_halves(logs)
    np.testing.assert_array_equal(first.counts, [0, 1, 1, 2])
    np.testing.assert_array_equal(np.flatnonzero(mask), [1, 3, 6, 7])
