"""Learning the paper's denoiser from the parameters of past tasks: Appendix B (Eq. 15)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..schedule import Schedule
from ..threefry import written_out
from .descent import Fitted, Recipe, Rows, loss_over, optimize
from .stagewise import StagewiseDenoiser


def fit_stagewise(
    train: Float[np.ndarray, "n d"],
    held_out: Float[np.ndarray, "m d"],
    grid: Schedule,
    *,
    train_weights: Float[np.ndarray, " n"] | None = None,
    held_out_weights: Float[np.ndarray, " m"] | None = None,
    seed: int,
    progress: bool | None,
    initial: StagewiseDenoiser | None = None,
    num_steps: int | None = None,
    width: int | None = None,
) -> tuple[StagewiseDenoiser, Fitted]:
    """Learn the paper's regressors, one per stage, all stages as one batched program: Eq. (15).

    Args:
        train: samples in unit coordinates to learn from.
        held_out: samples in unit coordinates that pick when to stop.
        grid: the stages.
        train_weights: how many times each row of `train` counts; once by default.
        held_out_weights: the same for `held_out`.
        seed: of the weights, if they are not given, and of the batches.
        progress: whether to show a bar.
        initial: weights to start from; by default random ones.
        num_steps: of the optimizer; 1,250 by default.
        width: of the hidden layers; 100 by default.
    """
    init_key, held_out_key, key = jax.random.split(jax.random.key(seed), 3)
    regressors = initial or StagewiseDenoiser.initialize(
        init_key, train.shape[1], grid, width=width or 100
    )
    alpha_bar = np.asarray(grid.alpha_bar[1:])[:, None, None]
    loss = StagewiseLoss(
        *(jnp.asarray(np.sqrt(a), jnp.float32) for a in (alpha_bar, 1 - alpha_bar))
    )
    recipe = Recipe(num_steps or 1250, 256, 3e-3, False)
    judged = Rows.of(held_out, held_out_weights)

    def evaluate(regressors: StagewiseDenoiser) -> Float[np.ndarray, " 1"]:
        return np.asarray(loss_over(loss, regressors, held_out_key, judged, 256))[None]

    rows, keys = Rows.of(train, train_weights), (key, held_out_key)
    return optimize(regressors, loss, rows, recipe, keys, progress, evaluate)


class StagewiseLoss(eqx.Module):
    """The mean squared error of the predicted noise over all stages: Eq. (15)."""

    signal: Float[Array, "t 1 1"]
    noise_std: Float[Array, "t 1 1"]

    def __call__(
        self, regressors: StagewiseDenoiser, key: Key[Array, ""], rows: Rows, size: int
    ) -> Float[Array, ""]:
        """For a batch of `size` samples at every stage."""
        rows_key, noise_key = jax.random.split(written_out(key))
        num_stages = self.signal.shape[0]
        s_0 = rows.draw(rows_key, num_stages * size).reshape(num_stages, size, -1)
        noise = jax.random.normal(noise_key, s_0.shape, s_0.dtype)
        s_t = self.signal * s_0 + self.noise_std * noise
        predicted = jax.vmap(lambda stage, s: jax.vmap(stage.noise_at)(s))(regressors, s_t)
        return jnp.mean(jnp.sum((noise - predicted) ** 2, axis=-1))
