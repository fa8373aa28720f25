"""One row cannot brick a bandit: what could not be drawn from is rejected, and nothing changes."""

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import standard_prior
from diffprior.bandits.bandit import Bandit

RNG = np.random.default_rng(8)
FEATURES = RNG.standard_normal((6, 2))
ROWS = {
    "reward 1e20": ([1.0, 1.0], 1e20),
    "reward 1e12": ([1.0, 1.0], 1e12),
    "features 1e20": ([1e20, 1.0], 1.0),
    "features 1e10": ([1e10, -1e10], 1.0),
    "features 1e5": ([1e5, 1e5], 1.0),
}
LIKELIHOODS = {"linear": dp.Linear(1.0), "poisson": dp.Poisson()}


def mixture() -> dp.MixturePrior:
    return dp.MixturePrior([0.5, 0.5], np.eye(2), np.stack([0.1 * np.eye(2)] * 2))


@pytest.mark.parametrize(
    ("name", "make"),
    [
        pytest.param("linear", standard_prior, marks=pytest.mark.float32),
        pytest.param("linear", mixture, marks=pytest.mark.float32),
        ("poisson", mixture),
    ],
)
def test_decisions_go_on_after_an_extreme_row(name: str, make: type) -> None:
    """Accepted or rejected with the reason; in any case decisions do not fail afterwards."""
    accepted = []
    for what, (phi, reward) in ROWS.items():
        bandit = Bandit(make(), LIKELIHOODS[name], seed=0, max_rows=128)
        bandit.update(FEATURES, np.ones(6))
        before = bandit.evidence
        try:
            bandit.update(phi, reward)
            accepted.append(what)
        except ValueError as error:
            assert bandit.evidence is before
            assert "`update`: expected observations" in str(error) or "`rewards`" in str(error)
        for _ in range(3):
            decision = bandit.decide(FEATURES)
            assert np.all(np.isfinite(decision.scores)) and not decision.failed
        bandit.update(FEATURES[::-1], np.zeros(6))  # ordinary rewards are welcome as before
    single = not jax.config.read("jax_enable_x64")
    if single and name == "linear":
        assert "reward 1e20" not in accepted and "features 1e20" not in accepted


@pytest.mark.float32
def test_a_bandit_with_much_data_rejects_too() -> None:
    """1e200 squared is beyond double precision as well."""
    huge = 1e200 if jax.config.read("jax_enable_x64") else 1e25
    bandit = Bandit(standard_prior(), dp.Linear(1.0), seed=0)
    bandit.update(RNG.standard_normal((500, 2)), RNG.standard_normal(500))
    before, number = bandit.evidence, bandit.num_decisions
    for phi, reward in (([1.0, 1.0], huge), ([huge, 1.0], 1.0)):
        with pytest.raises(ValueError, match="`update`: expected observations.*got.*rescale"):
            bandit.update(phi, reward)
        assert bandit.evidence is before and bandit.num_decisions == number
    assert not bandit.decide(FEATURES).failed


def test_one_bad_row_spoils_its_batch_only() -> None:
    bandit = Bandit(standard_prior(), dp.Linear(1.0), seed=0)
    huge = 1e200 if jax.config.read("jax_enable_x64") else 1e25
    with pytest.raises(ValueError, match="`update`"):
        bandit.update(FEATURES, np.array([1.0, 1.0, huge, 1.0, 1.0, 1.0]))
    assert float(bandit.evidence.count) == 0
    bandit.update(FEATURES, np.ones(6))
    assert float(bandit.evidence.count) == 6


@pytest.mark.float32
def test_units_do_not_matter() -> None:
    """Large features of small parameters are not extreme; nor are large rewards of large noise."""
    prior = dp.GaussianPrior(np.zeros(2), 1e-12 * np.eye(2))
    bandit = Bandit(prior, dp.Linear(1e5), seed=0)
    bandit.update(1e8 * FEATURES, 1e6 * np.ones(6))
    assert not bandit._strained and not bandit.decide(1e6 * FEATURES).failed
