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
    "poisson": dp.Poisson(),
    "negative binomial": dp.NegativeBinomial(DISPERSION),
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_two_kinds_of_tasks_are_found(kind: str) -> None:
    rng = np.random.default_rng(0)

    def logs_of(n: int) -> dp.Logs:
        thetas = blobs(rng, n)
        tasks, x, _ = rows(rng, thetas, 12.0)
        return dp.Logs(tasks, x, rewards_of(kind, rng, np.sum(x * thetas[tasks], axis=1)))

    logs, new = logs_of(250), logs_of(300)
    learned = dp.learn(logs, FAMILIES[kind], up_to="mixture", simulate=False, progress=False)
    report = learned.report
    assert report.chosen.startswith(("mixture", "kernels"))
    gain = dp.evaluate.log_evidence(learned.prior, new, learned.likelihood)
    gain = gain - dp.evaluate.log_evidence(learned.families["Gaussian"], new, learned.likelihood)
    assert gain.mean() > 2 * gain.std() / np.sqrt(len(gain))
    mean, std = np.asarray(learned.prior.moments().mean), np.sqrt(1.5**2 + 0.3**2)
    np.testing.assert_allclose(mean, 0.0, atol=5 * std / np.sqrt(250))
    spread = np.sqrt(np.diagonal(np.asarray(learned.prior.moments().cov)))
    np.testing.assert_allclose(spread, std, rtol=0.2)
