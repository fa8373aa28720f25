"""The sampler that a prior gets by default."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from diffprior.denoisers.network import SPREAD_AT, CorrectedDenoiser, Correction
from diffprior.mixture import GaussianMixture

OFFSET, SCALE = np.array([1.0, -2.0]), np.array([[2.0, 0.0], [0.5, 0.1]])
WEIGHTS, MEANS = np.array([0.3, 0.7]), np.array([[0.5, 1.0], [-1.0, 0.2]])
VARIANCES = np.array([[0.2, 0.9], [0.05, 0.4]])


def learned(base: GaussianMixture | None) -> dp.DiffusionPrior:
    """A prior whose network added nothing to its base."""
    denoiser = CorrectedDenoiser(base, None, None, 2)
    return dataclasses.replace(
        closed(), offset=jnp.asarray(OFFSET), scale=jnp.asarray(SCALE), denoiser=denoiser
    )


@functools.cache
def closed() -> dp.DiffusionPrior:
    """N(0, I) with its exact denoiser."""
    return dp.DiffusionPrior.from_prior(dp.GaussianPrior(np.zeros(2), np.eye(2)))


def of_size(dim: int, denoiser: CorrectedDenoiser) -> dp.DiffusionPrior:
    """A prior of so many parameters, whose residual is that of two."""
    offset, scale = jnp.asarray(np.zeros(dim)), jnp.asarray(np.eye(dim))
    return dataclasses.replace(closed(), offset=offset, scale=scale, denoiser=denoiser)


def network(dim: int) -> Correction:
    """One of zeros, for whose shapes nothing is compiled."""
    make = lambda: Correction.initialize(np.random.default_rng(0), dim, 1, width=4, depth=2)  # noqa: E731
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(make))


def unit_base(dim: int) -> GaussianMixture:
    return GaussianMixture(np.zeros(1), np.zeros((1, dim)), np.eye(dim)[None], np.ones((1, dim)))


def test_a_mixture_that_nothing_corrects_is_drawn_from_as_one() -> None:
    vectors = np.stack([np.linalg.qr(np.array([[1.0, 2.0], [-1.0, 0.5]]))[0], np.eye(2)])
    base = GaussianMixture(*map(jnp.asarray, (np.log(WEIGHTS), MEANS, vectors, VARIANCES)))
    prior = learned(base)
    sampler = dp.best_sampler(prior, 0.5)
    assert isinstance(sampler, dp.Exact) and float(sampler.temperature) == 0.5
    found = sampler.prior
    assert isinstance(found, dp.MixturePrior)
    covs = np.einsum("ai,kij,kj,klj,bl->kab", SCALE, vectors, VARIANCES, vectors, SCALE)
    assert_allclose(found.weights, WEIGHTS, rtol=1e-6)
    assert_allclose(found.means, OFFSET + MEANS @ SCALE.T, rtol=1e-6)
    assert_allclose(found.covs, covs, rtol=1e-5, atol=1e-6)


def test_a_gaussian_that_nothing_corrects_gives_bayes() -> None:
    features, rewards = np.array([[1.0, 0.5], [0.2, -1.0], [0.3, 0.3]]), np.array([0.5, 1.0, -0.2])
    sampler = dp.best_sampler(learned(None))
    evidence = dp.Linear(0.5).observe(features, rewards)
    posterior = sampler.prior.posterior(evidence)[0].moments()
    mean, cov = reference.linear_posterior(OFFSET, SCALE @ SCALE.T, features, rewards, 0.5)
    assert_allclose(posterior.mean, mean, rtol=1e-4)
    assert_allclose(posterior.cov, cov, rtol=1e-3, atol=1e-5)


def test_other_priors_get_what_is_exact_or_the_chain() -> None:
    assert isinstance(dp.best_sampler(dp.GaussianPrior(np.zeros(2), np.eye(2))), dp.Exact)
    assert isinstance(dp.best_sampler(closed()), dp.EvidenceDPS)


def test_a_mixture_that_a_network_corrects_a_little_gets_passes_from_four_parameters_on() -> None:
    for dim, kind in ((3, dp.EvidenceDPS), (4, dp.FewPasses)):
        denoiser = CorrectedDenoiser(unit_base(dim), network(dim), None, dim)
        assert isinstance(dp.best_sampler(of_size(dim, denoiser)), kind)
        much = dataclasses.replace(denoiser, negligible_correction=False)
        chain = dp.best_sampler(of_size(dim, much))
        assert isinstance(chain, dp.EvidenceDPS)


@pytest.mark.parametrize(("dim", "steps"), [(8, 20), (9, 40)])
def test_a_network_on_one_gaussian_gets_more_stages_past_eight_parameters(
    dim: int, steps: int
) -> None:
    """Up to eight the covariance is the derivative of the mean, past that a table."""
    correction = network(dim)
    denoiser = CorrectedDenoiser(None, correction, jnp.ones(len(SPREAD_AT)), dim)
    sampler = dp.best_sampler(of_size(dim, denoiser), 0.5)
    assert isinstance(sampler, dp.EvidenceDPS) and float(sampler.temperature) == 0.5
    assert len(sampler.schedule.snr) == steps
    mixed = CorrectedDenoiser(unit_base(dim), correction, None, dim, negligible_correction=False)
    assert len(dp.best_sampler(of_size(dim, mixed)).schedule.snr) == 20
