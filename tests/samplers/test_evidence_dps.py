"""EvidenceDPS: stage by stage against the twin, and its draws against exact posteriors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import LINEAR, LOGISTIC, NOISE_STD, network_denoiser, problem
from chains import (
    BLOB_UNIT,
    BLOBS,
    assert_near,
    blob_features,
    blob_posterior_features,
    blob_prior,
    chain_noise,
    denoise_blobs,
    follow,
)
from diffprior.denoisers.base import reverse_distribution
from diffprior.denoisers.network import StagewiseDenoiser
from statistic import assert_moments

N = 20_480
DIM = 2
KEY = jax.random.key(8)


@pytest.mark.parametrize("num_rows", [0, 1, 6])
def test_linear_stages_equal_the_twin(num_rows: int) -> None:
    sampler, p = dp.EvidenceDPS(blob_prior(), steps=8), problem(1, DIM, num_rows)
    precision, shift = reference.linear_evidence(*BLOB_UNIT.history(p), NOISE_STD)
    alpha_bar, noise = sampler.schedule.alpha_bar, chain_noise(KEY, 8, DIM)

    def step(s: np.ndarray, before: float, present: float, noise: np.ndarray) -> np.ndarray:
        evidence = (precision, shift, before, present)
        mean, cov = reference.evidence_dps_step(s, denoise_blobs, *evidence)
        return mean + np.linalg.cholesky(cov) @ noise

    mean, cov = reference.diffuse_gaussian(*denoise_blobs(precision, shift), alpha_bar[-1])
    start = mean + np.linalg.cholesky(cov) @ noise[0]
    expected = BLOB_UNIT.back(follow(alpha_bar, start, noise[1:], step))
    theta = sampler.sample(KEY, p.evidence(LINEAR.make()))
    assert_allclose(theta, expected, atol=1e-5)  # precision is raised to 1e-6 where there is none


def test_glm_stages_equal_the_twin() -> None:
    """One expansion a stage, under the denoised Gaussian of the stage before times what the noisy
    sample has added; before the chain four, the first under the Laplace posterior for a prior
    N(0, I). Averages are those of three nodes, so that what a stage takes from the one before
    shows."""
    sampler, p = dp.EvidenceDPS(blob_prior(), steps=8), problem(2, DIM, 12, LOGISTIC)
    rows = (*BLOB_UNIT.history(p), "logistic")
    alpha_bar, noise = sampler.schedule.alpha_bar, chain_noise(KEY, 8, DIM)
    belief = reference.irls(np.zeros(DIM), np.eye(DIM), *rows)
    rule = np.polynomial.hermite_e.hermegauss(3)
    noisy = (np.zeros((DIM, DIM)), np.zeros(DIM))

    def denoise(precision: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        nonlocal belief, noisy
        inverse = np.linalg.inv(belief[1])
        cov = np.linalg.inv(inverse + precision - noisy[0])
        guess = (cov @ (inverse @ belief[0] + shift - noisy[1]), cov)
        more = reference.expected_expansion(*guess, *rows, rule=rule)
        belief, noisy = denoise_blobs(precision + more[0], shift + more[1]), (precision, shift)
        return belief

    def step(s: np.ndarray, before: float, present: float, noise: np.ndarray) -> np.ndarray:
        nothing = (np.zeros((DIM, DIM)), np.zeros(DIM))
        mean, cov = reference.evidence_dps_step(s, denoise, *nothing, before, present)
        return mean + np.linalg.cholesky(cov) @ noise

    for _ in range(4):
        clean = denoise(*noisy)
    mean, cov = reference.diffuse_gaussian(*clean, alpha_bar[-1])
    start = mean + np.linalg.cholesky(cov) @ noise[0]
    expected = BLOB_UNIT.back(follow(alpha_bar, start, noise[1:], step))
    assert_allclose(sampler.sample(KEY, p.evidence(LOGISTIC.make())), expected, atol=1e-7)


@pytest.mark.parametrize(("steps", "dim"), [(3, 3), (20, 1)])
def test_a_gaussian_prior_gives_exact_bayes(steps: int, dim: int) -> None:
    for num_rows in (0, 1, 5, 100):
        p = problem(num_rows, dim, num_rows)
        sampler = dp.EvidenceDPS(dp.GaussianPrior(p.mean, p.cov), steps=steps)
        draws, info = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
        assert not np.any(info.failed)
        assert_moments(draws, *reference.linear_posterior(*p.for_twin(), NOISE_STD))


def test_two_blobs_give_the_exact_mixture() -> None:
    """Stages are Gaussian where the truth is not. With 400,000 draws the statistics were off by up
    to 0.018 with 20 stages, 0.005 with 40, and less than their standard error of 0.002 with 80."""
    sampler = dp.EvidenceDPS(blob_prior(), steps=40)
    for num_rows in (0, 1, 5):
        p = problem(num_rows + 20, DIM, num_rows)
        draws, _ = sampler.sample_many(KEY, p.evidence(LINEAR.make()), N)
        posterior = reference.mixture_posterior(*BLOBS, p.features, p.rewards, NOISE_STD)
        expected = blob_posterior_features(posterior)
        assert_near(blob_features(np.asarray(draws), posterior), expected, allowance=0.005)


def test_isotropic_evidence_is_a_stage_of_the_plain_chain() -> None:
    """Evidence N(z_bar; z, tau^2 I) is s_t = sqrt(ab_t) z_bar where (1 - ab_t) / ab_t = tau^2: the
    posterior is the reverse chain of the prior from there, which knows of no evidence."""
    tau, z_bar = 0.8, np.array([0.5, -0.4])
    prior = dp.DiffusionPrior.from_prior(blob_prior())
    stages = dp.Schedule.log_snr(40, lowest=float(-2 * np.log(tau)))
    process = prior.reverse_process(stages)

    def chain(key: jax.Array) -> jax.Array:
        def step(s: jax.Array, inputs: tuple) -> tuple[jax.Array, None]:
            stage, inside, noise = inputs
            belief = reverse_distribution(stage, s, prior.denoiser.denoise_at(inside, s))
            return belief.mean + jnp.linalg.cholesky(belief.cov) @ noise, None

        noises = jax.random.normal(key, (40, DIM))
        start = np.sqrt(stages.alpha_bar[-1]) * z_bar
        inputs = (process.stages, process.denoiser_stages, noises)
        return jax.lax.scan(step, jnp.asarray(start), inputs)[0]

    plain = np.asarray(jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(1), N)))
    plain = plain @ BLOB_UNIT.scale.T + BLOB_UNIT.offset
    inverse = np.linalg.inv(BLOB_UNIT.scale)
    evidence = dp.Linear(tau).observe(inverse, z_bar + inverse @ BLOB_UNIT.offset)
    draws = np.asarray(dp.EvidenceDPS(prior, steps=40).sample_many(KEY, evidence, N)[0])
    both = [
        np.concatenate([x, np.einsum("ni,nj->nij", x, x).reshape(N, -1)], axis=1)
        for x in (plain, draws)
    ]
    assert_near(both[0] - both[1], np.zeros(6), allowance=0.005)


def test_priors_for_isotropic_evidence_are_rejected() -> None:
    grid = dp.Schedule.constant(5)
    stagewise = StagewiseDenoiser.initialize(KEY, DIM, grid, width=4)
    network = network_denoiser(DIM, isotropic=True)
    closed = dp.DiffusionPrior.from_prior(blob_prior())
    for denoiser in (stagewise, network):
        prior = dataclasses.replace(closed, denoiser=denoiser, schedule=grid)
        with pytest.raises(ValueError, match="use LaplaceDPS, TwistedSMC or DPS"):
            dp.EvidenceDPS(prior)
