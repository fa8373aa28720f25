"""Whether credible intervals cover what they say, and whether the truth ranks uniformly."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..evidence.base import AbstractLikelihood
from ..reporting.tables import Table, plus_minus, standard_error
from .draws import draw_posteriors, nan_where_failed
from .tasks import as_tasks


@dataclass(frozen=True)
class Coverage:
    """How often central credible intervals of the posterior hold the true parameters.

    Args:
        share: Share of parameters inside, over tasks and parameters; `level` if calibrated.
        standard_error: Of the share, over tasks.
        by_parameter: The share of each parameter (d,).
        level: What the intervals say they hold.
        num_tasks: Tasks judged.
        num_draws: Draws from each posterior.
        failed: Draws that failed, of all tasks; they are left out, and a task of which none is
            left is not covered.
    """

    share: float
    standard_error: float
    by_parameter: Float[np.ndarray, " d"]
    level: float
    num_tasks: int
    num_draws: int
    failed: int

    def __str__(self) -> str:
        """The share of each parameter and of all."""
        shares = [("all", plus_minus(100 * self.share, 100 * self.standard_error))]
        shares += [(f"{i + 1}", f"{100 * x:.1f}") for i, x in enumerate(self.by_parameter)]
        title = f"{100 * self.level:g} % intervals, {self.num_tasks} tasks, {self.failed} failed"
        return f"{title}\n{Table(('parameter', 'hold the truth, %'), shares)}"


@dataclass(frozen=True)
class RankUniformity:
    """Whether the truth ranks uniformly among draws from its posterior, as it must if exact.

    Args:
        p_value: That a calibrated sampler gives ranks as uneven as these: the smallest over
            parameters, times their number (Bonferroni).
        by_parameter: p-value of each parameter (d,), by a chi-square test on bins.
        histogram: Truths in each bin (d, bins); level if calibrated, high in the middle if the
            posterior is too wide, high at both ends if it is too narrow.
        num_tasks: Tasks judged.
        failed: Draws that failed; they are left out.
    """

    p_value: float
    by_parameter: Float[np.ndarray, " d"]
    histogram: np.ndarray
    num_tasks: int
    failed: int

    def __str__(self) -> str:
        """Histogram and p-value of each parameter."""
        rows = [
            (f"{i + 1}", " ".join(f"{count:d}" for count in counts), f"{p:.3g}")
            for i, (counts, p) in enumerate(zip(self.histogram, self.by_parameter, strict=True))
        ]
        title = f"p = {self.p_value:.3g}, {self.num_tasks} tasks, {self.failed} failed"
        return f"{title}\n{Table(('parameter', 'truths in each bin of ranks', 'p'), rows)}"


def coverage(
    sampler: Any,
    tasks: Any,
    level: float = 0.9,
    *,
    num_draws: int = 199,
    likelihood: AbstractLikelihood | None = None,
    seed: int = 0,
) -> Coverage:
    """Share of true parameters inside the central intervals of their posteriors.

    Args:
        sampler: A sampler; or a prior, or any object with its four members, whose best sampler is
            taken.
        tasks: `Tasks` with true parameters, from `Tasks.simulate` or `Tasks.from_arrays`.
        level: What the intervals are to hold, in (0, 1).
        num_draws: Draws from each posterior; the ends are at ranks q (num_draws + 1), so that
            exact draws cover `level` on average at any number.
        likelihood: Another likelihood than the tasks' own, to see what a wrong one does.
        seed: Of the draws.

    Returns:
        The share, its standard error over tasks, and how many draws failed.

    Raises:
        ValueError: If true parameters are not known, or draws are too few for the level.
    """
    tasks = as_tasks(tasks, likelihood)
    truths = tasks.true_parameters()
    _check_level(level, num_draws)
    return interval_coverage(draw_posteriors(sampler, tasks, num_draws, seed).values, truths, level)


def rank_uniformity(
    sampler: Any,
    tasks: Any,
    *,
    num_draws: int = 199,
    num_bins: int = 10,
    likelihood: AbstractLikelihood | None = None,
    seed: int = 0,
) -> RankUniformity:
    """Test that true parameters rank uniformly among draws: simulation-based calibration.

    Args:
        sampler: A sampler; or a prior, or any object with its four members, whose best sampler is
            taken.
        tasks: `Tasks` with true parameters that were drawn from the sampler's prior.
        num_draws: Draws from each posterior.
        num_bins: Bins of the chi-square test; at least five tasks each are wanted.
        likelihood: Another likelihood than the tasks' own.
        seed: Of the draws, and of how ties are broken.

    Returns:
        A p-value for all parameters together and one for each, and the histograms.

    Raises:
        ValueError: If true parameters are not known.

    References:
        Talts, Betancourt, Simpson, Vehtari and Gelman (2018). Validating Bayesian inference
        algorithms with simulation-based calibration. Here ties are broken at random.
    """
    from scipy import stats  # slow to import, and not needed to decide

    tasks = as_tasks(tasks, likelihood)
    truths = tasks.true_parameters()
    draws = draw_posteriors(sampler, tasks, num_draws, seed).values
    uniforms = rank_uniforms(draws, truths, np.random.default_rng(seed))
    kept = np.isfinite(uniforms).all(axis=1)
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    counts = np.array([np.histogram(column, edges)[0] for column in uniforms[kept].T])
    p_values = np.array([float(stats.chisquare(row).pvalue) for row in counts])
    combined = min(1.0, float(np.min(p_values)) * len(p_values))
    return RankUniformity(combined, p_values, counts, len(tasks), _count_failed(draws))


def interval_coverage(
    draws: Float[np.ndarray, "n m d"], truths: Float[np.ndarray, "n d"], level: float = 0.9
) -> Coverage:
    """Share of `truths` inside the central intervals of `draws`, those that failed left out."""
    _check_level(level, draws.shape[1])
    draws = nan_where_failed(draws)
    low, high = (order_statistic(draws, q) for q in ((1 - level) / 2, (1 + level) / 2))
    inside = (truths >= low) & (truths <= high)  # False where nothing is left, which is NaN
    shares = inside.mean(axis=1)
    return Coverage(
        float(shares.mean()),
        standard_error(shares),
        inside.mean(axis=0),
        level,
        len(truths),
        draws.shape[1],
        _count_failed(draws),
    )


def order_statistic(draws: Float[np.ndarray, "n m *d"], q: float) -> Float[np.ndarray, "n *d"]:
    """The draw of rank q (m + 1), between two where that is no whole number; NaN left out."""
    ordered = np.sort(draws, axis=1)  # NaN last
    count = np.sum(np.isfinite(draws), axis=1)
    place = np.clip(q * (count + 1) - 1, 0, np.maximum(count - 1, 0))
    below = np.floor(place).astype(int)
    above = np.minimum(below + 1, np.maximum(count - 1, 0))
    low = np.take_along_axis(ordered, below[:, None], axis=1)[:, 0]
    high = np.take_along_axis(ordered, above[:, None], axis=1)[:, 0]
    return low + (place - below) * (high - low)


def rank_uniforms(
    draws: Float[np.ndarray, "n m *d"],
    truths: Float[np.ndarray, "n *d"],
    rng: np.random.Generator,
) -> Float[np.ndarray, "n *d"]:
    """Where the truth lies among the draws, in (0, 1): uniform if they are of the same law.

    A truth above r and equal to s of k draws is put at random in (r, r + s + 1) / (k + 1). NaN
    where no draw is left.
    """
    count = np.sum(np.isfinite(draws), axis=1)
    below = np.sum(draws < truths[:, None], axis=1)
    equal = np.sum(draws == truths[:, None], axis=1)
    uniforms = (below + rng.random(truths.shape) * (equal + 1)) / (count + 1)
    return np.where(count > 0, uniforms, np.nan)


def _count_failed(draws: Float[np.ndarray, "n m d"]) -> int:
    return int(np.sum(np.isnan(draws).any(axis=-1)))


def _check_level(level: float, num_draws: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"`level`: expected a number in (0, 1), got {level}; 0.9 is usual")
    needed = int(np.ceil(2 / (1 - level) - 1e-9)) - 1
    if num_draws < needed:
        raise ValueError(
            f"`num_draws`: expected at least {needed} for intervals of {level:g}, got {num_draws}; "
            "draw more or lower the level"
        )
