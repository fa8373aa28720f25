"""Features learned together with a Gaussian prior, and whether they pay on tasks held out.

The network's features maximize the log evidence of tasks, each a Bayesian regression on them, as in
ALPaCA (Harrison, Sharma and Pavone, 2018). Families of priors are then fitted to rows with these
features as to any others.
"""

import copy
import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from ..checks import positive_int
from ..encoders import Column, Encoder
from ..evidence.base import AbstractLikelihood
from ..evidence.families import Logistic
from ..evidence.linear import Linear
from ..feature_network import FeatureNetwork
from ..files.base import Serializable
from ..fitting.config import LearningConfig, Training
from ..fitting.rows import blocks_of
from ..fitting.samples import Rows
from ..fitting.search import gaussian_of
from ..fitting.training import AbstractLoss, optimize
from ..linalg import AnyArray
from ..logs.logs import Logs
from ..logs.statistics import Selection, folds
from ..reporting.tables import plus_minus
from .likelihoods import resolve
from .scoring import Gain, family_of, gain, task_log_evidence

FOLD_SALT, NUM_FOLDS = 17, 4  # of the tasks learned from; one fold scores
STOPPING_SALT, STOPPING_FOLDS = 19, 8  # of the other folds; one part says when to stop
MAX_STOPPING = 1000  # tasks of that part
MAX_ROWS = 64  # of a task in a step
TRAINING = Training(
    0, 2, 0, 64, 1e-2, 0.0, 0, (0.0, 0.0), "adam", 0.0, evaluate_every=100, averaging=0.98
)
BOUND_STEPS = 2  # of the bound for Bernoulli rewards
MAX_GRAM_ROWS = 100_000
MIN_SHARE = 1e-5  # of the mean squared eta, below which a feature is left out


@dataclass(frozen=True)
class NetworkEncoder:
    """Features that `learn` learns from logs: those of a small network, where they pay.

    The parameters theta are the weights of the last layer, so that everything else is as with other
    features. They are used if a Gaussian of them explains tasks held out better than one of the raw
    columns by more than a standard error; the report says which.

    Args:
        width: Units of each of the two hidden layers.
        dim: Most features d: the fewest are used that are within a standard error of the best.
        num_steps: Steps of Adam, on 64 tasks each.

    References:
        Harrison, Sharma and Pavone, Meta-learning priors for efficient online Bayesian regression
        (2018). Here, Bernoulli rewards have Jaakkola's and Jordan's bound, and the families of
        `learn` replace the Gaussian afterwards.
    """

    width: int = 32
    dim: int = 8
    num_steps: int = 1000

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            positive_int(name, value)


@dataclass(frozen=True)
class LearnedFeatures(Serializable):
    """Whether features were learned, and what they gain over the raw columns on tasks held out.

    Attributes:
        width: Of the network.
        dim: Number of features that it found.
        num_columns: Number of features before.
        gain: In nats per task, of Gaussians.
    """

    width: int
    dim: int
    num_columns: int
    gain: Gain

    @property
    def pays(self) -> bool:
        """Whether the gain exceeds its standard error."""
        return self.gain.mean > max(self.gain.error, 0.0)

    def __str__(self) -> str:
        over = f"{plus_minus(self.gain.mean, self.gain.error, signed=True)} nats per task"
        if self.gain.num_tasks == 0:
            return "features are the raw columns, since there are too few tasks to learn others"
        if not self.pays:
            return f"features are the raw columns; learned ones are no better ({over})"
        return (
            f"features are {self.dim} of a network of width {self.width}: {over} over the "
            f"{self.num_columns} of the raw columns, on {self.gain.num_tasks} tasks held out"
        )


def learn_features(
    logs: object,
    likelihood: AbstractLikelihood,
    encoder: object,
    config: LearningConfig,
    seed: int,
) -> tuple[Logs, LearnedFeatures]:
    """The logs, with learned features where these pay; tasks of the report have no part in it."""
    if not isinstance(encoder, NetworkEncoder):
        raise ValueError(
            f"`encoder`: expected dp.NetworkEncoder(), got {encoder!r:.60}; raw columns are "
            "encoded by dp.Logs.read"
        )
    if not isinstance(logs, Logs):
        raise ValueError(
            f"`logs`: expected Logs with a NetworkEncoder, got {type(logs).__name__}; read some of "
            "the tasks with dp.Logs.read(..., max_rows=...)"
        )
    raw = copy.copy(logs)
    raw.encoder = logs.encoder or Encoder(
        tuple(Column(name, "number") for name in logs.feature_names), intercept=False
    )
    if logs.num_tasks < config.min_held_out_tasks:
        return raw, LearnedFeatures(encoder.width, 0, raw.dim, gain(np.zeros(0)))
    rest = raw.select(Selection(config.report_share).mask(raw.hashes))
    fold = folds(rest.hashes, NUM_FOLDS, FOLD_SALT)
    network = train(rest.select(fold != 0), likelihood, encoder, seed)

    def nats(tasks: Logs) -> Float[np.ndarray, " t"]:
        return held_out_evidence(tasks.select(fold != 0), tasks.select(fold == 0), likelihood)

    dim = network.dim
    own = best = nats(with_network(rest, network))
    while dim > 1:  # the fewest features that are within a standard error of the best
        fewer = nats(with_network(rest, network.first(dim - 1)))
        over = gain(fewer - best)
        if over.mean < -over.error:
            break
        dim, own, best = dim - 1, fewer, fewer if over.mean > 0 else best
    found = LearnedFeatures(encoder.width, dim, raw.dim, gain(own - nats(rest)))
    if not found.pays:
        return raw, found
    network = train(rest, likelihood, encoder, seed)  # of the tasks that have chosen it too
    return with_network(raw, network.first(dim)), found


def with_network(logs: Logs, network: FeatureNetwork) -> Logs:
    """The same rows with learned features."""
    found = copy.copy(logs)
    assert logs.encoder is not None
    found.encoder = dataclasses.replace(logs.encoder, network=network)
    found.features, found.feature_names = network(logs.features), found.encoder.names
    return found


def held_out_evidence(
    seen: Logs, held_out: Logs, likelihood: AbstractLikelihood
) -> Float[np.ndarray, " t"]:
    """Log evidence of tasks under a Gaussian of others, and their noise."""
    likelihood, _ = resolve(seen, likelihood)
    gaussian = family_of("Gaussian", gaussian_of(blocks_of(seen, likelihood)))
    return task_log_evidence(gaussian, held_out, likelihood)


class Params(NamedTuple):
    """The network but for its inputs' units, and N(mean, L L') of theta, with log noise."""

    inner: Float[Array, "p w"]
    inner_bias: Float[Array, " w"]
    outer: Float[Array, "w w"]
    outer_bias: Float[Array, " w"]
    last: Float[Array, "m d"]
    mean: Float[Array, " d"]
    tril: Float[Array, "d d"]  # L, with the logarithms of its diagonal
    log_noise: Float[Array, ""]

    @staticmethod
    def init(rng: np.random.Generator, p: int, width: int, dim: int) -> "Params":
        """At random."""

        def normal(*shape: int) -> Array:
            return jnp.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), jnp.float32)

        zeros = jnp.zeros(width, jnp.float32), jnp.zeros((dim, dim), jnp.float32)
        return Params(
            normal(p, width), 0.5 * normal(1, width)[0], normal(width, width), zeros[0],
            normal(1 + p + width, dim), zeros[1][0], zeros[1], zeros[1][0, 0],
        )  # fmt: skip

    def features(self, z: Float[Array, " p"]) -> Float[Array, " d"]:
        """As `FeatureNetwork`, of standardized numbers."""
        hidden = jnp.tanh(jnp.tanh(z @ self.inner + self.inner_bias) @ self.outer + self.outer_bias)
        return jnp.concatenate([jnp.ones_like(z[:1]), z, hidden]) @ self.last

    def factor(self) -> Float[Array, "d d"]:
        """L."""
        return jnp.tril(self.tril, -1) + jnp.diag(jnp.exp(jnp.diagonal(self.tril)))


class TaskRows(NamedTuple):
    """Rows of one task; those of weight zero do not count."""

    z: Float[Array, "r p"]
    y: Float[Array, " r"]
    w: Float[Array, " r"]


def task_evidence(params: Params, rows: TaskRows, binary: bool) -> Float[Array, ""]:
    """Log evidence of one task's rewards, Gaussian or, as a bound, Bernoulli."""
    phi = jax.vmap(params.features)(rows.z)
    offset, slope = phi @ params.mean, phi @ params.factor()

    def regression(precision: Array, shift: Array) -> tuple[Array, Array, Array]:
        """Evidence under exp(shift eta - precision eta^2 / 2); mean and variance of every eta."""
        b = slope.T @ (rows.w * (shift - precision * offset))
        matrix = (slope.T * (rows.w * precision)[None]) @ slope + jnp.eye(len(b), dtype=b.dtype)
        tril = jnp.linalg.cholesky(matrix)
        u = jax.scipy.linalg.solve_triangular(tril, b, lower=True)
        own = rows.w @ (shift * offset - 0.5 * precision * offset**2)
        value = own + 0.5 * u @ u - jnp.sum(jnp.log(jnp.diagonal(tril)))
        along = jax.scipy.linalg.solve_triangular(tril, slope.T, lower=True)
        return value, offset + along.T @ u, jnp.sum(along**2, axis=0)

    if not binary:
        precision = jnp.exp(-2.0 * params.log_noise) * jnp.ones_like(rows.y)
        constant = 0.5 * (jnp.log(precision) - jnp.log(2 * jnp.pi) - precision * rows.y**2)
        return regression(precision, precision * rows.y)[0] + rows.w @ constant
    xi, shift = jnp.ones_like(rows.y), rows.y - 0.5
    for _ in range(BOUND_STEPS):
        _, mean, variance = regression(jnp.tanh(xi / 2) / (2 * xi), shift)
        xi = jax.lax.stop_gradient(jnp.sqrt(mean**2 + variance + 1e-6))
    precision = jnp.tanh(xi / 2) / (2 * xi)
    constant = jax.nn.log_sigmoid(xi) - 0.5 * xi + 0.5 * precision * xi**2
    return regression(precision, shift)[0] + rows.w @ constant


class TaskLoss(AbstractLoss):
    """Mean negative log evidence of tasks, of which rows begin and end at these places."""

    starts: Int[AnyArray, " t"]
    counts: Int[AnyArray, " t"]
    max_rows: int = eqx.field(static=True)
    binary: bool = eqx.field(static=True)

    @staticmethod
    def of(logs: Logs, tasks: Bool[np.ndarray, " t"], binary: bool) -> "TaskLoss":
        """Of some tasks."""
        most = min(int(logs.counts.max()), MAX_ROWS)
        return TaskLoss(logs.starts[:-1][tasks], logs.counts[tasks], most, binary)

    def draw(
        self, rng: np.random.Generator, rows: Rows, size: int, num_steps: int
    ) -> tuple[Int[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
        """Tasks at random."""
        return self.places(rng, rng.integers(0, len(self.starts), (num_steps, size)))

    def places(
        self, rng: np.random.Generator, tasks: Int[np.ndarray, "..."]
    ) -> tuple[Int[np.ndarray, "..."], Bool[np.ndarray, "..."]]:
        """Rows of tasks, as many in a row as there is room for, and which of them are theirs."""
        starts, counts = (np.asarray(part)[tasks, None] for part in (self.starts, self.counts))
        begin = rng.integers(0, np.maximum(counts - self.max_rows, 0) + 1)
        place = begin + np.arange(self.max_rows)
        own = place < counts
        return np.where(own, starts + place, 0).astype(np.int32), own

    def __call__(self, params: Params, drawn: tuple[AnyArray, AnyArray], rows: Rows) -> Array:
        return jnp.mean(self.losses(params, drawn, rows))

    @eqx.filter_jit
    def losses(self, params: Params, drawn: tuple[AnyArray, AnyArray], rows: Rows) -> Array:
        """Of each task."""
        parts = rows.samples[drawn[0]]
        tasks = TaskRows(parts[..., :-2], parts[..., -2], jnp.where(drawn[1], parts[..., -1], 0.0))
        return -jax.vmap(lambda task: task_evidence(params, task, self.binary))(tasks)


def train(
    logs: Logs, likelihood: AbstractLikelihood, encoder: NetworkEncoder, seed: int
) -> FeatureNetwork:
    """Features of largest log evidence; some of the tasks say at which step."""
    rng, binary = np.random.default_rng(seed), isinstance(likelihood, Logistic)
    rewards = logs.rewards
    if not binary:
        positive = not isinstance(likelihood, Linear) and rewards.min() >= 0
        rewards = np.log1p(rewards) if positive else rewards  # eta of counts is a logarithm
        rewards = rewards / (np.std(rewards) or 1.0)
    center, scale = logs.features.mean(axis=0), np.std(logs.features, axis=0)
    center, scale = np.where(scale > 0, center, 0.0), np.where(scale > 0, scale, 1.0)
    order = np.lexsort((rng.random(logs.num_rows), logs.row_tasks))
    numbers = np.column_stack([(logs.features - center) / scale, rewards, logs.weights])[order]
    rows, stops = Rows.of(numbers, None), folds(logs.hashes, STOPPING_FOLDS, STOPPING_SALT) == 0
    loss, last = (TaskLoss.of(logs, tasks, binary) for tasks in (~stops, stops))
    scored = last.places(rng, np.arange(min(len(last.starts), MAX_STOPPING)))
    training = TRAINING._replace(num_steps=encoder.num_steps)
    params, _ = optimize(
        Params.init(rng, logs.dim, encoder.width, encoder.dim), loss, rows, training, seed, False,
        lambda params: np.asarray(last.losses(params, scored, rows)),
    )  # fmt: skip
    return as_network(params, numbers[:, : logs.dim], center, scale)


def as_network(
    params: Params,
    z: Float[np.ndarray, "n p"],
    center: Float[np.ndarray, " p"],
    scale: Float[np.ndarray, " p"],
) -> FeatureNetwork:
    """Features whose weights have unit second moments, by their part in the mean squared eta."""
    a, a_bias, b, b_bias, last, mean, tril, _ = (np.asarray(part, np.float64) for part in params)
    tril = np.tril(tril, -1) + np.diag(np.exp(np.diagonal(tril)))
    root = np.linalg.cholesky(tril @ tril.T + np.outer(mean, mean))
    network = FeatureNetwork(center, scale, a, a_bias, b, b_bias, last @ root)
    some = z[:: max(1, len(z) // MAX_GRAM_ROWS)]
    phi = network(center + scale * some)
    shares, vectors = np.linalg.eigh(phi.T @ phi / len(phi))
    kept = np.flatnonzero(shares > MIN_SHARE * shares.sum())[::-1]
    return dataclasses.replace(network, last=network.last @ vectors[:, kept])
