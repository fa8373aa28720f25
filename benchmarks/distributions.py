"""Distributions of parameters whose posteriors can be drawn exactly: what samplers are scored on.

Features are uniform in the unit ball; rewards are linear with unit noise, or logistic. `clusters`,
`blocks` and `sheet` exist in any (even) number of dimensions; the shapes of the plane are those of
Section 6.2.
"""

import abc
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import diffprior as dp
from diffprior.problems.synthetic import BOX, MIXTURES, SYNTHETIC

from .exact_draws import in_blocks, in_latent_space, in_the_plane, of_a_mixture

NUM_ATOMS = 2**18  # draws that are weighted
NUM_PROPOSALS = 2**14  # draws about the components of a mixture that are weighted
BLOCK_ATOMS = 2048  # of each block
SHEET_NOISE, SHEET_LATENT = 0.1, 4
LIKELIHOODS: dict[str, Callable[[], dp.AbstractLikelihood]] = {
    "linear": lambda: dp.Linear(noise_std=1.0),
    "logistic": dp.Logistic,
}


Points = Float[Array, "n 2"]


def log_density(name: str, points: Points) -> Float[Array, " n"]:
    """Log density of the shape called `name` at each point; -inf outside of it."""
    return _LOG_DENSITIES[name](points)


def _swirl(points: Points) -> Float[Array, " n"]:
    """(u, v) is uniform; r = u (4 - v) at the angle 2 pi u gives 1 / (2 pi r u)."""
    x, y = points[:, 0] - 1.0, points[:, 1] + 1.0
    u = jnp.mod(jnp.arctan2(x, y) / (2 * np.pi), 1.0)
    r = jnp.hypot(x, y)
    inside = (r >= 3.0 * u) & (r <= 4.0 * u) & (u > 0)
    return jnp.where(inside, -jnp.log(2 * np.pi * jnp.where(inside, r * u, 1.0)), -jnp.inf)


def _uniform(
    inside: Callable[[Array, Array], Array], area: float
) -> Callable[[Points], Float[Array, " n"]]:
    """Of a part of the box [-3, 3]^2."""

    def log_density(points: Points) -> Float[Array, " n"]:
        x, y = points.T
        boxed = jnp.maximum(jnp.abs(x), jnp.abs(y)) <= BOX
        return jnp.where(boxed & inside(x, y), -np.log(area), -jnp.inf)

    return log_density


def _in_rays(x: Array, y: Array) -> Array:
    radius = jnp.hypot(x, y)
    return (radius < BOX) & (jnp.maximum(jnp.abs(x), jnp.abs(y)) > 0.95 * radius)


def _in_triangles(x: Array, y: Array) -> Array:
    return jnp.abs(y) < jnp.where(x > 0, x, -x / 3.0)


def _in_h(x: Array, y: Array) -> Array:
    return (jnp.abs(x) > 2.5) | (jnp.abs(y) < 0.25)


def _in_corners(x: Array, y: Array) -> Array:
    low, high = jnp.minimum(jnp.abs(x), jnp.abs(y)), jnp.maximum(jnp.abs(x), jnp.abs(y))
    return (high > 2.5) & (low > 1.0)


_LOG_DENSITIES: dict[str, Callable[[Points], Float[Array, " n"]]] = {
    "rays": _uniform(_in_rays, 4.0 * float(np.arccos(0.95)) * BOX**2),
    "triangles": _uniform(_in_triangles, 12.0),
    "swirl": _swirl,
    "H": _uniform(_in_h, 8.5),
    "corners": _uniform(_in_corners, 4.0 * (0.5 * 2.0 + 1.5 * 0.5)),
}
SHAPES = tuple(_LOG_DENSITIES)


class Tasks(NamedTuple):
    """Tasks of a distribution: true parameters, and the evidence of random actions."""

    thetas: Float[np.ndarray, "b d"]
    evidence: dp.AbstractEvidence  # every array with a leading axis of b tasks


class AbstractDistribution(abc.ABC):
    """A distribution of parameters, and exact draws of its posteriors."""

    dim: int

    @abc.abstractmethod
    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        """Independent draws."""

    @abc.abstractmethod
    def posterior(self, seed: int, tasks: Tasks, num_draws: int) -> Float[np.ndarray, "b m d"]:
        """Exact draws given each task's evidence; a chain may start at the tasks' true parameters,
        since they are draws of the posterior themselves."""

    def tasks(
        self, num_observations: int, count: int, seed: int, likelihood: str = "linear"
    ) -> Tasks:
        """True parameters, and the evidence of random actions."""
        rng = np.random.default_rng([seed, num_observations, 5])
        thetas = self.sample(9000 + seed, count)
        features = unit_ball(rng, (count, num_observations), self.dim)
        predictors = np.einsum("bni,bi->bn", features, thetas)
        if likelihood == "linear":
            rewards = predictors + rng.standard_normal(predictors.shape)
            precision = np.einsum("bni,bnj->bij", features, features)
            shift = np.einsum("bni,bn->bi", features, rewards)
            make = jax.vmap(dp.LinearEvidence.from_natural)
            return Tasks(thetas, make(_floats(precision), _floats(shift)))
        family = LIKELIHOODS[likelihood]()
        rewards = family.sample(jax.random.key(seed), _floats(predictors))

        def rows(features: Array, rewards: Array) -> dp.AbstractEvidence:
            empty = family.empty(self.dim, num_observations)
            return empty.add(features, rewards, jnp.ones_like(rewards))

        return Tasks(thetas, jax.vmap(rows)(_floats(features), rewards))


class MixtureDistribution(AbstractDistribution):
    """A Gaussian mixture, whose posterior under linear evidence is one."""

    def __init__(self, prior: dp.MixturePrior) -> None:
        self.prior, self.dim = prior, prior.dim

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        return np.asarray(self.prior.sample(jax.random.key(seed), num_samples), np.float64)

    def posterior(self, seed: int, tasks: Tasks, num_draws: int) -> Float[np.ndarray, "b m d"]:

        def one(key: Key[Array, ""], evidence: dp.AbstractEvidence) -> Float[Array, "m d"]:
            if evidence.quadratic:
                return self.prior.posterior(evidence)[0].sample(key, num_draws)
            return of_a_mixture(key, self.prior, evidence, NUM_PROPOSALS, num_draws)[0]

        return _each_task(one, seed, tasks.evidence)


class ShapeDistribution(AbstractDistribution):
    """A shape in the plane, by its density."""

    def __init__(self, name: str) -> None:
        self.name, self.problem, self.dim = name, dp.synthetic(name), 2

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        draws = self.problem.sample_parameters(jax.random.key(seed), num_samples)
        return np.asarray(draws, np.float64)

    def posterior(self, seed: int, tasks: Tasks, num_draws: int) -> Float[np.ndarray, "b m d"]:
        atoms = _floats(self.sample(77_000 + seed, NUM_ATOMS))

        def one(key: Key[Array, ""], precision: Array, shift: Array) -> Float[Array, "m d"]:
            log_prior = functools.partial(log_density, self.name)
            return in_the_plane(key, log_prior, atoms, precision, shift, num_draws)[0]

        return _each_task(one, seed, *_natural(tasks))


class BlockDistribution(AbstractDistribution):
    """Independent shapes in the plane, rotated together. Exact by Gibbs sampling over the shapes:
    half of the chains start at the true parameters, half at draws of the prior."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        normal = np.random.default_rng(11).standard_normal((dim, dim))
        self.rotation = np.linalg.qr(normal)[0]

    def _shapes(self, seed: int, num_samples: int) -> Float[np.ndarray, "blocks n 2"]:
        keys = jax.random.split(jax.random.key(seed), self.dim // 2)
        shapes = [dp.synthetic(SYNTHETIC[i % len(SYNTHETIC)]) for i in range(self.dim // 2)]
        drawn = [s.sample_parameters(k, num_samples) for s, k in zip(shapes, keys, strict=True)]
        return np.stack([np.asarray(part, np.float64) for part in drawn])

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        return np.concatenate(list(self._shapes(seed, num_samples)), axis=1) @ self.rotation.T

    def posterior(self, seed: int, tasks: Tasks, num_draws: int) -> Float[np.ndarray, "b m d"]:
        q = self.rotation
        start = np.repeat((tasks.thetas @ q)[:, None], num_draws, axis=1)
        free = self.sample(55_000 + seed, start[:, ::2].size // self.dim) @ q
        start[:, ::2] = free.reshape(start[:, ::2].shape)
        atoms, turn = _floats(self._shapes(66_000 + seed, BLOCK_ATOMS)), _floats(q)

        def one(key: Key[Array, ""], precision: Array, shift: Array, start: Array) -> Array:
            return in_blocks(key, atoms, turn.T @ precision @ turn, shift @ turn, start)

        return _each_task(one, seed, *_natural(tasks), _floats(start)) @ q.T


class SheetDistribution(AbstractDistribution):
    """A curved sheet with a little noise: 1.5 tanh(1.3 tanh(z W_1) W_2) + 0.1 noise. Exact by
    chains of z, with the noise integrated out."""

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(21)
        self.dim = dim
        self.first = 1.5 * rng.standard_normal((SHEET_LATENT, 32)) / np.sqrt(SHEET_LATENT)
        self.second = 2.0 * rng.standard_normal((32, dim)) / np.sqrt(32)

    def _surface(self, z: Any) -> Any:
        first, second = (jnp.asarray(w, z.dtype) for w in (self.first, self.second))
        return 1.5 * jnp.tanh(1.3 * jnp.tanh(z @ first) @ second)

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        rng = np.random.default_rng([seed, 8])
        z = rng.standard_normal((num_samples, SHEET_LATENT))
        surface = 1.5 * np.tanh(1.3 * np.tanh(z @ self.first) @ self.second)
        return surface + SHEET_NOISE * rng.standard_normal(surface.shape)

    def posterior(self, seed: int, tasks: Tasks, num_draws: int) -> Float[np.ndarray, "b m d"]:
        rng = np.random.default_rng([seed, 9])
        atoms = _floats(rng.standard_normal((NUM_ATOMS, SHEET_LATENT)))
        precision, shift = (np.asarray(part, np.float64) for part in _natural(tasks))
        cov = np.linalg.inv(precision + np.eye(self.dim) / SHEET_NOISE**2)
        gain = precision @ cov
        marginal = (precision - gain @ precision, shift - np.einsum("bij,bj->bi", gain, shift))

        def one(key: Key[Array, ""], precision: Array, shift: Array) -> Float[Array, "m d"]:
            def log_likelihood(z: Float[Array, "n k"]) -> Float[Array, " n"]:
                s = self._surface(z)
                return s @ shift - 0.5 * jnp.sum((s @ precision) * s, axis=1)

            return self._surface(in_latent_space(key, log_likelihood, atoms, num_draws))

        at = _each_task(one, seed, *(_floats(part) for part in marginal))
        left = shift[:, None] - np.einsum("bij,bmj->bmi", precision, at)
        noise = np.einsum("bij,bmj->bmi", np.linalg.cholesky(cov), rng.standard_normal(at.shape))
        return at + np.einsum("bij,bmj->bmi", cov, left) + noise


def unit_ball(rng: np.random.Generator, shape: tuple[int, ...], dim: int) -> np.ndarray:
    """Points uniform in the unit ball (*shape, dim)."""
    normal = rng.standard_normal((*shape, dim))
    radius = rng.random((*shape, 1)) ** (1 / dim)
    return radius * normal / np.linalg.norm(normal, axis=-1, keepdims=True)


def clusters(dim: int, count: int = 10) -> dp.MixturePrior:
    """Round clusters of standard deviation 0.3."""
    means = 1.5 * np.random.default_rng(3).standard_normal((count, dim))
    return dp.MixturePrior(np.ones(count), means, np.tile(0.09 * np.eye(dim), (count, 1, 1)))


def distribution(name: str, likelihood: str = "linear") -> AbstractDistribution:
    """Look up clusters-D, blocks-D, sheet-D, mixture-NAME or a shape by name.

    Posteriors are exact under linear rewards; of mixtures under logistic ones too.
    """
    kind, _, which = name.partition("-")
    if name == "cross" or (kind == "mixture" and which in MIXTURES):
        return MixtureDistribution(dp.example_mixture(which or name))
    if kind == "clusters" and which.isdigit():
        return MixtureDistribution(clusters(int(which)))
    if likelihood != "linear":
        raise ValueError(
            f"`likelihood`: expected 'linear' with {name}, whose posteriors are exact under no "
            f"other, got {likelihood!r}; try 'clusters-16'"
        )
    if name in SHAPES:
        return ShapeDistribution(name)
    kinds: dict[str, Callable[[int], AbstractDistribution]]
    kinds = {"blocks": BlockDistribution, "sheet": SheetDistribution}
    if kind not in kinds or not which.isdigit() or int(which) < 2 or int(which) % 2:
        raise ValueError(
            f"`name`: expected one of {SYNTHETIC}, mixture-NAME, clusters-D, or blocks-D or "
            f"sheet-D with an even D, got {name!r}; try 'blocks-16'"
        )
    return kinds[kind](int(which))


def _natural(tasks: Tasks) -> tuple[Float[Array, "b d d"], Float[Array, "b d"]]:
    """Precision and shift of every task with linear rewards."""
    assert isinstance(tasks.evidence, dp.LinearEvidence)
    return tasks.evidence.precision, tasks.evidence.shift


def _each_task(
    one: Callable[..., Float[Array, "m d"]], seed: int, *inputs: Any
) -> Float[np.ndarray, "b m d"]:
    """One task after the other, with a key each."""
    count = jax.tree.leaves(inputs)[0].shape[0]
    keys = jax.random.split(jax.random.key(seed), count)
    program = eqx.filter_jit(lambda args: jax.lax.map(lambda each: one(*each), args))
    return np.asarray(program((keys, *inputs)), np.float64)


def _floats(array: Any) -> Float[Array, "..."]:
    return jnp.asarray(array, jnp.result_type(float))
