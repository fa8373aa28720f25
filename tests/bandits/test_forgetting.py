"""Evidence fades as its definition says: a reward counts 2^(-age / half-life) times."""

import copy
import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import diffprior as dp
from diffprior.bandits import updates

from .helpers import standard_prior

RNG = np.random.default_rng(0)
FEATURES, REWARDS = RNG.standard_normal((30, 2)), RNG.standard_normal(30)
ACTIONS = RNG.standard_normal((5, 2))
DIGITS = 1e-10 if dp.GaussianPrior(np.zeros(1), np.eye(1)).mean.dtype == np.float64 else 1e-5


def played(half_life: Any, likelihood: Any, rewards: np.ndarray) -> tuple[dp.Bandit, np.ndarray]:
    """A bandit that has learned rows between decisions, and how many it had taken at each row."""
    bandit, taken = dp.Bandit(standard_prior(), likelihood, seed=1, half_life=half_life), []
    for number, (phi, reward) in enumerate(zip(FEATURES, rewards, strict=True)):
        for _ in range(number % 3):
            bandit.decide(ACTIONS)
        taken.append(bandit.num_decisions)
        bandit.update(phi, reward)
    bandit.decide(np.stack([ACTIONS] * 4))
    return bandit, np.asarray(taken, float)


@pytest.mark.float32
def test_linear_evidence_is_the_weighted_sum() -> None:
    bandit, taken = played(7.5, dp.Linear(0.5), REWARDS)
    weights = 2.0 ** ((taken - bandit.num_decisions) / 7.5) / 0.25
    found = bandit.evidence
    assert isinstance(found, dp.LinearEvidence)
    expected = (FEATURES * weights[:, None]).T @ FEATURES, (weights * REWARDS) @ FEATURES
    np.testing.assert_allclose(found.precision, expected[0], rtol=DIGITS, atol=DIGITS)
    np.testing.assert_allclose(found.shift, expected[1], rtol=DIGITS, atol=DIGITS)


def test_a_logistic_posterior_is_that_of_a_grid() -> None:
    bandit, taken = played(10.0, dp.Logistic(), (REWARDS > 0).astype(float))
    weights = 2.0 ** ((taken - bandit.num_decisions) / 10.0)
    axis = np.linspace(-5, 5, 201)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    eta = grid @ FEATURES.T
    log_density = (weights * ((REWARDS > 0) * eta - np.logaddexp(0, eta))).sum(axis=1)
    density = np.exp(log_density - 0.5 * (grid**2).sum(axis=1))
    mean = density @ grid / density.sum()
    std = np.sqrt(density @ (grid - mean) ** 2 / density.sum())
    posterior = bandit.posterior(4000, seed=0)  # Laplace's approximation, good to a twentieth here
    np.testing.assert_allclose(posterior.mean, mean, atol=float(0.05 + 4 / np.sqrt(4000)))
    np.testing.assert_allclose(np.sqrt(np.diagonal(posterior.cov)), std, rtol=0.1)


def test_seconds_count_where_a_duration_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1e9]
    monkeypatch.setattr(updates.time, "time", lambda: clock[0])
    day = datetime.timedelta(days=1)
    bandit = dp.Bandit(standard_prior(), dp.Linear(1.0), seed=0, half_life=day)
    bandit.update([1.0, 0.0], 2.0)
    clock[0] += 86400
    bandit.update([0.0, 1.0], 3.0)
    for _ in range(3):
        bandit.decide(ACTIONS)
    np.testing.assert_allclose(_shift(bandit), [1.0, 3.0], rtol=1e-6)
    clock[0] -= 5e6  # a clock that is set back forgets nothing, and brings nothing back
    np.testing.assert_allclose(_shift(bandit), [1.0, 3.0], rtol=1e-6)
    clock[0] += 5e6 + 2 * 86400
    np.testing.assert_allclose(_shift(bandit), [0.25, 0.75], rtol=1e-6)


def test_what_was_learned_long_ago_decides_nothing() -> None:
    """Decisions and posteriors are those of a bandit that has learned nothing."""
    old, new = (dp.Bandit(standard_prior(), dp.Linear(0.1), seed=5, half_life=2) for _ in range(2))
    old.update(FEATURES, FEATURES @ [3.0, -3.0])
    far = old.decide(ACTIONS), new.decide(ACTIONS)
    assert np.abs(far[0].scores - far[1].scores).max() > 1
    for bandit in (old, new):
        bandit.decide(np.stack([ACTIONS] * 400))
    near = old.decide(ACTIONS), new.decide(ACTIONS)
    np.testing.assert_allclose(near[0].scores, near[1].scores, atol=1e-5)
    draws = [bandit.posterior(9, seed=1).draws for bandit in (old, new)]
    np.testing.assert_allclose(*draws, atol=1e-5)


@pytest.mark.parametrize("half_life", [4.5, datetime.timedelta(seconds=1e6)])
@pytest.mark.parametrize("likelihood", [dp.Linear(0.5), dp.Logistic()], ids=["linear", "logistic"])
def test_a_copy_and_a_file_forget_as_the_original(
    likelihood: Any, half_life: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates.time, "time", lambda: 1e9)
    bandit, _ = played(half_life, likelihood, (REWARDS > 0).astype(float))
    bandit.save(tmp_path / "bandit")
    others = [dp.Bandit.load(tmp_path / "bandit", keep_seed=True), copy.deepcopy(bandit)]
    monkeypatch.setattr(updates.time, "time", lambda: 1e9 + 1e6)
    for _ in range(3):
        expected = bandit.decide(ACTIONS)
        for other in others:
            np.testing.assert_array_equal(other.decide(ACTIONS).scores, expected.scores)
            other.update(ACTIONS[0], 1.0)
        bandit.update(ACTIONS[0], 1.0)


@pytest.mark.parametrize(
    "half_life", [0, -1.0, float("nan"), float("inf"), "a week", datetime.timedelta(0), [1.0, 2.0]]
)
def test_other_half_lives_are_rejected(half_life: Any) -> None:
    with pytest.raises(ValueError, match="`half_life`: expected"):
        dp.Bandit(standard_prior(), dp.Linear(1.0), half_life=half_life)


def _shift(bandit: dp.Bandit) -> np.ndarray:
    evidence = bandit.evidence
    assert isinstance(evidence, dp.LinearEvidence)
    return np.asarray(evidence.shift)
