"""Generalised linear models: families, rows of history, and IRLS (Algorithm 1)."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..checks import is_traced, on_device, positive
from ..gaussian import Gaussian
from ..linalg import cholesky, log_det_from_tril, solve_lower
from .base import AbstractEvidence, AbstractLikelihood, inverse_temperature

MIN_CAPACITY = 128
MAX_ITERATIONS = 500


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
        return GLMEvidence.empty_of(self, dim, _capacity_for(capacity))


class Logistic(AbstractFamily):
    """Rewards 0 or 1 with mean 1 / (1 + exp(-phi' theta))."""

    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """log(1 + exp(eta))."""
        return jax.nn.softplus(eta)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The sigmoid."""
        return jax.nn.sigmoid(eta)

    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """sigmoid (1 - sigmoid), with no cancellation where it is small."""
        return jax.nn.sigmoid(eta) * jax.nn.sigmoid(-eta)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are 0 or 1."""
        _refuse(rewards, ~np.isin(rewards, (0.0, 1.0)), "0 or 1", "code the outcomes as 0 and 1")


class Poisson(AbstractFamily):
    """Counts with mean exp(phi' theta).

    Beyond eta = 30 the exponential is continued by its second-order expansion, so that nothing
    overflows; no count ever observed lies there.
    """

    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        excess = jnp.maximum(eta - 30.0, 0.0)
        return jnp.exp(jnp.minimum(eta, 30.0)) * (1.0 + excess + 0.5 * excess**2)

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        return jnp.exp(jnp.minimum(eta, 30.0)) * (1.0 + jnp.maximum(eta - 30.0, 0.0))

    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """exp(eta)."""
        return jnp.exp(jnp.minimum(eta, 30.0))

    def log_base_measure(self, rewards: Float[Array, " n"]) -> Float[Array, " n"]:
        """-log y!."""
        return -jax.scipy.special.gammaln(rewards + 1.0)

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Rewards are counts."""
        bad = (rewards < 0) | (rewards != np.round(rewards))
        _refuse(rewards, bad, "counts 0, 1, 2, ...", "pass whole numbers")


class Identity(AbstractFamily):
    """The linear model as a generalised linear one, row by row; for testing and comparison."""

    noise_std: Float[Array, ""]

    def __init__(self, noise_std: Any = 1.0) -> None:
        self.noise_std = positive("noise_std", noise_std)

    @property
    def dispersion(self) -> Float[Array, ""]:
        """The noise variance. Algorithm 1 omits it and so holds as printed only for 1."""
        return self.noise_std**2

    def log_partition(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """eta^2 / 2."""
        return 0.5 * eta**2

    def mean(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """The identity."""
        return eta

    def variance(self, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """One."""
        return jnp.ones_like(eta)

    def log_base_measure(self, rewards: Float[Array, " n"]) -> Float[Array, " n"]:
        """-y^2 / (2 sigma^2) - log(2 pi sigma^2) / 2."""
        log_norm = jnp.log(jnp.sqrt(2 * jnp.pi) * self.noise_std)
        return -0.5 * (rewards / self.noise_std) ** 2 - log_norm

    def check_rewards(self, rewards: np.ndarray) -> None:
        """Any finite reward is possible."""


class GLMEvidence(AbstractEvidence):
    """Rows of a history. Unused rows up to the capacity, a power of two, have weight zero."""

    family: AbstractFamily
    features: Float[Array, "capacity d"]
    rewards: Float[Array, " capacity"]
    weights: Float[Array, " capacity"]
    offsets: Float[Array, " capacity"]
    num_rows: Int[Array, ""]

    @staticmethod
    def empty_of(family: AbstractFamily, dim: int, capacity: int) -> "GLMEvidence":
        """No rows, and room for `capacity`."""
        row = on_device(np.zeros(capacity))
        features = on_device(np.zeros((capacity, dim)))
        return GLMEvidence(family, features, row, row, row, on_device(np.zeros((), np.int32)))

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
        return precision, (scale * (self.rewards - self.family.mean(eta))) @ self.features

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """log p(h | theta) of Assumption 2, constants included."""
        return self.log_likelihood_at(self.linear_predictor(theta))

    @eqx.filter_jit
    def squared_error(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """sum (y - g(phi' theta))^2 over the history."""
        residuals = self.rewards - self.family.mean(self.linear_predictor(theta))
        return jnp.sum(self.weights * residuals**2)

    def log_likelihood_at(self, eta: Float[Array, " capacity"]) -> Float[Array, ""]:
        """log p(h | theta) given the linear predictor of every row."""
        exponent = (self.rewards * eta - self.family.log_partition(eta)) / self.family.dispersion
        log_densities = exponent + self.family.log_base_measure(self.rewards)
        return jnp.sum(self.weights * jnp.where(self.weights > 0, log_densities, 0.0))

    def temper(self, temperature: float) -> "GLMEvidence":
        """The evidence counted 1 / temperature times."""
        factor = inverse_temperature(temperature)
        return eqx.tree_at(lambda e: e.weights, self, factor * self.weights)

    def reparameterise(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "GLMEvidence":
        """The same evidence as a function of z, where theta = offset + scale z."""
        return eqx.tree_at(
            lambda e: (e.features, e.offsets),
            self,
            (self.features @ scale, self.linear_predictor(offset)),
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
        """Evidence with rows added; grows to the next power of two outside compiled programs."""
        n = features.shape[0]
        if is_traced(self, features, rewards, weights):
            return self._add_traced(features, rewards, weights)
        start = int(self.num_rows)
        room = _capacity_for(max(start + n, self.capacity))

        def put(old: Array, rows: Array | np.ndarray) -> Array:
            new = np.zeros((room, *old.shape[1:]), old.dtype)
            new[:start] = np.asarray(old)[:start]
            new[start : start + n] = rows
            return on_device(new)

        return eqx.tree_at(
            lambda e: (e.features, e.rewards, e.weights, e.offsets, e.num_rows),
            self,
            (
                put(self.features, features),
                put(self.rewards, rewards),
                put(self.weights, weights),
                put(self.offsets, np.zeros(n)),
                on_device(np.asarray(start + n, np.int32)),
            ),
        )

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


class IRLSResult(eqx.Module):
    """The Laplace approximation, log p(h) under it, and how the search for the mode went."""

    posterior: Gaussian
    log_evidence: Float[Array, ""]
    converged: Bool[Array, ""]
    num_iterations: Int[Array, ""]


class _Search(eqx.Module):
    """State of the damped Newton search for the mode, in units of the prior: theta = mean + L z."""

    z: Float[Array, " d"]
    objective: Float[Array, ""]
    damping: Float[Array, ""]
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
    begins at `start`, by default the prior mean.
    """
    tril = cholesky(prior.cov)
    local = evidence.reparameterise(prior.mean, tril)
    away = jnp.zeros_like(prior.mean) if start is None else start - prior.mean
    z = jnp.clip(solve_lower(tril, away[:, None])[:, 0], -30.0, 30.0)
    search = _find_mode(local, z)
    precision, score = local.precision_and_score(search.z)
    hessian_tril = cholesky(jnp.eye(z.shape[0], dtype=z.dtype) + precision)
    left = solve_lower(hessian_tril, (search.z - score)[:, None])  # in posterior deviations
    converged = search.converged | (jnp.max(jnp.abs(left)) <= 8 * _small_step(z.dtype))
    half_cov = solve_lower(hessian_tril, tril.T)
    posterior = Gaussian(prior.mean + tril @ search.z, half_cov.T @ half_cov)
    log_evidence = -search.objective - 0.5 * log_det_from_tril(hessian_tril)
    return IRLSResult(posterior, log_evidence, converged, search.num_iterations)


def _find_mode(local: GLMEvidence, start: Float[Array, " d"]) -> _Search:
    """Minimise |z|^2 / 2 - log p(h | z) by damped Newton steps."""
    identity = jnp.eye(start.shape[0], dtype=start.dtype)
    eps = jnp.finfo(start.dtype).eps

    def objective(z: Float[Array, " d"]) -> Float[Array, ""]:
        return 0.5 * z @ z - local.log_likelihood(z)

    def step(search: _Search) -> _Search:
        precision, score = local.precision_and_score(search.z)
        tril = cholesky(precision + (1.0 + search.damping) * identity)
        inverse_tril = solve_lower(tril, identity)
        move = inverse_tril @ (search.z - score)  # in posterior standard deviations
        z = search.z - inverse_tril.T @ move
        new = objective(z)
        rounding = 4 * eps * (1.0 + jnp.abs(search.objective))
        accept = new <= search.objective + rounding
        no_gain = 0.5 * jnp.sum(move**2) <= rounding
        small = jnp.max(jnp.abs(move)) <= _small_step(z.dtype) + 64 * eps * jnp.max(jnp.abs(z))
        undamped = search.damping == 0
        lower = jnp.where(search.damping < 1e-2, 0.0, search.damping * 0.05)
        higher = jnp.maximum(search.damping * 10.0, 1.0)
        return _Search(
            jnp.where(accept, z, search.z),
            jnp.where(accept, new, search.objective),
            jnp.where(accept, lower, higher),
            undamped & (small | no_gain),
            search.num_iterations + 1,
        )

    def going_on(search: _Search) -> Bool[Array, ""]:
        return ~search.converged & (search.num_iterations < MAX_ITERATIONS)

    zero = jnp.zeros((), start.dtype)
    first = _Search(start, objective(start), zero, jnp.array(False), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(going_on, step, first)


def _small_step(dtype: jnp.dtype) -> float:
    """A Newton step, in posterior standard deviations, after which the error is near rounding."""
    return float(jnp.finfo(dtype).eps) ** 0.375


def _capacity_for(num_rows: int) -> int:
    """The power of two, at least MIN_CAPACITY, that holds `num_rows` rows."""
    return max(MIN_CAPACITY, 1 << max(num_rows - 1, 0).bit_length())


def _refuse(rewards: np.ndarray, bad: np.ndarray, expected: str, fix: str) -> None:
    if np.any(bad):
        first = rewards[np.argmax(bad)]
        raise ValueError(f"`rewards`: expected {expected}, got {first:g}; {fix}")
