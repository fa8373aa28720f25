"""Evidence, priors, samplers and schedules: documented errors, or objects without NaN."""

from typing import Any

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import diffprior as dp
from fuzz.strategies import DIM, arrays, attempt, either, finite, fuzzed, numbers

KEY = jax.random.key(0)
PRIOR = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
LIKELIHOODS = (
    dp.Linear(0.5),
    dp.Logistic(),
    dp.Poisson(),
    dp.NegativeBinomial(2.0),
    dp.ZeroInflated(2.0, 0.5),
)
counts = st.sampled_from([0.0, 1.0, 1.0, 2.0, 7.0, 0.5, -1.0, 1e15])


@fuzzed
@given(st.sampled_from(LIKELIHOODS), st.data())
def test_evidence(likelihood: dp.AbstractLikelihood, data: st.DataObject) -> None:
    rows = data.draw(arrays(3, DIM)), data.draw(arrays(3, elements=st.one_of(counts, numbers)))
    options = {"weights": data.draw(either(None, np.ones(3), [1, 0, 2]))}
    evidence = attempt(lambda: likelihood.observe(*rows, **options))
    if isinstance(evidence, Exception):
        return
    assert evidence.dim == np.shape(rows[0])[-1] and repr(evidence)  # rows may have any width
    before = jax.tree.leaves(evidence)
    grown = attempt(lambda: evidence.append(data.draw(arrays(DIM)), data.draw(counts)))
    assert all(a is b for a, b in zip(before, jax.tree.leaves(evidence), strict=True))
    for each in (evidence, grown):
        assert isinstance(each, Exception) or finite(each)


@fuzzed
@given(st.sampled_from([dp.Linear, dp.Identity, dp.NegativeBinomial]), st.data())
def test_likelihoods(kind: Any, data: st.DataObject) -> None:
    likelihood = attempt(lambda: kind(data.draw(st.one_of(numbers, arrays(), either(1.0)))))
    if isinstance(likelihood, dp.AbstractLikelihood):
        assert finite(likelihood) and repr(likelihood)
        attempt(lambda: likelihood.empty(data.draw(either(1, 2)), data.draw(either(0, 5, 200))))


def used(prior: Any, data: st.DataObject) -> None:
    """Draws and moments of accepted priors are finite under accepted evidence."""
    assert repr(prior) and finite(prior.moments())
    assert finite(prior.sample(KEY, 3))
    precision = data.draw(
        st.sampled_from([np.eye(DIM), np.zeros((DIM, DIM)), 1e4 * np.eye(DIM), np.ones((2, 2))])
    )
    shift = data.draw(arrays(DIM, elements=st.floats(-100, 100)))
    found = attempt(lambda: prior.denoise(precision, shift))
    assert isinstance(found, Exception) or finite(found)


covs = st.one_of(
    arrays(DIM, DIM),
    st.sampled_from(
        [np.eye(DIM), 1e-8 * np.eye(DIM), np.diag([1.0, 1e-6]), [[1, 0.999], [0.999, 1]]]
    ),
)


@fuzzed
@given(st.data())
def test_gaussian_priors(data: st.DataObject) -> None:
    mean = data.draw(arrays(DIM, elements=numbers))
    prior = attempt(lambda: dp.GaussianPrior(mean, data.draw(covs)))
    made = isinstance(prior, dp.GaussianPrior) and prior.dim == DIM
    if made and np.max(np.abs(prior.mean)) < 1e6 and np.max(np.abs(prior.cov)) < 1e6:
        used(prior, data)


@fuzzed
@given(st.data())
def test_mixture_priors(data: st.DataObject) -> None:
    weights, means = data.draw(arrays(2)), data.draw(arrays(2, DIM, elements=st.floats(-9, 9)))
    stack = data.draw(either(np.stack([np.eye(DIM)] * 2), np.zeros((2, 2, 2)), np.eye(2)))
    prior = attempt(lambda: dp.MixturePrior(weights, means, stack))
    if isinstance(prior, dp.MixturePrior) and prior.dim == DIM:
        used(prior, data)


@fuzzed
@given(st.data())
def test_empirical_priors(data: st.DataObject) -> None:
    atoms = data.draw(arrays(4, DIM, elements=st.floats(-9, 9)))
    weights = data.draw(st.one_of(st.none(), arrays(4)))
    prior = attempt(lambda: dp.EmpiricalPrior(atoms, weights))
    if isinstance(prior, dp.EmpiricalPrior) and prior.moments().mean.shape == (DIM,):
        used(prior, data)


@fuzzed
@given(st.data())
def test_fitted_gaussians(data: st.DataObject) -> None:
    prior = attempt(lambda: dp.GaussianPrior.fit(data.draw(arrays(5, DIM))))
    assert isinstance(prior, Exception) or finite(prior)


SAMPLERS = (dp.Exact, dp.EvidenceDPS, dp.LaplaceDPS, dp.TwistedSMC, dp.DPS, dp.ParticleFilter)


@fuzzed
@given(st.sampled_from(SAMPLERS), st.data())
def test_samplers_are_made_or_rejected(kind: Any, data: st.DataObject) -> None:
    prior = data.draw(either(PRIOR, PRIOR, dp.MixturePrior, np.eye(2)))
    temperature = data.draw(st.one_of(numbers, either(1.0, 0.5)))
    sampler = attempt(lambda: kind(prior, temperature=temperature))
    if isinstance(sampler, dp.AbstractSampler):
        assert repr(sampler) and finite(sampler.temperature) and float(sampler.temperature) > 0


@fuzzed
@given(st.sampled_from(LIKELIHOODS[:2]), st.data())
def test_draws(likelihood: dp.AbstractLikelihood, data: st.DataObject) -> None:
    """Of evidence that is accepted: finite, or a failure that is said."""
    sampler = dp.Exact(PRIOR, temperature=data.draw(st.sampled_from([0.1, 1.0, 10.0])))
    features = data.draw(arrays(3, DIM, elements=numbers, odd=False))
    evidence = attempt(lambda: likelihood.observe(features, [0, 1, 1]))
    if isinstance(evidence, Exception):
        return
    found = attempt(lambda: sampler.sample(KEY, evidence), (RuntimeError,))
    assert isinstance(found, Exception) or finite(found)
    quiet = np.asarray(sampler.sample(KEY, evidence, throw=False))
    assert np.all(np.isnan(quiet)) or finite(quiet)
    assert isinstance(found, Exception) == bool(np.any(np.isnan(quiet)))


@fuzzed
@given(st.data())
def test_schedules(data: st.DataObject) -> None:
    count = data.draw(either(1, 5, 100))
    number = data.draw(st.one_of(numbers, either(0.5, 0.97)))
    calls = (
        lambda: dp.Schedule.constant(count, number),
        lambda: dp.Schedule.cosine(count, number),
        lambda: dp.Schedule.log_snr(count, 9.0, number),
        lambda: dp.Schedule.cosine(20).stride(count),
        lambda: dp.Schedule(tuple(data.draw(st.lists(numbers, max_size=4)))),
        lambda: dp.Schedule(data.draw(either((1.0, 0.5), (1.0,), ()))),
    )
    schedule = attempt(data.draw(st.sampled_from(calls)))
    if isinstance(schedule, dp.Schedule):
        assert finite((schedule.alpha, schedule.beta, schedule.beta_tilde, schedule.snr[1:]))
        assert schedule.num_stages >= 1 and repr(schedule)


@fuzzed
@given(st.data())
def test_gaussians(data: st.DataObject) -> None:
    mean, cov = data.draw(arrays(DIM, odd=False)), data.draw(covs)
    gaussian = attempt(lambda: dp.Gaussian(mean, cov))
    assert isinstance(gaussian, Exception) or repr(gaussian)
