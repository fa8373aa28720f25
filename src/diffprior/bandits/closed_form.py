"""Draws of closed forms in plain NumPy: no program is called, and none is compiled first.

Those of decisions are those of `Exact` in compiled programs, from the same random numbers, but
always in double precision. So a `Bandit` decides as run 0 of `simulate` does, up to rounding.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, UInt32

from ..checks import default_float
from ..evidence.glm import terms_on_host, variational_of_rows
from ..evidence.history import InUnits, Terms, history_on_host
from ..evidence.linear import Linear
from ..gaussian import Tilted, tilted
from ..linalg import solve_lower, times_each
from ..mixture import log_normalize, pick
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..samplers.exact import PROPOSALS, Exact, Proposals
from ..threefry import host_fold_in, host_uniforms, is_known_generator
from .agents import AbstractAgent, ThompsonSampling
from .updates import State

MAX_DECISIONS, MAX_NUMBERS = 64, 2**12  # whose random numbers are computed at once


class HostMixture:
    """The Gaussian mixture that an agent draws from, alone and under linear evidence of many tasks
    (see `Tilted`), in double precision.

    If the columns of `factors` L are in `reverse` order, L C^-T, in reverse order, is the Cholesky
    factor of the posterior covariance, which compiled programs multiply by the same noise.
    """

    def __init__(
        self, prior: GaussianPrior | MixturePrior, temperature: float, reverse: bool
    ) -> None:
        self.splits, self.temperature = isinstance(prior, MixturePrior), temperature
        names = ("weights", "means", "covs") if self.splits else ("mean", "cov")
        parts = [np.asarray(getattr(prior, name), np.float64) for name in names]
        weights, self.means, covs = (
            parts if self.splits else (np.ones(1), *(p[None] for p in parts))
        )
        with np.errstate(divide="ignore"):
            self.log_weights = np.log(weights)
        self.center, self.trils = weights @ self.means, np.linalg.cholesky(covs)
        self.factors = np.ascontiguousarray(self.trils[:, :, :: -1 if reverse else 1])
        self.transposed = np.ascontiguousarray(self.factors.swapaxes(1, 2))

    @staticmethod
    def of(agent: AbstractAgent, *, reverse: bool = False) -> "HostMixture | None":
        """The mixture that an agent draws from, if it does."""
        sampler = agent.sampler if isinstance(agent, ThompsonSampling) else None
        prior = sampler.prior if isinstance(sampler, Exact) else None
        if sampler is None or not isinstance(prior, GaussianPrior | MixturePrior):
            return None
        return HostMixture(prior, float(sampler.temperature), reverse)

    def given(
        self, states: Sequence[State], offsets: Float[np.ndarray, "n d"] | None = None
    ) -> Tilted:
        """All tasks given their evidence; one that knows nothing, if there are none."""
        dim = self.means.shape[1]
        precision, shift = np.zeros((1, dim, dim)), np.zeros((1, dim))
        if states:
            evidence = [[np.asarray(leaf, np.float64) for leaf in s.leaves[:2]] for s in states]
            precision, shift = (
                np.stack(column) / self.temperature for column in zip(*evidence, strict=True)
            )
        if offsets is not None and states:
            shift = shift - times_each(precision, offsets)
        # All is relative to a center, near which the terms that grow with the evidence cancel.
        center = np.linalg.solve(precision + np.eye(dim), shift[:, :, None])[:, :, 0]
        local = shift - times_each(precision, center)
        return tilted(self.means - center[:, None], self.factors, precision, local)

    def posteriors(
        self, states: Sequence[State], offsets: Float[np.ndarray, "n d"] | None = None
    ) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k d"], Float[np.ndarray, "n k d d"]]:
        """Weights, means, and F with covariances F' F, of all tasks."""
        given = self.given(states, offsets)
        weights, _ = log_normalize(self.log_weights + given.log_mass())
        factors = solve_lower(given.tril, self.transposed)
        means = self.means + np.matmul(given.half_step[:, :, None], factors)[:, :, 0]
        return weights, means if offsets is None else means + offsets[:, None], factors

    def draws(
        self,
        states: Sequence[State],
        words: Int[np.ndarray, "n 2"],
        num_draws: int,
        seed: int,
        offsets: Float[np.ndarray, "n d"] | None = None,
    ) -> Float[np.ndarray, "n m d"]:
        """Draws of tasks, each from random numbers of its own; NaN where they cannot be made."""
        (num_components, dim), count = self.means.shape, len(words)
        uniforms, noise = _random_numbers(seed, words, num_draws, dim)
        try:
            given = self.given(states, offsets)
        except np.linalg.LinAlgError:  # of one of them
            if count == 1:
                return np.full_like(noise, np.nan)
            each = (slice(i, i + 1) for i in range(count))
            own = [
                (states[i], words[i], num_draws, seed, None if offsets is None else offsets[i])
                for i in each
            ]
            return np.concatenate([self.draws(*about) for about in own])
        which = pick(log_normalize(self.log_weights + given.log_mass())[0], uniforms)
        task = np.arange(count) if states else np.zeros(count, np.int64)
        pairs = which + num_components * task[:, None]
        thetas = self._located(given, pairs.reshape(-1), noise.reshape(-1, dim))
        thetas = thetas.reshape(noise.shape)
        return thetas if offsets is None else thetas + offsets[:, None].astype(noise.dtype)

    def _located(
        self, given: Tilted, pairs: Int[np.ndarray, " v"], noise: Float[np.ndarray, "v d"]
    ) -> Float[np.ndarray, "v d"]:
        """Noise with the mean and covariance of the component of the task that each names, in few
        products of matrices.
        """
        counts = np.bincount(pairs)
        order = np.argsort(pairs.astype(np.min_scalar_type(len(counts))), kind="stable")
        named = np.flatnonzero(counts)
        which, last = named % len(self.means), np.cumsum(counts[named]) - 1
        factors = solve_lower(
            given.tril.reshape(-1, *self.trils.shape[1:])[named], self.transposed[which]
        )
        steps = given.half_step.reshape(-1, 1, noise.shape[1])[named]
        means = (self.means[which, None] + steps @ factors).astype(noise.dtype)
        factors, located = factors.astype(noise.dtype), np.empty_like(noise)
        rooms = 2 ** np.ceil(np.log2(counts[named])).astype(np.int64)
        for room in np.unique(rooms):
            some = np.flatnonzero(rooms == room)
            first = last[some, None] - counts[named[some], None] + 1
            rows = order[np.minimum(first + np.arange(room), last[some, None])]
            located[rows] = means[some] + noise[rows] @ factors[some]
        return located


def _random_numbers(
    seed: int, words: Int[np.ndarray, "n 2"], num_draws: int, dim: int
) -> tuple[Float[np.ndarray, "n m"], Float[np.ndarray, "n m d"]]:
    """Uniform and standard normal numbers of each task, in the generator's order."""
    count = len(words)
    uniforms = np.empty((count, num_draws))
    noise = np.empty((count, num_draws, dim), default_float())
    bits = np.random.Philox(key=seed)
    rng, state = np.random.Generator(bits), bits.state
    for place, (number, times) in enumerate(words.tolist()):
        state["state"]["counter"][2:] = times, number
        bits.state = state
        rng.random(out=uniforms[place])
        rng.standard_normal(dtype=noise.dtype, out=noise[place])
    return uniforms, noise


class _GivenSums:
    """A mixture given linear evidence: log weights, and factors of the components drawn so far."""

    def __init__(self, mixture: HostMixture, state: State) -> None:
        evidence = (np.asarray(leaf, np.float64) for leaf in state.leaves[:2])
        precision, shift = (a / mixture.temperature for a in evidence)
        center = mixture.center
        self._mixture, self._factors = mixture, dict[int, np.ndarray]()
        self._given = tilted(
            mixture.means - center, mixture.factors, precision, shift - precision @ center
        )
        self.log_weights = mixture.log_weights
        if len(mixture.means) > 1:
            self.log_weights = mixture.log_weights + self._given.log_mass()

    def draw(self, numbers: tuple[np.ndarray, np.ndarray]) -> Float[np.ndarray, " d"]:
        """The draw that Gumbel and standard normal numbers determine."""
        gumbel, noise = numbers
        which = int(np.argmax(self.log_weights + gumbel)) if self._mixture.splits else 0
        if which not in self._factors:
            tril, transposed = self._given.tril[which], self._mixture.transposed[which]
            self._factors[which] = np.linalg.solve(tril, transposed).T
        moved = self._given.half_step[which] + noise[::-1]
        return self._mixture.means[which] + self._factors[which] @ moved


class _GivenRows:
    """A mixture given rows of a generalized linear model: proposals near its posteriors."""

    def __init__(self, mixture: HostMixture, terms: Terms, state: State) -> None:
        self._history = history_on_host(terms, state.leaves, mixture.temperature)
        local = InUnits(self._history, mixture.means, mixture.trils)
        self._proposals = Proposals.of(
            mixture.log_weights, mixture.means, mixture.trils, variational_of_rows(local)
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
        self, mixture: HostMixture, terms: Terms | None, stream: UInt32[np.ndarray, " 2"]
    ) -> None:
        self._mixture, self._terms = mixture, terms
        self._stream = (stream[:1], stream[1:])
        num_components, dim = mixture.means.shape
        self._shape = (dim,) if terms is None else (PROPOSALS, 2 * dim + 4)
        count = math.prod(self._shape) + num_components
        self._at_once = max(1, min(MAX_DECISIONS, MAX_NUMBERS // count))
        self._given: tuple[list[np.ndarray] | None, _GivenSums | _GivenRows | None] = (None, None)
        self._noise: tuple[int, np.ndarray, np.ndarray] = (-1, np.zeros(0), np.zeros(0))

    @staticmethod
    def of(agent: AbstractAgent, stream: UInt32[np.ndarray, " words"]) -> "ClosedForm | None":
        """The closed form that an agent draws from, if it does."""
        mixture, terms = HostMixture.of(agent, reverse=True), terms_on_host(agent.likelihood)
        known = terms is not None or isinstance(agent.likelihood, Linear)
        if mixture is None or not known or not is_known_generator():
            return None
        return ClosedForm(mixture, terms, stream)

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
                given = _GivenSums(self._mixture, state)
            else:
                given = _GivenRows(self._mixture, self._terms, state)
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
            if self._mixture.splits or self._terms is not None:
                first_keys, keys = (host_fold_in(keys, np.full(1, i)) for i in range(2))
                count = len(self._mixture.means) if self._terms is None else 2
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
