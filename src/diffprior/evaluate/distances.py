"""Earth mover's distances of samples, and of draws from exact ones (Appendix C.4)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..checks import real_numbers, require
from ..reporting.tables import Table, plus_minus, standard_error
from .tasks import finite_rows, nan_where_failed

LARGEST = 1e100  # distance, beyond which sums of distances are not to be trusted


@dataclass(frozen=True)
class Distance:
    """Earth mover's distances of draws from exact ones, and of exact ones from each other.

    Args:
        distances: Of each task or repetition (n,); infinite where every draw failed.
        floors: Of as many exact draws from each other (n,).
        failed: Draws that failed, which are left out.
    """

    distances: Float[np.ndarray, " n"]
    floors: Float[np.ndarray, " n"]
    failed: int = 0

    @property
    def ratio(self) -> float:
        """Mean distance over mean floor: 1 is as good as exact."""
        return float(np.mean(self.distances) / np.mean(self.floors))

    @property
    def standard_error(self) -> float:
        """Of the ratio, over the repetitions, which are paired."""
        if not np.isfinite(self.ratio):
            return float("nan")
        residuals = self.distances - self.ratio * self.floors
        return standard_error(residuals) / float(np.mean(self.floors))

    def __str__(self) -> str:
        """Distance, floor and their ratio."""
        row = (
            plus_minus(float(np.mean(self.distances)), standard_error(self.distances)),
            f"{np.mean(self.floors):.4g}",
            plus_minus(self.ratio, self.standard_error),
            str(self.failed),
        )
        return str(Table(("distance", "floor", "over the floor", "failed"), [row]))


def earth_movers_distance(first: ArrayLike, second: ArrayLike) -> float:
    """Mean Euclidean distance that one sample must be moved to become the other.

    Args:
        first: Draws (n, d).
        second: Draws (m, d); every draw of a sample weighs the same.

    Returns:
        The distance, in the units of the parameters. It is not zero for two samples of one
        distribution: see `distance_over_floor`.

    Raises:
        ValueError: If shapes do not agree or a number is not finite.
        ImportError: If POT is not installed.
    """
    require("distances", "ot")
    import ot

    first = real_numbers("first", first, ("n", "d"), "pass one row for each draw")
    dim = first.shape[1]
    second = real_numbers("second", second, ("m", dim), "pass draws of as many parameters")
    if 0 in (*first.shape, len(second)):
        raise ValueError(
            f"`first`: expected draws, got {first.shape} and {second.shape}; draw some"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        costs = ot.dist(np.asarray(first, np.float64), np.asarray(second, np.float64), "euclidean")
    if not np.max(costs, initial=0.0) < LARGEST:
        raise ValueError(
            f"`first`: expected draws less than {LARGEST:g} apart, got farther ones; rescale them"
        )
    return float(ot.emd2([], [], costs))


def distance_over_floor(draws: ArrayLike, exact: ArrayLike, other_exact: ArrayLike) -> Distance:
    """Distance of draws from exact ones, beside that of exact draws from each other.

    Args:
        draws: Draws of n posteriors (n, m, d), or of one (m, d). Those that are not finite have
            failed: they are left out and counted.
        exact: As many exact draws, from the same posteriors.
        other_exact: As many again, independent of `exact`.

    Returns:
        The distances and their floors; `ratio` is 1 for a sampler as good as exact.

    Raises:
        ValueError: If shapes do not agree.
        ImportError: If POT is not installed.
    """
    require("distances", "ot")
    given = {"draws": draws, "exact": exact, "other_exact": other_exact}
    draws, exact, other = (_with_task_axis(name, value) for name, value in given.items())
    if not draws.shape[::2] == exact.shape[::2] == other.shape[::2]:
        raise ValueError(
            f"`exact`: expected draws of {draws.shape[0]} posteriors of {draws.shape[2]} "
            f"parameters, got {exact.shape} and {other.shape}; draw from the same posteriors"
        )
    draws = nan_where_failed(draws)
    return Distance(
        np.array([_distance_of_rest(own, true) for own, true in zip(draws, exact, strict=True)]),
        np.array([earth_movers_distance(a, b) for a, b in zip(exact, other, strict=True)]),
        int(np.sum(np.isnan(draws[..., 0]))),
    )


def _distance_of_rest(draws: Float[np.ndarray, "m d"], exact: Float[np.ndarray, "k d"]) -> float:
    finite = finite_rows(draws)
    return earth_movers_distance(finite, exact) if len(finite) else float("inf")


def _with_task_axis(name: str, value: ArrayLike) -> np.ndarray:
    draws = np.asarray(value)
    if draws.dtype.kind not in "fiub" or draws.ndim not in (2, 3) or 0 in draws.shape:
        raise ValueError(
            f"`{name}`: expected real numbers of shape (n, m, d) or (m, d), got {draws.dtype} of "
            f"shape {draws.shape}; pass draws by rows"
        )
    return np.asarray(draws[None] if draws.ndim == 2 else draws, float)
