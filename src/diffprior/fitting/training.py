"""Losses of denoisers, and descent on their weights: a correction, or the paper's regressors."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ..denoisers.network import LOG_PRECISION, Correction, StagewiseDenoiser
from ..linalg import AnyArray, Spectral
from ..mixture import Factored, GaussianMixture
from ..progress import progress as show_progress
from ..schedule import Schedule
from .config import FitConfig, Training
from .samples import Rows, to_device

WEIGHTS, VALIDATION, TRAINING = 1, 2, 3  # what random numbers are for, beside the seed
Params = TypeVar("Params")
Rates = dict[str, Float[Array, ""]]  # numbers that the compiled programs take as arguments
NEWTON_SCHULZ = ((3.4445, -4.7750, 2.0315),) * 5  # one triple is five steps without a loop
Optimizer = tuple[str, float]  # its name and weight decay, constants of the programs


class AbstractLoss(eqx.Module):
    """A loss over random batches of samples.

    Random numbers are drawn on the host: in compiled programs they would be most of what takes long
    to compile.
    """

    @abc.abstractmethod
    def draw(self, rng: np.random.Generator, rows: Rows, size: int, num_steps: int) -> PyTree:
        """The random numbers of some batches of `size` samples, one after the other in NumPy."""

    @abc.abstractmethod
    def __call__(self, params: PyTree, drawn: PyTree, rows: Rows) -> Float[Array, ""]:
        """The loss over the batch of one step's random numbers."""

    def refreshed(self, rng: np.random.Generator) -> "AbstractLoss":
        """The same loss with another pool of what it draws from, if it has one."""
        return self


class TrainingResult(NamedTuple):
    """Held-out losses at each evaluation, and the evaluation chosen."""

    losses: tuple[float, ...]
    best: int


def optimize(
    params: Params,
    loss: AbstractLoss,
    train: Rows,
    training: Training,
    seed: int,
    progress: bool | None,
    evaluate: Callable[[Params], Float[np.ndarray, " m"]],
) -> tuple[Params, TrainingResult]:
    """Descend with cosine decay and averaged weights, and stop early.

    `evaluate` gives the losses of held-out samples; the last weights that are as good as the best
    are kept. Data, random numbers, rates and the number of steps are arguments of the compiled
    programs, so that fits of the same shapes share them.
    """
    num_steps, chunk = training.num_steps, training.evaluate_every
    names = ("num_steps", "learning_rate", "warm_up_steps", "averaging")
    rates = {name: to_device(getattr(training, name)) for name in names}
    optimizer = (training.optimizer, training.weight_decay)
    bar = show_progress("learning the prior", num_steps, visible=progress)
    with jax.numpy_dtype_promotion("standard"), bar as shown:
        state = _initial(optimizer, rates, params)
        seen = [(state[1], evaluate(state[1]))]
        if not np.all(np.isfinite(seen[0][1])):
            raise ValueError(
                "`samples`: expected finite held-out losses before training, got NaN or infinity; "
                "drop rows far from all others, or fit without `initial`"
            )
        losses, best = [float(np.mean(seen[0][1]))], 0
        for index in range(-(-num_steps // chunk)):
            count = min(chunk, num_steps - index * chunk)
            pool_rng, rng = np.random.default_rng([seed, TRAINING, index]).spawn(2)
            loss = loss.refreshed(pool_rng)
            drawn = jax.device_put(loss.draw(rng, train, training.batch_size, chunk))
            steps = to_device(count, np.int32)
            state = _descend(loss, optimizer, rates, train, state, drawn, steps)
            errors = evaluate(state[1])
            if not np.all(np.isfinite(errors)):  # it has diverged
                break
            seen.append((state[1], errors))
            losses.append(float(np.mean(errors)))
            shown.advance(count)
            best = int(np.argmin(losses))
            patience = training.patience if best else -(-training.patience // 2)
            if len(losses) - 1 - best >= patience:
                break
    tolerance = training.stopping_tolerance
    kept = max(i for i, (_, own) in enumerate(seen) if as_good(own, seen[best][1], tolerance))
    return seen[kept][0], TrainingResult(tuple(losses), kept)


def as_good(
    losses: Float[np.ndarray, " m"],
    best: Float[np.ndarray, " m"],
    tolerance: float,
    min_relative_gain: float = 0.0,
) -> bool:
    """Whether the mean difference of held-out losses is within `tolerance` standard errors, or
    within a share of the best loss.
    """
    gap = losses - best
    error = np.std(gap) / np.sqrt(len(gap))
    return bool(np.mean(gap) <= max(tolerance * error, min_relative_gain * np.mean(best)))


@eqx.filter_jit
def _initial(optimizer: Optimizer, rates: Rates, params: Params) -> tuple[Params, Params, PyTree]:
    """Weights in single precision, their running mean, and the optimizer's state."""
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    return params, params, _transformation(optimizer, rates).init(params)


@eqx.filter_jit
def _descend(
    loss: AbstractLoss,
    optimizer: Optimizer,
    rates: Rates,
    rows: Rows,
    state: tuple[Params, Params, PyTree],
    drawn: PyTree,
    count: Int[Array, ""],
) -> tuple[Params, Params, PyTree]:
    """`count` steps on, of those whose random numbers are `drawn`."""
    import optax  # slow to import, and not needed to decide

    transformation = _transformation(optimizer, rates)

    def step(index: Int[Array, ""], state: tuple[Params, Params, PyTree]) -> Any:
        params, mean, moments = state
        own = jax.tree.map(lambda leaf: leaf[index], drawn)
        gradient = jax.grad(loss)(params, own, rows)
        updates, moments = transformation.update(gradient, moments, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, mean, 1 - rates["averaging"]), moments

    return jax.lax.fori_loop(0, count, step, state)


def _transformation(optimizer: Optimizer, rates: Rates) -> Any:
    """Adam or Muon, warmed up and then decayed along a cosine to a hundredth."""
    import optax

    def rate(step: Int[Array, ""]) -> Float[Array, ""]:
        warm_up = rates["warm_up_steps"]
        warm = jnp.where(warm_up > 0, jnp.minimum(step / jnp.maximum(warm_up, 1), 1.0), 1.0)
        left = jnp.clip((step - warm_up) / jnp.maximum(rates["num_steps"] - warm_up, 1), 0.0, 1.0)
        decay = 0.01 + 0.99 * 0.5 * (1.0 + jnp.cos(jnp.pi * left))
        return (rates["learning_rate"] * warm * decay).astype(jnp.float32)

    def axes(weights: Array) -> Any:
        """The axes of the matrix of a layer; those before them only stack layers."""
        last = (weights.ndim - 2, weights.ndim - 1)
        return optax.contrib.MuonDimensionNumbers(*last) if weights.ndim >= 2 else None

    name, weight_decay = optimizer
    if name == "adam":
        return optax.adam(rate, b2=0.99)
    return optax.contrib.muon(
        rate,
        NEWTON_SCHULZ,
        adam_b2=0.99,
        weight_decay=weight_decay,
        muon_weight_dimension_numbers=lambda params: jax.tree.map(axes, params),
    )


def fit_stagewise(
    train: Rows,
    held_out: Rows,
    config: FitConfig,
    grid: Schedule,
    *,
    seed: int,
    progress: bool | None,
    initial: StagewiseDenoiser | None = None,
) -> tuple[StagewiseDenoiser, TrainingResult]:
    """Train the paper's regressors, one per stage, all stages as one batched program: Eq. (15)."""
    training = config.training(train.dim)
    regressors = initial or StagewiseDenoiser.initialize(
        jax.random.key(seed), train.dim, grid, width=training.width
    )
    alpha_bar = np.asarray(grid.alpha_bar[1:])[:, None, None]
    loss = StagewiseLoss(*(to_device(np.sqrt(a)) for a in (alpha_bar, 1 - alpha_bar)))

    rng = np.random.default_rng([seed, VALIDATION])
    drawn = jax.tree.map(lambda a: a[0], loss.draw(rng, held_out, training.batch_size, 1))

    def evaluate(regressors: StagewiseDenoiser) -> Float[np.ndarray, " 1"]:
        return np.asarray(loss(regressors, drawn, held_out))[None]

    return optimize(regressors, loss, train, training, seed, progress, evaluate)


class StagewiseLoss(AbstractLoss):
    """Mean squared error of the predicted noise over all stages: Eq. (15)."""

    signal: Float[Array, "t 1 1"]
    noise_std: Float[Array, "t 1 1"]

    def draw(
        self, rng: np.random.Generator, rows: Rows, size: int, num_steps: int
    ) -> tuple[Int[np.ndarray, "s t b"], UInt32[np.ndarray, "s 2"]]:
        """Rows of each step, and the key of its noise, which is too much to draw in advance."""
        shape = (num_steps, self.signal.shape[0], size)
        return rows.indices(rng, shape), rng.integers(0, 2**32, (num_steps, 2), np.uint32)

    @eqx.filter_jit
    def __call__(
        self,
        params: StagewiseDenoiser,
        drawn: tuple[Int[Array, "t b"], UInt32[Array, " 2"]],
        rows: Rows,
    ) -> Float[Array, ""]:
        s_0, key = rows.samples[drawn[0]], jax.random.wrap_key_data(drawn[1])
        noise = jax.random.normal(key, s_0.shape, s_0.dtype)
        s_t = self.signal * s_0 + self.noise_std * noise
        predicted = jax.vmap(lambda stage, s: jax.vmap(stage.noise_at)(s))(params, s_t)
        return jnp.mean(jnp.sum((noise - predicted) ** 2, axis=-1))


GROUP = 16  # noisy samples under each piece of evidence
POOL_NUMBERS, MIN_POOL = 2**24, 256  # memory for a pool, and pieces that it has in any case
ROTATION_NUMBERS, MIN_ROTATIONS, MAX_ROTATIONS = 2**25, 256, 8192  # the same for rotations
LOG_PRECISION_RANGE, SHARE_IN_RANGE = (-4.0, 4.5), 0.85  # of evidence that candidates are scored by
NEIGHBORS_MAX_DIM = 3  # with more parameters no neighbors are near
NEIGHBORS_MAX_ROWS = 2**15  # memory for the neighbors of each


class Pool(NamedTuple):
    """Pieces of evidence, and the base factored under each: the costly part, used many times."""

    vectors: Float[Array, "e d d"]
    log_precision: Float[Array, "e d"]
    factored: Factored | None


class BatchDraws(NamedTuple):
    """The random numbers of a batch; with an axis more in front, of several."""

    rows: Int[AnyArray, "*t g s"]
    others: Int[AnyArray, "*t m"]  # rows that may share in every target
    evidence: Int[AnyArray, "*t g"]  # of the pool
    noise: Float[AnyArray, "*t g s d"]


class TrainingBatch(NamedTuple):
    """Inputs of the network, and its target (I + P)^(1/2) (E[s_0 | u] - m)."""

    drawn: Int[Array, "g s"]  # rows that the samples are
    x: Float[Array, "g s d"]
    y: Float[Array, "g s d"]
    responsibilities: Float[Array, "g s k"]
    target: Float[Array, "g s d"]
    attributes: Float[Array, "g s a"] | None


class Errors(NamedTuple):
    """Per sample, the products of target t and correction F that make up squared errors."""

    alone: Float[AnyArray, " b"]  # t't, the error of the base without a correction
    along: Float[AnyArray, " b"]  # t'F
    square: Float[AnyArray, " b"]  # F'F

    def on_host(self) -> "Errors":
        """The same in NumPy and double precision."""
        return Errors(*(np.asarray(part, np.float64) for part in self))

    def shrunk(self, factor: float) -> Float[AnyArray, " b"]:
        """The squared errors of `factor` times the correction."""
        return self.alone - 2.0 * factor * self.along + factor**2 * self.square

    def best_factor(self) -> float:
        """The factor, from 0 to 1, of the least error."""
        along, square = float(np.sum(self.along)), float(np.sum(self.square))
        return min(max(along / max(square, 1e-12), 0.0), 1.0)


class CorrectionLoss(AbstractLoss):
    """Mean squared error of F over random evidence, with `GROUP` noisy samples of each piece."""

    base: GaussianMixture | None
    pool: Pool
    target_samples: int = eqx.field(static=True)
    evidence: "RandomEvidence" = eqx.field(static=True)
    neighbors: "Neighbors | None" = None  # of each row, to share in its target

    @staticmethod
    def create(
        rng: np.random.Generator,
        base: GaussianMixture | None,
        evidence: "RandomEvidence",
        target_samples: int,
        pool_size: int,
    ) -> "CorrectionLoss":
        """With a pool of evidence."""
        pool = _pool(base, *evidence.draw(rng, pool_size))
        return CorrectionLoss(base, pool, target_samples, evidence)

    def first(self, pool_size: int) -> "CorrectionLoss":
        """The same under the first pieces of evidence only."""
        cut = jax.tree.map(lambda leaf: to_device(np.asarray(leaf)[:pool_size]), self.pool)
        return eqx.tree_at(lambda loss: loss.pool, self, cut)

    def with_neighbors(self, rows: Rows, count: int) -> "CorrectionLoss":
        """The same for these rows, whose nearest neighbors share in their targets."""
        found = Neighbors.of(rows, count, self.target_samples)
        return eqx.tree_at(lambda loss: loss.neighbors, self, found, is_leaf=lambda x: x is None)

    def refreshed(self, rng: np.random.Generator) -> "CorrectionLoss":
        """The same with another pool of evidence."""
        pool = _pool(self.base, *self.evidence.draw(rng, self.pool.log_precision.shape[0]))
        return eqx.tree_at(lambda loss: loss.pool, self, pool)

    def draw(self, rng: np.random.Generator, rows: Rows, size: int, num_steps: int) -> BatchDraws:
        groups = size // GROUP
        shape = (num_steps, groups, GROUP)
        evidence = rng.integers(0, self.pool.log_precision.shape[0], shape[:2], np.int32)
        noise = rng.standard_normal((*shape, rows.dim), np.float32)
        others = 0 if self._takes_all(rows) else self.target_samples
        return BatchDraws(
            rows.indices(rng, shape), rows.indices(rng, (num_steps, others)), evidence, noise
        )

    def __call__(self, params: Correction, drawn: BatchDraws, rows: Rows) -> Float[Array, ""]:
        pool, batch = self.batch(drawn, rows)
        return jnp.mean(self.errors(params, pool, batch).shrunk(1.0))

    def errors(self, correction: Correction, pool: Pool, batch: TrainingBatch) -> Errors:
        """The errors of each sample of a batch."""
        f = _corrections(correction, pool, batch)
        products = ((batch.target, batch.target), (batch.target, f), (f, f))
        return Errors(*(jnp.sum(a * b, axis=-1).reshape(-1) for a, b in products))

    def spread(
        self, correction: Correction, pool: Pool, batch: TrainingBatch, rows: Rows
    ) -> tuple[Float[Array, "g s d"], ...]:
        """Along the eigenvectors of the evidence: log precisions, distances of samples from the
        mean of a unit Gaussian base in units of its deviation, and moves of the correction.
        """
        f = _corrections(correction, pool, batch)
        precisions = jnp.exp(pool.log_precision)[:, None]

        def rotate(vectors: Array) -> Array:
            return jnp.einsum("gsi,gij->gsj", vectors, pool.vectors)

        gap = jnp.sqrt(1.0 + precisions) * rotate(rows.samples[batch.drawn] - batch.x)
        gap = gap - rotate(batch.y)
        logs = jnp.broadcast_to(pool.log_precision[:, None], gap.shape)
        return logs, gap, rotate(f)

    def batch(self, drawn: BatchDraws, rows: Rows) -> tuple[Pool, TrainingBatch]:
        """Samples hidden in noise, in groups under one piece of evidence each."""
        pool = jax.tree.map(lambda leaf: leaf[drawn.evidence], self.pool)
        s_0 = rows.samples[drawn.rows]
        near = None if self.neighbors is None else self.neighbors.pick(drawn.rows)
        others, log_counts = self._others(drawn, rows)
        precisions = jnp.exp(pool.log_precision)
        noise = jnp.asarray(drawn.noise, s_0.dtype)
        u = s_0 + jnp.einsum("gij,gj,gsj->gsi", pool.vectors, precisions**-0.5, noise)
        precision = _matrices(pool.vectors, precisions)
        target = posterior_means(u, precision, s_0, rows.samples[others], log_counts, near)
        x = jnp.einsum("gij,gsj->gsi", _matrices(pool.vectors, precisions / (1 + precisions)), u)
        responsibilities, mean = self._base_means(pool, x)
        root = _matrices(pool.vectors, jnp.sqrt(1.0 + precisions))
        y, target = (jnp.einsum("gij,gsj->gsi", root, a) for a in (mean - x, target - mean))
        known = None if rows.attributes is None else rows.attributes[drawn.rows]
        return pool, TrainingBatch(drawn.rows, x, y, responsibilities, target, known)

    def _takes_all(self, rows: Rows) -> bool:
        """Whether there are no more rows than asked for: then all take part as they are. Drawn at
        random each would come several times, and those drawn would seem less likely than they are.
        """
        return self.neighbors is None and self.target_samples >= len(rows.samples)

    def _others(
        self, drawn: BatchDraws, rows: Rows
    ) -> tuple[Int[Array, " m"], Float[Array, "g s m"]]:
        """Random rows, and the log of how many times each counts beside those drawn."""
        few = self._takes_all(rows)
        every = jnp.arange(len(rows.samples), dtype=drawn.rows.dtype)
        others = every if few else drawn.others
        times = jnp.zeros((), rows.samples.dtype)
        if few and rows.weights is not None:
            logs = jnp.log(rows.weights)
            times = logs[others][None, None] - logs[drawn.rows][..., None]
        itself = drawn.rows[..., None] == others[None, None]
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


def _corrections(correction: Correction, pool: Pool, batch: TrainingBatch) -> Float[Array, "g s d"]:
    def group(vectors: Array, log_precision: Array, batch: TrainingBatch) -> Float[Array, "s d"]:
        bias = correction.evidence_bias(Spectral(vectors, jnp.exp(log_precision)))
        axis = None
        if correction.weights_attributes is not None:
            assert batch.attributes is not None
            bias, axis = bias[None] + jax.vmap(correction.attributes_bias)(batch.attributes), 0
        over_samples = jax.vmap(correction, in_axes=(0, 0, 0, axis))
        return over_samples(batch.x, batch.y, batch.responsibilities, bias)

    return jax.vmap(group)(pool.vectors, pool.log_precision, batch)


def _matrices(vectors: Float[Array, "g d d"], values: Float[Array, "g d"]) -> Array:
    return jnp.einsum("gij,gj,gkj->gik", vectors, values, vectors)


def pool_size(base: GaussianMixture | None, config: FitConfig) -> int:
    """Pieces of evidence that there is memory for, with the base factored under each."""
    numbers = 1 if base is None else base.vectors.size
    return min(max(POOL_NUMBERS // numbers, MIN_POOL), config.evidence_pool)


@eqx.filter_jit
def _pool(
    base: GaussianMixture | None,
    vectors: Float[AnyArray, "e d d"],
    log_precision: Float[AnyArray, "e d"],
) -> Pool:
    """The base factored under each piece of evidence."""
    if base is None:
        return Pool(vectors, log_precision, None)

    def factor(precision: Float[Array, "d d"]) -> Factored:
        return base.factor(precision)._replace(factors=None)  # needed to draw only

    matrices = _matrices(vectors, jnp.exp(log_precision))
    return Pool(vectors, log_precision, jax.lax.map(factor, matrices, batch_size=64))


@dataclass(frozen=True)
class RandomEvidence:
    """Evidence of all strengths and ranks, with log precisions mostly in a range.

    That is what a chain meets: precision snr I + Lam, where the eigenvalues of Lam are of about one
    size (how many observations) or zero (directions not seen yet). Not compared, so that a program
    compiled for one loss serves every other.
    """

    rotations: Float[np.ndarray, "r d d"] = field(compare=False)
    log_precision_range: tuple[float, float] = field(default=LOG_PRECISION_RANGE, compare=False)

    @staticmethod
    def of(dim: int, seed: int) -> "RandomEvidence":
        """With orthogonal matrices, uniformly at random: as many as there is memory for."""
        number = int(np.clip(ROTATION_NUMBERS // dim**2, MIN_ROTATIONS, MAX_ROTATIONS))
        normal = np.random.default_rng(seed).standard_normal((number, dim, dim))
        q, r = np.linalg.qr(normal)
        signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
        return RandomEvidence((q * signs[:, None, :]).astype(np.float32))

    def draw(
        self, rng: np.random.Generator, size: int
    ) -> tuple[Float[np.ndarray, "b d d"], Float[np.ndarray, "b d"]]:
        """Eigenvectors and log precisions. BatchDraws of any size begin alike."""
        uniform_rng, normal_rng = rng.spawn(2)
        dim = self.rotations.shape[-1]
        uniform = uniform_rng.random((size, 7))
        noisy, strength = (self._log_strength(uniform[:, i : i + 2]) for i in (0, 2))
        spread = 2.0 * uniform[:, 4:5] * normal_rng.standard_normal((size, dim))
        seen = np.arange(dim) < np.floor((dim + 1) * uniform[:, 5:6])
        log_precision = np.where(seen, np.logaddexp(noisy, strength + spread), noisy)
        which = (len(self.rotations) * uniform[:, 6]).astype(np.int32)
        return self.rotations[which], np.clip(log_precision, *LOG_PRECISION).astype(np.float32)

    def _log_strength(self, uniform: Float[np.ndarray, "b 2"]) -> Float[np.ndarray, "b 1"]:
        """Log precisions: most of them where neither the prior nor the evidence decides alone."""
        (low, high), (start, end) = LOG_PRECISION, self.log_precision_range
        inside, unit = uniform[:, :1] < SHARE_IN_RANGE, uniform[:, 1:]
        return np.where(inside, start + (end - start) * unit, low + (high - low) * unit)


class Neighbors(NamedTuple):
    """The samples nearest each sample, relative to it, coordinate by coordinate; and log counts of
    them, and of a sample drawn at random, in units of its own weight.
    """

    away: Float[Array, "d *n m"]
    log_weights: Float[Array, "*n m"]
    log_drawn: Float[Array, "*n 1"]

    @staticmethod
    def of(rows: Rows, count: int, target_samples: int) -> "Neighbors":
        """Of all rows, where `target_samples` drawn at random stand for all."""
        from scipy.spatial import cKDTree  # slow to import, and not needed to decide

        samples = np.asarray(rows.samples)
        weights = np.ones(len(samples)) if rows.weights is None else np.asarray(rows.weights)
        size, own = min(count, len(samples) - 1), np.arange(len(samples))[:, None]
        found = cKDTree(samples).query(samples, k=size + 1, workers=-1)[1]
        # Of rows that are equal another than itself may come first.
        index = np.where(found[:, 1:] == own, found[:, :1], found[:, 1:])
        away = np.moveaxis(samples[index] - samples[:, None], -1, 0)
        drawn = np.sum(weights) / target_samples / weights[:, None]
        arrays = (away, np.log(weights[index] / weights[:, None]), np.log(drawn))
        return Neighbors(*(to_device(array, samples.dtype) for array in arrays))

    def pick(self, index: Int[Array, "g s"]) -> "Neighbors":
        """Of some rows."""
        return Neighbors(self.away[:, index], self.log_weights[index], self.log_drawn[index])


def posterior_means(
    u: Float[Array, "g s d"],
    precision: Float[Array, "g d d"],
    s_0: Float[Array, "g s d"],
    others: Float[Array, "m d"],
    log_counts: Float[Array, "g s m"],
    near: Neighbors | None = None,
) -> Float[Array, "g s d"]:
    """E[s_0 | u], u = s_0 + noise, over the sample that u came from and `others`.

    Each of the others counts exp(log_counts) times; not at all where it is the sample itself, which
    counted twice would seem likelier than it is. Under strong evidence only neighbors are likely,
    and a few random samples hold none. So all that are `near` s_0, up to the farthest, count as
    they are, and `others` from there on for all others.
    """
    shift = jnp.einsum("gij,gsj->gsi", precision, u)
    log_others = shift @ others.T - _half_squares(precision, others)[:, None] + log_counts
    pulled = jnp.einsum("gij,gsj->gsi", precision, s_0)
    log_own = jnp.sum((shift - 0.5 * pulled) * s_0, axis=-1, keepdims=True)
    log_near = None
    if near is not None:
        farthest = jnp.max(_squares(near.away), axis=-1, keepdims=True)
        to_others = jnp.moveaxis(s_0, -1, 0)[..., None] - others.T[:, None, None]
        beyond = _squares(to_others) >= farthest
        log_others = jnp.where(beyond, log_others + near.log_drawn, -jnp.inf)
        gain = _gain(near.away, shift - pulled, precision) + near.log_weights
        log_near = jnp.where(_squares(near.away) < farthest, log_own + gain, -jnp.inf)
    top = jnp.max(log_others, axis=-1, keepdims=True, initial=-jnp.inf)  # there may be none
    top = jnp.maximum(log_own, top)
    move, total = jnp.zeros_like(s_0), jnp.zeros_like(log_own)
    if near is not None and log_near is not None:
        top = jnp.maximum(top, jnp.max(log_near, axis=-1, keepdims=True))
        shares = jnp.exp(log_near - top)
        move = jnp.stack([jnp.sum(shares * a, axis=-1) for a in near.away], axis=-1)
        total = jnp.sum(shares, axis=-1, keepdims=True)
    own, weights = jnp.exp(log_own - top), jnp.exp(log_others - top)
    # One product sums the weights and what they weigh, so that they are gone through once.
    sums = weights @ jnp.concatenate([others, jnp.ones_like(others[:, :1])], axis=1)
    beside = own + total
    return (beside * s_0 + move + sums[..., :-1]) / (beside + sums[..., -1:])


def _half_squares(precision: Float[Array, "g d d"], points: Float[Array, "m d"]) -> Array:
    """P' P p / 2 for each P and p."""
    rows, columns = np.triu_indices(points.shape[-1])
    twice = jnp.asarray(np.where(rows == columns, 0.5, 1.0), points.dtype)
    return (twice[None] * precision[:, rows, columns]) @ (points[:, rows] * points[:, columns]).T


def _squares(away: Float[Array, "d g s m"]) -> Float[Array, "g s m"]:
    return sum((a**2 for a in away[1:]), away[0] ** 2)


def _gain(
    away: Float[Array, "d g s m"], pull: Float[Array, "g s d"], precision: Float[Array, "g d d"]
) -> Float[Array, "g s m"]:
    """Log likelihood of s_0 + a less that of s_0: P (u - s_0) a - a' P a / 2."""
    dim = len(away)
    terms = (pull[:, :, i, None] * away[i] for i in range(dim))
    pairs = ((i, j) for i in range(dim) for j in range(dim))
    squares = (precision[:, i, j][:, None, None] * away[i] * away[j] for i, j in pairs)
    return sum(terms, jnp.zeros_like(away[0])) - 0.5 * sum(squares, jnp.zeros_like(away[0]))
