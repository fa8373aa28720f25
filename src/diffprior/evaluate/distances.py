"""Earth mover's distance between samples, and the floor that two exact samples set."""

from dataclasses import dataclass

import numpy as np


def earth_movers_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Mean distance that one sample must be moved to become the other (Euclidean)."""
    import ot

    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    return float(ot.emd2([], [], ot.dist(first, second, metric="euclidean")))


@dataclass(frozen=True)
class Distance:
    """Earth mover's distances over repetitions, and of exact samples from each other (floor)."""

    distances: np.ndarray
    floors: np.ndarray

    @property
    def ratio(self) -> float:
        """Mean distance over mean floor: 1 is as good as exact."""
        return float(np.mean(self.distances) / np.mean(self.floors))

    @property
    def standard_error(self) -> float:
        """Of the ratio, over the repetitions, which are paired."""
        residuals = self.distances - self.ratio * self.floors
        return float(np.std(residuals, ddof=1) / np.sqrt(len(residuals)) / np.mean(self.floors))
