"""Priors of four members in every sampler, in the bandits and in simulations."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
import reference
from cases import LINEAR, LOGISTIC, NOISE_STD, LikelihoodCase, problem
from foreign import Stranger, TwelveLines
from statistic import assert_moments

DIM = 3  # as are the numbers below those of `cases.SAMPLERS`, whose programs serve here too
MEAN = np.array([0.5, -1.0, 0.2])
COV = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.3], [0.0, -0.3, 0.5]])
PRIORS: dict[str, Callable[[], Any]] = {
    "subclass": lambda: TwelveLines(jnp.asarray(MEAN), jnp.asarray(COV)),
    "stranger": lambda: Stranger(MEAN, COV),
}
SAMPLERS: dict[str, Callable[[Any], dp.AbstractSampler]] = {
    "evidence": lambda prior: dp.EvidenceDPS(prior, steps=3),
    "laplace": lambda prior: dp.LaplaceDPS(prior, steps=3),
    "twisted": lambda prior: dp.TwistedSMC(prior, steps=3, num_particles=3),
    "dps": lambda prior: dp.DPS(prior, steps=3),
    "filter": lambda prior: dp.ParticleFilter(prior, num_particles=20, num_rounds=2),
}
PRIORS["closed"] = lambda: dp.GaussianPrior(MEAN, COV)


@functools.cache
def diffusion(name: str) -> dp.DiffusionPrior:
    """Programs of every sampler of the prior, compiled once."""
    return dp.DiffusionPrior.from_prior(PRIORS[name]())


@pytest.mark.parametrize(
    ("name", "kind", "case"),
    [
        *(("stranger", kind, LINEAR) for kind in ("evidence", "twisted", "dps")),
        ("subclass", "laplace", LOGISTIC),
    ],
)
def test_draws_are_those_of_the_closed_form(name: str, kind: str, case: LikelihoodCase) -> None:
    evidence = problem(3, DIM, 5, case).evidence(case.make())
    samplers = [SAMPLERS[kind](diffusion(prior)) for prior in (name, "closed")]
    draws = [sampler.sample_many(jax.random.key(1), evidence, 50)[0] for sampler in samplers]
    assert_allclose(draws[0], draws[1], atol=1e-8)


def test_samplers_take_the_prior_itself() -> None:
    """Samplers adapt it as `from_prior` does."""
    prior = PRIORS["subclass"]()
    for make in SAMPLERS.values():
        made = make(prior).prior
        assert made.denoiser.prior is prior
        assert_array_equal(made.residual, diffusion("subclass").residual)


def test_draws_follow_the_exact_posterior() -> None:
    sampler, p = dp.best_sampler(PRIORS["stranger"]()), problem(4, DIM, 5)
    assert isinstance(sampler, dp.EvidenceDPS)
    draws, _ = sampler.sample_many(jax.random.key(2), p.evidence(LINEAR.make()), 20_000)
    posterior = reference.linear_posterior(MEAN, COV, p.features, p.rewards, NOISE_STD)
    assert_moments(draws, *posterior)


def test_bandits_decide_as_with_the_closed_form() -> None:
    features = np.random.default_rng(5).standard_normal((6, DIM))
    likelihood, found = dp.Linear(noise_std=0.5), []
    for prior in (PRIORS["stranger"](), dp.EvidenceDPS(diffusion("closed"))):
        bandit = dp.Bandit(prior, likelihood, seed=3)
        bandit.update(features, np.arange(6.0))
        found.append([bandit.decide(features).scores for _ in range(5)])
    assert_allclose(found[0], found[1], atol=1e-8)
