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
from .base import AbstractEvidence, AbstractLikelihood, Rows, inverse_temperature
from .linear import LinearEvidence
from .rows import (
    Columns,
    capacity_for,
    merged,
    padded,
    predictors,
    products,
    put_rows,
    room_for,
    small_room,
    sum_over_rows,
)

NODES = 3  # of Gauss-Hermite quadrature: E exp(eta) is 5 % low at a standard deviation of 1.5
MAX_NEWTON_STEPS = 500
VARIATIONAL_STEPS = 8
DAMPING = 0.7  # of the variational steps; undamped ones oscillate where predictors vary widely
COLUMNS = ("features", "rewards", "weights", "offsets")
_FULL = (
    "`append`: expected at most {} rows inside a compiled program, got more; make room with "
    "`likelihood.empty(dim, capacity=...)`"
)

_places, _masses = np.polynomial.hermite_e.hermegauss(NODES)
_RULE = list(zip(_places.tolist(), (_masses / _masses.sum()).tolist(), strict=True))


def average(
    function: Callable[[Array], Any], mean: Float[Array, " n"], variance: Float[Array, " n"]
) -> Any:
    """The mean of `function(eta)` over independent eta ~ N(mean, variance), each on its own."""
    std = jnp.sqrt(jnp.maximum(variance, 0.0))
    values = [(mass, function(mean + place * std)) for place, mass in _RULE]
    parts = [jax.tree.map(lambda leaf, m=mass: m * leaf, value) for mass, value in values]
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts)


class ModeSearch(eqx.Module):
    """State of the damped Newton search for the mode, in units of the prior: theta = mean + L z."""

    z: Float[Array, " d"]
    objective: Float[Array, ""]
    damping: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


def find_mode(
    log_likelihood: Callable[[Array], Array],
    precision_and_score: Callable[[Array], tuple[Array, Array]],
    start: Float[Array, " d"],
    max_steps: int = MAX_NEWTON_STEPS,
) -> ModeSearch:
    """Minimize |z|^2 / 2 - log p(h | z); `precision_and_score` are minus the second derivative of
    log p(h | .), and the first.
    """
    identity = jnp.eye(start.shape[0], dtype=start.dtype)
    eps = jnp.finfo(start.dtype).eps

    def objective(z: Float[Array, " d"]) -> Float[Array, ""]:
        return 0.5 * z @ z - log_likelihood(z)

    def step(search: ModeSearch) -> ModeSearch:
        precision, score = precision_and_score(search.z)
        tril = cholesky(precision + (1.0 + search.damping) * identity)
        inverse_tril = solve_lower(tril, identity)
        move = inverse_tril @ (search.z - score)  # in posterior standard deviations
        z = search.z - inverse_tril.T @ move
        new = objective(z)
        rounding = 4 * eps * (1.0 + jnp.abs(search.objective))
        accept = new <= search.objective + rounding
        no_gain = 0.5 * jnp.sum(move**2) <= rounding
        small = jnp.max(jnp.abs(move)) <= small_step(z.dtype) + 64 * eps * jnp.max(jnp.abs(z))
        undamped = search.damping == 0
        lower = jnp.where(search.damping < 1e-2, 0.0, search.damping * 0.05)
        higher = jnp.maximum(search.damping * 10.0, 1.0)
        return ModeSearch(
            jnp.where(accept, z, search.z),
            jnp.where(accept, new, search.objective),
            jnp.where(accept, lower, higher),
            undamped & (small | no_gain),
            search.num_iterations + 1,
        )

    def going_on(search: ModeSearch) -> Bool[Array, ""]:
        return ~search.converged & (search.num_iterations < max_steps)

    zero = jnp.zeros((), start.dtype)
    first = ModeSearch(start, objective(start), zero, jnp.array(False), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going_on, step, first)


class Laplace(eqx.Module):
    """Laplace's approximation, log p(h) under it, and how the search for the mode went."""

    posterior: Gaussian
    log_evidence: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


def laplace(
    mean: Float[Array, " d"],
    tril: Float[Array, "d d"],
    search: ModeSearch,
    precision: Float[Array, "d d"],
    score: Float[Array, " d"],
) -> Laplace:
    """The approximation about the mode that was found, where theta = mean + tril z; `precision` and
    `score` are those at the mode, of z.
    """
    z = search.z
    hessian_tril = cholesky(jnp.eye(z.shape[0], dtype=z.dtype) + precision)
    left = solve_lower(hessian_tril, (z - score)[:, None])  # in posterior deviations
    converged = search.converged | (jnp.max(jnp.abs(left)) <= 8 * small_step(z.dtype))
    half_cov = solve_lower(hessian_tril, tril.T)
    posterior = Gaussian(mean + tril @ z, half_cov.T @ half_cov)
    log_evidence = -search.objective - 0.5 * log_det_from_tril(hessian_tril)
    return Laplace(posterior, log_evidence, converged, search.num_iterations)


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

    def precision_and_score(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Minus the second derivative of log p(h | `theta`), and the first."""

        def rows(x: Array, y: Array, offset: Array) -> tuple[Array, Array]:
            eta = x @ theta + offset
            return self.family.curvature(y, eta), self.family.score(y, eta)

        precision, score = self._sum_moments(rows)
        folded_score = self.folded.shift - self.folded.precision @ theta
        return precision + self.folded.precision, score + folded_score

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

    def _sum(self, rows: Callable[..., Any]) -> Any:
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
            fewer = self._with_rows(*merged(self._rows()))
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
        fewer = self._with_rows(*merged(self._rows()))
        if int(fewer.num_rows) <= max_rows // 2:
            return fewer
        return fewer.fold(irls(prior, fewer).posterior.mean, max_rows // 2)

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
    def file_hints(cls) -> dict[str, Any]:
        return field_hints(cls) | {"num_rows": int, "capacity": int}

    def file_fields(self) -> dict[str, Any]:
        held = {name: getattr(self, name) for name in self.file_hints()}
        num_rows, capacity = int(self.num_rows), self.capacity
        stored = num_rows if small_room(capacity, self.dim) else capacity
        rows = {name: on_device(np.asarray(held[name])[:stored]) for name in COLUMNS}
        return held | rows | {"num_rows": num_rows}

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Any:
        fields = dict(fields)
        columns: Any = tuple(np.asarray(fields[name]) for name in COLUMNS)
        capacity, num_rows = fields.pop("capacity"), fields["num_rows"]
        stored, dim = columns[0].shape
        if not 0 <= num_rows <= stored <= capacity or room_for(capacity) != capacity:
            raise ValueError(f"`num_rows`: expected 0 to {capacity}, got {num_rows} of {stored}")
        if not small_room(capacity, dim) and stored < capacity:
            raise ValueError(f"`capacity`: expected room for {stored} rows, got {capacity}")
        rows = zip(COLUMNS, map(on_device, padded(columns, capacity)), strict=True)
        used = {"num_rows": on_device(np.asarray(num_rows, np.int32))}
        return super().from_fields(fields | dict(rows) | used)

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
    precision, score = evidence.precision_and_score(theta)
    shift = precision @ theta + score
    at_zero = evidence.log_likelihood(theta) - theta @ (shift - 0.5 * precision @ theta)
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
        z = _first_guess(local)
    else:
        z = jnp.clip(solve_lower(tril, (start - prior.mean)[:, None])[:, 0], -30.0, 30.0)
    search = find_mode(local.log_likelihood, local.precision_and_score, z, max_steps)
    return laplace(prior.mean, tril, search, *local.precision_and_score(search.z))


def _first_guess(local: GLMEvidence) -> Float[Array, " d"]:
    """The prior mean, or if that is likelier, the mode of the expansion about a predictor of zero
    in every row; where features are large, the prior mean can be far from any mode.
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
    gain = local.log_likelihood(guess) - 0.5 * guess @ guess
    better = gain > local.log_likelihood(jnp.zeros_like(guess))
    return jnp.where(better & jnp.all(jnp.isfinite(guess)), guess, 0.0)


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
    laplace, log_evidence = evidence.condition(
        Gaussian.standard(evidence.dim, jnp.result_type(float))
    )
    identity = jnp.eye(evidence.dim, dtype=laplace.mean.dtype)
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

    nothing = jnp.zeros_like(log_evidence)
    first = Variational(laplace.mean, jnp.zeros_like(identity), nothing, log_evidence)
    start = (first, (jnp.zeros_like(identity), jnp.zeros_like(laplace.mean)))
    q = jax.lax.fori_loop(0, VARIATIONAL_STEPS, step, start)[0]
    divergence = 0.5 * (
        q.mean @ q.mean + jnp.sum(q.factor**2) - q.log_det - jnp.asarray(q.mean.shape[0])
    )
    bound = evidence.expected_log_likelihood(Gaussian(q.mean, q.cov)) - divergence
    return q._replace(bound=jnp.where(jnp.isnan(log_evidence), jnp.nan, bound))
