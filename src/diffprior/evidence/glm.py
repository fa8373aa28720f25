"""Generalized linear models: families, rows of history, and Gaussian approximations of posteriors.

Laplace's approximation is by IRLS (Algorithm 1), the variational one by fixed-point iteration.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike

from ..checks import is_traced, on_device, positive_int, whole_number
from ..files.base import field_hints
from ..gaussian import Gaussian
from ..linalg import cholesky, log_det_from_tril, solve_lower
from .base import (
    AbstractEvidence,
    AbstractLikelihood,
    Columns,
    Rows,
    Sums,
    capacity_for,
    inverse_temperature,
    merged,
    padded,
    predictors,
    products,
    put_rows,
    room_for,
    small_room,
    sum_over_rows,
)
from .linear import LinearEvidence

NODES = 3  # of Gauss-Hermite quadrature: E exp(eta) is 5 % low at a standard deviation of 1.5
MAX_NEWTON_STEPS = 500
VARIATIONAL_STEPS = 8
DAMPING = 0.7  # of the variational steps; undamped ones oscillate where predictors vary widely
COLUMNS = ("features", "rewards", "weights", "offsets")
_FULL = (
    "`append`: expected at most {} rows inside a compiled program, got more; make room with "
    "`likelihood.empty(dim, capacity=...)`"
)

_PLACES, _MASSES = np.polynomial.hermite_e.hermegauss(NODES)


def average(
    function: Callable[[Array], Sums], mean: Float[Array, " n"], variance: Float[Array, " n"]
) -> Sums:
    """The mean of `function(eta)` over independent eta ~ N(mean, variance), each on its own."""
    std = jnp.sqrt(jnp.maximum(variance, 0.0))
    places, masses = (jnp.asarray(a, std.dtype) for a in (_PLACES, _MASSES / _MASSES.sum()))
    values = jax.vmap(lambda place: function(mean + place * std))(places)
    found: Sums = jax.tree.map(lambda leaf: masses @ leaf, values)
    return found


class Expansion(NamedTuple):
    """Log p(h | theta) at a point, minus its second derivative there, and the first."""

    value: Float[Array, ""]
    precision: Float[Array, "d d"]
    score: Float[Array, " d"]


class ModeSearch(eqx.Module):
    """State of the damped Newton search for the mode, in units of the prior: theta = mean + L z."""

    z: Float[Array, " d"]
    at: Expansion  # of log p(h | z)
    damping: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]

    @property
    def objective(self) -> Float[Array, ""]:
        """The function to minimize."""
        return 0.5 * self.z @ self.z - self.at.value

    def hessian_tril(self) -> Float[Array, "d d"]:
        """The Cholesky factor of the second derivative of the objective."""
        return cholesky(jnp.eye(self.z.shape[0], dtype=self.z.dtype) + self.at.precision)

    def found(self, hessian_tril: Float[Array, "d d"]) -> Bool[Array, ""]:
        """Whether this is the mode, or within a few posterior deviations' rounding of it."""
        left = solve_lower(hessian_tril, (self.z - self.at.score)[:, None])
        return self.converged | (jnp.max(jnp.abs(left)) <= 8 * small_step(self.z.dtype))


def find_mode(
    expand: Callable[[Array], Expansion],
    starts: Float[Array, "m d"],
    max_steps: int = MAX_NEWTON_STEPS,
) -> ModeSearch:
    """Minimize |z|^2 / 2 - log p(h | z) from the best of the starts."""
    dtype, identity = starts.dtype, jnp.eye(starts.shape[1], dtype=starts.dtype)
    eps = jnp.finfo(dtype).eps

    def step(search: ModeSearch) -> ModeSearch:
        tril = cholesky(search.at.precision + (1.0 + search.damping) * identity)
        inverse_tril = solve_lower(tril, identity)
        move = inverse_tril @ (search.z - search.at.score)  # in posterior standard deviations
        z = search.z - inverse_tril.T @ move
        new = expand(z)
        rounding = 4 * eps * (1.0 + jnp.abs(search.objective))
        accept = 0.5 * z @ z - new.value <= search.objective + rounding
        no_gain = 0.5 * jnp.sum(move**2) <= rounding
        small = jnp.max(jnp.abs(move)) <= small_step(dtype) + 64 * eps * jnp.max(jnp.abs(z))
        undamped = search.damping == 0
        lower = jnp.where(search.damping < 1e-2, 0.0, search.damping * 0.05)
        higher = jnp.maximum(search.damping * 10.0, 1.0)
        z, at = jax.tree.map(
            lambda ours, theirs: jnp.where(accept, ours, theirs), (z, new), (search.z, search.at)
        )
        return ModeSearch(
            z,
            at,
            jnp.where(accept, lower, higher),
            undamped & (small | no_gain),
            search.num_iterations + 1,
        )

    def going_on(search: ModeSearch) -> Bool[Array, ""]:
        return ~search.converged & (search.num_iterations < max_steps)

    first = jax.vmap(expand)(starts)
    gains = first.value - 0.5 * jnp.sum(starts**2, axis=1)
    best = jnp.argmax(jnp.where(jnp.isfinite(gains), gains, -jnp.inf))
    z, at = jax.tree.map(lambda leaf: leaf[best], (starts, first))
    zero, none = jnp.zeros((), dtype), jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(going_on, step, ModeSearch(z, at, zero, jnp.array(False), none))


class Laplace(eqx.Module):
    """Laplace's approximation, log p(h) under it, and how the search for the mode went."""

    posterior: Gaussian
    log_evidence: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


def laplace(mean: Float[Array, " d"], tril: Float[Array, "d d"], search: ModeSearch) -> Laplace:
    """The approximation about the mode that was found, where theta = mean + tril z."""
    hessian_tril = search.hessian_tril()
    half_cov = solve_lower(hessian_tril, tril.T)
    posterior = Gaussian(mean + tril @ search.z, half_cov.T @ half_cov)
    log_evidence = -search.objective - 0.5 * log_det_from_tril(hessian_tril)
    return Laplace(posterior, log_evidence, search.found(hessian_tril), search.num_iterations)


def small_step(dtype: jnp.dtype) -> float:
    """A Newton step, in posterior standard deviations, after which the error is near rounding."""
    return float(jnp.finfo(dtype).eps) ** 0.375


class AbstractFamily(AbstractLikelihood):
    """A likelihood whose log density is a concave function of eta = phi' theta: Assumption 2.

    A family of one's own defines `mean`, `log_density`, `sample` and `check_rewards`. The
    derivatives of its log density come by automatic differentiation; define them too where a closed
    form is faster or more accurate.
    """

    def score(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The derivative of the log density in eta; arguments and shapes as of `log_density`."""
        return _derivative(lambda eta: self.log_density(y, eta), eta)

    def curvature(self, y: Float[Array, "..."], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """Minus the second derivative in eta, which may depend on y; as of `log_density`."""
        return -_derivative(lambda eta: self.score(y, eta), eta)

    def empty(self, dim: int, capacity: int = 0) -> "GLMEvidence":
        room = capacity_for(whole_number("capacity", capacity))
        return GLMEvidence.empty_of(self, positive_int("dim", dim), room)


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

    @eqx.filter_jit
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        result = irls(gaussian, self, start)
        return result.posterior, jnp.where(result.converged, result.log_evidence, jnp.nan)

    @eqx.filter_jit
    def expand(self, belief: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Expected curvature X'WX and shift X'(W X m + s) over theta ~ N(m, C).

        W and s are the curvature and score of every row, averaged over its own eta ~
        N(phi'm, phi'C phi). At a fixed point of `gaussian.tilt(*expand(belief))` the belief is the
        Gaussian variational approximation of the posterior.
        """

        def rows(x: Array, y: Array, offset: Array) -> tuple[Array, Array]:
            return average(
                lambda eta: (self.family.curvature(y, eta), self.family.score(y, eta)),
                *predictors(belief, x, offset),
            )

        precision, score = self._sum_moments(rows)
        precision = precision + self.folded.precision
        folded_score = self.folded.shift - self.folded.precision @ belief.mean
        return precision, precision @ belief.mean + score + folded_score

    def expand_at(self, theta: Float[Array, " d"]) -> Expansion:
        """The second-order expansion of log p(h | .) at `theta`."""

        def rows(x: Array, y: Array, w: Array, offset: Array) -> Expansion:
            eta = x @ theta + offset
            log_densities = jnp.where(w > 0, self.family.log_density(y, eta), 0.0)
            curvature, score = self.family.curvature(y, eta), self.family.score(y, eta)
            return Expansion(w @ log_densities, (w * curvature) @ products(x), (w * score) @ x)

        found, folded = self._sum(rows), self.folded
        precision = found.precision.reshape(self.dim, self.dim) + folded.precision
        score = found.score + folded.shift - folded.precision @ theta
        return Expansion(found.value + folded.log_likelihood(theta), precision, score)

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:

        def rows(x: Array, y: Array, w: Array, offset: Array) -> Array:
            log_densities = self.family.log_density(y, x @ theta + offset)
            return jnp.sum(w * jnp.where(w > 0, log_densities, 0.0))

        return self._sum(rows) + self.folded.log_likelihood(theta)

    @eqx.filter_jit
    def expected_log_likelihood(self, belief: Gaussian) -> Float[Array, ""]:

        def rows(x: Array, y: Array, w: Array, offset: Array) -> Array:
            log_densities = average(
                lambda eta: self.family.log_density(y, eta), *predictors(belief, x, offset)
            )
            return jnp.sum(w * jnp.where(w > 0, log_densities, 0.0))

        return self._sum(rows) + self.folded.expected_log_likelihood(belief)

    @eqx.filter_jit
    def squared_error(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """Sum (y - g(phi' theta))^2 over the history and its gradient; of folded rows,
        -2 log p(y | theta).
        """

        def rows(x: Array, y: Array, w: Array, offset: Array) -> tuple[Array, Array]:
            eta = x @ theta + offset
            residual = y - self.family.mean(eta)
            slope = _derivative(lambda eta: jnp.asarray(self.family.mean(eta)), eta)
            return jnp.sum(w * residual**2), (-2.0 * w * residual * slope) @ x

        folded = self.folded.squared_error(theta)
        return jax.tree.map(jnp.add, self._sum(rows), folded)

    def _sum_moments(
        self, curvature_and_score: Callable[..., tuple[Array, Array]]
    ) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Sum w c phi phi' and sum w s phi over rows, where c and s are functions of blocks."""

        def rows(x: Array, y: Array, w: Array, offset: Array) -> tuple[Array, Array]:
            curvature, score = curvature_and_score(x, y, offset)
            return (w * curvature) @ products(x), (w * score) @ x

        precision, score = self._sum(rows)
        return precision.reshape(self.dim, self.dim), score

    def _sum(self, rows: Callable[..., Sums]) -> Sums:
        columns = (self.features, self.rewards, self.weights, self.offsets)
        return sum_over_rows(rows, columns, self.num_rows)

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
        return self._with_rows(*(np.concatenate([old, rows]) for old, rows in pairs))

    def _checked_room(self, n: int) -> Int[Array, ""]:
        """The number of rows, where there is room for n more."""
        full = self.num_rows + n > self.capacity
        return eqx.error_if(self.num_rows, full, _FULL.format(self.capacity))

    def _rows(self) -> Columns:
        """Features, rewards, weights and offsets of the rows in use."""
        used = int(self.num_rows)
        columns = (self.features, self.rewards, self.weights, self.offsets)
        features, rewards, weights, offsets = (np.asarray(column)[:used] for column in columns)
        return features, rewards, weights, offsets

    def _with_rows(self, *columns: np.ndarray) -> "GLMEvidence":
        """The evidence with these rows instead; never of a smaller capacity."""
        features, rewards, weights, offsets = columns
        used = len(rewards)
        room = self.capacity if used <= self.capacity else capacity_for(used)
        rows = padded((features, rewards, weights, offsets), room)
        features_, rewards_, weights_, offsets_ = map(on_device, rows)
        arrays = (features_, rewards_, weights_, offsets_, on_device(np.asarray(used, np.int32)))
        return GLMEvidence(self.family, *arrays, self.folded)

    def with_capacity(self, capacity: int) -> "GLMEvidence":
        if capacity <= self.capacity:
            return self
        room = max(capacity_for(capacity), self.capacity)
        rows = tuple(on_device(column) for column in padded(self._rows(), room))
        return eqx.tree_at(lambda e: (e.features, e.rewards, e.weights, e.offsets), self, rows)

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
        return self._with_rows(*merged(self._rows()))

    def fold(self, theta: Float[Array, " d"], keep: int) -> "GLMEvidence":
        """All but the newest `keep` rows replaced by their second-order expansion at `theta`."""
        old = max(int(self.num_rows) - keep, 0)
        weights = np.where(np.arange(self.capacity) < old, np.asarray(self.weights), 0.0)
        leaving = eqx.tree_at(lambda e: e.weights, self, on_device(weights))
        rest = self._with_rows(*(column[old:] for column in self._rows()))
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
        rows = {name: on_device(np.asarray(held[name])[:stored]) for name in COLUMNS}
        return held | rows | {"num_rows": num_rows}

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> "GLMEvidence":
        known: dict[str, Any] = dict(fields)  # checked against `file_hints`
        columns: Any = tuple(np.asarray(known[name]) for name in COLUMNS)
        capacity, num_rows = known.pop("capacity"), known["num_rows"]
        stored, dim = columns[0].shape
        if not 0 <= num_rows <= stored <= capacity or room_for(capacity) != capacity:
            raise ValueError(f"`num_rows`: expected 0 to {capacity}, got {num_rows} of {stored}")
        if not small_room(capacity, dim) and stored < capacity:
            raise ValueError(f"`capacity`: expected room for {stored} rows, got {capacity}")
        rows = zip(COLUMNS, map(on_device, padded(columns, capacity)), strict=True)
        used = {"num_rows": on_device(np.asarray(num_rows, np.int32))}
        return super().from_fields(known | dict(rows) | used)

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
    value, precision, score = evidence.expand_at(theta)
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
    local = evidence.reparameterize(prior.mean, tril)
    if start is None:
        starts = _first_guesses(local)
    else:
        z = jnp.clip(solve_lower(tril, (start - prior.mean)[:, None])[:, 0], -30.0, 30.0)
        starts = z[None]
    return laplace(prior.mean, tril, find_mode(local.expand_at, starts, max_steps))


def _first_guesses(local: GLMEvidence) -> Float[Array, "2 d"]:
    """The prior mean, and the mode of the expansion about a predictor of zero in every row: where
    features are large, the prior mean can be far from any mode.
    """
    family = local.family

    def rows(x: Array, y: Array, offset: Array) -> tuple[Array, Array]:
        origin = jnp.zeros_like(offset)
        curvature = family.curvature(y, origin)
        return curvature, family.score(y, origin) - curvature * offset

    precision, pull = jax.tree.map(
        jnp.add, local._sum_moments(rows), (local.folded.precision, local.folded.shift)
    )
    tril = cholesky(jnp.eye(local.dim, dtype=precision.dtype) + precision)
    half = solve_lower(tril, pull[:, None])
    guess = solve_lower(tril, jnp.eye(local.dim, dtype=tril.dtype)).T @ half[:, 0]
    nowhere = jnp.zeros_like(guess)
    return jnp.stack([nowhere, jnp.where(jnp.all(jnp.isfinite(guess)), guess, nowhere)])


def _derivative(
    function: Callable[[Array], Array], eta: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Of a function that acts element by element."""
    return jax.jvp(function, (eta,), (jnp.ones_like(eta),))[1]


class Variational(NamedTuple):
    """N(mean, factor factor'), the log determinant of its covariance, and a bound on log p(h)."""

    mean: Float[Array, " d"]
    factor: Float[Array, "d d"]
    log_det: Float[Array, ""]
    bound: Float[Array, ""]

    @property
    def cov(self) -> Float[Array, "d d"]:
        """The covariance."""
        return self.factor @ self.factor.T


def variational(evidence: AbstractEvidence) -> Variational:
    """The Gaussian q of least KL(q, posterior) under the prior N(0, I).

    A few steps of the fixed-point iteration q <- prior times the expansion of the likelihood under
    q, from the mode on. Other Gaussian priors come to this one by
    `evidence.reparameterize(mean, cholesky(cov))`.

    References:
        Opper and Archambeau, The variational Gaussian approximation revisited (2009), Eqs. 8, 9;
        here the averages are by quadrature over each row's linear predictor.
    """
    mode, failed = _mode_in_prior_units(evidence)
    identity = jnp.eye(evidence.dim, dtype=mode.dtype)
    State = tuple[Variational, tuple[Array, Array]]

    def step(number: Int[Array, ""], state: State) -> State:
        q, old = state
        new = evidence.expand(Gaussian(q.mean, q.cov))
        share = jnp.where(number == 0, 1.0, DAMPING).astype(identity.dtype)
        precision, shift = (a + share * (b - a) for a, b in zip(old, new, strict=True))
        tril = cholesky(identity + precision)
        half = solve_lower(tril, identity)
        mean = half.T @ (half @ shift)
        return Variational(mean, half.T, -log_det_from_tril(tril), q.bound), (precision, shift)

    nothing = jnp.zeros((), mode.dtype)
    first = Variational(mode, jnp.zeros_like(identity), nothing, nothing)
    start = (first, (jnp.zeros_like(identity), jnp.zeros_like(mode)))
    q = jax.lax.fori_loop(0, VARIATIONAL_STEPS, step, start)[0]
    divergence = 0.5 * (
        q.mean @ q.mean + jnp.sum(q.factor**2) - q.log_det - jnp.asarray(q.mean.shape[0])
    )
    bound = evidence.expected_log_likelihood(Gaussian(q.mean, q.cov)) - divergence
    return q._replace(bound=jnp.where(failed, jnp.nan, bound))


def _mode_in_prior_units(
    evidence: AbstractEvidence,
) -> tuple[Float[Array, " d"], Bool[Array, ""]]:
    """The mode under the prior N(0, I), and whether it was not found."""
    if isinstance(evidence, GLMEvidence):
        search = find_mode(evidence.expand_at, _first_guesses(evidence))
        return search.z, ~search.found(search.hessian_tril())
    posterior, log_evidence = evidence.condition(
        Gaussian.standard(evidence.dim, jnp.result_type(float))
    )
    return posterior.mean, jnp.isnan(log_evidence)
