"""Tasks to be judged on: what each of them has shown, and its true parameters where known."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..checks import on_device, positive_int, real_numbers
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..logs.logs import Logs
from ..priors.adaptor import as_prior
from ..problems.base import AbstractProblem
from .histories import RandomActions, rows_of_tasks

MIN_ROWS = 16  # room for rows: this many, and four times more as often as is needed


@dataclass(frozen=True)
class Tasks:
    """The rows of many tasks, one task after the other, and how rewards arise from parameters.

    Args:
        features: All rows (N, d), those of a task in the order in which they were seen.
        rewards: One reward for each row (N,).
        starts: Where each task begins, and the end: (n + 1,), from 0 to N.
        likelihood: How rewards arise from parameters.
        parameters: The true ones (n, d), or None where they are not known.
        labels: A name for each task; by default its number.
        weights: How many observations each row stands for (N,); one by default.
    """

    features: Float[np.ndarray, "N d"]
    rewards: Float[np.ndarray, " N"]
    starts: Int[np.ndarray, " n_plus_1"]
    likelihood: AbstractLikelihood
    parameters: Float[np.ndarray, "n d"] | None = None
    labels: tuple[Hashable, ...] = ()
    weights: Float[np.ndarray, " N"] | None = None

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
        return Tasks(
            logs.features,
            logs.rewards,
            logs.starts,
            likelihood,
            labels=tuple(logs.labels.tolist()),
            weights=logs.weights,
        )

    @staticmethod
    def from_arrays(
        tasks: Any,
        features: Any,
        rewards: Any,
        likelihood: AbstractLikelihood,
        parameters: Any = None,
    ) -> "Tasks":
        """Tasks from a table of rows.

        Args:
            tasks: A label for each row (N,): which task it belongs to. Rows keep their order.
            features: Feature vectors of the actions taken (N, d).
            rewards: What they paid (N,).
            likelihood: How rewards arise from parameters.
            parameters: True parameters (n, d), tasks in the order of their first rows.

        Returns:
            The tasks, in the order of their first rows.

        Raises:
            ValueError: If shapes do not agree, a number is not finite, or a reward is impossible.
        """
        features = np.asarray(
            real_numbers("features", features, ("N", "d"), "one row for each observation"), float
        )
        num_rows = len(features)
        rewards = np.asarray(
            real_numbers("rewards", rewards, (num_rows,), "one reward for each row"), float
        )
        labels = np.asarray(tasks)
        if labels.shape != (num_rows,):
            raise ValueError(
                f"`tasks`: expected shape ({num_rows},), got {labels.shape}; "
                "pass one label for each row"
            )
        likelihood.check_rewards(rewards)
        names, which = _in_order_of_appearance(labels)
        order = np.argsort(which, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(names)))])
        return Tasks(
            features[order],
            rewards[order],
            starts,
            likelihood,
            _checked_parameters(parameters, len(names), features.shape[1]),
            tuple(names),
        )

    @staticmethod
    def simulate(
        source: Any,
        likelihood: AbstractLikelihood | None = None,
        *,
        num_tasks: int,
        num_observations: int | Sequence[int] | Int[np.ndarray, " n"],
        seed: int = 0,
    ) -> "Tasks":
        """New tasks, and what actions chosen at random showed of each.

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
        phi, y = rows_of_tasks(problem, keys, thetas, _room_for(int(sizes.max())))
        kept = np.arange(phi.shape[1]) < sizes[:, None]
        return Tasks(
            np.asarray(phi, np.float64)[kept],
            np.asarray(y, np.float64)[kept],
            np.concatenate([[0], np.cumsum(sizes)]),
            problem.likelihood,
            np.asarray(thetas, np.float64),
            tuple(range(num_tasks)),
        )

    def __len__(self) -> int:
        """Number of tasks n."""
        return len(self.starts) - 1

    @property
    def dim(self) -> int:
        """Number of parameters d."""
        return self.features.shape[1]

    @property
    def num_observations(self) -> Int[np.ndarray, " n"]:
        """Rows of each task."""
        return np.diff(self.starts)

    def select(self, which: Any) -> "Tasks":
        """Some of the tasks, by a slice, their numbers, or a mask (n,).

        Args:
            which: A slice, numbers of tasks, or a mask (n,).

        Returns:
            Those tasks, in that order.
        """
        chosen = np.arange(len(self))[which]
        pieces = [np.arange(self.starts[i], self.starts[i + 1]) for i in chosen]
        rows = np.concatenate(pieces).astype(int) if pieces else np.zeros(0, int)
        return replace(
            self,
            features=self.features[rows],
            rewards=self.rewards[rows],
            starts=np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])]).astype(int),
            parameters=None if self.parameters is None else self.parameters[chosen],
            labels=tuple(self.labels[i] for i in chosen) if self.labels else (),
            weights=None if self.weights is None else self.weights[rows],
        )

    def first_rows(self, count: int) -> "Tasks":
        """The same tasks after their first `count` rows, or all where there are fewer.

        Args:
            count: Rows of each task to keep, at most.

        Returns:
            As many tasks, with fewer rows.
        """
        sizes = np.minimum(self.num_observations, count)
        kept = np.arange(len(self.rewards)) - np.repeat(self.starts[:-1], self.num_observations)
        rows = kept < count
        return replace(
            self,
            features=self.features[rows],
            rewards=self.rewards[rows],
            starts=np.concatenate([[0], np.cumsum(sizes)]),
            weights=None if self.weights is None else self.weights[rows],
        )

    def true_parameters(self) -> Float[np.ndarray, "n d"]:
        """The true parameters (n, d).

        Raises:
            ValueError: If they are not known.

        Returns:
            One row for each task.
        """
        if self.parameters is None:
            raise ValueError(
                "`tasks`: expected tasks whose true parameters are known, got none; pass "
                "`parameters=`, use `Tasks.simulate`, or judge by rewards: `predictive_check`"
            )
        return self.parameters

    def batches(self, at_once: int) -> Iterator[tuple[Int[np.ndarray, " b"], AbstractEvidence]]:
        """Numbers of tasks, and their evidence stacked along a first axis; all of one length.

        The last tasks of a batch may be repetitions, so that few programs serve all batches: their
        length is a power of two where the tasks are fewer than `at_once`.

        Args:
            at_once: Tasks of a batch.

        Returns:
            An iterator over the numbers of tasks and their evidence.
        """
        rooms = np.array([_room_for(size) for size in self.num_observations.tolist()])
        at_once = min(at_once, 1 << max(len(self) - 1, 0).bit_length())
        for room in np.unique(rooms):
            chosen = np.flatnonzero(rooms == room)
            for begin in range(0, len(chosen), at_once):
                some = chosen[begin : begin + at_once]
                padded = np.pad(some, (0, at_once - len(some)), mode="edge")
                yield padded, self._stacked(padded, int(room))

    def _stacked(self, which: Int[np.ndarray, " b"], room: int) -> AbstractEvidence:
        """Evidence of some tasks, in `room` rows each; those that are too many weigh nothing."""
        first, size = self.starts[which, None], self.num_observations[which, None]
        column = np.arange(room)
        counts = (column < size).astype(float)
        rows = first + np.minimum(column, np.maximum(size - 1, 0))
        if len(self.rewards) == 0:
            features, rewards = np.zeros((*rows.shape, self.dim)), np.zeros(rows.shape)
        else:
            rows = np.minimum(rows, len(self.rewards) - 1)
            features, rewards = self.features[rows], self.rewards[rows]
            counts = counts if self.weights is None else counts * self.weights[rows]
        return _evidence_stack(self.likelihood, *map(on_device, (features, rewards, counts)))


def as_tasks(tasks: Any, likelihood: AbstractLikelihood | None = None) -> Tasks:
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


@eqx.filter_jit
def _evidence_stack(
    likelihood: AbstractLikelihood,
    features: Float[Array, "b r d"],
    rewards: Float[Array, "b r"],
    weights: Float[Array, "b r"],
) -> AbstractEvidence:
    empty = likelihood.empty(features.shape[2], features.shape[1])
    return jax.vmap(lambda phi, y, w: empty.add(phi, y, w))(features, rewards, weights)


def _as_problem(source: Any, likelihood: AbstractLikelihood | None) -> AbstractProblem:
    if isinstance(source, AbstractProblem):
        if likelihood is not None:
            raise ValueError(
                "`likelihood`: expected None, since the problem has one, got another; "
                "make a problem with it, or pass a prior"
            )
        return source
    if likelihood is None:
        raise ValueError(
            "`likelihood`: expected how rewards arise from the prior's parameters, got None; "
            "pass dp.Linear(noise_std), dp.Logistic() or another"
        )
    return RandomActions(as_prior(source), likelihood)


def _checked_sizes(num_observations: Any, num_tasks: int) -> Int[np.ndarray, " n"]:
    sizes = np.asarray(num_observations)
    fits = sizes.shape in ((), (num_tasks,)) and sizes.dtype.kind in "iu" and np.all(sizes >= 0)
    if not fits:
        raise ValueError(
            f"`num_observations`: expected a whole number, or one for each of {num_tasks} tasks, "
            f"got {num_observations!r}; count the rows of each task"
        )
    return np.broadcast_to(sizes, (num_tasks,)).astype(int)


def _checked_parameters(parameters: Any, n: int, d: int) -> Float[np.ndarray, "n d"] | None:
    if parameters is None:
        return None
    fix = "pass one row for each task, in the order of the tasks' first rows"
    return np.asarray(real_numbers("parameters", parameters, (n, d), fix), np.float64)


def _in_order_of_appearance(labels: np.ndarray) -> tuple[list[Hashable], Int[np.ndarray, " N"]]:
    numbers: dict[Hashable, int] = {}
    which = [numbers.setdefault(label, len(numbers)) for label in labels.tolist()]
    return list(numbers), np.asarray(which, int)


def _room_for(num_rows: int) -> int:
    room = MIN_ROWS
    while room < num_rows:
        room *= 4
    return room
