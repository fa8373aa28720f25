"""The exact sampler: draws follow the posterior, and failures are never silent."""

import equinox as eqx
import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import diffprior as dp
import reference
from cases import (
    ATOMS,
    COVS,
    DIM,
    LINEAR,
    LOGISTIC,
    MEANS,
    PRIORS,
    WEIGHTS,
    LikelihoodCase,
    PriorCase,
    case_name,
    problem,
)
from statistic import assert_distribution, assert_mean, assert_moments

N = 20_000
KEY = jax.random.key(11)


def draw(
    prior: dp.AbstractPrior, case: LikelihoodCase, num_rows: int
) -> tuple[np.ndarray, dp.Info]:
    evidence = problem(num_rows, DIM, num_rows, case).evidence(case.make())
    return dp.Exact(prior).sample_many(KEY, evidence, N)


@pytest.mark.parametrize("case", PRIORS, ids=case_name)
@pytest.mark.parametrize("num_rows", [0, 2, 6])
def test_linear_draws_have_the_exact_moments(case: PriorCase, num_rows: int) -> None:
    p = problem(num_rows, DIM, num_rows)
    draws, _ = draw(case.make(), LINEAR, num_rows)
    evidence = reference.linear_evidence(p.features, p.rewards, np.sqrt(LINEAR.dispersion))
    assert_moments(draws, *case.denoise(*evidence))


def test_gaussian_draws_given_logistic_rows_have_the_laplace_moments() -> None:
    case = PRIORS[0]
    p = problem(40, DIM, 40, LOGISTIC)
    draws, info = draw(case.make(), LOGISTIC, 40)
    prior = case.denoise(np.zeros((DIM, DIM)), np.zeros(DIM))
    assert_moments(draws, *reference.irls(*prior, p.features, p.rewards, "logistic"))
    expected = reference.laplace_log_evidence(*prior, p.features, p.rewards, "logistic")
    assert_allclose(info.log_evidence, expected, rtol=1e-10)


@pytest.mark.parametrize("num_rows", [0, 2, 6])
def test_mixture_draws_follow_the_exact_law(num_rows: int) -> None:
    """Along several directions, where a mixture of the twin's components has a known law."""
    p = problem(num_rows, DIM, num_rows)
    draws, info = draw(dp.MixturePrior(WEIGHTS, MEANS, COVS), LINEAR, num_rows)
    weights, means, covs, log_evidence = reference.mixture_posterior(
        WEIGHTS, MEANS, COVS, p.features, p.rewards, np.sqrt(LINEAR.dispersion)
    )
    for direction in (*np.eye(DIM), np.ones(DIM), np.array([1.0, -2.0, 0.5])):
        stds = np.sqrt(np.einsum("i,kij,j->k", direction, covs, direction))
        standardised = (np.asarray(draws) @ direction)[:, None] - means @ direction
        assert_distribution(stats.norm.cdf(standardised / stds) @ weights)
    assert_allclose(info.log_evidence, log_evidence, rtol=1e-10, atol=1e-12)


def test_empirical_draws_are_atoms_as_often_as_they_should() -> None:
    p = problem(2, DIM, 2, LOGISTIC)
    draws, _ = draw(dp.EmpiricalPrior(ATOMS), LOGISTIC, 2)
    rows = (p.features, p.rewards, "logistic")
    likelihood = np.exp([reference.log_likelihood(atom, *rows) for atom in ATOMS])
    hits = np.all(np.asarray(draws)[:, None] == ATOMS, axis=2)
    assert np.all(hits.sum(axis=1) == 1)
    assert_mean(hits, likelihood / likelihood.sum())


def test_draws_are_independent() -> None:
    draws, _ = draw(PRIORS[0].make(), LINEAR, 6)
    centred = np.asarray(draws) - np.asarray(draws).mean(axis=0)
    assert_mean(np.einsum("ni,nj->nij", centred[1:], centred[:-1]), np.zeros((DIM, DIM)))


@pytest.mark.parametrize("temperature", [0.25, 4.0])
def test_temperature_scales_the_evidence(temperature: float) -> None:
    p, case = problem(6, DIM, 6), PRIORS[0]
    sampler = dp.Exact(case.make(), temperature=temperature)
    draws, _ = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
    noise_std = np.sqrt(LINEAR.dispersion * temperature)
    assert_moments(
        draws, *case.denoise(*reference.linear_evidence(p.features, p.rewards, noise_std))
    )


def failing_draws() -> list[tuple[dp.AbstractPrior, dp.AbstractEvidence]]:
    huge = dp.Linear(1.0).observe([[1e200, 0.0, 0.0]], [1.0])
    far = dp.EmpiricalPrior(np.full((2, DIM), 1e200))
    return [
        (PRIORS[0].make(), huge),
        (PRIORS[1].make(), huge),
        (far, dp.Linear(1.0).observe(np.eye(DIM), np.ones(DIM))),
    ]


@pytest.mark.parametrize("index", range(3), ids=["gaussian", "mixture", "empirical"])
def test_a_failed_draw_raises_or_says_so(index: int) -> None:
    prior, evidence = failing_draws()[index]
    sampler = dp.Exact(prior)
    message = r"`Exact`: a draw is not finite .* Likely causes: .* throw=False"
    with pytest.raises(eqx.EquinoxRuntimeError, match=message):
        sampler.sample(KEY, evidence)
    with pytest.raises(eqx.EquinoxRuntimeError, match=message):
        sampler.sample_many(KEY, evidence, 3)
    assert np.all(np.isnan(sampler.sample(KEY, evidence, throw=False)))
    assert np.all(sampler.sample_many(KEY, evidence, 3, throw=False)[1].failed)
