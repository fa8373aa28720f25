"""Probability that each of many independent quantities, one-dimensional Gaussian mixtures, is the
largest: by quadrature.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

TAIL = 6.0  # standard deviations beyond which a Gaussian has no mass worth counting
COARSE, FINE = 49, 161  # points of the grids that find where the largest is, and of the last
NEGLIGIBLE = 1e-9  # probability that the largest is elsewhere
LEADERS = 32  # rows that show, before all are looked at, which others cannot be the largest
TINY = 1e-300


class Mixtures(NamedTuple):
    """One Gaussian mixture per row."""

    weights: Float[np.ndarray, "k c"]
    means: Float[np.ndarray, "k c"]
    stds: Float[np.ndarray, "k c"]

    def select(self, places: Int[np.ndarray, " n"] | Bool[np.ndarray, " k"]) -> "Mixtures":
        """Some of the rows."""
        return Mixtures(*(part[places] for part in self))


def best_probabilities(mixtures: Mixtures) -> Float[np.ndarray, " k"]:
    """P(u_a is the largest) of independent u_a, one per row of `mixtures`.

    With F the distribution functions and G their product, the maximum falls into a cell of the grid
    with probability dG, and belongs to row a there in proportion to d log F_a. So the
    probabilities sum to one by construction. The grid is refined where G grows, and rows below it
    are left out.
    """
    rows = Mixtures(*(np.asarray(part, np.float64) for part in mixtures))
    grid, able = _range(rows, COARSE), np.arange(len(rows.means))
    leaders = np.argsort((rows.weights * rows.means).sum(axis=1))[-LEADERS:]
    product = np.exp(_log_cdfs(rows.select(leaders), grid).sum(axis=0))
    grid = np.linspace(grid[max(int(np.argmax(product > NEGLIGIBLE)) - 1, 0)], grid[-1], COARSE)
    for num_points in (COARSE, FINE, 0):
        reaching = _log_cdfs(rows, grid[:1])[:, 0] < -NEGLIGIBLE / len(able)
        able, rows = able[reaching], rows.select(reaching)
        log_cdfs = _log_cdfs(rows, grid)
        if num_points:
            grid = _refined(grid, np.exp(log_cdfs.sum(axis=0)), num_points)
    mass = np.diff(np.exp(log_cdfs.sum(axis=0)))
    growth = np.diff(log_cdfs, axis=1)
    shares = growth * (mass / np.maximum(growth.sum(axis=0), TINY))
    probabilities = np.zeros(len(mixtures.means))
    probabilities[able] = shares.sum(axis=1)
    return probabilities / probabilities.sum()


def _range(rows: Mixtures, num_points: int) -> Float[np.ndarray, " g"]:
    """A grid between which the largest surely is."""
    present = rows.weights > 0
    lowest = np.where(present, rows.means - TAIL * rows.stds, np.inf).min(axis=1).max()
    highest = np.where(present, rows.means + TAIL * rows.stds, -np.inf).max()
    return np.linspace(lowest, highest, num_points)


def _log_cdfs(rows: Mixtures, grid: Float[np.ndarray, " g"]) -> Float[np.ndarray, "k g"]:
    """Log F of each row, computed only for components that have mass on the grid."""
    from scipy.special import ndtr  # slow to import, and not needed to decide

    inside = rows.means + TAIL * rows.stds > grid[0]
    cdfs = np.tile(np.sum(rows.weights * ~inside, axis=1)[:, None], (1, len(grid)))
    scale = 1.0 / np.maximum(rows.stds, TINY)
    for component in range(rows.weights.shape[1]):
        which = np.flatnonzero(inside[:, component])
        z = (grid - rows.means[which, component, None]) * scale[which, component, None]
        cdfs[which] += rows.weights[which, component, None] * ndtr(z)
    return np.log(np.clip(cdfs, TINY, 1.0))


def _refined(
    grid: Float[np.ndarray, " g"], product: Float[np.ndarray, " g"], num_points: int
) -> Float[np.ndarray, " n"]:
    """A grid with most points where the distribution function of the maximum grows."""
    inside = (product > NEGLIGIBLE * product[-1]) & (product < (1 - NEGLIGIBLE) * product[-1])
    first = max(int(np.argmax(product > NEGLIGIBLE * product[-1])) - 1, 0)
    last = min(first + int(inside.sum()) + 2, len(grid) - 1)
    some, growth = grid[first : last + 1], product[first : last + 1] / product[-1]
    even = np.linspace(0.0, 1.0, len(some))
    return np.interp(np.linspace(0.0, 1.0, num_points), 0.5 * (growth + even), some)
