"""Scores of priors on real tasks: nats by number of rows, rows saved, coverage; their figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from diffprior.reporting.figures import COLORS, legend_below, new_figure
from diffprior.reporting.tables import standard_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_POOLING, POOLED, GAUSSIAN = "no pooling", "complete pooling", "Gaussian"
MIXTURE, GIVEN = "mixture", "Gaussian given attributes"
DIFFUSION = "diffusion"
WITHOUT, LEARNED = "learned without attributes", "learned"
PRIORS = (NO_POOLING, POOLED, GAUSSIAN, MIXTURE, DIFFUSION, GIVEN, WITHOUT, LEARNED)
CURVES = (NO_POOLING, GAUSSIAN, LEARNED)  # of the figure
NUM_ROWS = (1, 2, 5, 10, 20, 50)  # first rows of a task that are scored; 0 is all
SAVED_AFTER = (0, 1, 3)  # rows
MIN_TASKS = 10  # of a number in a table
MIN_SHARE = 0.1  # of tasks that are long enough for a curve
NUM_RESAMPLES, LEVEL = 400, 0.9  # of bootstrap intervals


@dataclass(frozen=True)
class TurnResult:
    """Scores of the tasks held out in a turn.

    Attributes:
        values: Log evidence in nats of the first rows of every task, by prior and number of rows.
        num_rows: Rows of every task.
        chosen: By what `learn` was given.
        seconds: Of learning, by phase.
        covered: After so many rows: tasks with one more, and how many of those rewards are in the
            90 % predictive intervals of what `learn` chooses.
    """

    values: dict[str, dict[str, list[float]]]
    num_rows: list[int]
    chosen: dict[str, str]
    seconds: dict[str, float]
    covered: dict[str, list[int]]


@dataclass(frozen=True)
class Score:
    """Mean log evidence of a prior, and over that of another, with a paired standard error."""

    prior: str
    num_rows: int
    num_tasks: int
    log_evidence: float
    gain: float
    error: float


@dataclass(frozen=True)
class RowsSaved:
    """After `num_rows` rows, the next reward is predicted as well as after `equal` without a prior.

    Attributes:
        low, high: Bootstrap interval of 90 %.
        longest: Where the curve without a prior ends; `equal` is that or more.
    """

    num_rows: int
    equal: float
    low: float
    high: float
    longest: float

    def __str__(self) -> str:
        def shown(value: float) -> str:
            return f"> {self.longest:.0f}" if value > self.longest - 0.01 else f"{value:.1f}"

        return f"{shown(self.equal)} ({shown(self.low)} to {shown(self.high)})"


@dataclass(frozen=True)
class Coverage:
    """Share of rewards inside their 90 % predictive intervals, with its standard error."""

    share: float
    error: float
    num_predictions: int


def scores(results: Sequence[TurnResult], prior: str, against: str) -> list[Score]:
    """One prior against another in the turns that have both, by number of rows."""
    found = []
    both = [r.values for r in results if prior in r.values and against in r.values]
    for count in map(str, (*NUM_ROWS, 0)):
        turns = [v for v in both if count in v[prior] and count in v[against]]
        own, other = (
            np.array([x for v in turns for x in v[name][count]]) for name in (prior, against)
        )
        if len(own) >= MIN_TASKS:
            gain = own - other
            mean, error = float(np.mean(gain)), standard_error(gain)
            found.append(Score(prior, int(count), len(own), float(np.mean(own)), mean, error))
    return found


def coverage(results: Sequence[TurnResult]) -> Coverage:
    """Of all turns and numbers of rows together."""
    total, inside = np.sum([pair for r in results for pair in r.covered.values()], axis=0)
    share = float(inside / total)
    return Coverage(share, float(np.sqrt(share * (1 - share) / total)), int(total))


def predictions(
    results: Sequence[TurnResult],
) -> tuple[Float[np.ndarray, " k"], dict[str, Float[np.ndarray, "n k"]]]:
    """Log density per reward of every long task, by the mean number of rows seen before."""
    counts = np.concatenate([r.num_rows for r in results])
    long = [n for n in NUM_ROWS if np.sum(counts >= n) >= max(MIN_TASKS, MIN_SHARE * len(counts))]
    ends = np.array([0, *long])
    found = {}
    for name in CURVES:
        parts = []
        for result in results:
            own = np.array(result.num_rows)
            known = own >= ends[-1]
            columns = [result.values[name][str(n)] for n in long]
            columns = [np.array(c)[known[own >= n]] for c, n in zip(columns, long, strict=True)]
            parts.append(np.diff(np.column_stack([np.zeros(known.sum()), *columns]), axis=1))
        found[name] = np.concatenate(parts) / np.diff(ends)
    return (ends[:-1] + ends[1:] - 1) / 2, found


def rows_saved(results: Sequence[TurnResult]) -> list[RowsSaved]:
    """Rows without a prior that are worth as much as fewer with what `learn` chooses."""
    seen, found = predictions(results)
    cold, learned = found[NO_POOLING], found[LEARNED]
    rng = np.random.default_rng(0)
    samples = [np.arange(len(cold)), *rng.integers(len(cold), size=(NUM_RESAMPLES, len(cold)))]
    equal = np.array(
        [equal_rows(seen, cold[i].mean(axis=0), learned[i].mean(axis=0)) for i in samples]
    )
    ends = np.quantile(equal[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    after = [n for n in SAVED_AFTER if n <= seen[-1]]
    return [
        RowsSaved(n, *map(float, (equal[0, j], *ends[:, j], seen[-1]))) for j, n in enumerate(after)
    ]


def equal_rows(
    seen: Float[np.ndarray, " k"], cold: Float[np.ndarray, " k"], learned: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " m"]:
    """Rows after which the cold curve reaches the learned one at each of SAVED_AFTER.

    Curves are piecewise linear in log(1 + rows), and the best so far counts.
    """
    at, cold = np.log1p(seen), np.maximum.accumulate(cold)
    after = np.array([n for n in SAVED_AFTER if n <= seen[-1]], float)
    reached = np.interp(np.log1p(after), at, np.maximum.accumulate(learned))
    rows = np.expm1(np.interp(reached, cold + 1e-12 * np.arange(len(cold)), at))
    return np.asarray(np.maximum(rows, 0.0))


def curves_figure(data_sets: Mapping[str, Sequence[TurnResult]]) -> "Figure":
    """Log density of the next reward by rows seen, a panel for each data set."""
    across = min(4, len(data_sets))
    figure, axes = new_figure(-(-len(data_sets) // across), across, width=2.7, height=2.2)
    for axis in axes.ravel()[len(data_sets) :]:
        axis.set_visible(False)
    for axis, (title, results) in zip(axes.ravel(), data_sets.items(), strict=False):
        seen, found = predictions(results)
        means = {name: values.mean(axis=0) for name, values in found.items()}
        for name, color in zip(CURVES, ("#8a8f98", *COLORS[1:3]), strict=True):
            gain = found[name] - found[LEARNED]
            error = gain.std(axis=0, ddof=1) / np.sqrt(len(gain))
            axis.errorbar(
                seen, means[name], error, marker="o", ms=3, lw=1.4, color=color, label=name
            )
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xticks(seen, [f"{n:.0f}" for n in seen])
        axis.minorticks_off()
        rest = np.concatenate([means[GAUSSIAN], means[LEARNED], means[NO_POOLING][1:]])
        margin = 0.15 * max(np.ptp(rest), 0.05)
        axis.set_ylim(rest.min() - margin, rest.max() + margin)
        axis.set_title(title)
    for axis in axes[:, 0]:
        axis.set_ylabel("nats per reward")
    for axis in axes.ravel()[len(data_sets) - across : len(data_sets)]:
        axis.set_xlabel("rows seen")
    legend_below(figure)
    return figure
