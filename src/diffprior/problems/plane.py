"""Densities of the shapes in the plane of Section 6.2 and Appendix C.1."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..checks import choice
from .synthetic import BOX

Points = Float[Array, "n 2"]


def log_density(name: str, points: Points) -> Float[Array, " n"]:
    """Log density of the law called `name` at each point; -inf where there is none.

    Args:
        name: rays, triangles, swirl, H or corners; the cross is a mixture.
        points: (n, 2).

    Returns:
        (n,).
    """
    choice("name", name, SHAPES)
    return _LOG_DENSITIES[name](points)


def _swirl(points: Points) -> Float[Array, " n"]:
    """(u, v) is uniform; r = u (4 - v) at the angle 2 pi u gives 1 / (2 pi r u)."""
    x, y = points[:, 0] - 1.0, points[:, 1] + 1.0
    u = jnp.mod(jnp.arctan2(x, y) / (2 * np.pi), 1.0)
    r = jnp.hypot(x, y)
    inside = (r >= 3.0 * u) & (r <= 4.0 * u) & (u > 0)
    return jnp.where(inside, -jnp.log(2 * np.pi * jnp.where(inside, r * u, 1.0)), -jnp.inf)


def _uniform(
    inside: Callable[[Array, Array], Array], area: float
) -> Callable[[Points], Float[Array, " n"]]:
    """Of a part of the box [-3, 3]^2."""

    def log_density(points: Points) -> Float[Array, " n"]:
        x, y = points.T
        boxed = jnp.maximum(jnp.abs(x), jnp.abs(y)) <= BOX
        return jnp.where(boxed & inside(x, y), -np.log(area), -jnp.inf)

    return log_density


def _in_rays(x: Array, y: Array) -> Array:
    radius = jnp.hypot(x, y)
    return (radius < BOX) & (jnp.maximum(jnp.abs(x), jnp.abs(y)) > 0.95 * radius)


def _in_triangles(x: Array, y: Array) -> Array:
    return jnp.abs(y) < jnp.where(x > 0, x, -x / 3.0)


def _in_h(x: Array, y: Array) -> Array:
    return (jnp.abs(x) > 2.5) | (jnp.abs(y) < 0.25)


def _in_corners(x: Array, y: Array) -> Array:
    low, high = jnp.minimum(jnp.abs(x), jnp.abs(y)), jnp.maximum(jnp.abs(x), jnp.abs(y))
    return (high > 2.5) & (low > 1.0)


_LOG_DENSITIES: dict[str, Callable[[Points], Float[Array, " n"]]] = {
    "rays": _uniform(_in_rays, 4.0 * float(np.arccos(0.95)) * BOX**2),
    "triangles": _uniform(_in_triangles, 12.0),
    "swirl": _swirl,
    "H": _uniform(_in_h, 8.5),
    "corners": _uniform(_in_corners, 4.0 * (0.5 * 2.0 + 1.5 * 0.5)),
}
SHAPES = tuple(_LOG_DENSITIES)
