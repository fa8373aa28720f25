"""Clicks and counts are learned from end to end, whatever the family of rewards."""

import numpy as np
import pytest

import diffprior as dp
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
def test_mean_and_spread_are_found_and_beat_naive_estimates(kind: str) -> None:
    rng = np.random.default_rng(0)
    thetas = blobs(rng, 250)
    tasks, x, _ = rows(rng, thetas, 8.0)
    logs = dp.Logs(tasks, x, rewards_of(kind, rng, np.sum(x * thetas[tasks], axis=1)))
    learned = dp.learn(logs, FAMILIES[kind], families=("gaussian",), simulate=False, progress=False)
    std = np.sqrt(1.5**2 + 0.3**2)
    moments = learned.families["Gaussian"].moments()
    np.testing.assert_allclose(moments.mean, 0.0, atol=5 * std / np.sqrt(250))
    np.testing.assert_allclose(np.sqrt(np.diagonal(moments.cov)), std, rtol=0.25)
    naive, gaussian = learned.report.families
    assert naive.over_gaussian.mean < 0 and gaussian.chosen
    found = learned.report.next_rewards
    assert found is not None and abs(found.predicted - found.mean) < 5 * found.error
    assert (found.coverage is None) == (kind == "logistic")
    if found.coverage is not None and found.coverage_error is not None:
        assert abs(found.coverage - 0.9) < 5 * found.coverage_error + 0.02
