"""Gaussian approximations of p(z | h) under the prior N(0, I): Laplace's, and the variational one.

Each is stated once, for one history in JAX, where callers `vmap`, and for any number of them in
NumPy, along leading axes.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..gaussian import Gaussian
from ..linalg import AnyArray, cholesky, log_det_from_tril, numpy_of, solve_lower, times_each

MAX_NEWTON_STEPS = 500
VARIATIONAL_STEPS = 8
DAMPING = 0.7  # of the variational steps; undamped ones oscillate where predictors vary widely
NODES = 3  # of Gauss-Hermite quadrature: E exp(eta) is 5 % low at a standard deviation of 1.5
_PLACES, _MASSES = np.polynomial.hermite_e.hermegauss(NODES)
_MASSES /= _MASSES.sum()

Natural = tuple[Float[AnyArray, "*k d d"], Float[AnyArray, "*k d"]]  # precision and shift
Values = TypeVar("Values")  # an array, or a tree of arrays


def average(
    function: Callable[[AnyArray], tuple[AnyArray, ...]],
    mean: Float[AnyArray, "*k n"],
    variance: Float[AnyArray, "*k n"],
) -> tuple[AnyArray, ...]:
    """The means of `function(eta)` over independent eta ~ N(mean, variance), each on its own."""
    xp = numpy_of(mean)
    std = xp.sqrt(xp.maximum(variance, 0.0))
    places, masses = (xp.asarray(a, std.dtype) for a in (_PLACES, _MASSES))
    if xp is np:
        values = function(mean + places.reshape(-1, *[1] * std.ndim) * std)
    else:
        values = jax.vmap(lambda place: function(mean + place * std))(places)
    return tuple((masses @ v.reshape(NODES, -1)).reshape(v.shape[1:]) for v in values)


class Expansion(NamedTuple):
    """Log p(h | z) at a point, minus its second derivative there, and the first."""

    value: Float[AnyArray, "*k"]
    precision: Float[AnyArray, "*k d d"]
    score: Float[AnyArray, "*k d"]


class ModeSearch(NamedTuple):
    """State of the damped Newton search for the mode."""

    z: Float[AnyArray, "*k d"]
    at: Expansion  # of log p(h | z)
    damping: Float[AnyArray, "*k"]
    converged: Bool[AnyArray, "*k"]
    num_iterations: Int[AnyArray, ""]

    @property
    def objective(self) -> Float[AnyArray, "*k"]:
        """The function to minimize."""
        return _objective(self.z, self.at)

    def hessian_tril(self) -> Float[AnyArray, "*k d d"]:
        """The Cholesky factor of the second derivative of the objective."""
        return cholesky(_identity(self.z) + self.at.precision)

    def found(self, hessian_tril: Float[AnyArray, "*k d d"]) -> Bool[AnyArray, "*k"]:
        """Whether this is the mode, or within a few posterior deviations' rounding of it."""
        xp = numpy_of(self.z)
        left = solve_lower(hessian_tril, (self.z - self.at.score)[..., None])[..., 0]
        return self.converged | (xp.max(xp.abs(left), -1) <= 8 * small_step(self.z.dtype))


def first_guesses(
    precision: Float[AnyArray, "*k d d"], shift: Float[AnyArray, "*k d"]
) -> Float[AnyArray, "2 *k d"]:
    """Where to begin a search: at zero, and at the mean given Gaussian evidence."""
    xp, identity = numpy_of(shift), _identity(shift)
    inverse_tril = solve_lower(cholesky(identity + precision), identity)
    guess = times_each(inverse_tril.swapaxes(-1, -2), times_each(inverse_tril, shift))
    zero = xp.zeros_like(guess)
    return xp.stack([zero, _where(xp.all(xp.isfinite(guess), -1), guess, zero)])


def find_mode(
    expand: Callable[[AnyArray], Expansion],
    starts: Float[AnyArray, "m *k d"],
    max_steps: int = MAX_NEWTON_STEPS,
) -> ModeSearch:
    """Minimize |z|^2 / 2 - log p(h | z) from the best of the starts."""
    xp = numpy_of(starts)
    at = (expand if xp is np else jax.vmap(expand))(starts)
    height = _objective(starts, at)
    height = xp.where(xp.isfinite(height), height, xp.inf)
    best = xp.argmin(height, axis=0)
    z, *parts = (_nth(best, a) for a in (starts, *at))
    zero = xp.zeros_like(height[0])
    search = ModeSearch(z, Expansion(*parts), zero, zero > 0, xp.zeros((), xp.int32))

    def step(search: ModeSearch) -> ModeSearch:
        return _newton_step(expand, search)

    def going_on(search: ModeSearch) -> Bool[AnyArray, ""]:
        return ~search.converged.all() & (search.num_iterations < max_steps)

    if xp is not np:
        return jax.lax.while_loop(going_on, step, search)
    while going_on(search):
        search = step(search)
    return search


def _newton_step(expand: Callable[[AnyArray], Expansion], search: ModeSearch) -> ModeSearch:
    """One step, damped further if it did not descend (Levenberg and Marquardt)."""
    xp, dtype = numpy_of(search.z), search.z.dtype
    identity, eps = _identity(search.z), xp.finfo(dtype).eps
    tril = cholesky(search.at.precision + (1.0 + search.damping)[..., None, None] * identity)
    inverse_tril = solve_lower(tril, identity)
    move = times_each(inverse_tril, search.z - search.at.score)  # in posterior standard deviations
    z = search.z - times_each(inverse_tril.swapaxes(-1, -2), move)
    new, objective = expand(z), search.objective
    rounding = 4 * eps * (1.0 + xp.abs(objective))
    accept = _objective(z, new) <= objective + rounding
    no_gain = 0.5 * xp.sum(move**2, -1) <= rounding
    largest = xp.max(xp.abs(z), -1)
    small = xp.max(xp.abs(move), -1) <= small_step(dtype) + 64 * eps * largest
    lower = xp.where(search.damping < 1e-2, 0.0, search.damping * 0.05)
    higher = xp.maximum(search.damping * 10.0, 1.0)
    pairs = zip((z, *new), (search.z, *search.at), strict=True)
    z, *parts = (_where(accept, ours, theirs) for ours, theirs in pairs)
    return ModeSearch(
        z,
        Expansion(*parts),
        xp.where(accept, lower, higher),
        search.converged | ((search.damping == 0) & (small | no_gain)),
        search.num_iterations + 1,
    )


def small_step(dtype: np.dtype) -> float:
    """A Newton step, in posterior standard deviations, after which the error is near rounding."""
    return float(jnp.finfo(dtype).eps) ** 0.375


def _objective(z: Float[AnyArray, "*k d"], at: Expansion) -> Float[AnyArray, "*k"]:
    return 0.5 * numpy_of(z).sum(z**2, -1) - at.value


def _identity(like: Float[AnyArray, "*k d"]) -> Float[AnyArray, "d d"]:
    return numpy_of(like).eye(like.shape[-1], dtype=like.dtype)


def _nth(place: AnyArray, arrays: AnyArray) -> AnyArray:
    """At each place the one of several arrays that it names."""
    if isinstance(arrays, np.ndarray):  # where taking along an axis is slow
        found = arrays[0]
        for i in range(1, len(arrays)):
            found = _where(place == i, arrays[i], found)
        return found
    wide = place.reshape(1, *place.shape, *[1] * (arrays.ndim - 1 - place.ndim))
    return jnp.take_along_axis(arrays, wide, 0)[0]


def _where(mask: AnyArray, ours: AnyArray, theirs: AnyArray) -> AnyArray:
    """As `where`, of arrays that may have axes more than the mask."""
    wide = mask.reshape(mask.shape + (1,) * (ours.ndim - mask.ndim))
    return numpy_of(ours).where(wide, ours, theirs)


class Laplace(NamedTuple):
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


class Variational(NamedTuple):
    """N(mean, factor factor'), the log determinant of its covariance, and a bound on log p(h)."""

    mean: Float[AnyArray, "*k d"]
    factor: Float[AnyArray, "*k d d"]
    log_det: Float[AnyArray, "*k"]
    bound: Float[AnyArray, "*k"]


def fit_variational(
    mode: Float[AnyArray, "*k d"],
    expand: Callable[[AnyArray, AnyArray], Natural],
    expected: Callable[[AnyArray, AnyArray], AnyArray],
) -> Variational:
    """The Gaussian q of least KL(q, posterior).

    A few steps of the fixed-point iteration q <- prior times the expansion of the likelihood under
    q, from the mode on.

    Args:
        mode: Of the posterior.
        expand: Precision and shift of the likelihood, given a mean and a covariance.
        expected: Average of log p(h | z), likewise.

    References:
        Opper and Archambeau, The variational Gaussian approximation revisited (2009), Eqs. 8, 9;
        here the averages are by quadrature over each row's linear predictor.
    """
    xp, identity = numpy_of(mode), _identity(mode)
    State = tuple[AnyArray, AnyArray, AnyArray, AnyArray]  # q, and the expansion that it is from

    def step(number: int | Int[Array, ""], state: State) -> State:
        mean, factor, *old = state
        new = expand(mean, factor @ factor.swapaxes(-1, -2))
        share = xp.where(number == 0, 1.0, DAMPING).astype(mode.dtype)
        precision, shift = (a + share * (b - a) for a, b in zip(old, new, strict=True))
        half = solve_lower(cholesky(identity + precision), identity)
        factor = half.swapaxes(-1, -2)
        return times_each(factor, times_each(half, shift)), factor, precision, shift

    flat = xp.zeros_like(mode[..., None] * identity)
    state: State = (mode, flat, flat, xp.zeros_like(mode))
    if xp is np:
        for number in range(VARIATIONAL_STEPS):
            state = step(number, state)
    else:
        state = jax.lax.fori_loop(0, VARIATIONAL_STEPS, step, state)
    mean, factor, *_ = state
    log_det = log_det_from_tril(factor)
    squares = xp.sum(mean**2, -1) + xp.sum(factor**2, (-1, -2))
    divergence = 0.5 * (squares - log_det - mean.shape[-1])
    bound = expected(mean, factor @ factor.swapaxes(-1, -2)) - divergence
    return Variational(mean, factor, log_det, bound)
