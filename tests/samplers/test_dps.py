"""DPS against the twin's Algorithm 4, with the sampler's own noise."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_allclose

import diffprior as dp
import reference
from cases import LINEAR, problem
from chains import BLOB_UNIT, affine_prior, blob_prior, chain_noise, denoise_state, follow

DIM = 2
KEY = jax.random.key(10)


@pytest.mark.parametrize("num_rows", [0, 1, 6])
def test_stages_equal_the_twin(num_rows: int) -> None:
    """The derivative of the denoiser is its covariance over the variance of the noise, times the
    signal's amplitude; without it, or with another step size, the draws differ."""
    sampler, p = dp.DPS(blob_prior(), steps=6), problem(5, DIM, num_rows)
    rows, noise = BLOB_UNIT.history(p), chain_noise(KEY, 6, DIM)

    def step(s: np.ndarray, before: float, present: float, noise: np.ndarray) -> np.ndarray:
        def clean(state: np.ndarray) -> np.ndarray:
            return denoise_state(state, present)[0]

        def jacobian(state: np.ndarray) -> np.ndarray:
            return np.sqrt(present) / (1 - present) * denoise_state(state, present)[1]

        mean, std = reference.dps_step(s, clean, jacobian, *rows, before, present)
        return mean + std * noise

    expected = BLOB_UNIT.back(follow(sampler.schedule.alpha_bar, noise[0], noise[1:], step))
    assert_allclose(sampler.sample(KEY, p.evidence(LINEAR.make())), expected, rtol=1e-8)


def test_a_prior_on_its_own_grid_strides() -> None:
    """For N(0, I) in unit coordinates the denoiser is sqrt(alpha_bar_t) s_t."""
    p = problem(5, DIM, 0)
    sampler = dp.DPS(affine_prior(p, dp.Schedule.constant(100)), steps=6)
    alpha_bar, noise = sampler.schedule.alpha_bar, chain_noise(KEY, 6, DIM)
    assert_allclose(alpha_bar, dp.Schedule.constant(100).stride(6).alpha_bar)

    def step(s: np.ndarray, before: float, present: float, noise: np.ndarray) -> np.ndarray:
        weight_clean, weight_state, beta_tilde = reference.posterior_weights(before, present)
        mean = (weight_clean * np.sqrt(present) + weight_state) * s
        return mean + np.sqrt(beta_tilde) * noise

    z = follow(alpha_bar, noise[0], noise[1:], step)
    expected = p.mean + np.linalg.cholesky(p.cov) @ z
    assert_allclose(sampler.sample(KEY, LINEAR.make().observe(dim=DIM)), expected, rtol=1e-8)
