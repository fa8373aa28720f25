"""The contract of evidence, all that a sampler may ask of a likelihood, and its room for rows."""

import abc
from collections.abc import Callable
from typing import ClassVar, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int, Key
from numpy.typing import ArrayLike

from ..checks import describe, in_default_precision, positive, positive_int, real_numbers, settings
from ..files.base import Serializable
from ..gaussian import Gaussian

Rows = Array | np.ndarray  # on a device or on the host


class AbstractEvidence(eqx.Module, Serializable):
    """p(h | theta) for a history h, as a function of theta."""

    max_bytes: ClassVar[int] = 2**28

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """Number of parameters d."""

    @property
    def num_features(self) -> int:
        """Number of features of a row; as many as parameters, unless a response says otherwise."""
        return self.dim

    def __repr__(self) -> str:
        family = (self.family,) if hasattr(self, "family") else ()
        return describe(self, *family, dim=self.dim, **settings(self))

    @property
    @abc.abstractmethod
    def quadratic(self) -> bool:
        """Whether log p(h | .) is quadratic, so that `expand` is the same everywhere."""

    @abc.abstractmethod
    def condition(
        self, gaussian: Gaussian, start: Float[Array, " d"] | None = None
    ) -> tuple[Gaussian, Float[Array, ""]]:
        """The posterior under a Gaussian prior, and log p(h), constants included.

        Exact for linear models, Laplace's approximation otherwise; a log evidence of NaN says that
        the approximation was not found. The search for it begins at `start` (d,), or near the mean
        of the prior `gaussian`.

        References:
            Kveton et al. (2024), Eq. (3) and Algorithm 1.
        """

    @abc.abstractmethod
    def expand(self, belief: Gaussian) -> tuple[Float[Array, "d d"], Float[Array, " d"]]:
        """Precision and shift of the Gaussian evidence closest to this one under a belief.

        The precision is minus the second derivative of log p(h | theta) averaged over theta ~
        N(m, C), and the average of the first derivative is shift - precision m. A belief of zero
        covariance (`Gaussian.point`) gives the second-order expansion at a point.

        Args:
            belief: about where the parameters are, mean (d,) and covariance (d, d).

        Returns:
            precision (d, d) and shift (d,).
        """

    @abc.abstractmethod
    def log_likelihood(self, theta: Float[Array, " d"]) -> Float[Array, ""]:
        """Log p(h | theta) of `theta` (d,) in nats, constants included."""

    @abc.abstractmethod
    def expected_log_likelihood(self, belief: Gaussian) -> Float[Array, ""]:
        """Log p(h | theta) averaged over the `belief` theta ~ N(m, C), as in `expand`."""

    @abc.abstractmethod
    def squared_error(
        self, theta: Float[Array, " d"]
    ) -> tuple[Float[Array, ""], Float[Array, " d"]]:
        """Sum (y - g(phi' theta))^2 over the history at `theta`, and its gradient (d,)."""

    @abc.abstractmethod
    def temper(self, temperature: ArrayLike) -> "AbstractEvidence":
        """The evidence counted 1 / `temperature` times; the temperature may be traced."""

    @abc.abstractmethod
    def reparameterize(
        self, offset: Float[Array, " d"], scale: Float[Array, "d d"]
    ) -> "AbstractEvidence":
        """The same evidence as a function of z, where theta = `offset` + `scale` z."""

    @abc.abstractmethod
    def check_rewards(self, rewards: np.ndarray) -> None:
        """Raise a ValueError for `rewards` that this likelihood cannot produce, with the fix."""

    @abc.abstractmethod
    def add(
        self, features: Float[Rows, "n d"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "AbstractEvidence":
        """Evidence with rows added: `features` (n, d), `rewards` and `weights` (n,).

        A row of weight w counts as w repetitions of it. The arguments have been checked, and may be
        on the host.
        """

    def put(
        self, features: Float[Rows, "n d"], rewards: Float[Rows, " n"], weights: Float[Rows, " n"]
    ) -> "AbstractEvidence":
        """As `add`, inside a compiled program, for a caller who knows that there is room.

        `features`, `rewards` and `weights` are as of `add`.
        """
        return self.add(features, rewards, weights)

    def with_capacity(self, capacity: int) -> "AbstractEvidence":
        """The same evidence with room for at least `capacity` rows, if it has rows."""
        return self

    def bounded(self, max_rows: int, prior: Gaussian) -> "AbstractEvidence":
        """The same evidence in at most `max_rows` rows, if it has rows; at little cost in accuracy
        where `prior` has about the mean and covariance of the parameters.
        """
        return self

    def extend(
        self, features: ArrayLike, rewards: ArrayLike, weights: ArrayLike | None = None
    ) -> "AbstractEvidence":
        """Evidence with many observations added, arguments as of `observe`.

        Raises:
            ValueError: If shapes do not agree, a number is not finite or a reward impossible.
        """
        features = real_numbers(
            "features",
            features,
            ("n", self.num_features),
            f"one row of {self.num_features} numbers per observation",
        )
        n = features.shape[0]
        rewards = real_numbers("rewards", rewards, (n,), "one reward for each row of `features`")
        if weights is None:
            weights = np.ones(n)
        weights = real_numbers("weights", weights, (n,), "one weight for each row of `features`")
        return _extended(self, features, rewards, weights)

    def append(self, phi: ArrayLike, y: ArrayLike, weight: ArrayLike = 1.0) -> "AbstractEvidence":
        """Evidence with one observation added: feature vector `phi` (d,), reward `y`, as often as
        `weight` says.

        Raises:
            ValueError: If the shape is wrong, a number is not finite or the reward impossible.
        """
        phi = real_numbers(
            "phi", phi, (self.num_features,), "drop any batch axis, or `extend` by many"
        )
        y = real_numbers("y", y, (), "pass one reward, or `extend` by many")
        weight = real_numbers("weight", weight, (), "pass one weight, or `extend` by many")
        return _extended(self, phi[None], y[None], weight[None])


class AbstractLikelihood(eqx.Module, Serializable):
    """How rewards arise from parameters; `observe` turns data into evidence."""

    max_bytes: ClassVar[int] = 2**24

    def __repr__(self) -> str:
        return describe(self, **settings(self))

    @abc.abstractmethod
    def mean(self, eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        """The mean function g: expected reward given `eta` = phi' theta of any shape (Eq. 1).

        Decisions are quicker where a NumPy array gives a NumPy array.
        """

    @abc.abstractmethod
    def log_density(self, y: Float[Rows, "..."], eta: Float[Rows, "..."]) -> Float[Rows, "..."]:
        """Log p(`y` | `eta`), element by element, in nats, constants included.

        The first decision is quicker where NumPy arrays give a NumPy array.
        """

    @abc.abstractmethod
    def sample(self, key: Key[Array, ""], eta: Float[Array, "..."]) -> Float[Array, "..."]:
        """Independent rewards from `key`, one for each element of `eta` = phi' theta.

        Rewards with random numbers in common come by `vmap` over `eta` with one key.
        """

    @abc.abstractmethod
    def check_rewards(self, rewards: np.ndarray) -> None:
        """Raise a ValueError for `rewards` that this likelihood cannot produce, with the fix."""

    def num_features(self, dim: int) -> int:
        """Number of features of an action, where there are `dim` parameters."""
        return dim

    def num_parameters(self, num_features: int) -> int:
        """Number of parameters, where an action has `num_features` features."""
        return num_features

    def predictors(
        self, theta: Float[Array, " d"], features: Float[Array, "k p"]
    ) -> Float[Array, " k"]:
        """Eta of actions of these `features` (k, p) under parameters `theta` (d,), in JAX: phi'
        theta, unless a response says otherwise.
        """
        return features @ theta

    @abc.abstractmethod
    def empty(self, dim: int, capacity: int = 0) -> AbstractEvidence:
        """Evidence of no observations about `dim` parameters.

        `capacity` makes room for rows that are appended inside a compiled program; outside one,
        evidence grows by itself.
        """

    def observe(
        self,
        features: ArrayLike | None = None,
        rewards: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        dim: int | None = None,
    ) -> AbstractEvidence:
        """Evidence from features (N, d) and rewards (N,); or `dim=d` when there is no data yet.

        Args:
            features: Feature vectors of the actions taken (N, d).
            rewards: What they paid (N,).
            weights: Repetitions that each row counts for (N,); one by default.
            dim: Number of parameters, when there is no data yet.

        Returns:
            What the rows say about the parameters.

        Raises:
            ValueError: If shapes do not agree, a number is not finite or a reward impossible.
        """
        if features is None and rewards is None:
            if dim is None:
                raise ValueError(
                    "`observe`: expected features and rewards, or dim=, got neither; "
                    "say `observe(dim=d)` when there is no data yet"
                )
            return self.empty(positive_int("dim", dim))
        if features is None or rewards is None:
            missing = "features" if features is None else "rewards"
            raise ValueError(f"`{missing}`: expected an array, got None; pass both or neither")
        features = real_numbers("features", features, ("N", "d"), "one row for each observation")
        known = None if dim is None else self.num_features(dim)
        if features.shape[1] == 0 or known not in (None, features.shape[1]):
            raise ValueError(
                f"`features`: expected shape (N, {known or 'd'}), got {features.shape}; "
                "drop `dim` or pass features of that many columns"
            )
        empty = self.empty(self.num_parameters(features.shape[1]))
        return empty.extend(features, rewards, weights)


def inverse_temperature(temperature: ArrayLike) -> Float[Array, ""]:
    """1 / temperature, checked."""
    return 1.0 / positive("temperature", temperature)


def reject_rewards(rewards: np.ndarray, bad: np.ndarray, expected: str, fix: str) -> None:
    """Raise if any reward is bad, naming the first."""
    if np.any(bad):
        first = rewards[np.argmax(bad)]
        raise ValueError(f"`rewards`: expected {expected}, got {first:g}; {fix}")


def _extended(
    evidence: AbstractEvidence, features: Rows, rewards: Rows, weights: Rows
) -> AbstractEvidence:
    """Rows added. Methods are called by their class: Equinox makes a module of every bound method,
    which would cost more than the arithmetic of a row.
    """
    if isinstance(weights, np.ndarray) and np.any(weights < 0):
        raise ValueError(
            f"`weights`: expected no negative number, got {np.min(weights):g}; "
            "a weight counts repetitions of its row"
        )
    kind = type(evidence)
    if isinstance(rewards, np.ndarray):
        kind.check_rewards(evidence, rewards)
    return kind.add(evidence, *map(in_default_precision, (features, rewards, weights)))


Sums = TypeVar("Sums")  # an array, or a tree of arrays
BLOCK = 64  # rows that are summed at once


def sum_over_rows(
    function: Callable[..., Sums], columns: tuple[Rows, ...], num_rows: Int[Array, ""]
) -> Sums:
    """The sum over blocks of `function(*block of every column)`, a tree of arrays.

    Blocks beyond `num_rows` are not visited; rows beyond it in the last block are, and must count
    for nothing. The loop has a dynamic length, which reverse-mode differentiation cannot pass.
    """
    capacity = columns[0].shape[0]
    if capacity <= BLOCK:
        return function(*columns)

    def block(index: int | Int[Array, ""]) -> Sums:
        start = index * BLOCK
        return function(*(jax.lax.dynamic_slice_in_dim(c, start, BLOCK) for c in columns))

    def add(index: Int[Array, ""], total: Sums) -> Sums:
        return jax.tree.map(jnp.add, total, block(index))

    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(block, 0))
    num_blocks = (_longest(num_rows) + (BLOCK - 1)) // BLOCK
    found: Sums = jax.lax.fori_loop(0, num_blocks, add, nothing)
    return found


@jax.jit
def put_rows(
    old: tuple[Array, ...], start: Int[Array, ""], new: tuple[Array | np.ndarray, ...]
) -> tuple[Array, ...]:
    """Columns with new rows from number `start` on, and then how many rows there are."""
    columns = (
        jax.lax.dynamic_update_slice_in_dim(column, jnp.asarray(rows, column.dtype), start, 0)
        for column, rows in zip(old, new, strict=True)
    )
    return *columns, start + jnp.asarray(new[0].shape[0], start.dtype)


def room_for(num_rows: int) -> int:
    """The smallest capacity for so many rows: itself, or whole blocks."""
    return num_rows if num_rows <= BLOCK else -(-num_rows // BLOCK) * BLOCK


@custom_vmap
def _longest(num_rows: Int[Array, ""]) -> Int[Array, ""]:
    """The largest number of rows of all histories side by side.

    So the loop is as long for all of them, and blocks are slices instead of gathered rows.
    """
    return num_rows


@_longest.def_vmap
def _longest_of_many(
    axis_size: int, in_batched: list[bool], num_rows: Int[Array, " n"]
) -> tuple[Int[Array, ""], bool]:
    return _longest(jnp.max(num_rows)), False


def products(x: Float[Rows, "n d"]) -> Float[Rows, "n d_d"]:
    """All products of two features of every row: with them, sums over rows for many beliefs at once
    are products of two matrices, not of many small ones.
    """
    return (x[:, :, None] * x[:, None, :]).reshape(x.shape[0], -1)


MIN_CAPACITY = 128
SMALL_ROOM = 2**22  # numbers


class Columns(NamedTuple):
    """Rows of a history; a row counts as `weights` repetitions, and `offsets` add to its eta."""

    features: Float[Rows, "n d"]
    rewards: Float[Rows, " n"]
    weights: Float[Rows, " n"]
    offsets: Float[Rows, " n"]


def capacity_for(num_rows: int) -> int:
    """The power of two, at least MIN_CAPACITY, that holds `num_rows` rows."""
    return max(MIN_CAPACITY, 1 << max(num_rows - 1, 0).bit_length())


def small_room(capacity: int, dim: int) -> bool:
    """Whether a file may ask for room for so many rows without holding them."""
    return capacity * (dim + 3) <= SMALL_ROOM


def padded(rows: Columns, capacity: int) -> Columns:
    """The rows, and zeros up to `capacity` rows or the next whole block."""
    missing = room_for(capacity) - len(rows.rewards)
    return Columns(*(np.pad(c, [(0, missing)] + [(0, 0)] * (c.ndim - 1)) for c in rows))


def merged(rows: Columns) -> Columns:
    """Equal rows as one row that has their weights, at the place of the first."""
    table = np.column_stack([rows.features, rows.rewards, rows.offsets])
    _, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
    order = np.argsort(first)
    totals = np.bincount(which.reshape(-1), rows.weights)[order].astype(rows.weights.dtype)
    return Columns(*(np.asarray(c)[first[order]] for c in rows))._replace(weights=totals)
