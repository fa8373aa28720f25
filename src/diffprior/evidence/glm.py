"""Generalized linear models: families, rows of history, and posteriors under Gaussian priors."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import ArrayLike

from ..checks import is_traced, on_device, positive_int, whole_number
from ..files.base import field_hints
from ..gaussian import Gaussian
from ..linalg import cholesky, numpy_of, solve_lower
from .approximate import (
    MAX_NEWTON_STEPS,
    Laplace,
    Variational,
    find_mode,
    first_guesses,
    fit_variational,
    laplace,
)
from .base import (
    AbstractEvidence,
    AbstractLikelihood,
    Columns,
    Rows,
    capacity_for,
    inverse_temperature,
    merged,
    padded,
    put_rows,
    room_for,
    small_room,
    sum_over_rows,
)
from .history import History, InUnits, Terms
from .linear import LinearEvidence

_FULL = (
    "`append`: expected at most {} rows inside a compiled program, got more; make room with "
    "`likelihood.empty(dim, capacity=...)`"
)


class AbstractFamily(AbstractLikelihood):
    """A likelihood whose log density is a concave function of eta = phi' theta: Assumption 2.

    A family of one's own defines `mean`, `log_density`, `sample` and `check_rewards`. The
    derivatives of its log density come by automatic differentiation; define `slopes` too where a
    closed form is faster or more accurate.
    """

    def slopes(
        self, y: Float[Rows, "..."], eta: Float[Rows, "..."]
    ) -> tuple[Float[Rows, "..."], Float[Rows, "..."]]:
        """Score and curvature: the derivative of the log density in eta, and minus the second one.

        Arguments and shapes are as of `log_density`.
        """

        def score(eta: Array) -> Array:
            return _derivative(lambda eta: jnp.asarray(self.log_density(y, eta)), eta)[1]

        found, slope = _derivative(score, jnp.asarray(eta))
        return found, -slope

    @property
    def terms(self) -> "Terms":
        """Its functions, called without the cost of Equinox's bound methods."""
        kind = type(self)
        return Terms(
            functools.partial(kind.log_density, self), functools.partial(kind.slopes, self)
        )

    def empty(self, dim: int, capacity: int = 0) -> "GLMEvidence":
        room = capacity_for(whole_number("capacity", capacity))
        return GLMEvidence.empty_of(self, positive_int("dim", dim), room)


def terms_on_host(likelihood: AbstractLikelihood) -> Terms | None:
    """The functions of a family in double precision, where it computes with NumPy arrays."""
    if not isinstance(likelihood, AbstractFamily):
        return None
    if type(likelihood).slopes is AbstractFamily.slopes:
        return None
    terms = jax.tree.map(lambda a: np.asarray(a, np.float64), likelihood).terms
    one = np.ones(1)
    found = (terms.log_density(one, one), *terms.slopes(one, one))
    return terms if all(isinstance(a, np.ndarray) for a in found) else None


class GLMEvidence(AbstractEvidence):
    """Rows of a `family`, in arrays of fixed capacity: `features`, `rewards`, `weights`, `offsets`.

    Beyond `num_rows` the weights are zero; `folded` is the expansion of rows that were dropped.
    """

    family: AbstractFamily
    features: Float[Array, "capacity d"]
    rewards: Float[Array, " capacity"]
    weights: Float[Array, " capacity"]
    offsets: Float[Array, " capacity"]
    num_rows: Int[Array, ""]
    folded: LinearEvidence

    @staticmethod
    def empty_of(family: AbstractFamily, dim: int, capacity: int) -> "GLMEvidence":
        """No rows of a `family` of `dim` parameters, and room for `capacity`."""
        row, zero, one = (on_device(a) for a in (np.zeros(capacity), np.zeros(()), np.ones(())))
        folded = LinearEvidence(
            on_device(np.zeros((dim, dim))), on_device(np.zeros(dim)), zero, zero, one
        )
        features, none = on_device(np.zeros((capacity, dim))), on_device(np.zeros((), np.int32))
        return GLMEvidence(family, features, row, row, row, none, folded)

    @property
    def dim(self) -> int:
        return self.features.shape[1]

    @property
    def capacity(self) -> int:
        """Rows there is room for without another shape, and so without compiling anew."""
        return self.features.shape[0]

    @property
    def quadratic(self) -> bool:
        return False

    @property
    def columns(self) -> Columns:
        """Features, rewards, weights and offsets, used or not."""
        return Columns(self.features, self.rewards, self.weights, self.offsets)

    @property
    def history(self) -> "History":
        """The rows and the Gaussian term, for computations."""
        folded, at_zero = self.folded, self.folded.log_likelihood_at_zero()
        gaussian = (folded.precision, folded.shift, at_zero)
        return History(self.family.terms, *self.columns, self.num_rows, *gaussian)

    @eqx.filter_jit
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        result = irls(gaussian, self, start)
        return result.posterior, jnp.where(result.converged, result.log_evidence, jnp.nan)

    @eqx.filter_jit
    def expand(self, belief: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """See `History.expand`. At a fixed point of `gaussian.tilt(*expand(belief))` the belief is
        the Gaussian variational approximation of the posterior.
        """
        return self.history.expand(belief.mean, belief.cov)

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        return self.history.log_likelihood(theta)

    @eqx.filter_jit
    def expected_log_likelihood(self, belief: Gaussian) -> Float[Array, ""]:
        return self.history.expected_log_likelihood(belief.mean, belief.cov)

    @eqx.filter_jit
    def squared_error(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """Sum (y - g(phi' theta))^2 over the history and its gradient; of folded rows,
        -2 log p(y | theta).
        """

        def rows(x: Array, y: Array, w: Array, offset: Array) -> tuple[Array, Array]:
            eta = x @ theta + offset
            mean, slope = _derivative(lambda eta: jnp.asarray(self.family.mean(eta)), eta)
            residual = y - mean
            return jnp.sum(w * residual**2), (-2.0 * w * residual * slope) @ x

        found = sum_over_rows(rows, self.columns, self.num_rows)
        return jax.tree.map(jnp.add, found, self.folded.squared_error(theta))

    def temper(self, temperature: ArrayLike) -> "GLMEvidence":
        weights = inverse_temperature(temperature) * self.weights
        folded = self.folded.temper(temperature)
        return eqx.tree_at(lambda e: (e.weights, e.folded), self, (weights, folded))

    def reparameterize(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "GLMEvidence":
        features = self.features @ scale
        offsets = self.features @ offset + self.offsets
        folded = self.folded.reparameterize(offset, scale)
        return eqx.tree_at(
            lambda e: (e.features, e.offsets, e.folded), self, (features, offsets, folded)
        )

    def check_rewards(self, rewards: np.ndarray) -> None:
        type(self.family).check_rewards(self.family, rewards)

    def add(
        self, features: Float[Rows, "n d"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "GLMEvidence":
        """Evidence with rows added; grows to the next power of two outside compiled programs,
        unless many rows are repetitions that can be merged.
        """
        new, n = (features, rewards, weights), features.shape[0]
        if is_traced(self.features, self.num_rows, new):
            return _put(self, self._checked_room(n), new)
        used = int(self.num_rows)
        if used + n > self.capacity:
            fewer = self.distinct()
            if 2 * (int(fewer.num_rows) + n) <= self.capacity:
                return fewer.add(*new)
        elif n == 1:
            return _put(self, self.num_rows, new)
        pairs = zip(self._rows(), (*new, np.zeros(n)), strict=True)
        return self._with_rows(Columns(*map(np.concatenate, pairs)))

    def _checked_room(self, n: int) -> Int[Array, ""]:
        """The number of rows, where there is room for n more."""
        full = self.num_rows + n > self.capacity
        return eqx.error_if(self.num_rows, full, _FULL.format(self.capacity))

    def _rows(self) -> Columns:
        """The rows in use, on the host."""
        used = int(self.num_rows)
        return Columns(*(np.asarray(column)[:used] for column in self.columns))

    def _with_rows(self, rows: Columns, capacity: int = 0) -> "GLMEvidence":
        """The evidence with these rows instead, and room for more; never less than now."""
        used = len(rows.rewards)
        if max(used, capacity) > self.capacity:
            room = capacity_for(max(used, capacity))
        else:
            room = self.capacity
        features, rewards, weights, offsets = map(on_device, padded(rows, room))
        num_rows = on_device(np.asarray(used, np.int32))
        return GLMEvidence(self.family, features, rewards, weights, offsets, num_rows, self.folded)

    def with_capacity(self, capacity: int) -> "GLMEvidence":
        return self if capacity <= self.capacity else self._with_rows(self._rows(), capacity)

    def bounded(self, max_rows: int, prior: Gaussian) -> "GLMEvidence":
        """The evidence in at most `max_rows` rows: equal rows merged, and if that is not enough,
        the older half and more folded into their expansion at the mode under `prior`.
        """
        if int(self.num_rows) <= max_rows:
            return self
        fewer = self.distinct()
        if int(fewer.num_rows) <= max_rows // 2:
            return fewer
        return fewer.fold(irls(prior, fewer).posterior.mean, max_rows // 2)

    def distinct(self) -> "GLMEvidence":
        """The same evidence with equal rows as one, of their weights."""
        return self._with_rows(merged(self._rows()))

    def fold(self, theta: Float[Array, " d"], keep: int) -> "GLMEvidence":
        """All but the newest `keep` rows replaced by their second-order expansion at `theta`."""
        old = max(int(self.num_rows) - keep, 0)
        weights = np.where(np.arange(self.capacity) < old, np.asarray(self.weights), 0.0)
        leaving = eqx.tree_at(lambda e: e.weights, self, on_device(weights))
        rest = self._with_rows(Columns(*(column[old:] for column in self._rows())))
        return eqx.tree_at(lambda e: e.folded, rest, _as_linear(leaving, theta))

    def put(
        self, features: Float[Rows, "n d"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "GLMEvidence":
        return _put(self, self.num_rows, (features, rewards, weights))

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return field_hints(cls) | {"num_rows": int, "capacity": int}

    def file_fields(self) -> dict[str, object]:
        held = {name: getattr(self, name) for name in self.file_hints()}
        num_rows, capacity = int(self.num_rows), self.capacity
        stored = num_rows if small_room(capacity, self.dim) else capacity
        rows = {name: on_device(np.asarray(held[name])[:stored]) for name in Columns._fields}
        return held | rows | {"num_rows": num_rows}

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> "GLMEvidence":
        known: dict[str, Any] = dict(fields)  # checked against `file_hints`
        columns = Columns(*(np.asarray(known[name]) for name in Columns._fields))
        capacity, num_rows = known.pop("capacity"), known["num_rows"]
        stored, dim = columns.features.shape
        if not 0 <= num_rows <= stored <= capacity or room_for(capacity) != capacity:
            raise ValueError(f"`num_rows`: expected 0 to {capacity}, got {num_rows} of {stored}")
        if not small_room(capacity, dim) and stored < capacity:
            raise ValueError(f"`capacity`: expected room for {stored} rows, got {capacity}")
        known |= padded(columns, capacity)._asdict() | {"num_rows": np.asarray(num_rows, np.int32)}
        return super().from_fields(jax.tree.map(on_device, known))

    def validate(self) -> None:
        super().validate()
        num_rows, weights = int(self.num_rows), np.asarray(self.weights)
        if np.any(weights < 0) or np.any(weights[num_rows:] > 0) or self.folded.dim != self.dim:
            raise ValueError("`weights`: expected none below 0, and none beyond `num_rows`")
        self.check_rewards(np.asarray(self.rewards)[weights > 0])


def _put(evidence: GLMEvidence, start: Int[Array, ""], new: tuple[Rows, Rows, Rows]) -> GLMEvidence:
    """The evidence with new rows from number `start` on."""
    old = (evidence.features, evidence.rewards, evidence.weights)
    features, rewards, weights, num_rows = put_rows(old, start, new)
    return GLMEvidence(
        evidence.family, features, rewards, weights, evidence.offsets, num_rows, evidence.folded
    )


@eqx.filter_jit
def _as_linear(evidence: GLMEvidence, theta: Float[Array, " d"]) -> LinearEvidence:
    """The second-order expansion at `theta`, as evidence of a linear model."""
    value, precision, score = evidence.history.expand_at(theta)
    shift = precision @ theta + score
    at_zero = value - theta @ (shift - 0.5 * precision @ theta)
    zero = jnp.zeros_like(at_zero)
    return LinearEvidence(precision, shift, -2.0 * at_zero, zero, jnp.ones_like(at_zero))


@eqx.filter_jit
def irls(
    prior: Gaussian,
    evidence: GLMEvidence,
    start: Float[Array, " d"] | None = None,
    max_steps: int = MAX_NEWTON_STEPS,
) -> Laplace:
    """Iteratively reweighted least squares: Algorithm 1.

    Deviations: the curvature is that of the log density, dispersion and all; the iteration is
    Newton's in units of the prior, theta = mean + L z, so that no covariance is inverted; steps are
    damped until they descend (Levenberg and Marquardt), so that separable data and extreme features
    converge too. The search begins at `start`, by default near the prior mean.
    """
    tril = cholesky(prior.cov)
    local = evidence.reparameterize(prior.mean, tril).history
    if start is None:
        starts = first_guesses(*local.expand_at_origin())
    else:
        z = jnp.clip(solve_lower(tril, (start - prior.mean)[:, None])[:, 0], -30.0, 30.0)
        starts = z[None]
    return laplace(prior.mean, tril, find_mode(local.expand_at, starts, max_steps))


def variational(evidence: AbstractEvidence) -> Variational:
    """The Gaussian q of least KL(q, posterior) under the prior N(0, I); see `fit_variational`.

    Other Gaussian priors come to this one by `evidence.reparameterize(mean, cholesky(cov))`.
    """
    if isinstance(evidence, GLMEvidence):
        return variational_of_rows(evidence.history)
    posterior, log_evidence = evidence.condition(
        Gaussian.standard(evidence.dim, jnp.result_type(float))
    )
    q = fit_variational(
        posterior.mean,
        lambda mean, cov: evidence.expand(Gaussian(mean, cov)),
        lambda mean, cov: evidence.expected_log_likelihood(Gaussian(mean, cov)),
    )
    return q._replace(bound=jnp.where(jnp.isnan(log_evidence), jnp.nan, q.bound))


def variational_of_rows(local: "History | InUnits") -> Variational:
    """As `variational`, of rows."""
    search = find_mode(local.expand_at, first_guesses(*local.expand_at_origin()))
    found = search.found(search.hessian_tril())
    q = fit_variational(search.z, local.expand, local.expected_log_likelihood)
    return q._replace(bound=numpy_of(q.bound).where(found, q.bound, np.nan))


def _derivative(
    function: Callable[[Array], Array], eta: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Values of a function that acts element by element, and their derivatives."""
    return jax.jvp(function, (eta,), (jnp.ones_like(eta),))
