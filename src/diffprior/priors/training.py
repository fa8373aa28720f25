"""Learning a denoiser from the parameters of past tasks: Section 3, Appendix B (Eq. 15)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..schedule import Schedule
from .denoisers import LOG_PRECISION, NetworkDenoiser, StagewiseDenoiser
from .descent import Fitted, Recipe, Rows, optimise

NUM_ROTATIONS = 8192
HELD_OUT_DRAWS = 8192
MIDDLE, MIDDLE_SHARE = (-4.0, 3.0), 0.85  # log precisions that training dwells on


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
    train_weights: Float[np.ndarray, " n"] | None = None,
    held_out_weights: Float[np.ndarray, " m"] | None = None,
    isotropic: bool,
    seed: int,
    progress: bool,
    initial: NetworkDenoiser | None = None,
    num_steps: int | None = None,
    width: int | None = None,
    depth: int | None = None,
) -> tuple[NetworkDenoiser, Fitted]:
    """Learn one network for all Gaussian (or all isotropic) evidence.

    Args:
        train: samples in unit coordinates to learn from.
        held_out: samples in unit coordinates that pick when to stop.
        train_weights: how many times each row of `train` counts; once by default.
        held_out_weights: the same for `held_out`.
        isotropic: whether the evidence is isotropic.
        seed: of the weights, if they are not given, and of the batches.
        progress: whether to show a bar.
        initial: weights to start from; by default random ones.
        num_steps: of the optimiser; by default as many as serve so many parameters well.
        width: of the hidden layers; likewise.
        depth: number of hidden layers; likewise.
    """
    dim = train.shape[1]
    recipe, usual_width, usual_depth = network_recipe(dim, isotropic)
    recipe = recipe._replace(num_steps=num_steps or recipe.num_steps)
    init_key, held_out_key, key = jax.random.split(jax.random.key(seed), 3)
    size = {"width": width or usual_width, "depth": depth or usual_depth}
    network = initial or NetworkDenoiser.initialise(init_key, dim, isotropic=isotropic, **size)
    loss = NetworkLoss(_random_rotations(dim, seed), recipe.num_others)
    data = (Rows.of(train, train_weights), Rows.of(held_out, held_out_weights))
    keys = (key, held_out_key)
    return optimise(network, loss, data, recipe, keys, progress, HELD_OUT_DRAWS)


class NetworkLoss(eqx.Module):
    """The mean squared error of a network's F over random samples and evidence."""

    rotations: Float[Array, "r d d"]
    num_others: int = eqx.field(static=True)

    def __call__(
        self, network: NetworkDenoiser, key: Key[Array, ""], rows: Rows, size: int
    ) -> Float[Array, ""]:
        """For a batch of `size` samples."""
        rows_key, others_key, evidence_key, noise_key = jax.random.split(key, 4)
        s_0 = rows.draw(rows_key, size)
        others = rows.draw(others_key, self.num_others)
        vectors, log_precision = _random_evidence(
            evidence_key, self.rotations, size, isotropic=network.isotropic
        )
        noise = jax.random.normal(noise_key, s_0.shape, s_0.dtype)
        return jnp.mean(_errors(network, others, s_0, vectors, log_precision, noise))


def fit_stagewise(
    train: Float[np.ndarray, "n d"],
    held_out: Float[np.ndarray, "m d"],
    grid: Schedule,
    *,
    train_weights: Float[np.ndarray, " n"] | None = None,
    held_out_weights: Float[np.ndarray, " m"] | None = None,
    seed: int,
    progress: bool,
    initial: StagewiseDenoiser | None = None,
    num_steps: int | None = None,
    width: int | None = None,
) -> tuple[StagewiseDenoiser, Fitted]:
    """Learn the paper's regressors, one per stage, all stages as one batched program: Eq. (15).

    The arguments are those of `fit_network`, and the stages.
    """
    init_key, held_out_key, key = jax.random.split(jax.random.key(seed), 3)
    regressors = initial or StagewiseDenoiser.initialise(
        init_key, train.shape[1], grid, width=width or 100
    )
    alpha_bar = np.asarray(grid.alpha_bar[1:])[:, None, None]
    loss = StagewiseLoss(
        *(jnp.asarray(np.sqrt(a), jnp.float32) for a in (alpha_bar, 1 - alpha_bar))
    )
    recipe = Recipe(num_steps or 1250, 256, 3e-3, False)
    data = (Rows.of(train, train_weights), Rows.of(held_out, held_out_weights))
    return optimise(regressors, loss, data, recipe, (key, held_out_key), progress, 256)


class StagewiseLoss(eqx.Module):
    """The mean squared error of the predicted noise over all stages: Eq. (15)."""

    signal: Float[Array, "t 1 1"]
    noise_std: Float[Array, "t 1 1"]

    def __call__(
        self, regressors: StagewiseDenoiser, key: Key[Array, ""], rows: Rows, size: int
    ) -> Float[Array, ""]:
        """For a batch of `size` samples at every stage."""
        rows_key, noise_key = jax.random.split(key)
        num_stages = self.signal.shape[0]
        s_0 = rows.draw(rows_key, num_stages * size).reshape(num_stages, size, -1)
        noise = jax.random.normal(noise_key, s_0.shape, s_0.dtype)
        s_t = self.signal * s_0 + self.noise_std * noise
        predicted = jax.vmap(lambda stage, s: jax.vmap(stage.noise_at)(s))(regressors, s_t)
        return jnp.mean(jnp.sum((noise - predicted) ** 2, axis=-1))


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
