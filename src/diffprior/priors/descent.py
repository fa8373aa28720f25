"""Descent on the weights of a denoiser, whatever the loss."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..mixture import pick
from ..progress import progress as show_progress

Params = TypeVar("Params")
Loss = Callable[[Any, Key[Array, ""], Any, int], Float[Array, ""]]
CHUNK = 250  # steps between evaluations of the held-out loss
PATIENCE = 6  # evaluations without improvement before stopping
WARM_UP = 100  # steps until the learning rate is at its highest
AVERAGING = 0.995  # decay of the running mean of the weights


class Recipe(NamedTuple):
    """How long and how fast to learn."""

    num_steps: int
    batch_size: int
    learning_rate: float
    orthogonal: bool  # steps of matrices made orthogonal (Muon) rather than scaled by entry (Adam)
    num_others: int = 0  # samples that share in a target
    weight_decay: float = 0.0  # share of the weights that a step takes, over its learning rate
    noise: float = 0.0  # standard errors by which earlier weights must be better than later ones


class AbstractPooledLoss(eqx.Module):
    """A loss that keeps a pool of what is costly to make, and uses each item many times."""

    @abc.abstractmethod
    def __call__(
        self, params: Any, key: Key[Array, ""], rows: "Rows", size: int
    ) -> Float[Array, ""]:
        """The loss over a random batch of `size` samples."""

    @abc.abstractmethod
    def refreshed(self, key: Key[Array, ""]) -> "AbstractPooledLoss":
        """The same loss with another pool."""


class Fitted(NamedTuple):
    """What learning came to: held-out losses at each evaluation, and where the best was."""

    losses: tuple[float, ...]
    best: int


class Rows(NamedTuple):
    """Samples in unit coordinates, and how many times each counts; once if `weights` is None."""

    samples: Float[Array, "n d"]
    weights: Float[Array, " n"] | None

    @staticmethod
    def of(samples: np.ndarray, weights: np.ndarray | None) -> "Rows":
        """In single precision, in which networks learn."""
        share = None if weights is None else jnp.asarray(weights, jnp.float32)
        return Rows(jnp.asarray(samples, jnp.float32), share)

    def first(self, number: int) -> "Rows":
        """At most so many, from the first on."""
        weights = None if self.weights is None else self.weights[:number]
        return Rows(self.samples[:number], weights)

    def draw(self, key: Key[Array, ""], size: int) -> Float[Array, "b d"]:
        """Rows at random, by their weights."""
        return self.samples[self.indices(key, size)]

    def indices(self, key: Key[Array, ""], size: int) -> Int[Array, " b"]:
        """Which rows `draw` draws."""
        if self.weights is None:
            return jax.random.randint(key, (size,), 0, self.samples.shape[0])
        return pick(self.weights, jax.random.uniform(key, (size,), jnp.float32))


def optimize(
    params: Params,
    loss: Loss,
    train: Rows,
    recipe: Recipe,
    keys: tuple[Key[Array, ""], Key[Array, ""]],
    progress: bool | None,
    evaluate: Callable[[Params], Float[np.ndarray, " m"]],
) -> tuple[Params, Fitted]:
    """Descent with cosine decay and averaged weights; `evaluate`, the losses of held-out samples,
    picks when to stop: the last weights that do about as well as the best.

    Data, keys and the number of steps are arguments of the compiled programs, so that fits of the
    same shapes share them.
    """
    key, held_out_key = keys
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)
    steps, shared = jnp.asarray(recipe.num_steps, jnp.int32), recipe._replace(num_steps=0)
    bar = show_progress("learning the prior", recipe.num_steps, visible=progress)
    with jax.numpy_dtype_promotion("standard"), bar as told:
        state = (params, params, _initial(shared, steps, params))
        seen = [(params, evaluate(params))]
        losses, best = [float(np.mean(seen[0][1]))], 0
        for index in range(-(-recipe.num_steps // CHUNK)):
            count = min(CHUNK, recipe.num_steps - index * CHUNK)
            step_keys = jax.random.split(jax.random.fold_in(key, index), CHUNK)
            here = jnp.asarray(count, jnp.int32)
            loss = _refreshed(loss, jax.random.fold_in(held_out_key, 1 + index))
            state = _descend(loss, shared, steps, train, state, step_keys, here)
            errors = evaluate(state[1])
            if not np.all(np.isfinite(errors)):  # it has diverged
                break
            seen.append((state[1], errors))
            losses.append(float(np.mean(errors)))
            told.advance(count)
            best = int(np.argmin(losses))
            if len(losses) - 1 - best >= PATIENCE:
                break
    kept = max(i for i, (_, own) in enumerate(seen) if as_good(own, seen[best][1], recipe.noise))
    return seen[kept][0], Fitted(tuple(losses), kept)


def as_good(
    losses: Float[np.ndarray, " m"],
    best: Float[np.ndarray, " m"],
    noise: float,
    worth: float = 0.0,
) -> bool:
    """Whether the mean difference over held-out samples is within so many of its standard errors,
    or not worth so much of the loss."""
    gap = losses - best
    error = np.std(gap) / np.sqrt(len(gap))
    return bool(np.mean(gap) <= max(noise * error, worth * np.mean(best)))


def _refreshed(loss: Loss, key: Key[Array, ""]) -> Loss:
    """A loss with fresh evidence, if it keeps a pool of it."""
    return loss.refreshed(key) if isinstance(loss, AbstractPooledLoss) else loss


@eqx.filter_jit
def loss_over(
    loss: Loss, params: Params, key: Key[Array, ""], rows: Rows, size: int
) -> Float[Array, ""]:
    """The loss over a random batch."""
    return loss(params, key, rows, size)


@eqx.filter_jit
def _initial(recipe: Recipe, num_steps: Int[Array, ""], params: Params) -> Any:
    """The optimizer's own numbers at the start."""
    return _optimizer(recipe, num_steps).init(params)


@eqx.filter_jit
def _descend(
    loss: Loss,
    recipe: Recipe,
    num_steps: Int[Array, ""],
    rows: Rows,
    state: tuple,
    keys: Key[Array, " chunk"],
    count: Int[Array, ""],
) -> tuple:
    """`count` steps on; the recipe's own number of steps is not looked at."""
    import optax  # slow to import, and not needed to decide

    optimizer = _optimizer(recipe, num_steps)

    def step(index: Int[Array, ""], state: tuple) -> tuple:
        params, mean, moments = state
        gradient = jax.grad(loss)(params, keys[index], rows, recipe.batch_size)
        updates, moments = optimizer.update(gradient, moments, params)
        params = optax.apply_updates(params, updates)
        return params, optax.incremental_update(params, mean, 1 - AVERAGING), moments

    return jax.lax.fori_loop(0, count, step, state)


def _optimizer(recipe: Recipe, num_steps: Int[Array, ""]) -> Any:
    """Adam or Muon, warmed up over 100 steps and then decayed along a cosine to a hundredth: an
    `optax.GradientTransformation`."""
    import optax  # slow to import, and not needed to decide

    def rate(step: Int[Array, ""]) -> Float[Array, ""]:
        warm = jnp.minimum(step / WARM_UP, 1.0)
        left = jnp.clip((step - WARM_UP) / jnp.maximum(num_steps - WARM_UP, 1), 0.0, 1.0)
        decay = 0.01 + 0.99 * 0.5 * (1.0 + jnp.cos(jnp.pi * left))
        return (recipe.learning_rate * warm * decay).astype(jnp.float32)

    def axes(weights: Array) -> optax.contrib.MuonDimensionNumbers | None:
        """Which axes make up the matrix of a layer; those before them only stack layers."""
        last = (weights.ndim - 2, weights.ndim - 1)
        return optax.contrib.MuonDimensionNumbers(*last) if weights.ndim >= 2 else None

    if not recipe.orthogonal:
        return optax.adam(rate, b2=0.99)
    return optax.contrib.muon(
        rate,
        adam_b2=0.99,
        weight_decay=recipe.weight_decay,
        muon_weight_dimension_numbers=lambda params: jax.tree.map(axes, params),
    )
