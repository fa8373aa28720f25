"""Tasks to evaluate on, with true parameters where known, and draws from their posteriors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import on_device, positive_int, real_numbers
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


@dataclass(frozen=True)
class Tasks:
    """Logs of tasks, how their rewards arise, and their true parameters where known.

    Args:
        logs: The rows of the tasks, those of a task in the order in which they were seen.
        likelihood: How rewards arise from parameters.
        parameters: The true ones (n, d), or None where they are not known.
        conditions: Of the prior given attributes (n, c), see `ConditionalPrior.conditions`: what
            evidence is about is theta minus the first d; or None.
    """

    logs: Logs
    likelihood: AbstractLikelihood
    parameters: Float[np.ndarray, "n d"] | None = None
    conditions: Float[np.ndarray, "n c"] | None = None

    @staticmethod
    def from_logs(logs: Logs, likelihood: AbstractLikelihood) -> "Tasks":
        """The tasks of logs.

        Args:
            logs: Rows of tasks.
            likelihood: How their rewards arise from parameters.

        Returns:
            The tasks, with rows and weights as in the logs.

        Raises:
            ValueError: If a reward is impossible under the likelihood.
        """
        likelihood.check_rewards(logs.rewards)
        return Tasks(logs, likelihood)

    @staticmethod
    def from_arrays(
        tasks: ArrayLike,
        features: ArrayLike,
        rewards: ArrayLike,
        likelihood: AbstractLikelihood,
        parameters: ArrayLike | None = None,
    ) -> "Tasks":
        """Tasks from a table of rows.

        Args:
            tasks: A label for each row (N,): which task it belongs to. Rows keep their order.
            features: Feature vectors of the actions taken (N, d).
            rewards: Their rewards (N,).
            likelihood: How rewards arise from parameters.
            parameters: True parameters (n, d), tasks in the order of their first rows.

        Returns:
            The tasks, in the order of their first rows.

        Raises:
            ValueError: If shapes do not agree, a number is not finite, or a reward is impossible.
        """
        found = Tasks.from_logs(Logs(tasks, features, rewards, check_features=False), likelihood)
        if parameters is None:
            return found
        fix = "pass one row for each task, in the order of the tasks' first rows"
        truths = real_numbers("parameters", parameters, (len(found), found.dim), fix)
        return replace(found, parameters=np.asarray(truths, np.float64))

    @staticmethod
    def simulate(
        source: object,
        likelihood: AbstractLikelihood | None = None,
        *,
        num_tasks: int,
        num_observations: int | Sequence[int] | Int[np.ndarray, " n"],
        seed: int = 0,
    ) -> "Tasks":
        """Simulate tasks with actions chosen at random.

        Args:
            source: A problem, whose actions are offered; or a prior, from which parameters are
                drawn, with actions from the unit ball.
            likelihood: How rewards arise; by default the problem's. A prior needs one.
            num_tasks: How many tasks.
            num_observations: Rows of each task: one number for all, or one for each.
            seed: Of everything random.

        Returns:
            The tasks with their true parameters.

        Raises:
            ValueError: If a prior comes without a likelihood, or a number is impossible.
        """
        problem = _as_problem(source, likelihood)
        num_tasks = positive_int("num_tasks", num_tasks)
        sizes = _checked_sizes(num_observations, num_tasks)
        theta_key, history_key = jax.random.split(jax.random.key(seed))
        thetas = jnp.asarray(problem.sample_parameters(theta_key, num_tasks), float)
        keys = jax.random.split(history_key, num_tasks)
        phi, y = _simulated_rows(problem, keys, thetas, int(_room_for(sizes).max()))
        used = np.arange(phi.shape[1]) < sizes[:, None]
        labels = np.arange(num_tasks, dtype=np.uint64)
        names = tuple(f"x{i + 1}" for i in range(phi.shape[2]))
        rows = (np.asarray(phi, np.float64)[used], np.asarray(y, np.float64)[used])
        logs = grouped_logs(labels, sizes, *rows, np.ones(len(rows[1])), None, names)
        return Tasks(logs, problem.likelihood, np.asarray(thetas, np.float64))

    def __len__(self) -> int:
        """Number of tasks n."""
        return self.logs.num_tasks

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.likelihood.num_parameters(self.logs.dim)

    @property
    def num_observations(self) -> Int[np.ndarray, " n"]:
        """Number of rows per task."""
        return self.logs.counts

    def select(self, which: slice | Sequence[int] | np.ndarray) -> "Tasks":
        """Select tasks; `which` is a slice, numbers of tasks, or a mask (n,)."""
        chosen = np.arange(len(self))[which]
        truths = None if self.parameters is None else self.parameters[chosen]
        conditions = None if self.conditions is None else self.conditions[chosen]
        logs = self.logs.select(chosen)
        return replace(self, logs=logs, parameters=truths, conditions=conditions)

    def first_rows(self, count: int) -> "Tasks":
        """The same tasks after their first `count` rows, or all where there are fewer."""
        logs = self.logs
        place = np.arange(logs.num_rows) - np.repeat(logs.starts[:-1], logs.counts)
        return replace(self, logs=logs.select_rows(place < count))

    @property
    def offsets(self) -> Float[np.ndarray, "n d"] | None:
        """Offsets of the prior given attributes, if there are any."""
        return None if self.conditions is None else self.conditions[:, : self.dim]

    def known(self, which: Int[np.ndarray, " b"]) -> Float[Array, "b a"] | None:
        """Standardized attributes of some tasks, where the shape of the prior depends on them.

        Args:
            which: Numbers of the tasks.

        Returns:
            One row per task (b, a), or None.
        """
        if self.conditions is None or self.conditions.shape[1] == self.dim:
            return None
        return on_device(self.conditions[which, self.dim :])

    def true_parameters(self) -> Float[np.ndarray, "n d"]:
        """The true parameters (n, d).

        Raises:
            ValueError: If they are not known.
        """
        if self.parameters is None:
            raise ValueError(
                "`tasks`: expected tasks whose true parameters are known, got none; pass "
                "`parameters=`, use `Tasks.simulate`, or score rewards: `predictive_check`"
            )
        return self.parameters

    def check_dim(self, prior: AbstractPrior) -> None:
        """Reject a `prior` of another number of parameters than the tasks have features."""
        if prior.dim != self.dim:
            raise ValueError(
                f"`tasks`: expected {prior.dim} parameters as in the prior, got {self.dim}; use "
                f"features with {self.likelihood.num_features(prior.dim)} columns"
            )

    def batches(self, at_once: int) -> Iterator[tuple[Int[np.ndarray, " b"], AbstractEvidence]]:
        """Numbers of tasks and their stacked evidence, at most `at_once`, of a few shapes.

        The last task of a batch may be repeated, so that few programs serve all batches: their size
        is a power of two where the tasks are fewer than `at_once`.
        """
        rooms = _room_for(self.num_observations)
        at_once = min(at_once, 1 << max(len(self) - 1, 0).bit_length())
        for room in np.unique(rooms):
            chosen = np.flatnonzero(rooms == room)
            for begin in range(0, len(chosen), at_once):
                some = chosen[begin : begin + at_once]
                which = np.pad(some, (0, at_once - len(some)), mode="edge")
                yield which, self._stacked(which, int(room))

    def _stacked(self, which: Int[np.ndarray, " b"], room: int) -> AbstractEvidence:
        """Evidence of some tasks, in `room` rows each; those that are too many weigh nothing."""
        logs = self.logs
        first, size = logs.starts[which, None], self.num_observations[which, None]
        column = np.arange(room)
        counts = (column < size).astype(float)
        rows = first + np.minimum(column, np.maximum(size - 1, 0))
        if logs.num_rows == 0:
            features, rewards = np.zeros((*rows.shape, logs.dim)), np.zeros(rows.shape)
        else:
            rows = np.minimum(rows, logs.num_rows - 1)
            features, rewards = logs.features[rows], logs.rewards[rows]
            counts = counts * logs.weights[rows]
        stack = _evidence_stack(self.likelihood, *map(on_device, (features, rewards, counts)))
        return stack if self.offsets is None else _moved(stack, on_device(self.offsets[which]))


def _room_for(num_rows: Int[np.ndarray, "*n"]) -> Int[np.ndarray, "*n"]:
    powers = np.ceil(np.log2(np.maximum(num_rows / MIN_ROWS, 1)) / 2).astype(int)
    return np.asarray(MIN_ROWS * 4**powers)


def as_tasks(tasks: Tasks | Logs, likelihood: AbstractLikelihood | None = None) -> Tasks:
    """Tasks from tasks or from logs, with this likelihood if one is given."""
    if isinstance(tasks, Tasks):
        return tasks if likelihood is None else replace(tasks, likelihood=likelihood)
    if not isinstance(tasks, Logs):
        raise ValueError(
            f"`tasks`: expected evaluate.Tasks or Logs, got {type(tasks).__name__}; "
            "make them by `Tasks.from_arrays(tasks, features, rewards, likelihood)`"
        )
    if likelihood is None:
        raise ValueError(
            "`likelihood`: expected how the rewards of the logs arise, got None; "
            "pass dp.Linear(noise_std), dp.Logistic() or another"
        )
    return Tasks.from_logs(tasks, likelihood)


def residuals(prior: AbstractPrior, tasks: Tasks) -> tuple[AbstractPrior, Tasks]:
    """A prior given attributes as that of residuals, and the evidence about these.

    Tasks whose attributes are not known are average ones. Other priors stay as they are.
    """
    if not isinstance(prior, ConditionalPrior):
        return prior, tasks
    if tasks.logs.attributes is None:
        return prior.residual, tasks
    return prior.residual, replace(tasks, conditions=prior.conditions(tasks.logs.attributes))


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


def _checked_sizes(
    num_observations: int | Sequence[int] | np.ndarray, num_tasks: int
) -> Int[np.ndarray, " n"]:
    sizes = np.asarray(num_observations)
    shape_fits = sizes.shape in ((), (num_tasks,))
    if not shape_fits or sizes.dtype.kind not in "iu" or np.any(sizes < 0):
        raise ValueError(
            f"`num_observations`: expected a whole number, or one for each of {num_tasks} tasks, "
            f"got {num_observations!r}; count the rows of each task"
        )
    return np.broadcast_to(sizes, (num_tasks,)).astype(int)


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


AT_ONCE = 1024  # draws side by side, which bounds the memory


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


def as_sampler(sampler: object, likelihood: AbstractLikelihood) -> AbstractSampler:
    """The sampler, or the best one for a prior or an object with its four members."""
    if isinstance(sampler, AbstractSampler):
        return sampler
    return best_sampler(sampler, likelihood=likelihood)


def draw_posteriors(sampler: object, tasks: Tasks, num_draws: int, seed: int) -> PosteriorDraws:
    """Draws from the posterior of every task; those of a task depend on its number and the seed.

    Under a prior given attributes, those are of the logs.
    """
    if isinstance(sampler, ConditionalPrior):
        sampler, tasks = residuals(sampler, tasks)
    sampler, num_draws = as_sampler(sampler, tasks.likelihood), positive_int("num_draws", num_draws)
    tasks.check_dim(sampler.prior)
    keys = jax.random.split(jax.random.key(seed), len(tasks))
    shape = (len(tasks), num_draws)
    values = np.empty((*shape, tasks.dim))
    log_evidence = np.empty(shape)
    for which, evidence in tasks.batches(max(1, AT_ONCE // num_draws)):
        thetas, info = _draw(sampler, keys[which], evidence, tasks.known(which), num_draws)
        values[which] = nan_where_failed(np.asarray(thetas), np.asarray(info.failed))
        log_evidence[which] = np.asarray(info.log_evidence, np.float64)
    if tasks.offsets is not None:
        values += tasks.offsets[:, None]
    return PosteriorDraws(values, log_evidence)


@eqx.filter_jit
def _draw(
    sampler: AbstractSampler,
    keys: Key[Array, " b"],
    evidence: AbstractEvidence,
    known: Float[Array, "b a"] | None,
    num_draws: int,
) -> tuple[Float[Array, "b m d"], Info]:
    def one(
        key: Key[Array, ""], evidence: AbstractEvidence, known: Float[Array, " a"] | None
    ) -> tuple[Float[Array, "m d"], Info]:
        own = sampler if known is None else for_task(sampler, known)
        draw_keys = jax.random.split(key, num_draws)
        return jax.vmap(lambda k: own.tempered_draw(k, evidence))(draw_keys)

    return jax.vmap(one)(keys, evidence, known)
