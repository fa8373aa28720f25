"""Decisions of closed forms in plain NumPy: no program is called, and none is compiled first.

The draws are those of `Exact` in compiled programs, from the same random numbers, but always in
double precision. So a `Bandit` decides as run 0 of `simulate` does, up to rounding.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt32

from ..checks import default_float
from ..evidence.glm import terms_on_host, variational_of_rows
from ..evidence.history import InUnits, Terms, history_on_host
from ..evidence.linear import Linear
from ..gaussian import tilted
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..samplers.exact import PROPOSALS, Exact, Proposals
from ..threefry import host_fold_in, host_uniforms, is_known_generator
from .agents import AbstractAgent, ThompsonSampling
from .updates import State

MAX_DECISIONS, MAX_NUMBERS = 64, 2**12  # whose random numbers are computed at once


class Components:
    """The components of a Gaussian mixture, in double precision."""

    def __init__(self, prior: GaussianPrior | MixturePrior) -> None:
        self.splits = isinstance(prior, MixturePrior)
        names = ("weights", "means", "covs") if self.splits else ("mean", "cov")
        parts = [np.asarray(getattr(prior, name), np.float64) for name in names]
        weights, self.means, covs = (
            parts if self.splits else (np.ones(1), *(p[None] for p in parts))
        )
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(weights)
        self.center = weights @ self.means
        self.trils = np.linalg.cholesky(covs)
        self.reversed = np.ascontiguousarray(self.trils[:, :, ::-1])


class _GivenSums:
    """Components given linear evidence: their log weights, and draws from each.

    The columns of their factors L are in reverse order: then L C^-T, in reverse order, is the
    Cholesky factor of the posterior covariance, which compiled programs multiply by the same noise.
    """

    def __init__(self, prior: Components, leaves: Sequence[np.ndarray], temperature: float) -> None:
        precision, shift = (np.asarray(leaf, np.float64) / temperature for leaf in leaves[:2])
        self._prior = prior
        self._factors = dict[int, np.ndarray]()
        local = shift - precision @ prior.center
        self._given = tilted(prior.means - prior.center, prior.reversed, precision, local)
        self.log_weights = prior.log_weights
        if len(prior.means) > 1:
            self.log_weights = prior.log_weights + self._given.log_mass()

    def draw(self, numbers: tuple[np.ndarray, np.ndarray]) -> Float[np.ndarray, " d"]:
        """The draw that Gumbel and standard normal numbers determine."""
        gumbel, noise = numbers
        which = int(np.argmax(self.log_weights + gumbel)) if self._prior.splits else 0
        factor = self._factors.get(which)
        if factor is None:
            factor = np.linalg.solve(self._given.tril[which], self._prior.reversed[which].T).T
            self._factors[which] = factor
        return self._prior.means[which] + factor @ (self._given.half_step[which] + noise[::-1])


class _GivenRows:
    """Components given rows of a generalized linear model: proposals near their posteriors."""

    def __init__(
        self,
        prior: Components,
        terms: Terms,
        leaves: Sequence[np.ndarray],
        temperature: float,
    ) -> None:
        self._history = history_on_host(terms, leaves, temperature)
        local = InUnits(self._history, prior.means, prior.trils)
        self._proposals = Proposals.of(
            prior.log_weights, prior.means, prior.trils, variational_of_rows(local)
        )

    def draw(self, numbers: tuple[np.ndarray, np.ndarray]) -> Float[np.ndarray, " d"]:
        """The draw that uniform and standard normal numbers determine."""
        theta, *_, failed = self._proposals.resample(self._history.log_likelihood, *numbers)
        return np.full_like(theta, np.nan) if failed else theta


class ClosedForm:
    """Draws of one stream from the posterior of a Gaussian mixture.

    What was conditioned is used until the evidence changes. Safe to share between threads.
    """

    def __init__(
        self,
        prior: GaussianPrior | MixturePrior,
        temperature: float,
        terms: Terms | None,
        stream: UInt32[np.ndarray, " 2"],
    ) -> None:
        self._prior, self._terms = Components(prior), terms
        self._temperature, self._stream = temperature, (stream[:1], stream[1:])
        num_components, dim = self._prior.means.shape
        self._shape = (dim,) if terms is None else (PROPOSALS, 2 * dim + 4)
        count = math.prod(self._shape) + num_components
        self._at_once = max(1, min(MAX_DECISIONS, MAX_NUMBERS // count))
        self._given: tuple[list[np.ndarray] | None, _GivenSums | _GivenRows | None] = (None, None)
        self._noise: tuple[int, np.ndarray, np.ndarray] = (-1, np.zeros(0), np.zeros(0))

    @staticmethod
    def of(agent: AbstractAgent, stream: UInt32[np.ndarray, " words"]) -> "ClosedForm | None":
        """The closed form that an agent draws from, if it does."""
        sampler = agent.sampler if isinstance(agent, ThompsonSampling) else None
        if not isinstance(sampler, Exact) or not is_known_generator():
            return None
        prior, temperature = sampler.prior, float(sampler.temperature)
        if not isinstance(prior, GaussianPrior | MixturePrior):
            return None
        terms = terms_on_host(agent.likelihood)
        if terms is None and not isinstance(agent.likelihood, Linear):
            return None
        return ClosedForm(prior, temperature, terms, stream)

    @property
    def slower(self) -> bool:
        """Whether a compiled program is faster, once it is there."""
        return self._terms is not None

    def draw(self, state: State, number: int) -> Float[np.ndarray, " d"] | None:
        """The draw of a decision; None where it cannot be computed in this way."""
        try:
            with np.errstate(all="ignore"):
                theta = self._conditioned(state).draw(self._random(number))
        except np.linalg.LinAlgError:
            return None
        return theta.astype(default_float(), copy=False) if math.isfinite(theta.sum()) else None

    def _conditioned(self, state: State) -> _GivenSums | _GivenRows:
        leaves, given = self._given
        if given is None or leaves is not state.leaves:
            if self._terms is None:
                given = _GivenSums(self._prior, state.leaves, self._temperature)
            else:
                given = _GivenRows(self._prior, self._terms, state.leaves, self._temperature)
            self._given = (state.leaves, given)
        return given

    def _random(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers that a program computes from the key of a decision: for the component Gumbel
        ones, or where proposals are resampled, uniform ones; and normal ones.
        """
        block, place = divmod(number % 2**32, self._at_once)
        known, firsts, normals = self._noise
        if block != known:
            first, dtype = block * self._at_once, default_float()
            keys = host_fold_in(self._stream, np.arange(first, first + self._at_once))
            firsts = np.zeros((self._at_once, 1))
            if self._prior.splits or self._terms is not None:
                first_keys, keys = (host_fold_in(keys, np.full(1, i)) for i in range(2))
                count = len(self._prior.means) if self._terms is None else 2
                firsts = host_uniforms(first_keys, count, dtype)
                firsts = _gumbels(firsts) if self._terms is None else firsts.astype(np.float64)
            normals = _normals(host_uniforms(keys, math.prod(self._shape), dtype))
            self._noise = (block, firsts, normals)
        return firsts[place], normals[place].reshape(self._shape)


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
