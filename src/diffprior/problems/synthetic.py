"""The six problems of Section 6.2 and Appendix C.1, mixtures of Appendix C.4, and items."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from ..checks import choice, positive_int
from ..evidence.base import AbstractLikelihood
from ..evidence.linear import Linear
from ..evidence.response import response_of
from ..priors.base import AbstractPrior
from ..priors.mixture import MixturePrior
from .base import AbstractProblem

Draw = Callable[[Key[Array, ""], int], Float[Array, "n 2"]]
BOX = 3.0  # rays, triangles, H and corners are uniform on parts of [-3, 3]^2


class Synthetic(AbstractProblem):
    """K actions, uniform in the unit ball and fixed per run; theta_* of two parameters.

    Attributes:
        name: Of the distribution of the parameters.
        likelihood: How rewards arise.
        dim: 2.
        num_actions: K.
        fresh_actions: False: actions are fixed per run.
    """

    name: str = eqx.field(static=True)
    likelihood: AbstractLikelihood
    dim: int = eqx.field(static=True)
    num_actions: int = eqx.field(static=True)
    fresh_actions: bool = eqx.field(static=True)

    def sample_parameters(self, key: Key[Array, ""], num_samples: int) -> Float[Array, "n 2"]:
        return _sample(self.name, key, positive_int("num_samples", num_samples))

    def features(self, key: Key[Array, ""]) -> Float[Array, "k 2"]:
        return uniform_in_ball(key, self.num_actions, self.dim)

    @property
    def true_prior(self) -> MixturePrior | None:
        """The distribution of theta_* in closed form, where it has one."""
        return example_mixture("cross") if self.name == "cross" else None


def synthetic(name: str, likelihood: AbstractLikelihood | None = None) -> Synthetic:
    """The problem called cross, rays, triangles, swirl, H or corners: 100 actions, sigma = 1.

    Rewards are linear, or with `likelihood=Logistic()` binary.

    Args:
        name: One of those.
        likelihood: How rewards arise; linear with noise 1 by default.

    Returns:
        The problem.

    Raises:
        ValueError: If there is none of that name.

    References:
        Kveton et al. (2024), Section 6.2 and Appendix C.1.
    """
    choice("name", name, SYNTHETIC)
    if likelihood is None:
        likelihood = Linear(noise_std=1.0)
    return Synthetic(name=name, likelihood=likelihood, dim=2, num_actions=100, fresh_actions=False)


def uniform_in_ball(key: Key[Array, ""], num_points: int, dim: int) -> Float[Array, "n d"]:
    """Points of the unit ball: a direction times U^(1/d).

    `jax.random.ball` has the same distribution by way of gamma variates, at twenty times the cost.
    """
    direction_key, radius_key = jax.random.split(key)
    normal = jax.random.normal(direction_key, (num_points, dim))
    radius = jax.random.uniform(radius_key, (num_points, 1)) ** (1.0 / dim)
    points: Array = radius * normal / jnp.linalg.norm(normal, axis=1, keepdims=True)
    return points


@eqx.filter_jit
def _sample(name: str, key: Key[Array, ""], num_samples: int) -> Float[Array, "n 2"]:
    return _DRAWS[name](key, num_samples)


_CROSS_COVS = np.array([[[1.0, 0.99], [0.99, 1.0]], [[1.0, -0.9], [-0.9, 1.0]]])


def _draw_cross(key: Key[Array, ""], n: int) -> Float[Array, "n 2"]:
    """Equal mixture of N(0, [[1, .99], [.99, 1]]) and N(0, [[1, -.9], [-.9, 1]])."""
    first_key, noise_key = jax.random.split(key)
    trils = jnp.asarray(np.linalg.cholesky(_CROSS_COVS), float)
    which = jax.random.bernoulli(first_key, 0.5, (n,)).astype(int)
    noise = jax.random.normal(noise_key, (n, 2))
    return jnp.einsum("nij,nj->ni", trils[which], noise)


def _draw_rays(key: Key[Array, ""], n: int) -> Float[Array, "n 2"]:
    """Norm below 3 and cosine to one of the half-axes above 0.95: four circular sectors."""
    ray_key, angle_key, radius_key = jax.random.split(key, 3)
    half_width = float(np.arccos(0.95))
    ray = jax.random.randint(ray_key, (n,), 0, 4).astype(float)
    angle = jax.random.uniform(angle_key, (n,), minval=-half_width, maxval=half_width)
    radius = BOX * jnp.sqrt(jax.random.uniform(radius_key, (n,)))
    return _polar(radius, 0.5 * np.pi * ray + angle)


def _draw_triangles(key: Key[Array, ""], n: int) -> Float[Array, "n 2"]:
    """|y| < x on the right, |y| < |x| / 3 on the left: areas 9 and 3, density of |x| linear."""
    side_key, x_key, y_key = jax.random.split(key, 3)
    right = jax.random.bernoulli(side_key, 0.75, (n,))
    x = BOX * jnp.sqrt(jax.random.uniform(x_key, (n,)))
    y = x * jax.random.uniform(y_key, (n,), minval=-1.0, maxval=1.0)
    return jnp.stack([jnp.where(right, x, -x), jnp.where(right, y, y / 3.0)], axis=1)


def _draw_swirl(key: Key[Array, ""], n: int) -> Float[Array, "n 2"]:
    """(sin 2 pi u, cos 2 pi u) (3.5 u - u (v - 1/2)) + (1, -1), u and v uniform."""
    u, v = jax.random.uniform(key, (2, n))
    center = jnp.array([[1.0, -1.0]], u.dtype)
    return _polar(3.5 * u - u * (v - 0.5), 0.5 * np.pi - 2 * np.pi * u) + center


def _draw_h(key: Key[Array, ""], n: int) -> Float[Array, "n 2"]:
    """|x| > 2.5 or |y| < 0.25: two bars and the piece between them."""
    bars = [(-3.0, -2.5, -3.0, 3.0), (2.5, 3.0, -3.0, 3.0)]
    return _rectangles(key, n, [*bars, (-2.5, 2.5, -0.25, 0.25)])


def _draw_corners(key: Key[Array, ""], n: int) -> Float[Array, "n 2"]:
    """(|x| > 2.5 and |y| > 1) or (|y| > 2.5 and |x| > 1): an L of two rectangles, reflected."""
    point_key, sign_key = jax.random.split(key)
    corner = _rectangles(point_key, n, [(2.5, 3.0, 1.0, 3.0), (1.0, 2.5, 2.5, 3.0)])
    return corner * jax.random.rademacher(sign_key, (n, 2), corner.dtype)


def _rectangles(
    key: Key[Array, ""], n: int, rectangles: list[tuple[float, float, float, float]]
) -> Float[Array, "n 2"]:
    """Uniform on disjoint rectangles (x0, x1, y0, y1): one by its area, then a point in it."""
    which_key, point_key = jax.random.split(key)
    x0, x1, y0, y1 = np.array(rectangles).T
    areas = jnp.asarray((x1 - x0) * (y1 - y0), float)
    which = jax.random.categorical(which_key, jnp.log(areas), shape=(n,))
    low = jnp.asarray(np.stack([x0, y0], axis=1), float)[which]
    high = jnp.asarray(np.stack([x1, y1], axis=1), float)[which]
    return low + (high - low) * jax.random.uniform(point_key, (n, 2))


def _polar(radius: Float[Array, " n"], angle: Float[Array, " n"]) -> Float[Array, "n 2"]:
    return jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=1)


_DRAWS: dict[str, Draw] = {
    "cross": _draw_cross,
    "rays": _draw_rays,
    "triangles": _draw_triangles,
    "swirl": _draw_swirl,
    "H": _draw_h,
    "corners": _draw_corners,
}
SYNTHETIC = tuple(_DRAWS)


def example_mixture(name: str) -> MixturePrior:
    """The mixture called blobs, cross, ring, H, triangles (two dimensions) or clusters (eight).

    Args:
        name: One of those.

    Returns:
        A prior whose posterior has a closed form, to score samplers against.

    Raises:
        ValueError: If there is none of that name.

    References:
        Kveton et al. (2024), Appendix C.4.
    """
    return _MIXTURES[choice("name", name, MIXTURES)]()


def _ring() -> MixturePrior:
    """Eight blobs of standard deviation 0.17 on a circle of radius 1.5."""
    angles = 2 * np.pi * np.arange(8) / 8
    means = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return MixturePrior(np.full(8, 1 / 8), means, np.tile(0.17**2 * np.eye(2), (8, 1, 1)))


def _bars(bars: list[tuple[tuple[float, float], tuple[float, float], float]]) -> MixturePrior:
    """Bars given by two ends and a standard deviation, each a row of five round blobs."""
    means, covs, weights = [], [], []
    for start, end, std in bars:
        for fraction in np.linspace(0.0, 1.0, 5):
            means.append((1 - fraction) * np.array(start) + fraction * np.array(end))
            covs.append(std**2 * np.eye(2))
            weights.append(np.hypot(end[0] - start[0], end[1] - start[1]))
    return MixturePrior(weights, np.array(means), np.array(covs))


def _h() -> MixturePrior:
    """Two upright bars and one across."""
    uprights = [((x, -2.4), (x, 2.4), 0.3) for x in (-2.7, 2.7)]
    return _bars([*uprights, ((-2.0, 0.0), (2.0, 0.0), 0.2)])


def _triangles() -> MixturePrior:
    """A wide triangle to the right, a narrow one to the left, as fans of blobs."""
    right = [((0.4, 0.0), (2.6, y), 0.3) for y in (-1.8, 0.0, 1.8)]
    return _bars([*right, ((-0.4, 0.0), (-2.6, 0.0), 0.3)])


def _clusters() -> MixturePrior:
    """Ten clusters of random place and shape in eight dimensions."""
    rng = np.random.default_rng(0)
    means = 2.0 * rng.standard_normal((10, 8))
    shapes = 0.5 * rng.standard_normal((10, 8, 8))
    covs = shapes @ np.swapaxes(shapes, 1, 2) / 8 + 0.05 * np.eye(8)
    return MixturePrior(rng.dirichlet(np.full(10, 5.0)), means, covs)


_MIXTURES: dict[str, Callable[[], MixturePrior]] = {
    "blobs": lambda: MixturePrior([0.5, 0.5], [[-1.0] * 2, [1.0] * 2], [0.1 * np.eye(2)] * 2),
    "cross": lambda: MixturePrior([0.5, 0.5], np.zeros((2, 2)), _CROSS_COVS),
    "ring": _ring,
    "H": _h,
    "triangles": _triangles,
    "clusters": _clusters,
}
MIXTURES = tuple(_MIXTURES)


class ItemProblem(eqx.Module):
    """In every round a context arrives, one item is shown, and its reward is seen.

    Args:
        prior: What the parameters of items are drawn from.
        likelihood: How rewards arise from context'theta.
        num_items: Items that can be chosen at any time.
        turnover: Share of them that is replaced in each round by new ones, on average.

    Raises:
        ValueError: An argument is not what is said above.
    """

    prior: AbstractPrior
    likelihood: AbstractLikelihood
    num_items: int = eqx.field(static=True)
    turnover: float = eqx.field(static=True)

    def __init__(
        self,
        prior: AbstractPrior,
        likelihood: AbstractLikelihood,
        *,
        num_items: int = 100,
        turnover: float = 0.0,
    ) -> None:
        self.prior, self.likelihood = prior, likelihood
        self.num_items, self.turnover = positive_int("num_items", num_items), float(turnover)
        if not 0 <= self.turnover <= 1:
            raise ValueError(f"`turnover`: expected a share from 0 to 1, got {turnover}; try 0.01")

    @property
    def dim(self) -> int:
        """Number of parameters d of an item."""
        return self.prior.dim

    def sample_parameters(self, key: Key[Array, ""], num_items: int) -> Float[Array, "n d"]:
        """Parameters of items, of past ones to learn from or of new ones.

        Args:
            key: Of the random numbers.
            num_items: How many.
        """
        return self.prior.sample(key, num_items)

    def contexts(self, key: Key[Array, ""], num_rounds: int) -> Float[Array, "n d"]:
        """Contexts, uniform in the unit ball.

        Args:
            key: Of the random numbers.
            num_rounds: How many.
        """
        return uniform_in_ball(key, num_rounds, self.likelihood.num_features(self.dim))


class ItemRun:
    """One run of a problem, the same for all agents."""

    def __init__(self, problem: ItemProblem, key: Key[Array, ""], num_rounds: int) -> None:
        parameters, contexts, self.rewards_key, arrivals = jax.random.split(key, 4)
        rng = np.random.default_rng(np.asarray(jax.random.key_data(arrivals)))
        counts = rng.binomial(problem.num_items, problem.turnover, num_rounds)
        counts[0] = 0
        self.likelihood = problem.likelihood
        self.thetas = np.asarray(
            problem.sample_parameters(parameters, problem.num_items + int(counts.sum()))
        )
        self.contexts = np.asarray(problem.contexts(contexts, num_rounds))
        self.arrivals: list[Int[np.ndarray, " a"]] = []
        self.departures: list[Int[np.ndarray, " a"]] = []
        active, added = np.arange(problem.num_items), problem.num_items
        for count in counts:
            places = rng.choice(problem.num_items, count, replace=False)
            new = np.arange(added, added + count)
            self.departures.append(active[places].copy())
            self.arrivals.append(new)
            active[places], added = new, added + int(count)

    def mean_rewards(self, round_: int, items: Int[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """Expected rewards of items in a round."""
        eta = self._eta(items, round_)
        return np.asarray(self.likelihood.mean(jnp.asarray(eta)))

    def reward(self, round_: int, item: int) -> float:
        """The reward of an item in a round, from random numbers that all items share."""
        eta = jnp.asarray(self._eta(np.array([item]), round_)[0])
        return float(_sample_reward(self.likelihood, self.rewards_key, jnp.int32(round_), eta))

    def _eta(self, items: Int[np.ndarray, " k"], round_: int) -> Float[np.ndarray, " k"]:
        thetas, x, response = (
            self.thetas[items],
            self.contexts[round_],
            response_of(self.likelihood),
        )
        return thetas @ x if response is None else response.paired(thetas, x[None])


@eqx.filter_jit
def _sample_reward(
    likelihood: AbstractLikelihood, key: Key[Array, ""], round_: Int[Array, ""], eta: Array
) -> Array:
    return likelihood.sample(jax.random.fold_in(key, round_), eta)
