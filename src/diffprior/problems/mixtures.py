"""Gaussian mixtures, whose posteriors are known: for judging samplers (Appendix C.4)."""

import numpy as np

from ..checks import choice
from ..priors.mixture import MixturePrior


def example_mixture(name: str) -> MixturePrior:
    """The mixture called blobs, cross, ring, H, triangles (two dimensions) or clusters (eight).

    Args:
        name: One of those.

    Returns:
        A prior whose posterior has a closed form, for judging samplers.

    Raises:
        ValueError: If there is none of that name.

    References:
        Kveton et al. (2024), Appendix C.4.
    """
    return _MIXTURES[choice("name", name, MIXTURES)]()


def _blobs() -> MixturePrior:
    """Two blobs on the diagonal."""
    return MixturePrior([0.5, 0.5], [[-1.0, -1.0], [1.0, 1.0]], np.tile(0.1 * np.eye(2), (2, 1, 1)))


def _cross() -> MixturePrior:
    """The cross of Section 6.2, itself a mixture."""
    covs = [[[1.0, 0.99], [0.99, 1.0]], [[1.0, -0.9], [-0.9, 1.0]]]
    return MixturePrior([0.5, 0.5], np.zeros((2, 2)), covs)


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


_MIXTURES = {
    "blobs": _blobs,
    "cross": _cross,
    "ring": _ring,
    "H": _h,
    "triangles": _triangles,
    "clusters": _clusters,
}
MIXTURES = tuple(_MIXTURES)
