"""Samplers on tasks of a bandit problem: distance from the true posterior, and coverage."""

from collections.abc import Iterable
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..evidence.base import AbstractEvidence
from ..problems.base import AbstractProblem
from ..samplers.base import AbstractSampler, Info
from .calibration import Coverage, coverage
from .distances import Distance, earth_movers_distance

AT_ONCE = 256  # draws side by side, which bounds the memory


class Tasks(eqx.Module):
    """Tasks with as many observations each, of random actions; the first axis runs over tasks."""

    thetas: Float[Array, "n d"]
    evidence: AbstractEvidence
    num_observations: int = eqx.field(static=True)

    def __len__(self) -> int:
        return self.thetas.shape[0]

    def first(self, count: int) -> "Tasks":
        """The first so many."""
        return jax.tree.map(lambda leaf: leaf[:count], self)

    def after(self, count: int) -> "Tasks":
        """All but the first so many."""
        return jax.tree.map(lambda leaf: leaf[count:], self)


@dataclass(frozen=True)
class Truth:
    """Two independent samples of the true posterior of every task, (tasks, draws, d)."""

    first: np.ndarray
    second: np.ndarray
    floors: np.ndarray  # distance between the two


def random_tasks(
    problem: AbstractProblem, num_observations: int, count: int, seed: int, room: int | None = None
) -> Tasks:
    """New tasks of a problem, and what actions chosen at random showed of each.

    One program serves all numbers of observations up to `room`.
    """
    theta_key, history_key = jax.random.split(jax.random.key(seed))
    thetas = jnp.asarray(problem.sample_parameters(theta_key, count), float)
    keys = jax.random.split(history_key, count)
    size = jnp.asarray(num_observations)
    evidence = _histories(problem, keys, thetas, size, room or num_observations)
    return Tasks(thetas, evidence, num_observations)


def draw_each(
    sampler: AbstractSampler, tasks: Tasks, num_draws: int, seed: int
) -> Float[np.ndarray, "n m d"]:
    """Draws of the posterior of every task; those that failed far away from anything."""
    draws, info = draw_with_info(sampler, tasks, num_draws, seed)
    far = np.where(np.asarray(info.failed)[..., None], np.nan, np.asarray(draws, np.float64))
    return np.nan_to_num(far, nan=1e6, posinf=1e6, neginf=-1e6)


def draw_with_info(
    sampler: AbstractSampler, tasks: Tasks, num_draws: int, seed: int
) -> tuple[Float[Array, "n m d"], Info]:
    """Draws of the posterior of every task, and how each of them went."""
    keys = jax.random.split(jax.random.key(seed), (len(tasks), num_draws))
    return _draw_with_info(sampler, keys, tasks.evidence)


def true_posterior(exact: AbstractSampler, tasks: Tasks, num_draws: int, seed: int) -> Truth:
    """What an exact sampler draws."""
    both = draw_each(exact, tasks, 2 * num_draws, seed)
    first, second = both[:, :num_draws], both[:, num_draws:]
    return Truth(first, second, _distances(first, second))


def distance_from(truth: Truth, draws: Float[np.ndarray, "n m d"]) -> Distance:
    """Earth mover's distances, beside those of exact draws from each other."""
    count = len(draws)
    return Distance(_distances(draws, truth.first[:count]), truth.floors[:count])


def pooled_coverage(
    draws: Iterable[Float[np.ndarray, "n m d"]], tasks: Iterable[Tasks], level: float = 0.9
) -> Coverage:
    """Coverage over tasks of several numbers of observations."""
    pairs = [(d, np.asarray(t.thetas)[: len(d)]) for d, t in zip(draws, tasks, strict=True)]
    all_draws, all_thetas = (np.concatenate(part) for part in zip(*pairs, strict=True))
    return coverage(all_draws, all_thetas, level)


def _distances(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.array([earth_movers_distance(a, b) for a, b in zip(first, second, strict=True)])


@eqx.filter_jit
def _histories(
    problem: AbstractProblem,
    keys: Key[Array, " n"],
    thetas: Float[Array, "n d"],
    size: Int[Array, ""],
    room: int,
) -> AbstractEvidence:
    """Rounds up to `room`, of which the first `size` count."""
    empty = problem.likelihood.empty(problem.dim, room)

    def round_(key: Key[Array, ""], theta: Array, actions_key: Key[Array, ""]) -> tuple:
        fresh_key, noise_key, choice_key = jax.random.split(key, 3)
        features = problem.features(fresh_key if problem.fresh_actions else actions_key)
        rewards = problem.rewards(noise_key, problem.mean_rewards(theta, features))
        action = jax.random.randint(choice_key, (), 0, problem.num_actions)
        return features[action], rewards[action]

    def history(key: Key[Array, ""], theta: Float[Array, " d"]) -> AbstractEvidence:
        actions_key, rounds_key = jax.random.split(key)
        round_keys = jax.random.split(rounds_key, room)
        phi, y = jax.vmap(lambda k: round_(k, theta, actions_key))(round_keys)
        return empty.add(phi, y, (jnp.arange(room) < size).astype(y.dtype))

    return jax.vmap(history)(keys, thetas)


@eqx.filter_jit
def _draw_with_info(
    sampler: AbstractSampler, keys: Key[Array, "n m"], evidence: AbstractEvidence
) -> tuple[Float[Array, "n m d"], Info]:
    """Some tasks at a time, their draws side by side."""

    def one(
        inputs: tuple[Key[Array, " m"], AbstractEvidence],
    ) -> tuple[Float[Array, "m d"], Info]:
        keys, evidence = inputs
        return jax.vmap(lambda key: sampler.tempered_draw(key, evidence))(keys)

    return jax.lax.map(one, (keys, evidence), batch_size=max(1, AT_ONCE // keys.shape[1]))
