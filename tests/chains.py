"""Reverse chains by the twin, in the unit coordinates z of theta = offset + scale z."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

import diffprior as dp
import reference
from cases import Problem, representable
from diffprior.denoisers.network import StagewiseDenoiser
from statistic import Z

Array = NDArray[np.float64]
Step = Callable[[Array, float, float, Array], Array]


@dataclasses.dataclass(frozen=True)
class Unit:
    """Coordinates in which a distribution of these moments has mean zero and covariance I."""

    offset: Array
    scale: Array

    @staticmethod
    def of(mean: ArrayLike, cov: ArrayLike) -> "Unit":
        return Unit(np.asarray(mean), np.linalg.cholesky(np.asarray(cov)))

    def history(self, p: Problem) -> tuple[Array, Array]:
        """Features and rewards as functions of z."""
        return p.features @ self.scale, p.rewards - p.features @ self.offset

    def back(self, z: Array) -> Array:
        return self.offset + self.scale @ z


WEIGHTS = np.array([0.4, 0.6])
MEANS = representable(np.array([[-1.5, 0.6], [1.0, -0.4]]))  # of mean zero: GLMs have no offset
COVS = representable(np.array([[[0.25, 0.1], [0.1, 0.3]], [[0.4, -0.15], [-0.15, 0.2]]]))
BLOBS = (WEIGHTS, MEANS, COVS)
BLOB_UNIT = Unit.of(*reference.mixture_moments(*BLOBS))


def _unit_blobs() -> tuple[Array, Array, Array]:
    inverse = np.linalg.inv(BLOB_UNIT.scale)
    return WEIGHTS, (MEANS - BLOB_UNIT.offset) @ inverse.T, inverse @ COVS @ inverse.T


UNIT_BLOBS = _unit_blobs()


def blob_prior() -> dp.MixturePrior:
    return dp.MixturePrior(*BLOBS)


def denoise_blobs(precision: ArrayLike, shift: ArrayLike) -> tuple[Array, Array]:
    """Mean and covariance of the two blobs in unit coordinates under Gaussian evidence."""
    return reference.mixture_denoise(*UNIT_BLOBS, precision, shift)


def denoise_state(s: Array, alpha_bar: float) -> tuple[Array, Array]:
    """Mean and covariance of s_0 given s_t."""
    snr, scale = alpha_bar / (1 - alpha_bar), np.sqrt(alpha_bar) / (1 - alpha_bar)
    return denoise_blobs(snr * np.eye(len(s)), scale * s)


def chain_noise(key: jax.Array, num_stages: int, dim: int) -> Array:
    """The normal numbers of one chain, in the order in which it uses them."""
    return np.asarray(jax.random.normal(key, (num_stages + 1, dim)))


def follow(alpha_bar: ArrayLike, state: Array, noise: Array, step: Step) -> Array:
    """The stages T, ..., 1 in turn: step(s_t, alpha_bar_{t-1}, alpha_bar_t, noise) is s_{t-1}."""
    alpha_bar = np.asarray(alpha_bar)
    stages = zip(alpha_bar[-2::-1], alpha_bar[:0:-1], noise, strict=True)
    for before, present, stage_noise in stages:
        state = step(state, float(before), float(present), stage_noise)
    return state


def reverse_mean(s: Array, before: float, present: float) -> Array:
    """mu_t(s_t) of the two blobs."""
    weight_clean, weight_state, _ = reference.posterior_weights(before, present)
    return weight_clean * denoise_state(s, present)[0] + weight_state * s


def affine_prior(p: Problem, grid: dp.Schedule) -> dp.DiffusionPrior:
    """N(p.mean, p.cov) with a regressor for each stage of `grid` that is exact: in unit coordinates
    eps_t(s) = sqrt(1 - alpha_bar_t) s, which two rectified layers write as c relu(s) - c relu(-s).
    """
    dim, num_stages = len(p.mean), grid.num_stages
    noise_var = 1 - np.asarray(grid.alpha_bar[1:])
    both = np.concatenate([np.eye(dim), -np.eye(dim)], axis=1)

    def stack(matrix: Array, factor: ArrayLike = 1.0) -> jax.Array:
        factors = np.broadcast_to(factor, (num_stages,)).reshape(-1, *[1] * matrix.ndim)
        return jnp.asarray(factors * matrix, float)

    denoiser = StagewiseDenoiser(
        stack(both),
        stack(np.zeros(2 * dim)),
        stack(np.eye(2 * dim)),
        stack(np.zeros(2 * dim)),
        stack(both.T, np.sqrt(noise_var)),
        stack(np.zeros(dim)),
        grid,
    )
    closed = dp.DiffusionPrior.from_prior(dp.GaussianPrior(p.mean, p.cov))
    return dataclasses.replace(
        closed,
        denoiser=denoiser,
        residual_log_snr=jnp.asarray(np.log(grid.snr[::-1]), float),
        residual=jnp.asarray(noise_var[::-1], float),
        schedule=grid,
    )


def assert_near(draws: ArrayLike, expected: ArrayLike, allowance: float) -> None:
    """The mean of independent draws is `expected` within Z standard errors plus `allowance`."""
    values = np.asarray(draws, dtype=np.float64)
    standard_error = values.std(axis=0, ddof=1) / np.sqrt(len(values))
    excess = np.abs(values.mean(axis=0) - np.asarray(expected)) - Z * standard_error
    assert np.max(excess) <= allowance, f"{np.max(excess):.4f} beyond {Z} standard errors"


def blob_features(draws: Array, posterior: tuple[Array, Array, Array, float]) -> Array:
    """For each draw: itself, its square, the probability that it is of each component of the exact
    posterior, and that times itself."""
    weights, means, covs, _ = posterior
    log_terms = [
        np.log(weight) + reference.gaussian_log_density(draws, mean, cov)
        for weight, mean, cov in zip(weights, means, covs, strict=True)
    ]
    shares = special.softmax(np.stack(log_terms, axis=1), axis=1)
    parts = shares[:, :, None] * draws[:, None, :]
    return np.concatenate([draws, draws**2, shares, parts.reshape(len(draws), -1)], axis=1)


def blob_posterior_features(posterior: tuple[Array, Array, Array, float]) -> Array:
    """The expectation of `blob_features` under the exact posterior."""
    weights, means, covs, _ = posterior
    mean, cov = reference.mixture_moments(weights, means, covs)
    parts = (weights[:, None] * means).ravel()
    return np.concatenate([mean, np.diagonal(cov) + mean**2, weights, parts])
