"""Evidence of many tasks side by side, draws from their posteriors, and simulated tasks."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..checks import on_device, positive_int
from ..denoisers.base import for_task
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..logs.logs import Logs, grouped_logs
from ..priors.base import AbstractPrior, as_prior
from ..priors.conditional import ConditionalPrior
from ..problems.base import AbstractProblem
from ..problems.synthetic import uniform_in_ball
from ..samplers.base import AbstractSampler, Info
from ..samplers.choose import best_sampler

MIN_ROWS = 16  # room for rows: this many, and four times more as often as is needed
DRAWS_AT_ONCE = 1024  # side by side, which bounds the memory


def simulate_tasks(
    source: object,
    likelihood: AbstractLikelihood | None = None,
    *,
    num_tasks: int,
    num_observations: int | Sequence[int] | Int[np.ndarray, " n"],
    seed: int = 0,
) -> Logs:
    """Simulate tasks with actions chosen at random.

    Args:
        source: A problem, whose actions are offered; or a prior, from which parameters are drawn,
            with actions from the unit ball.
        likelihood: How rewards arise; by default the problem's. A prior needs one.
        num_tasks: How many tasks.
        num_observations: Rows of each task: one number for all, or one for each.
        seed: Of everything random.

    Returns:
        Logs with the true `parameters` of the tasks.

    Raises:
        ValueError: If a prior comes without a likelihood, or a number is impossible.
    """
    problem = _as_problem(source, likelihood)
    num_tasks = positive_int("num_tasks", num_tasks)
    sizes = np.asarray(num_observations)
    shape_fits = sizes.shape in ((), (num_tasks,))
    if not shape_fits or sizes.dtype.kind not in "iu" or np.any(sizes < 0):
        raise ValueError(
            f"`num_observations`: expected a whole number, or one for each of {num_tasks} tasks, "
            f"got {num_observations!r}; count the rows of each task"
        )
    sizes = np.broadcast_to(sizes, (num_tasks,)).astype(int)
    theta_key, history_key = jax.random.split(jax.random.key(seed))
    thetas = jnp.asarray(problem.sample_parameters(theta_key, num_tasks), float)
    keys = jax.random.split(history_key, num_tasks)
    phi, y = _simulated_rows(problem, keys, thetas, int(_room_for(sizes).max()))
    used = np.arange(phi.shape[1]) < sizes[:, None]
    features, rewards = np.asarray(phi, np.float64)[used], np.asarray(y, np.float64)[used]
    names = tuple(f"x{i + 1}" for i in range(phi.shape[2]))
    labels = np.arange(num_tasks, dtype=np.uint64)
    logs = grouped_logs(labels, sizes, features, rewards, np.ones(len(rewards)), None, names)
    logs.parameters = np.asarray(thetas, np.float64)
    return logs


def _as_problem(source: object, likelihood: AbstractLikelihood | None) -> AbstractProblem:
    if isinstance(source, AbstractProblem):
        if likelihood is not None:
            raise ValueError(
                "`likelihood`: expected None, since the problem has one, got another; "
                "make a problem with it, or pass a prior"
            )
        return source
    if likelihood is None:
        raise ValueError(
            "`likelihood`: expected a likelihood, got None; "
            "pass dp.Linear(noise_std), dp.Logistic() or another"
        )
    return _RandomActions(as_prior(source), likelihood)


class _RandomActions(AbstractProblem):
    """Parameters from a prior, and one action from the unit ball in every round."""

    prior: AbstractPrior
    likelihood: AbstractLikelihood
    dim: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    fresh_actions: bool = eqx.field(static=True)

    def __init__(self, prior: AbstractPrior, likelihood: AbstractLikelihood) -> None:
        self.prior, self.likelihood, self.dim = prior, likelihood, prior.dim
        self.num_actions, self.fresh_actions = 1, True

    def sample_parameters(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n d"]:
        return self.prior.sample(key, num_samples)

    def features(self, key: Key[Array, ""]) -> Float[Array, "k p"]:
        return uniform_in_ball(key, self.num_actions, self.likelihood.num_features(self.dim))


@eqx.filter_jit
def _simulated_rows(
    problem: AbstractProblem, keys: Key[Array, " n"], thetas: Float[Array, "n d"], num_rows: int
) -> tuple[Float[Array, "n r p"], Float[Array, "n r"]]:
    """Features and rewards of actions chosen at random, `num_rows` per task."""

    def row(
        key: Key[Array, ""], theta: Float[Array, " d"], actions_key: Key[Array, ""]
    ) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        fresh_key, noise_key, choice_key = jax.random.split(key, 3)
        features = problem.features(fresh_key if problem.fresh_actions else actions_key)
        rewards = problem.rewards(noise_key, theta, features)
        action = jax.random.randint(choice_key, (), 0, problem.num_actions)
        return features[action], rewards[action]

    def task(
        inputs: tuple[Key[Array, ""], Float[Array, " d"]],
    ) -> tuple[Float[Array, "r p"], Float[Array, " r"]]:
        key, theta = inputs
        actions_key, rows_key = jax.random.split(key)
        row_keys = jax.random.split(rows_key, num_rows)
        return jax.vmap(lambda k: row(k, theta, actions_key))(row_keys)

    rows: tuple[Array, Array] = jax.lax.map(task, (keys, thetas))
    return rows


def check_tasks(logs: object, likelihood: AbstractLikelihood, dim: int | None = None) -> None:
    """Raise unless these are logs with rewards of the likelihood, about `dim` parameters."""
    if not isinstance(logs, Logs):
        raise ValueError(
            f"`logs`: expected Logs, got {type(logs).__name__}; "
            "make them by dp.Logs(tasks, features, rewards)"
        )
    likelihood.check_rewards(logs.rewards)
    if dim is not None and dim != likelihood.num_parameters(logs.dim):
        raise ValueError(
            f"`logs`: expected {dim} parameters as in the prior, got "
            f"{likelihood.num_parameters(logs.dim)}; use features with "
            f"{likelihood.num_features(dim)} columns"
        )


def residual_of(
    prior: AbstractPrior, logs: Logs
) -> tuple[AbstractPrior, Float[np.ndarray, "n c"] | None]:
    """A prior given attributes as that of residuals, and the conditions of the tasks.

    Tasks whose attributes are not known are average ones. Other priors stay as they are.
    """
    if not isinstance(prior, ConditionalPrior):
        return prior, None
    known = logs.attributes
    return prior.residual, None if known is None else prior.conditions(known)


def evidence_batches(
    logs: Logs,
    likelihood: AbstractLikelihood,
    at_once: int,
    conditions: Float[np.ndarray, "n c"] | None = None,
) -> Iterator[tuple[Int[np.ndarray, " b"], AbstractEvidence, Float[Array, "b a"] | None]]:
    """Numbers of tasks, their stacked evidence, at most `at_once`, and attributes that a denoiser
    takes; of `conditions`, see `ConditionalPrior.conditions`, the first d are offsets.

    The last task of a batch may be repeated, so that few programs serve all batches: there are few
    numbers of rows, and a batch of all tasks is a power of two.
    """
    rooms = _room_for(logs.counts)
    at_once = min(at_once, 1 << max(logs.num_tasks - 1, 0).bit_length())
    dim = likelihood.num_parameters(logs.dim)
    for room in np.unique(rooms):
        chosen = np.flatnonzero(rooms == room)
        for begin in range(0, len(chosen), at_once):
            some = chosen[begin : begin + at_once]
            which = np.pad(some, (0, at_once - len(some)), mode="edge")
            rows = map(on_device, _padded_rows(logs, which, int(room)))
            stack, known = _evidence_stack(likelihood, *rows), None
            if conditions is not None:
                stack = _moved(stack, on_device(conditions[which, :dim]))
                known = on_device(conditions[which, dim:]) if conditions.shape[1] > dim else None
            yield which, stack, known


def _room_for(num_rows: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    powers = np.ceil(np.log2(np.maximum(num_rows / MIN_ROWS, 1)) / 2).astype(int)
    return np.asarray(MIN_ROWS * 4**powers)


def _padded_rows(
    logs: Logs, which: Int[np.ndarray, " b"], room: int
) -> tuple[Float[np.ndarray, "b r d"], Float[np.ndarray, "b r"], Float[np.ndarray, "b r"]]:
    """Features, rewards and weights of tasks, in `room` rows each; those too many weigh nothing."""
    size, column = logs.counts[which, None], np.arange(room)
    used = column < size
    features, rewards = np.zeros((*used.shape, logs.dim)), np.zeros(used.shape)
    weights = np.zeros(used.shape)
    if logs.num_rows:
        rows = logs.starts[which, None] + np.minimum(column, np.maximum(size - 1, 0))
        rows = np.minimum(rows, logs.num_rows - 1)
        features, rewards, weights = logs.features[rows], logs.rewards[rows], logs.weights[rows]
    return features, rewards, used * weights


@eqx.filter_jit
def _evidence_stack(
    likelihood: AbstractLikelihood,
    features: Float[Array, "b r d"],
    rewards: Float[Array, "b r"],
    weights: Float[Array, "b r"],
) -> AbstractEvidence:
    empty = likelihood.empty(likelihood.num_parameters(features.shape[2]), features.shape[1])
    return jax.vmap(lambda phi, y, w: empty.add(phi, y, w))(features, rewards, weights)


@eqx.filter_jit
def _moved(evidence: AbstractEvidence, offsets: Float[Array, "b d"]) -> AbstractEvidence:
    identity = jnp.eye(offsets.shape[1], dtype=offsets.dtype)
    moved: AbstractEvidence = jax.vmap(lambda one, by: one.reparameterize(by, identity))(
        evidence, offsets
    )
    return moved


class PosteriorDraws(NamedTuple):
    """Draws (n, m, d) of n posteriors; one that failed is NaN in every parameter."""

    values: Float[np.ndarray, "n m d"]
    log_evidence: Float[np.ndarray, "n m"]

    @property
    def failed(self) -> int:
        """Number of draws that failed."""
        return int(np.sum(np.isnan(self.values).any(axis=-1)))


def nan_where_failed(
    values: Float[np.ndarray, "*n d"], failed: np.ndarray | None = None
) -> Float[np.ndarray, "*n d"]:
    """Draws as float64, NaN in every parameter where one is not finite or is marked failed."""
    values = np.asarray(values, np.float64)
    broken = ~np.isfinite(values).all(axis=-1)
    broken = broken if failed is None else broken | np.asarray(failed)
    return np.where(broken[..., None], np.nan, values)


def finite_rows(draws: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "k d"]:
    """The draws that did not fail."""
    return np.asarray(draws[np.isfinite(draws).all(axis=-1)])


def draw_posteriors(
    sampler: object, logs: Logs, likelihood: AbstractLikelihood, num_draws: int, seed: int
) -> PosteriorDraws:
    """Draws from the posterior of every task; those of a task depend on its number and the seed.

    Of a prior, by the sampler that serves it best; one given attributes takes those of the logs.
    """
    conditions = None
    if isinstance(sampler, ConditionalPrior):
        sampler, conditions = residual_of(sampler, logs)
    if not isinstance(sampler, AbstractSampler):
        sampler = best_sampler(sampler, likelihood=likelihood)
    check_tasks(logs, likelihood, sampler.prior.dim)
    num_draws = positive_int("num_draws", num_draws)
    keys = draw_keys(seed, logs.num_tasks, num_draws)
    found = draw_tasks(sampler, logs, likelihood, keys, conditions)
    if conditions is None:
        return found
    return found._replace(values=found.values + conditions[:, None, : sampler.prior.dim])


def draw_tasks(
    sampler: AbstractSampler,
    logs: Logs,
    likelihood: AbstractLikelihood,
    keys: Key[Array, "n m"],
    conditions: Float[np.ndarray, "n c"] | None = None,
    draws_at_once: int = DRAWS_AT_ONCE,
) -> PosteriorDraws:
    """A draw from the posterior of each task for each of its keys, less the task's offset."""
    values = np.empty((*keys.shape, likelihood.num_parameters(logs.dim)))
    log_evidence, at_once = np.empty(keys.shape), max(1, draws_at_once // keys.shape[1])
    for which, evidence, known in evidence_batches(logs, likelihood, at_once, conditions):
        thetas, info = _draw(sampler, keys[which], evidence, known)
        values[which] = nan_where_failed(np.asarray(thetas), np.asarray(info.failed))
        log_evidence[which] = np.asarray(info.log_evidence, np.float64)
    return PosteriorDraws(values, log_evidence)


def draw_keys(seed: int, num_tasks: int, num_draws: int) -> Key[Array, "n m"]:
    """A key for each draw of each task."""
    keys = jax.random.split(jax.random.key(seed), num_tasks)
    return jax.vmap(lambda key: jax.random.split(key, num_draws))(keys)


@eqx.filter_jit
def _draw(
    sampler: AbstractSampler,
    keys: Key[Array, "b m"],
    evidence: AbstractEvidence,
    known: Float[Array, "b a"] | None,
) -> tuple[Float[Array, "b m d"], Info]:
    def one(
        keys: Key[Array, " m"], evidence: AbstractEvidence, known: Float[Array, " a"] | None
    ) -> tuple[Float[Array, "m d"], Info]:
        own = sampler if known is None else for_task(sampler, known)
        return jax.vmap(lambda key: own.tempered_draw(key, evidence))(keys)

    return jax.vmap(one)(keys, evidence, known)
