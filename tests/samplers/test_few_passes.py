"""FewPasses: pass by pass against the twin, and its draws against exact posteriors."""

import dataclasses

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import (
    IDENTITY,
    LINEAR,
    LOGISTIC,
    NOISE_STD,
    mixture_based,
    problem,
    tolerance,
)
from chains import (
    BLOB_UNIT,
    BLOBS,
    UNIT_BLOBS,
    assert_near,
    blob_features,
    blob_posterior_features,
    blob_prior,
)
from diffprior.denoisers.network import CorrectedDenoiser
from diffprior.samplers.few_passes import PROPOSALS
from statistic import assert_moments

N = 8192
DIM = 2
KEY = jax.random.key(8)
NOISE = {1: (), 2: (3.0,), 3: (1.5, 8.0), 4: (1.0, 4.0, 16.0)}  # precisions, of I + P


def blobs() -> dp.DiffusionPrior:
    return mixture_based(*BLOBS)


def gaussian(mean: np.ndarray, cov: np.ndarray) -> dp.DiffusionPrior:
    closed = dp.DiffusionPrior.from_prior(dp.GaussianPrior(mean, cov))
    return dataclasses.replace(closed, denoiser=CorrectedDenoiser(None, None, None, len(mean)))


def numbers(passes: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each pass: normal numbers and uniform ones, first of all those that hide the draw before
    and that choose among proposals."""
    normal_key, uniform_key = jax.random.split(KEY)
    normal = jax.random.normal(normal_key, (passes, count + 1, DIM))
    return np.asarray(normal), np.asarray(jax.random.uniform(uniform_key, (passes, count + 1)))


def posterior(precision: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, ...]:
    """Weights, means and covariances of the two blobs, in unit coordinates, under evidence."""
    root = np.linalg.cholesky(precision + 1e-12 * np.eye(DIM))
    rewards = np.linalg.solve(root, shift)
    return reference.mixture_posterior(*UNIT_BLOBS, root.T, rewards, 1.0)[:3]


def drawn(moments: tuple[np.ndarray, ...], normal: np.ndarray, uniform: float) -> np.ndarray:
    """Any factor of the covariance would do; this one is of the eigenvectors as the base has it."""
    weights, means, covs = moments
    k = int(np.searchsorted(np.cumsum(weights), uniform, side="right"))
    return means[k] + factor(k, covs[k]) @ normal


def factor(k: int, cov: np.ndarray) -> np.ndarray:
    """A factor of a component's posterior covariance: with S = H H', that of I + H' P H by rows."""
    variances, vectors = np.linalg.eigh(UNIT_BLOBS[2][k])
    half = vectors * np.sqrt(variances)
    inner = np.linalg.inv(half) @ cov @ np.linalg.inv(half).T
    return half @ np.linalg.inv(np.linalg.cholesky(np.linalg.inv(inner))).T


@pytest.mark.parametrize("passes", [1, pytest.param(2, marks=pytest.mark.float32), 4])
def test_linear_passes_equal_the_twin(passes: int) -> None:
    p = problem(1, DIM, 6)
    precision, shift = reference.linear_evidence(*BLOB_UNIT.history(p), NOISE_STD)
    values, vectors = np.linalg.eigh(precision)
    signs = np.sign(vectors[:1])  # noise that hides is along eigenvectors, whose signs are free
    normal, uniform = numbers(passes, 1)
    s, seen, before = drawn(posterior(precision, shift), normal[0, 1], uniform[0, 1]), 0.0, 0.0
    found = dp.FewPasses(blobs(), passes=passes).sample(KEY, p.evidence(LINEAR.make()))
    candidates = []
    for flips in np.ndindex(2, 2, 2):
        s_try, seen, before = s, np.zeros(DIM), 0.0
        order = [1, 0] if flips[2] else [0, 1]
        basis = (vectors * signs * np.where(flips[:2], -1.0, 1.0))[:, order]
        for i, c in enumerate(NOISE[passes], start=1):
            gain = (c - before) * (1.0 + values[order])
            seen = seen + basis @ (gain * (basis.T @ s_try) + np.sqrt(gain) * normal[i, 0])
            more = c * (np.eye(DIM) + precision)
            moments = posterior(precision + more, shift + seen)
            s_try, before = drawn(moments, normal[i, 1], uniform[i, 1]), c
        candidates.append(BLOB_UNIT.back(s_try))
    nearest = min(candidates, key=lambda s: float(np.abs(s - np.asarray(found)).max()))
    assert_allclose(found, nearest, atol=tolerance(1e-9, 1e-4))


@pytest.mark.float32
def test_a_gaussian_prior_gives_exact_bayes() -> None:
    for num_rows in (0, 5, 100):
        p = problem(num_rows, 3, num_rows)
        sampler = dp.FewPasses(gaussian(p.mean, p.cov), passes=4)
        draws, info = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
        assert not np.any(info.failed)
        assert_moments(draws, *reference.linear_posterior(*p.for_twin(), NOISE_STD))


def test_a_mixture_is_exact() -> None:
    sampler = dp.FewPasses(blobs(), passes=3)
    for num_rows in (0, 1, 5):
        p = problem(num_rows + 20, DIM, num_rows)
        draws, _ = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
        exact = reference.mixture_posterior(*BLOBS, p.features, p.rewards, NOISE_STD)
        expected = blob_posterior_features(exact)
        assert_near(blob_features(np.asarray(draws), exact), expected, allowance=1e-6)


def test_the_identity_link_gives_what_linear_rewards_give() -> None:
    p = problem(25, DIM, 5, IDENTITY)
    exact = reference.mixture_posterior(*BLOBS, p.features, p.rewards, NOISE_STD)
    draws, _ = dp.FewPasses(blobs(), passes=2).sample_many(KEY, p.evidence(IDENTITY.make()), N)
    assert_near(
        blob_features(np.asarray(draws), exact), blob_posterior_features(exact), allowance=1e-6
    )


def test_binary_rewards_give_the_posterior_by_weights() -> None:
    """Under a prior so wide that posteriors are skewed, against 400,000 draws of it weighted by the
    likelihood. The allowance, in units of the prior, is for the 16 proposals; one proposal is off
    by more."""
    weights, means, covs = BLOBS
    wide = (weights, 4 * means, 16 * covs)
    p = problem(6, DIM, 6, LOGISTIC)
    atoms = np.asarray(dp.MixturePrior(*wide).sample(jax.random.key(1), 400_000), np.float64)
    eta = atoms @ p.features.T
    logs = reference.family_log_density(p.rewards[None], eta, "logistic", 1.0).sum(axis=1)
    shares = np.exp(logs - logs.max())
    sampler = dp.FewPasses(mixture_based(*wide))
    draws, info = sampler.sample_many(KEY, p.evidence(LOGISTIC.make()), N)
    assert not np.any(info.failed)
    assert PROPOSALS > 1 and len(np.unique(np.asarray(draws), axis=0)) == N
    for of in (lambda x: x, lambda x: x**2, lambda x: x[:, :1] * x[:, 1:]):
        expected = np.average(of(atoms / 4), axis=0, weights=shares)
        assert_near(of(np.asarray(draws, np.float64) / 4), expected, allowance=0.02)


def test_other_priors_and_numbers_of_passes_are_rejected() -> None:
    with pytest.raises(ValueError, match="^`prior`: .*a mixture.*prefer_mixture=True., or use Ev"):
        dp.FewPasses(blob_prior())
    for passes in (0, 5, True):
        with pytest.raises(ValueError, match="^`passes`: expected 1, 2, 3 or 4, got"):
            dp.FewPasses(blobs(), passes=passes)
