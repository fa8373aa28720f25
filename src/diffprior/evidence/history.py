"""Log likelihoods of rows and their derivatives, stated once for JAX and NumPy."""

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from ..linalg import AnyArray, numpy_of, times_each
from .approximate import NODES, Expansion, average
from .base import Sums, products, sum_over_rows

MIN_ROWS_AT_ONCE, CACHED = 16, 2**13  # rows that are summed at once on the host; predictors


class Terms(NamedTuple):
    """What a row of reward y and linear predictor eta says: functions of these two arrays."""

    log_density: Callable[[AnyArray, AnyArray], AnyArray]
    slopes: Callable[[AnyArray, AnyArray], tuple[AnyArray, AnyArray]]  # score and curvature


class History(NamedTuple):
    """Rows of a family and a Gaussian term: log p(h | theta), its derivatives and averages.

    In JAX those of one task, which callers `vmap`. In NumPy those of any number of tasks: features
    (t, n, d), other columns (t, 1, n), the Gaussian term with two leading axes likewise; parameters
    and results then have leading axes (..., t, k), for k points per task.
    """

    terms: Terms
    features: Float[AnyArray, "*t n d"]
    rewards: Float[AnyArray, "*t n"]
    weights: Float[AnyArray, "*t n"]
    offsets: Float[AnyArray, "*t n"]
    num_rows: Int[AnyArray, ""]
    precision: Float[AnyArray, "*t d d"]  # of the Gaussian term, as its shift
    shift: Float[AnyArray, "*t d"]
    at_zero: Float[AnyArray, "*t"]  # its log likelihood at zero
    products: Float[AnyArray, "*t n d_d"] | None = None  # of features, where they are stored

    def expand_at(self, theta: Float[AnyArray, "*k d"]) -> Expansion:
        """The second-order expansion of log p(h | .) at `theta`."""
        found, pull = (
            self._sum(lambda rows: rows.expand_at(theta), _points(theta)),
            self._pull(theta),
        )
        value = found.value + self._gaussian(theta, pull)
        precision = _square(found.precision) + self.precision
        return Expansion(value, precision, found.score + self.shift - pull)

    def expand(
        self, mean: Float[AnyArray, "*k d"], cov: Float[AnyArray, "*k d d"]
    ) -> tuple[Float[AnyArray, "*k d d"], Float[AnyArray, "*k d"]]:
        """Expected curvature X'WX and shift X'(W X m + s) over theta ~ N(m, C).

        W and s are the curvature and score of every row, averaged over its own eta ~
        N(phi'm, phi'C phi).
        """
        precision, score = self._sum(lambda rows: rows.moments(mean, cov), NODES * _points(mean))
        precision = _square(precision) + self.precision
        shift = times_each(precision, mean) + score + self.shift - self._pull(mean)
        return precision, shift

    def expand_at_origin(self) -> tuple[Float[AnyArray, "*t d d"], Float[AnyArray, "*t d"]]:
        """Precision and shift of the expansion about a predictor of zero in every row: where
        features are large, a prior mean can be far from any mode.
        """
        precision, shift = self._sum(lambda rows: rows.expand_at_origin())
        return _square(precision) + self.precision, shift + self.shift

    def log_likelihood(self, theta: Float[AnyArray, "*k d"]) -> Float[AnyArray, "*k"]:
        """Log p(h | theta)."""
        (value,) = self._sum(lambda rows: (rows.log_likelihood(theta),), _points(theta))
        return value + self._gaussian(theta, self._pull(theta))

    def expected_log_likelihood(
        self, mean: Float[AnyArray, "*k d"], cov: Float[AnyArray, "*k d d"]
    ) -> Float[AnyArray, "*k"]:
        """Log p(h | theta), averaged over theta ~ N(m, C)."""
        count = NODES * _points(mean)
        (value,) = self._sum(lambda rows: (rows.expected_log_likelihood(mean, cov),), count)
        spread = numpy_of(cov).sum(self.precision * cov, (-1, -2))
        return value + self._gaussian(mean, self._pull(mean)) - 0.5 * spread

    def _pull(self, theta: AnyArray) -> AnyArray:
        return times_each(self.precision, theta)

    def _gaussian(self, theta: AnyArray, pull: AnyArray) -> AnyArray:
        """The log likelihood of the Gaussian term."""
        return numpy_of(theta).sum(theta * (self.shift - 0.5 * pull), -1) + self.at_zero

    def _sum(self, function: "Callable[[_Block], Sums]", points: int = 1) -> Sums:
        """The sum of a function of rows, at so many points, over all of them."""
        y, weights, offsets = columns = (self.rewards, self.weights, self.offsets)
        if isinstance(self.features, np.ndarray):
            size = max(MIN_ROWS_AT_ONCE, CACHED // points)
            rows = _Block(self.terms, self.features, y, weights, offsets, self.products)
            blocks = (rows.some(first, size) for first in range(0, self.rewards.shape[-1], size))
            return functools.reduce(_added, map(function, blocks))
        return sum_over_rows(
            lambda x, y, w, o: function(_Block(self.terms, x, y, w, o, products(x))),
            (self.features, *columns),
            self.num_rows,
        )


def _added(total: Sums, more: Sums) -> Sums:
    return jax.tree.map(operator.add, total, more)


class InUnits(NamedTuple):
    """A history in NumPy as a function of z, where theta = mean + tril z, for many such units: the
    rows, which all share, stay as they are. Methods are as of `History`.
    """

    history: History
    mean: Float[np.ndarray, "*k d"]
    tril: Float[np.ndarray, "*k d d"]

    def expand_at(self, z: Float[np.ndarray, "*k d"]) -> Expansion:
        at = self.history.expand_at(self._theta(z))
        return Expansion(at.value, self._curvature(at.precision), self._gradient(at.score))

    def expand(
        self, mean: Float[np.ndarray, "*k d"], cov: Float[np.ndarray, "*k d d"]
    ) -> tuple[Float[np.ndarray, "*k d d"], Float[np.ndarray, "*k d"]]:
        return self._natural(*self.history.expand(self._theta(mean), self._cov(cov)))

    def expand_at_origin(self) -> tuple[Float[np.ndarray, "*k d d"], Float[np.ndarray, "*k d"]]:
        return self._natural(*self.history.expand_at_origin())

    def expected_log_likelihood(
        self, mean: Float[np.ndarray, "*k d"], cov: Float[np.ndarray, "*k d d"]
    ) -> Float[np.ndarray, "*k"]:
        return self.history.expected_log_likelihood(self._theta(mean), self._cov(cov))

    def _theta(self, z: np.ndarray) -> np.ndarray:
        return self.mean + times_each(self.tril, z)

    def _cov(self, cov: np.ndarray) -> np.ndarray:
        return self.tril @ cov @ self.tril.swapaxes(-1, -2)

    def _curvature(self, precision: np.ndarray) -> np.ndarray:
        return self.tril.swapaxes(-1, -2) @ precision @ self.tril

    def _gradient(self, score: np.ndarray) -> np.ndarray:
        return times_each(self.tril.swapaxes(-1, -2), score)

    def _natural(self, precision: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gradient = self._gradient(shift - times_each(precision, self.mean))
        return self._curvature(precision), gradient


def history_on_host(terms: Terms, leaves: Sequence[np.ndarray], temperature: float) -> History:
    """The history in NumPy and in double precision of the arrays of evidence, tempered."""
    features, rewards, weights, offsets, num_rows, *folded = leaves[-10:]
    used = max(int(num_rows), 1)
    rows = (features, rewards, weights, offsets)
    x, y, counts, offset = (np.asarray(column[:used], np.float64) for column in rows)
    precision, shift, sum_squares, count, noise_std = (np.asarray(a, np.float64) for a in folded)
    at_zero = -0.5 * sum_squares - count * np.log(math.sqrt(2 * math.pi) * noise_std)
    counts, precision, shift, at_zero = (
        a / temperature for a in (counts, precision, shift, at_zero)
    )
    return History(terms, x, y, counts, offset, num_rows, precision, shift, at_zero, products(x))


class _Block(NamedTuple):
    """Rows that are summed at once, and all products of two features of each."""

    terms: Terms
    x: Float[AnyArray, "*t n d"]
    y: Float[AnyArray, "*t n"]
    weights: Float[AnyArray, "*t n"]
    offsets: Float[AnyArray, "*t n"]
    products: Float[AnyArray, "*t n d_d"]

    def some(self, first: int, count: int) -> "_Block":
        """Some of the rows."""
        if self.y.shape[-1] <= count:
            return self
        which = slice(first, first + count)
        x, pairs = (a[..., which, :] for a in (self.x, self.products))
        y, weights, offsets = (a[..., which] for a in (self.y, self.weights, self.offsets))
        return _Block(self.terms, x, y, weights, offsets, pairs)

    def expand_at(self, theta: AnyArray) -> Expansion:
        eta = self._predictors(theta)
        return Expansion(self._total(eta), *self._moments(*self.terms.slopes(self.y, eta)))

    def moments(self, mean: AnyArray, cov: AnyArray) -> tuple[AnyArray, AnyArray]:
        score, curvature = average(
            lambda eta: self.terms.slopes(self.y, eta),
            self._predictors(mean),
            self._variances(cov),
        )
        return self._moments(score, curvature)

    def expand_at_origin(self) -> tuple[AnyArray, AnyArray]:
        zero = numpy_of(self.offsets).zeros_like(self.offsets)
        score, curvature = self.terms.slopes(self.y, zero)
        return self._moments(score - curvature * self.offsets, curvature)

    def log_likelihood(self, theta: AnyArray) -> AnyArray:
        return self._total(self._predictors(theta))

    def expected_log_likelihood(self, mean: AnyArray, cov: AnyArray) -> AnyArray:
        (log_densities,) = average(
            lambda eta: (self.terms.log_density(self.y, eta),),
            self._predictors(mean),
            self._variances(cov),
        )
        return self._weighted(log_densities)

    def _predictors(self, theta: AnyArray) -> AnyArray:
        """The linear predictor of every row."""
        return theta @ self.x.swapaxes(-1, -2) + self.offsets

    def _variances(self, cov: AnyArray) -> AnyArray:
        """Of the linear predictor of every row. With products of features, sums over rows for many
        beliefs at once are products of two matrices, not of many small ones.
        """
        flat = cov.reshape(*cov.shape[:-2], -1)
        return flat @ self.products.swapaxes(-1, -2)

    def _moments(self, score: AnyArray, curvature: AnyArray) -> tuple[AnyArray, AnyArray]:
        """Sum w c phi phi' and sum w s phi."""
        return (self.weights * curvature) @ self.products, (self.weights * score) @ self.x

    def _total(self, eta: AnyArray) -> AnyArray:
        return self._weighted(self.terms.log_density(self.y, eta))

    def _weighted(self, log_densities: AnyArray) -> AnyArray:
        xp = numpy_of(log_densities)
        return xp.sum(self.weights * xp.where(self.weights > 0, log_densities, 0.0), -1)


def _points(theta: Float[AnyArray, "*k d"]) -> int:
    return math.prod(theta.shape[:-1])


def _square(flat: Float[AnyArray, "*k d_d"]) -> Float[AnyArray, "*k d d"]:
    dim = math.isqrt(flat.shape[-1])
    return flat.reshape(*flat.shape[:-1], dim, dim)
