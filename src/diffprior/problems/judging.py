"""Laws of parameters whose posteriors can be drawn exactly: what samplers are judged by.

Rewards are linear with unit noise and features uniform in the unit ball. `clusters`, `blocks` and
`sheet` exist in any (even) number of dimensions; `modes` are far apart; the shapes of the plane are
those of Section 6.2.
"""

import abc
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..evidence.linear import LinearEvidence
from ..priors.base import pick
from ..priors.mixture import MixturePrior
from .mixtures import MIXTURES, mixture
from .synthetic import SYNTHETIC, synthetic

NUM_ATOMS = 2**19  # of a law that is drawn from by reweighting
BLOCK_ATOMS, SWEEPS = 2048, 40  # of each block, and of Gibbs sampling over the blocks
SHEET_NOISE, SHEET_LATENT = 0.1, 4


class AbstractLaw(abc.ABC):
    """A law of parameters, and exact draws of its posteriors under linear evidence."""

    dim: int

    @abc.abstractmethod
    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        """Draws of the law."""

    @abc.abstractmethod
    def posterior(
        self,
        seed: int,
        precision: Float[np.ndarray, "b d d"],
        shift: Float[np.ndarray, "b d"],
        thetas: Float[np.ndarray, "b d"],
        num_draws: int,
    ) -> Float[np.ndarray, "b m d"]:
        """Exact draws given each task's evidence; `thetas` are the tasks' true parameters, at which
        a chain may start, since they are draws of the posterior themselves."""

    def tasks(
        self, num_observations: int, count: int, seed: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """True parameters, and precision and shift of what random actions showed of them."""
        rng = np.random.default_rng([seed, num_observations, 5])
        thetas = self.sample(9000 + seed, count)
        normal = rng.standard_normal((count, num_observations, self.dim))
        radius = rng.random((count, num_observations, 1)) ** (1 / self.dim)
        features = radius * normal / np.linalg.norm(normal, axis=2, keepdims=True)
        noise = rng.standard_normal((count, num_observations))
        rewards = np.einsum("bni,bi->bn", features, thetas) + noise
        precision = np.einsum("bni,bnj->bij", features, features)
        return thetas, precision, np.einsum("bni,bn->bi", features, rewards)


class MixtureLaw(AbstractLaw):
    """A Gaussian mixture, whose posterior is one."""

    def __init__(self, prior: MixturePrior) -> None:
        self.prior, self.dim = prior, prior.dim

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        """Draws of the law."""
        return np.asarray(self.prior.sample(jax.random.key(seed), num_samples), np.float64)

    def posterior(
        self, seed: int, precision: Any, shift: Any, thetas: Any, num_draws: int
    ) -> Float[np.ndarray, "b m d"]:
        """Draws of the posterior mixture."""
        keys = jax.random.split(jax.random.key(seed), len(shift))
        evidence = (_floats(precision), _floats(shift))
        return np.asarray(_mixture_draws(self.prior, keys, *evidence, num_draws), np.float64)


class AtomLaw(AbstractLaw):
    """A law in few dimensions: very many draws of it, weighted by the likelihood."""

    def __init__(self, name: str) -> None:
        self.problem, self.dim = synthetic(name), 2

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        """Draws of the law."""
        draws = self.problem.sample_parameters(jax.random.key(seed), num_samples)
        return np.asarray(draws, np.float64)

    def posterior(
        self, seed: int, precision: Any, shift: Any, thetas: Any, num_draws: int
    ) -> Float[np.ndarray, "b m d"]:
        """Atoms by their weights."""
        atoms = _floats(self.sample(77_000 + seed, NUM_ATOMS))
        return _atom_draws(jax.random.key(seed), atoms, precision, shift, num_draws)


class BlockLaw(AbstractLaw):
    """Independent shapes in the plane, rotated together. Exact by Gibbs sampling over the shapes:
    half of the chains start at the true parameters, half at draws of the law."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        normal = np.random.default_rng(11).standard_normal((dim, dim))
        self.rotation = np.linalg.qr(normal)[0]

    def _shapes(self, seed: int, num_samples: int) -> Float[np.ndarray, "blocks n 2"]:
        keys = jax.random.split(jax.random.key(seed), self.dim // 2)
        shapes = [synthetic(SYNTHETIC[i % len(SYNTHETIC)]) for i in range(self.dim // 2)]
        drawn = [s.sample_parameters(k, num_samples) for s, k in zip(shapes, keys, strict=True)]
        return np.stack([np.asarray(part, np.float64) for part in drawn])

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        """Draws of the law."""
        return np.concatenate(list(self._shapes(seed, num_samples)), axis=1) @ self.rotation.T

    def posterior(
        self, seed: int, precision: Any, shift: Any, thetas: Any, num_draws: int
    ) -> Float[np.ndarray, "b m d"]:
        """The last sweep of every chain."""
        q = self.rotation
        start = np.repeat((thetas @ q)[:, None], num_draws, axis=1)
        free = self.sample(55_000 + seed, start[:, ::2].size // self.dim) @ q
        start[:, ::2] = free.reshape(start[:, ::2].shape)
        rotated = (np.einsum("ji,bjk,kl->bil", q, precision, q), shift @ q)
        atoms = self._shapes(66_000 + seed, BLOCK_ATOMS)
        keys = jax.random.split(jax.random.key(seed), len(shift))
        shapes = _floats(atoms)
        chains = jax.jit(lambda args: jax.lax.map(lambda one: _gibbs(shapes, *one), args))
        last = chains((keys, *(_floats(a) for a in (*rotated, start))))
        return np.asarray(last, np.float64) @ q.T


class SheetLaw(AbstractLaw):
    """A curved sheet with a little noise: 1.5 tanh(1.3 tanh(z W_1) W_2) + 0.1 noise. Exact by atoms
    of z, with the noise integrated out."""

    def __init__(self, dim: int) -> None:
        rng = np.random.default_rng(21)
        self.dim = dim
        self.first = 1.5 * rng.standard_normal((SHEET_LATENT, 32)) / np.sqrt(SHEET_LATENT)
        self.second = 2.0 * rng.standard_normal((32, dim)) / np.sqrt(32)

    def _surface(self, rng: np.random.Generator, count: int) -> Float[np.ndarray, "n d"]:
        z = rng.standard_normal((count, SHEET_LATENT))
        return 1.5 * np.tanh(1.3 * np.tanh(z @ self.first) @ self.second)

    def sample(self, seed: int, num_samples: int) -> Float[np.ndarray, "n d"]:
        """Draws of the law."""
        rng = np.random.default_rng([seed, 8])
        surface = self._surface(rng, num_samples)
        return surface + SHEET_NOISE * rng.standard_normal(surface.shape)

    def posterior(
        self, seed: int, precision: Any, shift: Any, thetas: Any, num_draws: int
    ) -> Float[np.ndarray, "b m d"]:
        """Atoms by their weights, and noise as it is given the evidence."""
        rng = np.random.default_rng([seed, 9])
        atoms = _floats(self._surface(rng, NUM_ATOMS))
        identity = np.eye(self.dim)
        cov = np.linalg.inv(precision + identity / SHEET_NOISE**2)
        gain = precision @ cov
        marginal = (precision - gain @ precision, shift - np.einsum("bij,bj->bi", gain, shift))
        at = _atom_draws(jax.random.key(seed), atoms, *marginal, num_draws)
        left = shift[:, None] - np.einsum("bij,bmj->bmi", precision, at)
        noise = np.einsum("bij,bmj->bmi", np.linalg.cholesky(cov), rng.standard_normal(at.shape))
        return at + np.einsum("bij,bmj->bmi", cov, left) + noise


def clusters(dim: int) -> MixturePrior:
    """Ten round clusters of standard deviation 0.3."""
    means = 1.5 * np.random.default_rng(3).standard_normal((10, dim))
    return MixturePrior(np.ones(10), means, np.tile(0.09 * np.eye(dim), (10, 1, 1)))


def modes(dim: int) -> MixturePrior:
    """Twenty-five modes of unit variance on a lattice 8 apart."""
    corners = np.random.default_rng(4).permutation(3**dim if dim < 12 else 3**12)[:25]
    means = 8.0 * np.stack([corners // 3**i % 3 - 1 for i in range(dim)], axis=1)
    return MixturePrior(np.ones(25), means, np.tile(np.eye(dim), (25, 1, 1)))


def law(name: str) -> AbstractLaw:
    """The law called clusters-D, blocks-D, sheet-D, modes-D, mixture-NAME or one of the shapes."""
    kind, _, which = name.partition("-")
    if name in SYNTHETIC:
        return AtomLaw(name)
    if kind == "mixture" and which in MIXTURES:
        return MixtureLaw(mixture(which))
    kinds = {
        "clusters": lambda dim: MixtureLaw(clusters(dim)),
        "modes": lambda dim: MixtureLaw(modes(dim)),
        "blocks": BlockLaw,
        "sheet": SheetLaw,
    }
    if kind not in kinds or not which.isdigit() or int(which) < 2 or int(which) % 2:
        raise ValueError(
            f"`name`: expected one of {SYNTHETIC}, mixture-NAME, or clusters-D, blocks-D, sheet-D "
            f"or modes-D with an even D, got {name!r}; try 'blocks-16'"
        )
    made: AbstractLaw = kinds[kind](int(which))
    return made


def _floats(array: Any) -> Float[Array, "..."]:
    return jnp.asarray(array, jnp.result_type(float))


@functools.partial(jax.jit, static_argnums=4)
def _mixture_draws(
    prior: MixturePrior, keys: Key[Array, " b"], precision: Array, shift: Array, num_draws: int
) -> Float[Array, "b m d"]:
    def one(inputs: tuple[Array, Array, Array]) -> Float[Array, "m d"]:
        key, precision, shift = inputs
        posterior, _ = prior.posterior(LinearEvidence.from_natural(precision, shift))
        return posterior.sample(key, num_draws)

    return jax.lax.map(one, (keys, precision, shift))


def _atom_draws(
    key: Key[Array, ""], atoms: Float[Array, "n d"], precision: Any, shift: Any, num_draws: int
) -> Float[np.ndarray, "b m d"]:
    keys = jax.random.split(key, len(shift))
    evidence = (_floats(precision), _floats(shift))
    return np.asarray(_weighted_draws(keys, atoms, *evidence, num_draws), np.float64)


@functools.partial(jax.jit, static_argnums=4)
def _weighted_draws(
    keys: Key[Array, " b"], atoms: Array, precision: Array, shift: Array, num_draws: int
) -> Float[Array, "b m d"]:
    def one(inputs: tuple[Array, Array, Array]) -> Float[Array, "m d"]:
        key, precision, shift = inputs
        logs = atoms @ shift - 0.5 * jnp.sum((atoms @ precision) * atoms, axis=1)
        uniforms = jax.random.uniform(key, (num_draws,), atoms.dtype)
        return atoms[pick(jnp.exp(logs - jnp.max(logs)), uniforms)]

    return jax.lax.map(one, (keys, precision, shift))


def _gibbs(
    atoms: Float[Array, "blocks n 2"],
    key: Key[Array, ""],
    precision: Float[Array, "d d"],
    shift: Float[Array, " d"],
    start: Float[Array, "m d"],
) -> Float[Array, "m d"]:
    """Each block in turn drawn from its atoms, given the others."""
    count = atoms.shape[0]

    def block(theta: Array, inputs: tuple[Array, Array]) -> tuple[Array, None]:
        i, key = inputs
        rows = jax.lax.dynamic_slice_in_dim(precision, 2 * i, 2)
        own = jax.lax.dynamic_slice_in_dim(rows, 2 * i, 2, axis=1)
        old = jax.lax.dynamic_slice_in_dim(theta, 2 * i, 2, axis=1)
        pull = jax.lax.dynamic_slice_in_dim(shift, 2 * i, 2)[None] - theta @ rows.T + old @ own
        quadratic = 0.5 * jnp.sum((atoms[i] @ own) * atoms[i], axis=1)
        logs = pull @ atoms[i].T - quadratic[None]
        total = jnp.cumsum(jnp.exp(logs - jnp.max(logs, axis=1, keepdims=True)), axis=1)
        uniform = jax.random.uniform(key, (theta.shape[0], 1), theta.dtype)
        chosen = jnp.sum(total < uniform * total[:, -1:], axis=1)
        new = atoms[i][jnp.minimum(chosen, atoms.shape[1] - 1)]
        return jax.lax.dynamic_update_slice_in_dim(theta, new, 2 * i, axis=1), None

    def sweep(theta: Array, key: Key[Array, ""]) -> tuple[Array, None]:
        keys = jax.random.split(key, count)
        return jax.lax.scan(block, theta, (jnp.arange(count), keys))[0], None

    return jax.lax.scan(sweep, start, jax.random.split(key, SWEEPS))[0]
