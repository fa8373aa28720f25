"""Descent on the weights of a denoiser, and the training of the paper's regressors (Eq. 15)."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, UInt32

from ..denoisers.stagewise import StagewiseDenoiser
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
        warm = jnp.minimum(step / warm_up, 1.0)
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
