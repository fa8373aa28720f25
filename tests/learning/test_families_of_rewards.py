"""Clicks and counts are learned from end to end, whatever the family of rewards."""

import numpy as np
import pytest

import diffprior as dp
from diffprior.learning.likelihoods import named_likelihood
from worlds_of_tasks import blobs, rows

DISPERSION = 2.0


def rewards_of(kind: str, rng: np.random.Generator, eta: np.ndarray) -> np.ndarray:
    if kind == "logistic":
        return (rng.random(len(eta)) < 1 / (1 + np.exp(-eta))).astype(float)
    rate = np.exp(eta)
    if kind == "negative binomial":
        rate = rate * rng.gamma(DISPERSION, 1 / DISPERSION, len(eta))
    return rng.poisson(rate).astype(float)


FAMILIES: dict[str, dp.AbstractLikelihood] = {
    "logistic": dp.Logistic(),
    "negative binomial": dp.NegativeBinomial(DISPERSION),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_mean_and_spread_are_found_and_beat_a_cold_start(kind: str) -> None:
    rng = np.random.default_rng(0)
    thetas = blobs(rng, 250)
    tasks, x, _ = rows(rng, thetas, 8.0)
    logs = dp.Logs(tasks, x, rewards_of(kind, rng, np.sum(x * thetas[tasks], axis=1)))
    learned = dp.learn(logs, FAMILIES[kind], families=("gaussian",), simulate=False, progress=False)
    std = np.sqrt(1.5**2 + 0.3**2)
    moments = learned.families["Gaussian"].moments()
    np.testing.assert_allclose(moments.mean, 0.0, atol=5 * std / np.sqrt(250))
    np.testing.assert_allclose(np.sqrt(np.diagonal(moments.cov)), std, rtol=0.25)
    cold, gaussian = learned.report.families
    assert cold.over_gaussian.mean < 0 < gaussian.over_cold.mean and gaussian.chosen
    found = learned.report.next_rewards
    assert found is not None and abs(found.predicted - found.mean) < 5 * found.error
    assert (found.coverage is None) == (kind == "logistic")
    if found.coverage is not None and found.coverage_error is not None:
        assert abs(found.coverage - 0.9) < 5 * found.coverage_error + 0.02


def logs_of(kind: str, rng: np.random.Generator, num_tasks: int = 300) -> dp.Logs:
    thetas = blobs(rng, num_tasks)
    tasks, x, noisy = rows(rng, thetas, 12.0)
    eta = np.sum(x * thetas[tasks], axis=1)
    if kind == "linear":
        return dp.Logs(tasks, x, noisy)
    if kind != "zero-inflated":
        return dp.Logs(tasks, x, rewards_of(kind, rng, eta))
    amounts = 20.0 * np.exp(0.4 * eta + 0.8 * rng.standard_normal(len(eta)))
    return dp.Logs(tasks, x, amounts * rewards_of("logistic", rng, eta))


def test_what_a_likelihood_needs_is_estimated() -> None:
    rng = np.random.default_rng(1)
    for kind, expected in (
        ("poisson", dp.Poisson),
        ("negative binomial", dp.NegativeBinomial),
        ("logistic", dp.Logistic),
        ("linear", dp.Linear),
    ):
        found, why = named_likelihood("auto", logs_of(kind, rng, 120))
        assert isinstance(found, expected), (kind, why)
        if isinstance(found, dp.NegativeBinomial):
            assert 0.5 < found.dispersion / DISPERSION < 2.0
    with pytest.raises(ValueError, match="`rewards`: expected 0 or positive numbers, got -"):
        named_likelihood("zero-inflated", logs_of("linear", rng))
    with pytest.raises(ValueError, match="`likelihood`: expected one of 'auto', 'linear'"):
        named_likelihood("tweedie", logs_of("linear", rng))
    with pytest.raises(ValueError, match="`logs`: expected rows with poisson rewards"):
        named_likelihood("poisson", logs_of("linear", rng).statistics())


def test_revenue_is_learned_by_the_name_of_its_likelihood() -> None:
    logs = logs_of("zero-inflated", np.random.default_rng(1))
    model = dp.learn(logs, "auto", families=("gaussian",), quick=True, progress=False)
    found = model.likelihood
    assert isinstance(found, dp.ZeroInflated)
    assert abs(np.log(found.amount) - np.log(20.0)) < 0.1
    assert abs(found.slope - 0.4) < 0.2 and abs(found.log_std - 0.8) < 0.08
    assert "positive in the others" in model.report.likelihood_advice
    cold, gaussian = model.report.families
    assert cold.over_gaussian.mean < 0 and gaussian.chosen
    again = dp.load_bytes(model.to_bytes())
    assert again.likelihood == model.likelihood
    bandit = again.bandit(seed=0)
    bandit.update([[1.0, 0.0], [0.0, 1.0]], [0.0, 35.0])
    assert bandit.decide(np.eye(2)).action in (0, 1)
