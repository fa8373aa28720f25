"""Decisions of closed forms in plain NumPy: no program is called, and none is compiled first.

The draws are those of `Exact` in compiled programs, from the same random numbers, but always in
double precision. So a `Bandit` decides as run 0 of `simulate` does, up to rounding.
"""

import math
import statistics

import numpy as np
from jaxtyping import Float, UInt32
from numpy.typing import ArrayLike

from ..checks import default_float
from ..evidence.linear import Linear
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..samplers.exact import Exact
from ..threefry import host_fold_in, host_split, host_uniforms, is_partitionable
from .agents import AbstractAgent, ThompsonSampling
from .updates import State

MAX_DECISIONS, MAX_NUMBERS = 64, 2**12  # whose random numbers are computed at once
MAX_ROUNDING = 1e-9  # of log weights, beyond which they are computed about another center


class ConditionedComponents:
    """Components given evidence: log weights, and draws means_k + factor_k (half_k + noise).

    With a component's covariance L L', M = I + L' P L and its Cholesky factor C, half is
    C^-1 L' (gradient at the mean) and the factor L C^-T. The columns of L are in reverse order:
    then the factor, in reverse order, is the Cholesky factor of the posterior covariance, which
    compiled programs multiply by the same noise.
    """

    def __init__(
        self,
        prior: "ClosedForm",
        precision: Float[np.ndarray, "d d"],
        shift: Float[np.ndarray, " d"],
    ) -> None:
        self._prior, self._factors = prior, dict[int, np.ndarray]()
        curvature = prior.transposed @ precision @ prior.trils
        self._inner = np.linalg.cholesky(curvature + np.eye(len(shift)))
        self.half, self.log_weights = self._weigh(precision, shift, prior.center)

    def _weigh(
        self, precision: np.ndarray, shift: np.ndarray, center: np.ndarray, again: bool = True
    ) -> tuple[Float[np.ndarray, "k d"], Float[np.ndarray, " k"]]:
        """All is relative to a center, near which the terms that grow with the evidence cancel."""
        prior = self._prior
        away, gradient = prior.means - center, shift - precision @ center
        pull = gradient - away @ precision
        half = np.linalg.solve(self._inner, prior.transposed @ pull[:, :, None])[:, :, 0]
        if len(away) == 1:
            return half, np.zeros(1)
        terms = (away * (gradient + pull)).sum(axis=1)
        log_dets = np.log(np.diagonal(self._inner, axis1=1, axis2=2)).sum(axis=1)
        log_weights = prior.log_weights + 0.5 * (terms + (half**2).sum(axis=1)) - log_dets
        if again and np.abs(terms).max() * np.finfo(np.float64).eps > MAX_ROUNDING:
            self.half = half
            best = self.draw(int(np.argmax(log_weights)), np.zeros_like(center))
            return self._weigh(precision, shift, best, again=False)
        return half, log_weights

    def draw(self, which: int, noise: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """The draw from a component that standard normal noise determines."""
        factor = self._factors.get(which)
        if factor is None:
            factor = np.linalg.solve(self._inner[which], self._prior.transposed[which]).T
            self._factors[which] = factor
        return self._prior.means[which] + factor @ (self.half[which] + noise[::-1])


class ClosedForm:
    """Draws of one stream from the posterior of a Gaussian mixture under linear evidence.

    What was conditioned is used until the evidence changes. Safe to share between threads.
    """

    def __init__(self, sampler: Exact, stream: UInt32[np.ndarray, " 2"]) -> None:
        prior = sampler.prior
        parts: tuple[ArrayLike, ...]
        if isinstance(prior, MixturePrior):
            parts = (prior.weights, prior.means, prior.covs)
        else:
            assert isinstance(prior, GaussianPrior)
            parts = (np.ones(1), prior.mean[None], prior.cov[None])
        weights, self.means, covs = (np.asarray(part, np.float64) for part in parts)
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(weights)
        self.center = weights @ self.means
        self.trils = np.linalg.cholesky(covs)[:, :, ::-1]
        self.transposed = np.ascontiguousarray(self.trils.swapaxes(1, 2))
        self._splits = isinstance(prior, MixturePrior)
        self._temperature, self._stream = float(sampler.temperature), stream
        self._at_once = max(1, min(MAX_DECISIONS, MAX_NUMBERS // sum(self.means.shape)))
        self._given: tuple[list[np.ndarray] | None, ConditionedComponents | None] = (None, None)
        self._noise: tuple[int, np.ndarray, np.ndarray] = (-1, np.zeros(0), np.zeros(0))

    @staticmethod
    def of(agent: AbstractAgent, stream: UInt32[np.ndarray, "..."]) -> "ClosedForm | None":
        """The closed form that an agent draws from, if it does."""
        sampler = agent.sampler if isinstance(agent, ThompsonSampling) else None
        if not isinstance(sampler, Exact) or not isinstance(agent.likelihood, Linear):
            return None
        known = isinstance(sampler.prior, GaussianPrior | MixturePrior)
        return ClosedForm(sampler, stream) if known and is_partitionable(stream) else None

    def draw(self, state: State, number: int) -> Float[np.ndarray, " d"] | None:
        """The draw of a decision; None where it cannot be computed in this way."""
        try:
            leaves, given = self._given
            if given is None or leaves is not state.leaves:
                precision, shift = state.leaves[0], state.leaves[1]
                if self._temperature != 1.0:
                    precision, shift = precision / self._temperature, shift / self._temperature
                given = ConditionedComponents(
                    self, np.asarray(precision, float), np.asarray(shift, float)
                )
                self._given = (state.leaves, given)
            normal, gumbel = self._random(number)
            which = int(np.argmax(given.log_weights + gumbel)) if self._splits else 0
            theta = given.draw(which, normal)
        except np.linalg.LinAlgError:
            return None
        return theta.astype(default_float(), copy=False) if math.isfinite(theta.sum()) else None

    def _random(self, number: int) -> tuple[Float[np.ndarray, " d"], Float[np.ndarray, " k"]]:
        """The normal and Gumbel numbers that a program computes from the key of a decision."""
        block, place = divmod(number % 2**32, self._at_once)
        known, normals, gumbels = self._noise
        if block != known:
            first, dtype = block * self._at_once, default_float()
            keys = host_fold_in(self._stream, np.arange(first, first + self._at_once))
            gumbels = np.zeros((self._at_once, 1))
            if self._splits:
                which_keys, keys = host_split(keys)
                gumbels = _gumbels(host_uniforms(which_keys, len(self.means), dtype))
            normals = _normals(host_uniforms(keys, self.means.shape[1], dtype))
            self._noise = (block, normals, gumbels)
        return normals[place], gumbels[place]


def _normals(uniforms: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
    """As `jax.random.normal`, by the inverse of the distribution function."""
    low = np.nextafter(uniforms.dtype.type(-1), uniforms.dtype.type(0))
    symmetric = np.maximum(low, uniforms * (uniforms.dtype.type(1) - low) + low)
    quantile = statistics.NormalDist().inv_cdf
    probabilities = 0.5 * (symmetric.astype(np.float64) + 1.0)
    return np.array([quantile(p) for p in probabilities.ravel()]).reshape(uniforms.shape)


def _gumbels(uniforms: Float[np.ndarray, "n k"]) -> Float[np.ndarray, "n k"]:
    """As `jax.random.gumbel`."""
    tiny = np.finfo(uniforms.dtype).tiny
    return -np.log(-np.log(np.maximum(uniforms, tiny).astype(np.float64)))
