"""Learning a denoiser from the parameters of past tasks: Section 3, Appendix B (Eq. 15)."""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..schedule import Schedule
from .denoisers import LOG_PRECISION, NetworkDenoiser, StagewiseDenoiser

Params = TypeVar("Params")
CHUNK = 250  # steps between looks at the held-out loss
PATIENCE = 6  # looks without improvement before stopping
AVERAGING = 0.995  # decay of the running mean of the weights
NUM_ROTATIONS = 8192
HELD_OUT_DRAWS = 8192
MIDDLE, MIDDLE_SHARE = (-4.0, 3.0), 0.85  # log precisions that training dwells on


class Recipe(NamedTuple):
    """How long and how fast to learn."""

    num_steps: int
    batch_size: int
    learning_rate: float
    orthogonal: bool  # steps of matrices made orthogonal (Muon) rather than scaled by entry (Adam)
    num_others: int = 0  # samples that share in a target


class Fitted(NamedTuple):
    """What learning came to: held-out losses at each look, and where the best was."""

    losses: tuple[float, ...]
    best: int


def network_recipe(dim: int, isotropic: bool) -> tuple[Recipe, int, int]:
    """Recipe, width and depth of the network that serve `dim` parameters well."""
    if dim <= 3:
        return Recipe(4000, 1024, 2e-2, True, 512), 64, 4
    width = 128 if dim <= 8 else 192 if dim <= 16 else 256
    return Recipe(5000, 1024, 2e-2, True, 2048), width, 4


def fit_network(
    train: Float[np.ndarray, "n d"],
    held_out: Float[np.ndarray, "m d"],
    *,
    isotropic: bool,
    seed: int,
    progress: bool,
) -> tuple[NetworkDenoiser, Fitted]:
    """Learn one network for all Gaussian (or all isotropic) evidence, from samples in unit
    coordinates."""
    dim = train.shape[1]
    recipe, width, depth = network_recipe(dim, isotropic)
    init_key, held_out_key, key = jax.random.split(jax.random.key(seed), 3)
    network = NetworkDenoiser.initialise(
        init_key, dim, width=width, depth=depth, isotropic=isotropic
    )
    rotations = _random_rotations(dim, seed)

    def loss(
        network: NetworkDenoiser, key: Key[Array, ""], samples: Array, size: int
    ) -> Float[Array, ""]:
        rows_key, others_key, evidence_key, noise_key = jax.random.split(key, 4)
        s_0 = _rows(rows_key, samples, size)
        others = _rows(others_key, samples, recipe.num_others)
        vectors, log_precision = _random_evidence(
            evidence_key, rotations, size, isotropic=isotropic
        )
        noise = jax.random.normal(noise_key, s_0.shape, s_0.dtype)
        return jnp.mean(_errors(network, others, s_0, vectors, log_precision, noise))

    return optimise(
        network,
        lambda p, k, samples: loss(p, k, samples, recipe.batch_size),
        lambda p, samples: loss(p, held_out_key, samples, HELD_OUT_DRAWS),
        (train, held_out),
        recipe,
        key,
        progress,
    )


def fit_stagewise(
    train: Float[np.ndarray, "n d"],
    held_out: Float[np.ndarray, "m d"],
    grid: Schedule,
    *,
    seed: int,
    progress: bool,
) -> tuple[StagewiseDenoiser, Fitted]:
    """Learn the paper's regressors, one per stage, all stages as one batched program: Eq. (15)."""
    init_key, held_out_key, key = jax.random.split(jax.random.key(seed), 3)
    regressors = StagewiseDenoiser.initialise(init_key, train.shape[1], grid)
    alpha_bar = np.asarray(grid.alpha_bar[1:])[:, None, None]
    signal, noise_std = (jnp.asarray(np.sqrt(a), jnp.float32) for a in (alpha_bar, 1 - alpha_bar))

    def loss(
        regressors: StagewiseDenoiser, key: Key[Array, ""], samples: Array, size: int
    ) -> Float[Array, ""]:
        rows_key, noise_key = jax.random.split(key)
        shape = (grid.num_stages, size, samples.shape[1])
        s_0 = _rows(rows_key, samples, grid.num_stages * size).reshape(shape)
        noise = jax.random.normal(noise_key, shape, s_0.dtype)
        s_t = signal * s_0 + noise_std * noise
        predicted = jax.vmap(lambda stage, s: jax.vmap(stage.noise_at)(s))(regressors, s_t)
        return jnp.mean(jnp.sum((noise - predicted) ** 2, axis=-1))

    recipe = Recipe(1250, 256, 3e-3, False)
    return optimise(
        regressors,
        lambda p, k, samples: loss(p, k, samples, recipe.batch_size),
        lambda p, samples: loss(p, held_out_key, samples, 256),
        (train, held_out),
        recipe,
        key,
        progress,
    )


def optimise(
    params: Params,
    train_loss: Callable[[Params, Key[Array, ""], Array], Float[Array, ""]],
    held_out_loss: Callable[[Params, Array], Float[Array, ""]],
    data: tuple[np.ndarray, np.ndarray],
    recipe: Recipe,
    key: Key[Array, ""],
    progress: bool,
) -> tuple[Params, Fitted]:
    """Descent with cosine decay and averaged weights; the held-out loss picks when to stop."""
    train, held_out = (jnp.asarray(part, jnp.float32) for part in data)
    optimiser = _optimiser(recipe)

    @eqx.filter_jit
    def chunk(train: Array, state: tuple, key: Key[Array, ""]) -> tuple:
        def step(state: tuple, key: Key[Array, ""]) -> tuple[tuple, None]:
            params, mean, moments = state
            gradient = jax.grad(train_loss)(params, key, train)
            updates, moments = optimiser.update(gradient, moments, params)
            params = optax.apply_updates(params, updates)
            mean = jax.tree.map(lambda m, p: AVERAGING * m + (1 - AVERAGING) * p, mean, params)
            return (params, mean, moments), None

        return jax.lax.scan(step, state, jax.random.split(key, CHUNK))[0]

    look = eqx.filter_jit(held_out_loss)
    with jax.numpy_dtype_promotion("standard"), _bar(progress) as bar:
        task = bar.add_task("learning the prior", total=recipe.num_steps)
        state = (params, params, optimiser.init(params))
        best_params, losses, best = params, [float(look(params, held_out))], 0
        for index in range(recipe.num_steps // CHUNK):
            state = chunk(train, state, jax.random.fold_in(key, index))
            losses.append(float(look(state[1], held_out)))
            bar.update(task, advance=CHUNK)
            if losses[-1] <= losses[best]:
                best, best_params = len(losses) - 1, state[1]
            elif len(losses) - 1 - best >= PATIENCE:
                break
    return best_params, Fitted(tuple(losses), best)


def _optimiser(recipe: Recipe) -> optax.GradientTransformation:
    decay = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, 100, recipe.num_steps, 0.01 * recipe.learning_rate
    )
    if not recipe.orthogonal:
        return optax.adam(decay, b2=0.99)
    return optax.contrib.muon(
        decay,
        adam_b2=0.99,
        muon_weight_dimension_numbers=lambda params: jax.tree.map(_axes, params),
    )


def _axes(weights: Array) -> optax.contrib.MuonDimensionNumbers | None:
    """Which axes make up the matrix of a layer; those before them only stack layers."""
    axes = (weights.ndim - 2, weights.ndim - 1)
    return optax.contrib.MuonDimensionNumbers(*axes) if weights.ndim >= 2 else None


def _errors(
    network: NetworkDenoiser,
    others: Float[Array, "m d"],
    s_0: Float[Array, "b d"],
    vectors: Float[Array, "b d d"],
    log_precision: Float[Array, "b d"],
    noise: Float[Array, "b d"],
) -> Float[Array, " b"]:
    """Squared errors of F for samples seen as u = s_0 + P^(-1/2) noise."""
    u = s_0 + jnp.einsum("bij,bj->bi", vectors, jnp.exp(-0.5 * log_precision) * noise)
    target = _posterior_means(u, vectors, log_precision, s_0, others)
    error = jax.vmap(_network_error, in_axes=(None, 0, 0, 0, 0))
    return error(network, target, u, vectors, log_precision)


def _posterior_means(
    u: Float[Array, "b d"],
    vectors: Float[Array, "b d d"],
    log_precision: Float[Array, "b d"],
    s_0: Float[Array, "b d"],
    others: Float[Array, "m d"],
) -> Float[Array, "b d"]:
    """The mean of s_0 given u = s_0 + noise, over the sample it came from and `others`.

    Any sample could have given u, so each is weighted by how likely it is to have done so: as a
    target of the regression the same mean as s_0 itself, with much less noise.
    """
    precision = jnp.einsum("bij,bj,bkj->bik", vectors, jnp.exp(log_precision), vectors)
    shift = jnp.einsum("bij,bj->bi", precision, u)
    size, dim = u.shape
    squares = (others[:, :, None] * others[:, None, :]).reshape(-1, dim * dim)
    log_others = shift @ others.T - 0.5 * precision.reshape(size, dim * dim) @ squares.T
    log_own = jnp.sum((shift - 0.5 * jnp.einsum("bij,bj->bi", precision, s_0)) * s_0, axis=1)
    weights = jax.nn.softmax(jnp.concatenate([log_own[:, None], log_others], axis=1), axis=1)
    return weights[:, :1] * s_0 + weights[:, 1:] @ others


def _network_error(
    network: NetworkDenoiser,
    s_0: Float[Array, " d"],
    u: Float[Array, " d"],
    vectors: Float[Array, "d d"],
    log_precision: Float[Array, " d"],
) -> Float[Array, ""]:
    """Squared error of F, whose target is (I + P)^(1/2) (s_0 - (I + P)^-1 P u)."""
    gain = jax.nn.sigmoid(log_precision)  # p / (1 + p)
    rotated = gain * (u @ vectors)
    target = (s_0 @ vectors - rotated) * jnp.sqrt(1.0 + jnp.exp(log_precision))
    bias = network.evidence_bias(vectors, log_precision)
    f = network.correction(vectors @ rotated, bias)
    return jnp.sum((target - f @ vectors) ** 2)


def _random_evidence(
    key: Key[Array, ""], rotations: Float[Array, "r d d"], size: int, *, isotropic: bool
) -> tuple[Float[Array, "b d d"], Float[Array, "b d"]]:
    """Evidence of all strengths and ranks: a noisy sample, plus a task's own in some directions.

    That is what a chain meets: precision snr I + Lam, where the eigenvalues of Lam are of about one
    size (how many observations) or zero (directions not seen yet).
    """
    keys = jax.random.split(key, 6)
    dim = rotations.shape[-1]
    noisy = _log_strength(keys[0], size)
    if isotropic:
        identity = jnp.broadcast_to(jnp.eye(dim, dtype=noisy.dtype), (size, dim, dim))
        return identity, jnp.broadcast_to(noisy, (size, dim))
    strength = _log_strength(keys[1], size)
    spread = jax.random.uniform(keys[2], (size, 1), jnp.float32, maxval=2.0)
    task = strength + spread * jax.random.normal(keys[3], (size, dim), jnp.float32)
    num_seen = jax.random.randint(keys[4], (size, 1), 0, dim + 1)
    seen = jnp.arange(dim)[None, :] < num_seen
    log_precision = jnp.where(seen, jnp.logaddexp(noisy, task), noisy)
    which = jax.random.randint(keys[5], (size,), 0, rotations.shape[0])
    return rotations[which], jnp.clip(log_precision, *LOG_PRECISION)


def _log_strength(key: Key[Array, ""], size: int) -> Float[Array, "b 1"]:
    """Log precisions: most of them where neither the prior nor the evidence decides alone."""
    which_key, key = jax.random.split(key)
    unit = jax.random.uniform(key, (size, 1), jnp.float32)
    middle = jax.random.bernoulli(which_key, MIDDLE_SHARE, (size, 1))
    (low, high), (mid_low, mid_high) = LOG_PRECISION, MIDDLE
    return jnp.where(middle, mid_low + (mid_high - mid_low) * unit, low + (high - low) * unit)


def _random_rotations(dim: int, seed: int) -> Float[Array, "r d d"]:
    normal = np.random.default_rng(seed).standard_normal((NUM_ROTATIONS, dim, dim))
    q, r = np.linalg.qr(normal)
    signs = np.sign(np.diagonal(r, axis1=1, axis2=2))
    return jnp.asarray(q * signs[:, None, :], jnp.float32)


def _rows(key: Key[Array, ""], samples: Float[Array, "n d"], size: int) -> Float[Array, "b d"]:
    return samples[jax.random.randint(key, (size,), 0, samples.shape[0])]


def _bar(visible: bool) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not visible, transient=True)
