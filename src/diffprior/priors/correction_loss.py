"""What a correction learns from: samples under random evidence, and what the base makes of them."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..mixture import Factored, GaussianMixture
from ..threefry import written_out
from .correction import Correction
from .descent import AbstractPooledLoss, Rows
from .random_evidence import MIDDLE, random_evidence
from .targets import Neighbors, posterior_means

GROUP = 16  # noisy samples under each piece of evidence
LARGEST_POOL, SMALLEST_POOL, POOL_NUMBERS = 4096, 256, 2**24


class Pool(NamedTuple):
    """Pieces of evidence, and the base factored under each: the costly part, used many times."""

    vectors: Float[Array, "e d d"]
    log_precision: Float[Array, "e d"]
    factored: Factored | None

    def pick(self, index: Array) -> "Pool":
        """Some of them."""
        return jax.tree.map(lambda leaf: leaf[index], self)


class Batch(NamedTuple):
    """Inputs of the network, and its target (I + P)^(1/2) (E[s_0 | u] - m)."""

    x: Float[Array, "g s d"]
    y: Float[Array, "g s d"]
    responsibilities: Float[Array, "g s k"]
    target: Float[Array, "g s d"]


class Errors(NamedTuple):
    """For each sample the products of target t and correction F that its squared errors are of."""

    alone: Float[Array, " b"]  # t't, the error of the base without a correction
    along: Float[Array, " b"]  # t'F
    square: Float[Array, " b"]  # F'F

    def shrunk(self, factor: float) -> Float[Array, " b"]:
        """The squared errors of `factor` times the correction."""
        return self.alone - 2.0 * factor * self.along + factor**2 * self.square

    def best_factor(self) -> float:
        """The factor, from 0 to 1, of the least error."""
        along, square = float(jnp.sum(self.along)), float(jnp.sum(self.square))
        return min(max(along / max(square, 1e-12), 0.0), 1.0)


class CorrectionLoss(AbstractPooledLoss):
    """Mean squared error of F over random evidence, with some noisy samples of each piece."""

    base: GaussianMixture | None
    rotations: Float[Array, "r d d"]
    pool: Pool
    middle: Float[Array, " 2"]
    num_others: int = eqx.field(static=True)
    neighbors: Neighbors | None = None  # of each row, to share in its target

    @staticmethod
    def of(
        base: GaussianMixture | None,
        rotations: Float[Array, "r d d"],
        num_others: int,
        key: Key[Array, ""],
        pool_size: int | None = None,
        middle: tuple[float, float] = MIDDLE,
    ) -> "CorrectionLoss":
        """With a pool of as many pieces of evidence as is usual, or the first of them, as many as
        told; their log precisions are mostly in the range `middle`."""
        dwelt_on = jnp.asarray(middle, jnp.float32)
        pool = _random_pool(base, rotations, key, usual_pool(base), dwelt_on)
        if pool_size is not None:
            pool = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[:pool_size]), pool)
        return CorrectionLoss(base, rotations, pool, dwelt_on, num_others)

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.rotations.shape[-1]

    def between(self, rows: Rows) -> "CorrectionLoss":
        """The same for these rows, whose neighbors share in their targets."""
        found = Neighbors.of(rows, self.num_others)
        return eqx.tree_at(lambda loss: loss.neighbors, self, found, is_leaf=lambda x: x is None)

    def refreshed(self, key: Key[Array, ""]) -> "CorrectionLoss":
        """The same with another pool of evidence."""
        size = self.pool.log_precision.shape[0]
        pool = _random_pool(self.base, self.rotations, key, size, self.middle)
        return eqx.tree_at(lambda loss: loss.pool, self, pool)

    def __call__(
        self, correction: Correction, key: Key[Array, ""], rows: Rows, size: int
    ) -> Float[Array, ""]:
        """For a batch of `size` samples."""
        return jnp.mean(self.errors(correction, written_out(key), rows, size).shrunk(1.0))

    def errors(self, correction: Correction, key: Key[Array, ""], rows: Rows, size: int) -> Errors:
        """The errors of each sample of a batch. Written out, its key takes three times as long to
        compile, which only the many steps of training are worth."""
        pool, batch = self.batch(key, rows, size)
        f = self._corrections(correction, pool, batch)
        products = ((batch.target, batch.target), (batch.target, f), (f, f))
        return Errors(*(jnp.sum(a * b, axis=-1).reshape(-1) for a, b in products))

    @staticmethod
    def _corrections(correction: Correction, pool: Pool, batch: Batch) -> Float[Array, "g s d"]:
        def group(vectors: Array, log_precision: Array, batch: Batch) -> Float[Array, "s d"]:
            bias = correction.evidence_bias(vectors, jnp.exp(log_precision))
            over_samples = jax.vmap(correction, in_axes=(0, 0, 0, None))
            return over_samples(batch.x, batch.y, batch.responsibilities, bias)

        return jax.vmap(group)(pool.vectors, pool.log_precision, batch)

    def spread(
        self, correction: Correction, key: Key[Array, ""], rows: Rows, size: int
    ) -> tuple[Float[Array, "b d"], Float[Array, "b d"], Float[Array, "b d"]]:
        """Log precisions; how far samples are from the base's mean along the eigenvectors of the
        evidence, in units of the deviation under a unit Gaussian prior; and how far the correction
        goes."""
        pool, batch = self.batch(key, rows, size)
        f = self._corrections(correction, pool, batch)
        samples = rows.samples[self.drawn(key, rows, size)].reshape(batch.x.shape)
        precisions = jnp.exp(pool.log_precision)[:, None]
        rotated = jnp.einsum("gsi,gij->gsj", samples - batch.x, pool.vectors)
        base, moved = (jnp.einsum("gsi,gij->gsj", a, pool.vectors) for a in (batch.y, f))
        gap = jnp.sqrt(1.0 + precisions) * rotated - base
        logs = jnp.broadcast_to(pool.log_precision[:, None], gap.shape)
        return logs.reshape(-1, self.dim), gap.reshape(-1, self.dim), moved.reshape(-1, self.dim)

    def drawn(self, key: Key[Array, ""], rows: Rows, size: int) -> Int[Array, " b"]:
        """Which rows the samples of a batch are."""
        return rows.indices(_parts(key)[0], size // GROUP * GROUP)

    def batch(self, key: Key[Array, ""], rows: Rows, size: int) -> tuple[Pool, Batch]:
        """Samples hidden in noise, in groups under one piece of evidence each."""
        _, others_key, pool_key, noise_key = _parts(key)
        groups = size // GROUP
        index = jax.random.randint(pool_key, (groups,), 0, self.pool.log_precision.shape[0])
        pool = self.pool.pick(index)
        drawn = self.drawn(key, rows, size).reshape(groups, GROUP)
        s_0 = rows.samples[drawn]
        near = None if self.neighbors is None else self.neighbors.pick(drawn)
        others, log_counts = self._others(others_key, rows, drawn)
        noise = jax.random.normal(noise_key, s_0.shape, s_0.dtype)
        precisions = jnp.exp(pool.log_precision)
        hidden = jnp.einsum("gij,gj,gsj->gsi", pool.vectors, precisions**-0.5, noise)
        u = s_0 + hidden
        precision = jnp.einsum("gij,gj,gkj->gik", pool.vectors, precisions, pool.vectors)
        target = posterior_means(u, precision, s_0, rows.samples[others], log_counts, near)
        gain = precisions / (1.0 + precisions)
        x = jnp.einsum("gij,gj,gkj,gsk->gsi", pool.vectors, gain, pool.vectors, u)
        responsibilities, mean = self._base_means(pool, x)
        root = jnp.einsum("gij,gj,gkj->gik", pool.vectors, jnp.sqrt(1.0 + precisions), pool.vectors)
        scaled = lambda move: jnp.einsum("gij,gsj->gsi", root, move)  # noqa: E731
        return pool, Batch(x, scaled(mean - x), responsibilities, scaled(target - mean))

    def _others(
        self, key: Key[Array, ""], rows: Rows, drawn: Int[Array, "g s"]
    ) -> tuple[Int[Array, " m"], Float[Array, "g s m"]]:
        """Rows at random, and how many times each counts beside those drawn. Where there are no
        more rows than asked for, all of them as they are: at random each would come several times,
        and those drawn would seem less likely than they are."""
        few = self.neighbors is None and self.num_others >= len(rows.samples)
        every = jnp.arange(len(rows.samples), dtype=drawn.dtype)
        others = every if few else rows.indices(key, self.num_others)
        times = jnp.zeros((), rows.samples.dtype)
        if few and rows.weights is not None:
            logs = jnp.log(rows.weights)
            times = logs[others][None, None] - logs[drawn][..., None]
        itself = drawn[..., None] == others[None, None]
        return others, jnp.where(itself, -jnp.inf, times)

    def _base_means(
        self, pool: Pool, x: Float[Array, "g s d"]
    ) -> tuple[Float[Array, "g s k"], Float[Array, "g s d"]]:
        base = self.base
        if base is None or pool.factored is None:
            return jnp.ones((*x.shape[:2], 1), x.dtype), x

        def one(factored: Factored, x: Float[Array, " d"]) -> tuple[Array, Array]:
            log_weights, means = factored.given(base, x)
            responsibilities = jax.nn.softmax(log_weights)
            return responsibilities, responsibilities @ means

        in_group = jax.vmap(one, in_axes=(None, 0))
        return jax.vmap(in_group)(pool.factored, x)


def usual_pool(base: GaussianMixture | None) -> int:
    """Pieces of evidence that there is memory for, with the base factored under each."""
    numbers = 1 if base is None else base.vectors.size
    return int(np.clip(POOL_NUMBERS // numbers, SMALLEST_POOL, LARGEST_POOL))


def _parts(key: Key[Array, ""]) -> Key[Array, " 4"]:
    """Keys of samples, of others, of evidence and of noise."""
    return jax.random.split(key, 4)


@eqx.filter_jit
def _random_pool(
    base: GaussianMixture | None,
    rotations: Float[Array, "r d d"],
    key: Key[Array, ""],
    size: int,
    middle: Float[Array, " 2"],
) -> Pool:
    vectors, log_precision = random_evidence(key, rotations, size, middle)
    if base is None:
        return Pool(vectors, log_precision, None)
    matrices = jnp.einsum("eij,ej,ekj->eik", vectors, jnp.exp(log_precision), vectors)

    def factor(precision: Float[Array, "d d"]) -> Factored:
        return base.factor(precision)._replace(factors=None)  # needed to draw only

    return Pool(vectors, log_precision, jax.lax.map(factor, matrices, batch_size=64))
