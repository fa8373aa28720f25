"""ParticleFilter against the distribution that infinitely many particles would follow."""

import equinox as eqx
import jax
import numpy as np
import pytest

import diffprior as dp
import reference
from cases import LINEAR, NOISE_STD, Problem, problem
from chains import Unit, assert_near
from statistic import assert_mean

DIM, PARTICLES, ROUNDS = 2, 200, 8
JITTER = 0.5  # larger than the default, so that its decay is seen
KEY = jax.random.key(12)


def limit_law(p: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Round r adds the variance (JITTER / r)^2 and a share of the evidence, in unit coordinates."""
    precision, shift = reference.linear_evidence(*Unit.of(p.mean, p.cov).history(p), NOISE_STD)
    mean, cov = np.zeros(DIM), np.eye(DIM)
    for number in range(1, ROUNDS + 1):
        cov = cov + (JITTER / number) ** 2 * np.eye(DIM)
        mean, cov = reference.condition_gaussian(mean, cov, precision / ROUNDS, shift / ROUNDS)
    return mean, cov


@eqx.filter_jit
def runs(sampler: dp.ParticleFilter, evidence: dp.AbstractEvidence) -> tuple[jax.Array, dp.Info]:
    """One particle of each of many runs, whose first particles are drawn anew."""

    def one(key: jax.Array) -> tuple[jax.Array, dp.Info]:
        first_key, key = jax.random.split(key)
        first = jax.random.normal(first_key, (PARTICLES, DIM))
        return eqx.tree_at(lambda s: s.particles, sampler, first)._draw(key, evidence, JITTER)

    return jax.lax.map(one, jax.random.split(KEY, 2048), batch_size=512)


@pytest.mark.parametrize("num_rows", [0, 6])
def test_runs_follow_the_limit_distribution(num_rows: int) -> None:
    """A run of K particles is off by the order of 1 / K, in units of the spread; twice that is
    allowed. The perturbation adds at most its own variance to the exact covariance."""
    p = problem(num_rows, DIM, num_rows)
    prior = dp.GaussianPrior(p.mean, p.cov)
    sampler = dp.ParticleFilter(prior, num_particles=PARTICLES, num_rounds=ROUNDS)
    draws, info = runs(sampler, p.evidence(LINEAR.make()))
    unit = Unit.of(p.mean, p.cov)
    mean, cov = limit_law(p)
    z = np.linalg.solve(unit.scale, (np.asarray(draws) - unit.offset).T).T - mean
    assert_near(z, np.zeros(DIM), allowance=2 / PARTICLES)
    assert_near(np.einsum("ni,nj->nij", z, z), cov, allowance=2 / PARTICLES)
    exact = reference.condition_gaussian(
        np.zeros(DIM), np.eye(DIM), *reference.linear_evidence(*unit.history(p), NOISE_STD)
    )[1]
    inflation = np.sum((JITTER / np.arange(1, ROUNDS + 1)) ** 2)
    assert np.all(np.linalg.eigvalsh(cov - exact) > -1e-12)
    assert np.max(np.linalg.eigvalsh(cov - exact)) <= inflation + 1e-12
    assert np.all((info.effective_sample_size >= 1) & (info.effective_sample_size <= 201))


def test_the_first_particles_are_draws_from_the_prior() -> None:
    p = problem(2, DIM, 0)
    sampler = dp.ParticleFilter(dp.GaussianPrior(p.mean, p.cov))
    assert sampler.particles.shape == (3000, DIM)
    assert_mean(sampler.particles, np.zeros(DIM))
    assert_mean(np.einsum("ni,nj->nij", *[sampler.particles] * 2), np.eye(DIM))
    other = dp.ParticleFilter(dp.GaussianPrior(p.mean, p.cov), seed=1)
    assert not np.any(sampler.particles == other.particles)
