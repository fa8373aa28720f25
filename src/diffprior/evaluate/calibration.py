"""Calibration: coverage and ranks of true parameters, and predictions of the next rewards."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from ..checks import on_device
from ..evidence.base import AbstractLikelihood
from ..evidence.response import response_of
from ..logs.logs import Logs
from ..reporting.figures import AbstractResult, parameter_names, plot_intervals
from ..reporting.tables import Table, plus_minus, standard_error
from .tasks import check_tasks, draw_posteriors, nan_where_failed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LENGTHS = (0, 1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, repr=False)
class Coverage(AbstractResult):
    """Coverage of the true parameters by central credible intervals of their posteriors.

    Args:
        share: Share of parameters inside, over tasks and parameters; `level` if calibrated.
        standard_error: Of the share, over tasks.
        by_parameter: The share of each parameter (d,).
        level: Nominal level of the intervals.
        num_tasks: Number of tasks.
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

    def table(self) -> Table:
        """The share of each parameter and of all."""
        shares = [("all", plus_minus(100 * self.share, 100 * self.standard_error))]
        shares += [(f"{i + 1}", f"{100 * x:.1f}") for i, x in enumerate(self.by_parameter)]
        caption = f"{100 * self.level:g} % intervals, {self.num_tasks} tasks, {self.failed} failed"
        return Table(("parameter", "hold the truth, %"), shares, caption)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the share of each parameter in `ax`, by default a new figure, with two standard
        errors, beside the nominal level.
        """
        shares = self.by_parameter
        errors = 2 * np.sqrt(np.maximum(shares * (1 - shares), 1e-9) / self.num_tasks)
        ends = np.stack([shares - errors, np.minimum(shares + errors, 1.0)], axis=1)
        names, along = parameter_names(len(shares)), "share of intervals that hold the truth"
        return plot_intervals(ax, names, shares, ends, along, self.level)


@dataclass(frozen=True, repr=False)
class RankUniformity(AbstractResult):
    """Test that the truth ranks uniformly among draws from its posterior, as it must if exact.

    Args:
        p_value: That a calibrated sampler gives ranks as uneven as these: the smallest over
            parameters, times their number (Bonferroni).
        by_parameter: p-value of each parameter (d,), by a chi-square test on bins.
        histogram: Truths in each bin (d, bins); level if calibrated, high in the middle if the
            posterior is too wide, high at both ends if it is too narrow.
        num_tasks: Number of tasks.
        failed: Draws that failed; they are left out.
    """

    p_value: float
    by_parameter: Float[np.ndarray, " d"]
    histogram: np.ndarray
    num_tasks: int
    failed: int

    def table(self) -> Table:
        """Histogram and p-value of each parameter."""
        rows = [
            (f"{i + 1}", " ".join(f"{count:d}" for count in counts), f"{p:.3g}")
            for i, (counts, p) in enumerate(zip(self.histogram, self.by_parameter, strict=True))
        ]
        caption = f"p = {self.p_value:.3g}, {self.num_tasks} tasks, {self.failed} failed"
        return Table(("parameter", "truths in each bin of ranks", "p"), rows, caption)


def coverage(
    sampler: object,
    logs: Logs,
    likelihood: AbstractLikelihood,
    level: float = 0.9,
    *,
    num_draws: int = 199,
    seed: int = 0,
) -> Coverage:
    """Share of true parameters inside the central intervals of their posteriors.

    Args:
        sampler: A sampler; or a prior, or any object with its four members, whose best sampler is
            taken.
        logs: Tasks with true `parameters`, from `simulate_tasks` or `Logs(..., parameters=)`.
        likelihood: How rewards arise; another one than they did shows what a wrong one does.
        level: Nominal level of the intervals, in (0, 1).
        num_draws: Draws from each posterior, among which the truth is ranked; exact draws cover
            `level` on average at any number.
        seed: Of the draws.

    Returns:
        The share, its standard error over tasks, and how many draws failed.

    Raises:
        ValueError: If true parameters are not known, or draws are too few for the level.
    """
    _check_level(level, num_draws)
    truths = _true_parameters(logs)
    draws = draw_posteriors(sampler, logs, likelihood, num_draws, seed).values
    return interval_coverage(draws, truths, level, seed)


def _true_parameters(logs: Logs) -> Float[np.ndarray, "n d"]:
    if logs.parameters is None:
        raise ValueError(
            "`logs`: expected tasks whose true parameters are known, got none; pass "
            "`parameters=`, use `simulate_tasks`, or score rewards: `predictive_check`"
        )
    return logs.parameters


def rank_uniformity(
    sampler: object,
    logs: Logs,
    likelihood: AbstractLikelihood,
    *,
    num_draws: int = 199,
    num_bins: int = 10,
    seed: int = 0,
) -> RankUniformity:
    """Test that true parameters rank uniformly among draws: simulation-based calibration.

    Args:
        sampler: As of `coverage`.
        logs: Tasks with true `parameters` that were drawn from the sampler's prior.
        likelihood: How rewards arise.
        num_draws: Draws from each posterior.
        num_bins: Bins of the chi-square test; at least five tasks each are wanted.
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

    truths = _true_parameters(logs)
    draws = draw_posteriors(sampler, logs, likelihood, num_draws, seed)
    uniforms = rank_uniforms(draws.values, truths, np.random.default_rng(seed))
    valid = uniforms[np.isfinite(uniforms).all(axis=1)]
    counts = np.array([np.histogram(column, num_bins, (0.0, 1.0))[0] for column in valid.T])
    p_values = stats.chisquare(counts, axis=1).pvalue
    combined = min(1.0, float(np.min(p_values)) * len(p_values))
    return RankUniformity(combined, p_values, counts, len(uniforms), draws.failed)


def interval_coverage(
    draws: Float[np.ndarray, "n m d"],
    truths: Float[np.ndarray, "n d"],
    level: float = 0.9,
    seed: int = 0,
) -> Coverage:
    """Share of `truths` inside the central intervals of `draws`, those that failed left out."""
    num_draws = draws.shape[1]
    _check_level(level, num_draws)
    draws = nan_where_failed(draws)
    inside = _inside(rank_uniforms(draws, truths, np.random.default_rng(seed)), level)
    by_task, failed = inside.mean(axis=1), int(np.isnan(draws[..., 0]).sum())
    return Coverage(
        float(by_task.mean()),
        standard_error(by_task),
        inside.mean(axis=0),
        level,
        len(truths),
        num_draws,
        failed,
    )


def _inside(uniforms: Float[np.ndarray, " n *d"], level: float) -> Float[np.ndarray, " n *d"]:
    """1 where a rank is in the central interval, 0 elsewhere, also where there is none."""
    return (np.abs(uniforms - 0.5) <= 0.5 * level).astype(float)


def rank_uniforms(
    draws: Float[np.ndarray, "n m *d"],
    truths: Float[np.ndarray, " n *d"],
    rng: np.random.Generator,
) -> Float[np.ndarray, " n *d"]:
    """Rank of the truth among the draws, in (0, 1): uniform if they have the same distribution.

    A truth above r and equal to s of k draws is put at random in (r, r + s + 1) / (k + 1). NaN
    where no draw is left.
    """
    count = np.sum(np.isfinite(draws), axis=1)
    below = np.sum(draws < truths[:, None], axis=1)
    equal = np.sum(draws == truths[:, None], axis=1)
    uniforms = (below + rng.random(truths.shape) * (equal + 1)) / (count + 1)
    return np.where(count > 0, uniforms, np.nan)


def _check_level(level: float, num_draws: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"`level`: expected a number in (0, 1), got {level}; 0.9 is usual")
    needed = int(np.ceil(2 / (1 - level) - 1e-9)) - 1
    if num_draws < needed:
        raise ValueError(
            f"`num_draws`: expected at least {needed} for intervals of {level:g}, got {num_draws}; "
            "draw more or lower the level"
        )


@dataclass(frozen=True)
class PredictiveRow:
    """Score of the predictions of the next reward after a number of rows.

    Args:
        num_rows: Rows seen before.
        num_tasks: Tasks with at least one row more.
        log_density: Mean log density of the next reward, in nats.
        log_density_error: Its standard error over tasks.
        coverage: Share of next rewards inside their predictive intervals.
        coverage_error: Its standard error over tasks.
        failed: Draws that failed, which are left out.
    """

    num_rows: int
    num_tasks: int
    log_density: float
    log_density_error: float
    coverage: float
    coverage_error: float
    failed: int


@dataclass(frozen=True, repr=False)
class PredictiveCheck(AbstractResult):
    """Scores of the predictions of the next reward of each task, by length of history.

    Args:
        rows: One for each length of history.
        level: Nominal level of the predictive intervals.
    """

    rows: tuple[PredictiveRow, ...]
    level: float

    def to_dict(self) -> dict[str, object]:
        """The table as plain numbers."""
        return asdict(self)

    def table(self) -> Table:
        """Scores, one row for each length of history."""
        table = [
            (
                str(row.num_rows),
                str(row.num_tasks),
                plus_minus(row.log_density, row.log_density_error),
                plus_minus(100 * row.coverage, 100 * row.coverage_error),
                str(row.failed),
            )
            for row in self.rows
        ]
        held = f"in {100 * self.level:g} % intervals, %"
        return Table(("after rows", "tasks", "log density", held, "failed"), table)


def predictive_check(
    sampler: object,
    logs: Logs,
    likelihood: AbstractLikelihood,
    *,
    lengths: Sequence[int] = LENGTHS,
    level: float = 0.9,
    num_draws: int = 199,
    seed: int = 0,
) -> PredictiveCheck:
    """Predict the next reward of each task from its first rows, and score the predictions.

    No true parameters are needed, so this evaluates a prior on a user's own logs. Rewards that are
    counts or zeros and ones are ranked with ties broken at random, so that calibrated intervals
    hold `level` of them as well.

    Args:
        sampler: As of `coverage`.
        logs: Tasks held out of what the prior was learned from.
        likelihood: How rewards arise.
        lengths: Numbers of rows to look back on; those that no task exceeds are left out.
        level: Nominal level of the predictive intervals.
        num_draws: Draws from each posterior.
        seed: Of the draws.

    Returns:
        Log density and coverage of the next reward, after each number of rows.

    Raises:
        ValueError: If no task has a row, or features do not fit the prior.
    """
    check_tasks(logs, likelihood)
    longest = int(logs.counts.max(initial=0))
    if longest == 0:
        raise ValueError("`logs`: expected tasks with rows, got none; pass their histories")
    used = [length for length in lengths if length < longest]
    rows = [_after(sampler, logs, likelihood, n, level, num_draws, seed) for n in used]
    return PredictiveCheck(tuple(rows), level)


def _after(
    sampler: object,
    logs: Logs,
    likelihood: AbstractLikelihood,
    length: int,
    level: float,
    num_draws: int,
    seed: int,
) -> PredictiveRow:
    longer = logs.select(logs.counts > length)
    following = longer.starts[:-1] + length
    phi, y = longer.features[following], longer.rewards[following]
    known = longer.first_rows(length)
    draws = draw_posteriors(sampler, known, likelihood, num_draws, seed + length)
    failed = np.isnan(draws.values[..., 0])
    thetas, response = np.where(failed[..., None], 0.0, draws.values), response_of(likelihood)
    if response is None:
        eta = np.einsum("nmd,nd->nm", thetas, phi)
    else:
        rows = thetas.reshape(-1, thetas.shape[2]), np.repeat(phi, num_draws, axis=0)
        eta = response.paired(*rows).reshape(failed.shape)
    density = _log_density(likelihood, y, eta, failed)
    drawn = likelihood.sample(jax.random.key(seed + length), on_device(eta))
    rewards = np.where(failed, np.nan, np.asarray(drawn, np.float64))
    uniforms = rank_uniforms(rewards, y, np.random.default_rng([seed, length]))
    inside = _inside(uniforms, level)
    densities = float(np.mean(density)), standard_error(density)
    shares = float(np.mean(inside)), standard_error(inside)
    return PredictiveRow(length, len(y), *densities, *shares, draws.failed)


def _log_density(
    likelihood: AbstractLikelihood,
    y: Float[np.ndarray, " n"],
    eta: Float[np.ndarray, "n m"],
    failed: np.ndarray,
) -> Float[np.ndarray, " n"]:
    """Log of the mean of p(y | eta) over draws that did not fail."""
    rewards = np.broadcast_to(y[:, None], eta.shape)
    logs = np.asarray(likelihood.log_density(on_device(rewards), on_device(eta)), np.float64)
    valid = np.maximum(np.sum(~failed, axis=1), 1)
    with np.errstate(divide="ignore"):
        return np.asarray(logsumexp(np.where(failed, -np.inf, logs), axis=1) - np.log(valid))
