"""Decisions of closed forms in plain NumPy: no program is called, and none is compiled first.

The draws are those of `Exact` in compiled programs, from the same random numbers, but always in
double precision. So a `Bandit` decides as run 0 of `simulate` does, up to rounding.
"""

import math
import statistics

import numpy as np
from jaxtyping import Float, UInt32

from ..checks import default_float
from ..evidence.linear import Linear
from ..gaussian import tilted
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..samplers.exact import Exact
from ..threefry import host_fold_in, host_uniforms, is_known_generator
from .agents import AbstractAgent, ThompsonSampling
from .updates import State

MAX_DECISIONS, MAX_NUMBERS = 64, 2**12  # whose random numbers are computed at once


class ConditionedComponents:
    """Components given evidence: their log weights, and draws from each.

    The columns of their factors L are in reverse order: then L C^-T, in reverse order, is the
    Cholesky factor of the posterior covariance, which compiled programs multiply by the same noise.
    """

    def __init__(
        self,
        prior: "ClosedForm",
        precision: Float[np.ndarray, "d d"],
        shift: Float[np.ndarray, " d"],
    ) -> None:
        self._prior = prior
        self._factors = dict[int, np.ndarray]()
        local = shift - precision @ prior.center
        self._given = tilted(prior.means - prior.center, prior.factors, precision, local)
        self.log_weights = prior.log_weights
        if len(prior.means) > 1:
            self.log_weights = prior.log_weights + self._given.log_mass()

    def draw(self, which: int, noise: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """The draw from a component that standard normal noise determines."""
        factor = self._factors.get(which)
        if factor is None:
            factor = np.linalg.solve(self._given.tril[which], self._prior.factors[which].T).T
            self._factors[which] = factor
        return self._prior.means[which] + factor @ (self._given.half_step[which] + noise[::-1])


class ClosedForm:
    """Draws of one stream from the posterior of a Gaussian mixture under linear evidence.

    What was conditioned is used until the evidence changes. Safe to share between threads.
    """

    def __init__(self, sampler: Exact, stream: UInt32[np.ndarray, " 2"]) -> None:
        prior = sampler.prior
        self._splits = isinstance(prior, MixturePrior)
        names = ("weights", "means", "covs") if self._splits else ("mean", "cov")
        parts = [np.asarray(getattr(prior, name), np.float64) for name in names]
        weights, self.means, covs = (
            parts if self._splits else (np.ones(1), *(p[None] for p in parts))
        )
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(weights)
        self.center = weights @ self.means
        self.factors = np.ascontiguousarray(np.linalg.cholesky(covs)[:, :, ::-1])
        self._temperature, self._stream = float(sampler.temperature), (stream[:1], stream[1:])
        self._at_once = max(1, min(MAX_DECISIONS, MAX_NUMBERS // sum(self.means.shape)))
        self._given: tuple[list[np.ndarray] | None, ConditionedComponents | None] = (None, None)
        self._noise: tuple[int, np.ndarray, np.ndarray] = (-1, np.zeros(0), np.zeros(0))

    @staticmethod
    def of(agent: AbstractAgent, stream: UInt32[np.ndarray, " words"]) -> "ClosedForm | None":
        """The closed form that an agent draws from, if it does."""
        sampler = agent.sampler if isinstance(agent, ThompsonSampling) else None
        if not isinstance(sampler, Exact) or not isinstance(agent.likelihood, Linear):
            return None
        known = isinstance(sampler.prior, GaussianPrior | MixturePrior)
        return ClosedForm(sampler, stream) if known and is_known_generator() else None

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
                which_keys, keys = (host_fold_in(keys, np.full(1, i)) for i in range(2))
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
