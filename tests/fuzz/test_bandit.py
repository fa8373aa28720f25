"""Whatever is asked of a bandit: documented errors, finite answers, nothing changed if rejected."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import diffprior as dp
from fuzz.strategies import DIM, arrays, attempt, either, finite, fuzzed, numbers

PRIOR = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
LIKELIHOODS = (
    dp.Linear(0.5),
    dp.Logistic(),
    dp.Poisson(),
    dp.NegativeBinomial(2.0),
    dp.ZeroInflated(2.0, 0.5),
)
FEATURES = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])


def bandit_of(likelihood: Any) -> dp.Bandit:
    bandit = dp.Bandit(PRIOR, likelihood, seed=0, max_rows=128)
    bandit.update(FEATURES, np.array([1.0, 0.0, 1.0]))
    return bandit


def decide(bandit: dp.Bandit, options: dict[str, Any]) -> None:
    """A decision, and that it is one."""
    before, evidence = bandit.num_decisions, bandit.evidence
    found = attempt(lambda: bandit.decide(**options), (RuntimeError,))
    assert bandit.evidence is evidence
    if isinstance(found, RuntimeError):
        assert bandit.num_decisions > before
    elif isinstance(found, Exception):
        assert bandit.num_decisions == before
    else:
        assert bandit.num_decisions > before and np.all(np.asarray(found.action) >= 0)
        assert np.all(found.failed) or finite(found.scores)
        if found.propensity is not None:
            assert np.all(np.abs(np.asarray(found.propensity) - 0.5) <= 0.5)


def update(bandit: dp.Bandit, options: dict[str, Any]) -> None:
    """An update, after which decisions do not fail."""
    before, evidence = bandit.num_decisions, bandit.evidence
    found = attempt(lambda: bandit.update(**options))
    assert bandit.num_decisions == before
    if isinstance(found, Exception):
        assert bandit.evidence is evidence
    assert finite(bandit.evidence)
    assert not bandit.decide(FEATURES).failed


decisions = st.fixed_dictionaries(
    {"features": st.one_of(arrays(3, DIM), arrays(2, 3, DIM))},
    optional={
        "mask": either(None, np.array([True, False, True]), np.ones((2, 3), bool)),
        "top_k": either(None, 1, 2, 3),
        "propensity_draws": either(None, 1, 9, 70),
        "throw": st.booleans(),
    },
)
rewards = st.one_of(
    st.sampled_from([0, 1, 1.0, 5, 1e3]), numbers, arrays(), either(0.0, np.array(1.0))
)
updates = st.one_of(
    st.fixed_dictionaries({"phi": arrays(DIM), "reward": rewards}),
    st.fixed_dictionaries({"phi": arrays(3, DIM), "reward": arrays(3)}),
    st.fixed_dictionaries({"phi": arrays(3, DIM, odd=False), "reward": st.just([0, 1, 1])}),
)


@fuzzed
@given(st.sampled_from(LIKELIHOODS), st.lists(st.one_of(decisions, updates), max_size=4))
def test_calls(likelihood: dp.AbstractLikelihood, calls: list[dict[str, Any]]) -> None:
    bandit = bandit_of(likelihood)
    for options in calls:
        (decide if "features" in options else update)(bandit, options)


@fuzzed
@given(st.data())
def test_construction(data: st.DataObject) -> None:
    first = data.draw(either(PRIOR, dp.Exact(PRIOR), dp.LinUCB(PRIOR, dp.Logistic()), dp.Uniform))
    options = data.draw(
        st.fixed_dictionaries(
            {},
            optional={
                "likelihood": either(*LIKELIHOODS, dp.Linear()),
                "seed": either(None, 0, 2**62),
                "temperature": st.one_of(numbers, either(None, 0.5)),
                "max_rows": either(None, 128, 500),
            },
        )
    )
    bandit = attempt(lambda: dp.Bandit(first, **options))
    if isinstance(bandit, dp.Bandit):
        assert repr(bandit) and bandit.num_decisions == 0
        attempt(lambda: bandit.decide(FEATURES), (RuntimeError,))


@fuzzed
@given(st.data())
def test_posterior_and_warm_up(data: st.DataObject) -> None:
    bandit = bandit_of(LIKELIHOODS[0])
    num_draws, seed = data.draw(either(2, 9, 200)), data.draw(either(None, 3))
    found = attempt(lambda: bandit.posterior(num_draws, seed=seed))
    if isinstance(found, dp.Posterior):
        level = data.draw(st.one_of(numbers, either(0.5)))
        intervals = attempt(lambda: found.intervals(level))
        assert finite((found.mean, found.cov))
        assert isinstance(intervals, Exception) or np.all(intervals[:, 0] <= intervals[:, 1])
    sizes = data.draw(st.tuples(either(1, 3), either(1, 2)))
    attempt(lambda: bandit.warm_up(*sizes))
    assert bandit.num_decisions == 0


@fuzzed
@given(st.data())
def test_bytes(data: st.DataObject) -> None:
    """Damaged bytes are rejected, or give a bandit that decides."""
    blob = bytearray(bandit_of(data.draw(st.sampled_from(LIKELIHOODS[:2]))).to_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(blob) - 1))
        blob[place] = data.draw(st.integers(0, 255))
    length = data.draw(st.one_of(st.just(len(blob)), st.integers(0, len(blob))))
    found = attempt(lambda: dp.Bandit.from_bytes(bytes(blob[:length]), keep_seed=True))
    if isinstance(found, dp.Bandit):
        assert not found.decide(FEATURES).failed
