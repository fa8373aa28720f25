"""Generalised linear models: what a family is, rows of history, and IRLS (Algorithm 1)."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..checks import is_traced, on_device, positive_int
from ..gaussian import Gaussian
from ..linalg import cholesky, log_det_from_tril, solve_lower
from .base import AbstractEvidence, AbstractLikelihood, inverse_temperature
from .linear import LinearEvidence
from .newton import find_mode, small_step

MIN_CAPACITY = 128


class AbstractFamily(AbstractLikelihood):
    """An exponential family, log p(y | eta) = (y eta - b(eta)) / dispersion + c(y): Assumption 2.

    A new family defines `log_partition` (b), `mean` (g = b'), `variance` (g') and `check_rewards`.
    """

    @abc.abstractmethod
    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """b, a convex function whose derivative is the mean function."""

    @abc.abstractmethod
    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """g', the derivative of the mean function."""

    @abc.abstractmethod
    def check_rewards(self, rewards: np.ndarray) -> None:
        """Refuse rewards outside the support."""

    @property
    def dispersion(self) -> Float[Array, ""] | float:
        """What the exponent is divided by; 1 unless the family says otherwise."""
        return 1.0

    def log_base_measure(self, rewards: Float[Array, " n"]) -> Float[Array, " n"]:
        """c, which does not depend on theta; needed only for log evidence in absolute terms."""
        return jnp.zeros_like(rewards)

    def empty(self, dim: int, capacity: int = 0) -> "GLMEvidence":
        """Evidence of no observations, with room for `capacity` rows inside a compiled program."""
        return GLMEvidence.empty_of(self, positive_int("dim", dim), _capacity_for(capacity))


class GLMEvidence(AbstractEvidence):
    """Rows of a history. Unused rows up to the capacity, a power of two, have weight zero.

    `folded` is what is left of rows that were dropped: their second-order expansion.
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
        """No rows, and room for `capacity`."""
        row, zero, one = (on_device(a) for a in (np.zeros(capacity), np.zeros(()), np.ones(())))
        folded = LinearEvidence(
            on_device(np.zeros((dim, dim))), on_device(np.zeros(dim)), zero, zero, one
        )
        features, none = on_device(np.zeros((capacity, dim))), on_device(np.zeros((), np.int32))
        return GLMEvidence(family, features, row, row, row, none, folded)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.features.shape[1]

    @property
    def capacity(self) -> int:
        """Rows there is room for without another shape, and so without compiling anew."""
        return self.features.shape[0]

    def linear_predictor(self, theta: Float[Array, " d"]) -> Float[Array, " capacity"]:
        """eta for every row."""
        return self.features @ theta + self.offsets

    @property
    def quadratic(self) -> bool:
        """The log likelihood is not quadratic in general."""
        return False

    @eqx.filter_jit
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        """Laplace's approximation and its log evidence, NaN if IRLS did not converge."""
        result = irls(gaussian, self, start)
        return result.posterior, jnp.where(result.converged, result.log_evidence, jnp.nan)

    @eqx.filter_jit
    def expand(self, theta: Float[Array, " d"]) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Precision X'WX and shift X'(W X theta + y - g), W = g' / dispersion."""
        precision, score = self.precision_and_score(theta)
        return precision, precision @ theta + score

    def precision_and_score(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Minus the second derivative of log p(h | theta), and the first."""
        eta = self.linear_predictor(theta)
        scale = self.weights / self.family.dispersion
        curvature = scale * self.family.variance(eta)
        precision = (self.features * curvature[:, None]).T @ self.features
        score = (scale * (self.rewards - self.family.mean(eta))) @ self.features
        folded_score = self.folded.shift - self.folded.precision @ theta
        return precision + self.folded.precision, score + folded_score

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(h | theta) of Assumption 2, constants included."""
        rows = self.log_likelihood_at(self.linear_predictor(theta))
        return rows + self.folded.log_likelihood(theta)

    @eqx.filter_jit
    def squared_error(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """sum (y - g(phi' theta))^2 over the history; of folded rows, -2 log p(y | theta)."""
        residuals = self.rewards - self.family.mean(self.linear_predictor(theta))
        return jnp.sum(self.weights * residuals**2) + self.folded.squared_error(theta)

    def log_likelihood_at(self, eta: Float[Array, " capacity"]) -> Float[Array, ""]:
        """log p(y | theta) of the rows, given the linear predictor of every one."""
        exponent = (self.rewards * eta - self.family.log_partition(eta)) / self.family.dispersion
        log_densities = exponent + self.family.log_base_measure(self.rewards)
        return jnp.sum(self.weights * jnp.where(self.weights > 0, log_densities, 0.0))

    def temper(self, temperature: Float[Array, ""] | float) -> "GLMEvidence":
        """The evidence counted 1 / temperature times."""
        weights = inverse_temperature(temperature) * self.weights
        folded = self.folded.temper(temperature)
        return eqx.tree_at(lambda e: (e.weights, e.folded), self, (weights, folded))

    def reparameterise(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "GLMEvidence":
        """The same evidence as a function of z, where theta = offset + scale z."""
        return eqx.tree_at(
            lambda e: (e.features, e.offsets, e.folded),
            self,
            (
                self.features @ scale,
                self.linear_predictor(offset),
                self.folded.reparameterise(offset, scale),
            ),
        )

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Refuse rewards outside the family's support."""
        self.family.check_rewards(rewards)

    def add(
        self,
        features: Float[Array, "n d"],
        rewards: Float[Array, " n"],
        weights: Float[Array, " n"],
    ) -> "GLMEvidence":
        """Evidence with rows added; grows to the next power of two outside compiled programs,
        unless many rows are repetitions that can be merged."""
        n = features.shape[0]
        if is_traced(self, features, rewards, weights):
            return self._add_traced(features, rewards, weights)
        if int(self.num_rows) + n > self.capacity:
            merged = self._merged()
            if 2 * (int(merged.num_rows) + n) <= self.capacity:
                return merged.add(features, rewards, weights)
        new = (features, rewards, weights, np.zeros(n))
        pairs = zip(self._rows(), new, strict=True)
        return self._with_rows(*(np.concatenate([old, rows]) for old, rows in pairs))

    def _rows(self) -> tuple[np.ndarray, ...]:
        """Features, rewards, weights and offsets of the rows in use."""
        used = int(self.num_rows)
        columns = (self.features, self.rewards, self.weights, self.offsets)
        return tuple(np.asarray(column)[:used] for column in columns)

    def _with_rows(self, *columns: np.ndarray) -> "GLMEvidence":
        """The evidence with these rows instead; never of a smaller capacity."""
        used = len(columns[0])
        room = max(_capacity_for(used), self.capacity)
        padded = (np.pad(c, [(0, room - used)] + [(0, 0)] * (c.ndim - 1)) for c in columns)
        features, rewards, weights, offsets = map(on_device, padded)
        num_rows = on_device(np.asarray(used, np.int32))
        rows = (features, rewards, weights, offsets)
        return GLMEvidence(self.family, *rows, num_rows, self.folded)

    def _merged(self) -> "GLMEvidence":
        """Equal rows as one row that has their weights, at the place of the first."""
        features, rewards, weights, offsets = self._rows()
        table = np.column_stack([features, rewards, offsets])
        _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(first)
        kept = first[order]
        totals = np.bincount(which.reshape(-1), weights)[order].astype(weights.dtype)
        return self._with_rows(features[kept], rewards[kept], totals, offsets[kept])

    def bounded(self, max_rows: int, prior: Gaussian) -> "GLMEvidence":
        """The evidence in at most `max_rows` rows: equal rows merged, and if that is not enough,
        the older half and more folded into their expansion at the mode under `prior`."""
        if int(self.num_rows) <= max_rows:
            return self
        merged = self._merged()
        if int(merged.num_rows) <= max_rows // 2:
            return merged
        return merged.fold(irls(prior, merged).posterior.mean, max_rows // 2)

    def fold(self, theta: Float[Array, " d"], keep: int) -> "GLMEvidence":
        """All but the newest `keep` rows replaced by their second-order expansion at `theta`."""
        old = max(int(self.num_rows) - keep, 0)
        weights = np.where(np.arange(self.capacity) < old, np.asarray(self.weights), 0.0)
        leaving = eqx.tree_at(lambda e: e.weights, self, on_device(weights))
        rest = self._with_rows(*(column[old:] for column in self._rows()))
        return eqx.tree_at(lambda e: e.folded, rest, _as_linear(leaving, theta))

    def _add_traced(
        self,
        features: Float[Array, "n d"],
        rewards: Float[Array, " n"],
        weights: Float[Array, " n"],
    ) -> "GLMEvidence":
        start, n = self.num_rows, features.shape[0]
        full = start + n > self.capacity
        start = eqx.error_if(
            start,
            full,
            f"`append`: expected at most {self.capacity} rows inside a compiled program, "
            "got more; make room with `likelihood.empty(dim, capacity=...)`",
        )

        def put(old: Array, rows: Array) -> Array:
            return jax.lax.dynamic_update_slice_in_dim(old, rows.astype(old.dtype), start, 0)

        return eqx.tree_at(
            lambda e: (e.features, e.rewards, e.weights, e.num_rows),
            self,
            (
                put(self.features, features),
                put(self.rewards, rewards),
                put(self.weights, weights),
                start + n,
            ),
        )


@eqx.filter_jit
def _as_linear(evidence: GLMEvidence, theta: Float[Array, " d"]) -> LinearEvidence:
    """The second-order expansion at `theta`, as evidence of a linear model."""
    precision, shift = evidence.expand(theta)
    at_zero = evidence.log_likelihood(theta) - theta @ (shift - 0.5 * precision @ theta)
    zero = jnp.zeros_like(at_zero)
    return LinearEvidence(precision, shift, -2.0 * at_zero, zero, jnp.ones_like(at_zero))


class IRLSResult(eqx.Module):
    """The Laplace approximation, log p(h) under it, and how the search for the mode went."""

    posterior: Gaussian
    log_evidence: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


@eqx.filter_jit
def irls(
    prior: Gaussian, evidence: GLMEvidence, start: Float[Array, " d"] | None = None
) -> IRLSResult:
    """Iteratively reweighted least squares: Algorithm 1.

    Deviations: the dispersion is carried; the iteration is Newton's in units of the prior,
    theta = mean + L z, so that no covariance is inverted; steps are damped until they descend
    (Levenberg and Marquardt), so that separable data and extreme features converge too. The search
    begins at `start`, by default near the prior mean.
    """
    tril = cholesky(prior.cov)
    local = evidence.reparameterise(prior.mean, tril)
    if start is None:
        z = _first_guess(local)
    else:
        z = jnp.clip(solve_lower(tril, (start - prior.mean)[:, None])[:, 0], -30.0, 30.0)
    search = find_mode(local.log_likelihood, local.precision_and_score, z)
    precision, score = local.precision_and_score(search.z)
    hessian_tril = cholesky(jnp.eye(z.shape[0], dtype=z.dtype) + precision)
    left = solve_lower(hessian_tril, (search.z - score)[:, None])  # in posterior deviations
    converged = search.converged | (jnp.max(jnp.abs(left)) <= 8 * small_step(z.dtype))
    half_cov = solve_lower(hessian_tril, tril.T)
    posterior = Gaussian(prior.mean + tril @ search.z, half_cov.T @ half_cov)
    log_evidence = -search.objective - 0.5 * log_det_from_tril(hessian_tril)
    return IRLSResult(posterior, log_evidence, converged, search.num_iterations)


def _first_guess(local: GLMEvidence) -> Float[Array, " d"]:
    """The prior mean, or if that is likelier, the mode of the expansion about a predictor of zero
    in every row; where features are large, the prior mean can be far from any mode."""
    family = local.family
    origin = jnp.zeros_like(local.rewards)
    scale = local.weights / family.dispersion
    curvature = scale * family.variance(origin)
    pull = scale * (local.rewards - family.mean(origin)) - curvature * local.offsets
    precision = (local.features * curvature[:, None]).T @ local.features + local.folded.precision
    tril = cholesky(jnp.eye(local.dim, dtype=precision.dtype) + precision)
    half = solve_lower(tril, (pull @ local.features + local.folded.shift)[:, None])
    guess = solve_lower(tril, jnp.eye(local.dim, dtype=tril.dtype)).T @ half[:, 0]
    gain = local.log_likelihood(guess) - 0.5 * guess @ guess
    better = gain > local.log_likelihood(jnp.zeros_like(guess))
    return jnp.where(better & jnp.all(jnp.isfinite(guess)), guess, 0.0)


def _capacity_for(num_rows: int) -> int:
    """The power of two, at least MIN_CAPACITY, that holds `num_rows` rows."""
    return max(MIN_CAPACITY, 1 << max(num_rows - 1, 0).bit_length())
