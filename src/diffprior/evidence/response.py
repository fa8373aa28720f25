"""Responses beyond generalized linear models: eta is any differentiable function of parameters."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from ..checks import on_device, positive_int
from ..files.base import NotDefinedHere, Serializable
from ..gaussian import Gaussian
from ..linalg import cholesky, solve_lower
from .approximate import Expansion, average, find_mode, laplace
from .base import AbstractEvidence, AbstractLikelihood, Rows, Sums, products, sum_over_rows
from .families import Identity
from .glm import AbstractFamily, GLMEvidence
from .linear import Linear

Function = Callable[[Float[Array, " d"], Float[Array, " p"]], Float[Array, ""]]
MAX_STEPS = 64  # of the search for a mode
_FUNCTIONS: dict[str, Function] = {}  # by the names that files hold
_RESPONSES: dict[str, "Response"] = {}  # likewise, for the service


@dataclasses.dataclass(frozen=True)
class NamedFunction(Serializable):
    """A function of parameters (d,) and features (p,), of which files hold the name, never code."""

    fn: Function
    name: str | None

    def __post_init__(self) -> None:
        if not callable(self.fn):
            raise ValueError(
                f"`fn`: expected a function of parameters and features, got {self.fn!r:.60}; "
                "pass lambda theta, x: x @ theta, or any other that JAX differentiates"
            )
        if self.name is not None:
            _FUNCTIONS[self.name] = self.fn

    def crossed(
        self, thetas: Float[np.ndarray, "m d"], x: Float[np.ndarray, "k p"]
    ) -> Float[np.ndarray, "m k"]:
        """Eta of every action under every one of several parameters; programs of few sizes."""
        etas = _crossed(self.fn, _filled(thetas), _filled(x))
        return np.asarray(etas)[: len(thetas), : len(x)]

    def paired(
        self, thetas: Float[np.ndarray, "k d"], x: Float[np.ndarray, "r p"]
    ) -> Float[np.ndarray, " k"]:
        """Eta of every item, of its own parameters and one row of features for all or for each."""
        rows = np.broadcast_to(x, (len(thetas), x.shape[1]))
        return np.asarray(_paired(self.fn, _filled(thetas), _filled(rows)))[: len(thetas)]

    @classmethod
    def file_hints(cls) -> dict[str, object]:
        return {"name": str | None}

    @classmethod
    def from_fields(cls, fields: dict[str, object]) -> "NamedFunction":
        name = str(fields["name"])
        if name not in _FUNCTIONS:
            raise _not_defined(name)
        return cls(_FUNCTIONS[name], name)

    def validate(self) -> None:
        if self.name is None:
            raise ValueError(
                "`name`: expected a name for the response function, got None; pass "
                "Response(fn, family, name=...), since files hold no code"
            )


def _not_defined(name: str) -> NotDefinedHere:
    return NotDefinedHere(
        f"names a response function {name!r:.80} that is not defined here; construct "
        f"Response(fn, family, name={name!r:.80}) first, or import the module that does"
    )


@functools.partial(jax.jit, static_argnums=0)
def _crossed(fn: Function, thetas: Float[Array, "m d"], x: Float[Array, "k p"]) -> Array:
    return jax.vmap(jax.vmap(fn, (None, 0)), (0, None))(thetas, x)


@functools.partial(jax.jit, static_argnums=0)
def _paired(fn: Function, thetas: Float[Array, "k d"], x: Float[Array, "k p"]) -> Array:
    return jax.vmap(fn)(thetas, x)


def _filled(rows: np.ndarray) -> np.ndarray:
    """Rows, the last repeated up to 8, 32, 128, ... of them, so that programs have few sizes."""
    size = 8
    while size < len(rows):
        size *= 4
    return np.pad(rows, [(0, size - len(rows)), (0, 0)], mode="edge")


class Response(AbstractLikelihood):
    """Rewards of a `family` given eta = fn(theta, x), any function that JAX can differentiate.

    The case fn(theta, x) = x @ theta is a generalized linear model, for which the family alone is
    faster.

    Args:
        fn: Function of parameters (d,) and the features of one action (p,), in JAX; a number.
            Define it once, at the top of a module: programs are compiled for each function anew.
        family: `Linear(noise_std)`, `Logistic()` or any other family.
        dim: Number of parameters d, and `num_features` that of features p of an action; None, the
            default of both, if these are the same number.
        num_features: See `dim`.
        name: By which files refer to `fn`, in every process that constructs a response of this
            name; of two, the later one. None if it will not be saved.
    """

    family: AbstractFamily
    function: NamedFunction = eqx.field(static=True)
    shape: tuple[int, int] | None = eqx.field(static=True)  # d and p

    def __init__(
        self,
        fn: Function,
        family: object,
        *,
        dim: int | None = None,
        num_features: int | None = None,
        name: str | None = None,
    ) -> None:
        if isinstance(family, Linear):
            if family.noise_std is None:
                raise ValueError("`family`: expected known noise, got none; pass Linear(noise_std)")
            family = Identity(family.noise_std)
        if not isinstance(family, AbstractFamily):
            raise ValueError(
                f"`family`: expected a family of rewards, got {type(family).__name__}; pass "
                "Linear(noise_std), Logistic() or Poisson()"
            )
        self.family, self.function = family, NamedFunction(fn, name)
        if (dim is None) != (num_features is None):
            raise ValueError(
                f"`dim`, `num_features`: expected both or neither, got {dim} and {num_features}; "
                "pass the numbers of parameters and of features"
            )
        self.shape = None
        if dim is not None:
            self.shape = positive_int("dim", dim), positive_int("num_features", num_features)
        if name is not None:
            _RESPONSES[name] = self

    def __repr__(self) -> str:
        fn = self.function.fn
        return f"Response({getattr(fn, '__name__', fn)}, {self.family!r})"

    @staticmethod
    def registered(name: str, options: Mapping[str, float]) -> "Response":
        """The response of a `name` that was constructed in this process, its family with these
        `options`, such as noise_std.
        """
        if name not in _RESPONSES:
            raise _not_defined(name)
        found = _RESPONSES[name]
        return eqx.tree_at(lambda one: one.family, found, type(found.family)(**options))

    def num_features(self, dim: int) -> int:
        return self.shape[1] if self.shape else dim

    def num_parameters(self, num_features: int) -> int:
        return self.shape[0] if self.shape else num_features

    def predictors(
        self, theta: Float[Array, " d"], features: Float[Array, "k p"]
    ) -> Float[Array, " k"]:
        return jax.vmap(self.function.fn, (None, 0))(theta, features)

    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return self.family.mean(eta)

    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        return self.family.log_density(y, eta)

    def sample(self, key: Array, eta: Float[Array, "..."]) -> Float[Array, "..."]:
        return self.family.sample(key, eta)

    def check_rewards(self, rewards: np.ndarray) -> None:
        self.family.check_rewards(rewards)

    def empty(self, dim: int, capacity: int = 0) -> "ResponseEvidence":
        if self.shape and self.shape[0] != dim:
            raise ValueError(
                f"`dim`: expected {self.shape[0]} parameters as in the response, got {dim}; pass a "
                "prior of as many"
            )
        rows = self.family.empty(self.num_features(positive_int("dim", dim)), capacity)
        offset, scale = on_device(np.zeros(dim)), on_device(np.eye(dim))
        return ResponseEvidence(rows, offset, scale, self.function)


def response_of(likelihood: AbstractLikelihood) -> NamedFunction | None:
    """The function of a response; None where eta is linear in the parameters."""
    return likelihood.function if isinstance(likelihood, Response) else None


class ResponseEvidence(AbstractEvidence):
    """Rows of a response: eta = fn(offset + scale theta, x) for each row x.

    Its Gaussian expansions are those of the statistical linear regression of every eta on theta.

    Attributes:
        rows: Features, rewards and weights.
        offset: (d,).
        scale: (d, d).
        function: The function and its name.
    """

    rows: GLMEvidence
    offset: Float[Array, " d"]
    scale: Float[Array, "d d"]
    function: NamedFunction = eqx.field(static=True)

    @property
    def family(self) -> AbstractFamily:
        """Distribution of the rewards given eta."""
        return self.rows.family

    @property
    def dim(self) -> int:
        return self.offset.shape[0]

    @property
    def num_features(self) -> int:
        return self.rows.dim

    @property
    def capacity(self) -> int:
        """As of `GLMEvidence`."""
        return self.rows.capacity

    @property
    def quadratic(self) -> bool:
        return False

    @eqx.filter_jit
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        """Laplace's approximation with the Gauss-Newton curvature, about the mode that a damped
        search finds from the best of the mean and points one or two deviations around it, or the
        best point of 64 steps: Gauss-Newton can be slow where eta curves.
        """
        tril = cholesky(gaussian.cov)
        local = self.reparameterize(gaussian.mean, tril)
        starts, _ = sigma_points(jnp.zeros_like(gaussian.mean), jnp.eye(self.dim, dtype=tril.dtype))
        if start is not None:
            z = solve_lower(tril, (start - gaussian.mean)[:, None])[:, 0]
            starts = jnp.clip(z, -30.0, 30.0)[None]
        result = laplace(gaussian.mean, tril, find_mode(local.expand_at, starts, MAX_STEPS))
        return result.posterior, result.log_evidence

    def expand_at(self, theta: Float[Array, " d"]) -> Expansion:
        """Log p(h | theta) at `theta` (d,), its Gauss-Newton curvature, and its gradient."""

        def rows(x: Array, y: Array, w: Array, _: Array) -> Expansion:
            eta, slope = self._at(theta, x, w)
            value = self.family.log_density(y, eta)
            score, curvature = self.family.slopes(y, eta)
            value = jnp.where(w > 0, value, 0.0)
            return Expansion(w @ value, (w * curvature) @ products(slope), (w * score) @ slope)

        found = self._sum(rows)
        return found._replace(precision=found.precision.reshape(self.dim, self.dim))

    @eqx.filter_jit
    def expand(self, belief: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Expected curvature and score over theta ~ N(m, C), by way of every row's eta.

        On average over the belief, eta = a' theta + b + e, where the slope a is the mean gradient
        and e what is not linear in theta. With curvature c and score s of the family, averaged over
        eta, and e ~ N(0, r) integrated out, a row adds the precision a a' c / (1 + c r) and the
        score a s / (1 + c r). Of a generalized linear model, r is zero.

        References:
            Garcia-Fernandez, Svensson, Morelande and Sarkka, Posterior linearization filter (2015).
        """

        def rows(x: Array, y: Array, w: Array, _: Array) -> tuple[Array, Array]:
            mean, slope, linear, rest = self._regression(belief, x, w)
            slopes = functools.partial(self.family.slopes, y)
            score, curvature = average(slopes, mean, linear + rest)
            share = w / (1.0 + curvature * rest)
            return (share * curvature) @ products(slope), (share * score) @ slope

        flat, score = self._sum(rows)
        precision = flat.reshape(self.dim, self.dim)
        return precision, precision @ belief.mean + score

    @eqx.filter_jit
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        def rows(x: Array, y: Array, w: Array, _: Array) -> Array:
            eta = jnp.where(w > 0, jax.vmap(self._eta, (None, 0))(theta, x), 0.0)
            return w @ jnp.where(w > 0, self.family.log_density(y, eta), 0.0)

        return self._sum(rows)

    @eqx.filter_jit
    def expected_log_likelihood(self, belief: Gaussian) -> Float[Array, ""]:
        def rows(x: Array, y: Array, w: Array, _: Array) -> Array:
            mean, _, linear, rest = self._regression(belief, x, w)
            density = self.family.log_density
            (values,) = average(lambda eta: (density(y, eta),), mean, linear + rest)
            return w @ jnp.where(w > 0, values, 0.0)

        return self._sum(rows)

    @eqx.filter_jit
    def squared_error(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """Sum (y - g(eta))^2 over the history at `theta`, and its gradient (d,)."""

        def rows(x: Array, y: Array, w: Array, _: Array) -> tuple[Array, Array]:
            eta, slope = self._at(theta, x, w)
            mean, rise = jax.jvp(self.family.mean, (eta,), (jnp.ones_like(eta),))
            return w @ (y - mean) ** 2, (-2.0 * w * (y - mean) * rise) @ slope

        return self._sum(rows)

    def _eta(self, theta: Float[Array, " d"], x: Float[Array, " p"]) -> Float[Array, ""]:
        return jnp.reshape(self.function.fn(self.offset + self.scale @ theta, x), ())

    def _at(
        self, theta: Float[Array, " d"], x: Float[Array, "n p"], w: Float[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        """Eta of every row and its gradient; of rows that do not count, zero."""
        eta, slope = jax.vmap(jax.value_and_grad(self._eta), (None, 0))(theta, x)
        return jnp.where(w > 0, eta, 0.0), jnp.where(w[:, None] > 0, slope, 0.0)

    def _regression(
        self, belief: Gaussian, x: Float[Array, "n p"], w: Float[Array, " n"]
    ) -> tuple[Float[Array, " n"], Float[Array, "n d"], Float[Array, " n"], Float[Array, " n"]]:
        """Of every row under a belief: mean and mean gradient of eta, and its variance, of what is
        linear in theta and of the rest.
        """
        tril = cholesky(belief.cov)
        thetas, masses = sigma_points(belief.mean, tril)
        etas, slopes = jax.vmap(self._at, (0, None, None))(thetas, x, w)
        mean, slope = masses @ etas, jnp.einsum("m,mnd->nd", masses, slopes)
        linear = jnp.sum((slope @ tril) ** 2, axis=1)
        return mean, slope, linear, jnp.maximum(masses @ (etas - mean[None]) ** 2 - linear, 0.0)

    def _sum(self, rows: Callable[..., Sums]) -> Sums:
        return sum_over_rows(rows, self.rows.columns, self.rows.num_rows)

    def temper(self, temperature: ArrayLike) -> "ResponseEvidence":
        return dataclasses.replace(self, rows=self.rows.temper(temperature))

    def reparameterize(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "ResponseEvidence":
        moved = self.offset + self.scale @ offset
        return dataclasses.replace(self, offset=moved, scale=self.scale @ scale)

    def check_rewards(self, rewards: np.ndarray) -> None:
        self.rows.check_rewards(rewards)

    def add(
        self, features: Float[Rows, "n p"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "ResponseEvidence":
        return dataclasses.replace(self, rows=self.rows.add(features, rewards, weights))

    def put(
        self, features: Float[Rows, "n p"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "ResponseEvidence":
        return dataclasses.replace(self, rows=self.rows.put(features, rewards, weights))

    def bounded(self, max_rows: int, prior: Gaussian) -> "ResponseEvidence":
        """The evidence with equal rows merged, which loses nothing; a ValueError if those are too
        many, since a Gaussian term in place of rows would.
        """
        held = self.rows.distinct()
        if int(held.num_rows) > max_rows:
            raise ValueError(
                f"`max_rows`: expected at most {max_rows} different rows of a response, got "
                f"{int(held.num_rows)}; raise it, or start a new task"
            )
        return dataclasses.replace(self, rows=held)

    def with_capacity(self, capacity: int) -> "ResponseEvidence":
        return dataclasses.replace(self, rows=self.rows.with_capacity(capacity))


def sigma_points(
    mean: Float[Array, " d"], tril: Float[Array, "d d"]
) -> tuple[Float[Array, "m d"], Float[Array, " m"]]:
    """Points of N(mean, tril tril') and their masses, which give means of cubic functions: the mean
    first, and two along each column.
    """
    d = mean.shape[0]
    squared = max(3, d)  # at most 3, two nodes of Gauss and Hermite; beyond, without negative mass
    steps = jnp.sqrt(jnp.asarray(squared, tril.dtype)) * tril.T
    masses = np.full(1 + 2 * d, 0.5 / squared)
    masses[0] = 1.0 - d / squared
    points = mean[None] + jnp.concatenate([jnp.zeros_like(mean)[None], steps, -steps])
    return points, jnp.asarray(masses, tril.dtype)
