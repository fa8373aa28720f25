"""Linear rewards that contradict their noise draw a warning; those that do not, none."""

import warnings

import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import standard_prior
from diffprior.bandits.updates import FIRST_CHECK, SIGNIFICANCE, NoiseWatch, residual_std

THETA = np.array([0.4, -0.3])


def rows(num_rows: int, noise_std: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features and rewards of a linear model."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((num_rows, 2))
    return features, features @ THETA + noise_std * rng.standard_normal(num_rows)


def taught(noise_std: float, true_noise: float, num_rows: int) -> list[str]:
    """Warnings while a bandit learns one by one."""
    bandit = dp.Bandit(standard_prior(), dp.Linear(noise_std), seed=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for phi, reward in zip(*rows(num_rows, true_noise), strict=True):
            bandit.update(phi, reward)
    return [str(w.message) for w in caught if w.category is dp.NoiseWarning]


@pytest.mark.float32
def test_rewards_far_noisier_than_said_draw_one_warning_with_the_fix() -> None:
    (message,) = taught(1.0, 50.0, 4 * FIRST_CHECK)
    assert "noise_std" in message and "too little" in message and "learn" in message
    named = float(message.split("Linear(noise_std=")[1].split(")")[0])
    assert named == pytest.approx(50.0, rel=4 / np.sqrt(2 * FIRST_CHECK))


@pytest.mark.float32
def test_rewards_far_less_noisy_than_said_too() -> None:
    (message,) = taught(10.0, 0.1, FIRST_CHECK)
    assert "too much" in message


@pytest.mark.parametrize("true_noise", [1 / 3, 3.0])
def test_a_factor_of_three_is_said(true_noise: float) -> None:
    assert len(taught(1.0, true_noise, 2 * FIRST_CHECK)) == 1


@pytest.mark.parametrize("true_noise", [0.7, 1.0, 1.5])
def test_rewards_about_as_noisy_as_said_draw_none(true_noise: float) -> None:
    assert not taught(1.0, true_noise, 2 * FIRST_CHECK)


def test_the_scatter_is_that_around_least_squares() -> None:
    features, rewards = rows(200, 3.0, seed=4)
    evidence = dp.Linear(0.5).observe(features, rewards)
    _, squares, *_ = np.linalg.lstsq(features, rewards, rcond=None)
    assert isinstance(evidence, dp.LinearEvidence)
    assert residual_std(evidence) == pytest.approx(np.sqrt(squares[0] / 198), rel=1e-9)


def test_true_noise_is_hardly_ever_called_a_contradiction() -> None:
    """Of 400 histories none, where the chance of one is 400 times SIGNIFICANCE."""
    assert 400 * SIGNIFICANCE < 1e-6
    likelihood = dp.Linear(2.0)
    for seed in range(400):
        evidence = likelihood.observe(*rows(64, 2.0, seed))
        assert isinstance(evidence, dp.LinearEvidence)
        assert residual_std(evidence) is None


def test_only_linear_evidence_is_looked_at() -> None:
    bandit = dp.Bandit(standard_prior(), dp.Logistic(), seed=0)
    features, rewards = rows(2 * FIRST_CHECK, 1.0)
    bandit.update(features, (rewards > 0).astype(float))  # a warning would be an error
    assert NoiseWatch().look(bandit.evidence) is None
