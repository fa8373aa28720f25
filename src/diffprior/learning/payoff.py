"""What past tasks are worth: rewards that a new task saves, and what more past tasks would add."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..evaluate.comparison import COLD
from ..evidence.base import AbstractLikelihood
from ..files.base import Serializable
from ..logs.logs import Logs
from .scoring import Family, Gain, HeldOut, by_name, gain, task_log_evidence
from .search import first_tasks

TARGET_ROWS = 5  # last rows of a task, at most, that are predicted
FIRST_ROWS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)  # that a cold start has seen before
MAX_TASKS = 1000
MIN_TASKS = 10  # that a point of a curve is a mean of
NUM_RESAMPLES, INTERVAL = 400, 0.9
POSSIBLE_SHARE = 0.9  # of what past tasks could tell, at which there are enough of them


@dataclass(frozen=True)
class RowsSaved(Serializable):
    """First rewards of a new task that the prior replaces, from tasks held out.

    Attributes:
        count: Rewards after which a cold start predicts the last rewards of a task as well as the
            prior does before the first.
        low: Lower end of the 90 % interval, by resampling tasks.
        high: Upper end.
        most: The most that the tasks are long enough for; `count` and `high` are not above.
        num_tasks: Number of tasks.
    """

    count: float
    low: float
    high: float
    most: int
    num_tasks: int

    def __str__(self) -> str:
        """In words; "more than" where tasks are too short to see when a cold start is as good."""
        if self.count >= self.most:
            return f"more than {self.most}"
        return f"{self.count:.{0 if self.count >= 3 else 1}f}"

    @property
    def interval(self) -> str:
        """The interval in words."""
        high = f"more than {self.most}" if self.high >= self.most else f"{self.high:.1f}"
        return f"90 % interval {self.low:.1f} to {high}"


def late_predictions(
    prior: Family, cold: Family, logs: Logs, likelihood: AbstractLikelihood, seed: int = 0
) -> Float[np.ndarray, "t n"]:
    """Log probability of a task's last rewards: from a cold start after so many first rewards, over
    that under the prior after none; NaN of tasks that have too few rows.
    """
    some = first_tasks(logs.select(logs.counts >= 2), MAX_TASKS)
    if some.num_tasks == 0:
        return np.zeros((0, len(FIRST_ROWS)))
    counts = some.counts
    history = counts - np.minimum(-(-counts // 2), TARGET_ROWS)
    place = some.row_places
    last = place >= np.repeat(history, counts)
    known = task_log_evidence(prior, some.select_rows(last), likelihood, seed)
    found = np.full((some.num_tasks, len(FIRST_ROWS)), np.nan)
    for column, count in enumerate(FIRST_ROWS):
        long = history >= count
        if not long.any():
            break
        rows, own = np.repeat(long, counts), some.select(long)
        first = (place < count)[rows]
        values = task_log_evidence(cold, own.select_rows(first | last[rows]), likelihood, seed)
        if count:
            values = values - task_log_evidence(cold, own.select_rows(first), likelihood, seed)
        found[long, column] = values - known[long]
    return found


def rows_saved(
    turns: Sequence[HeldOut], chosen: str, likelihood: AbstractLikelihood, seed: int = 0
) -> RowsSaved | None:
    """Compute the first rewards that a prior replaces; None if tasks are too short."""
    found = []
    for turn in turns:
        if isinstance(turn.logs, Logs):
            prior, cold = (by_name(turn.families, name) for name in (chosen, COLD))
            found.append(late_predictions(prior, cold, turn.logs, likelihood, seed))
    return catching_up(np.concatenate(found)) if found else None


def catching_up(differences: Float[np.ndarray, "t n"]) -> RowsSaved | None:
    """Where mean differences of `late_predictions` cross zero."""
    known = ~np.isnan(differences)
    enough = int(np.sum(np.cumprod(known.sum(axis=0) >= MIN_TASKS)))
    if enough < 2:
        return None
    num_tasks, places = len(differences), np.array(FIRST_ROWS[:enough], float)
    weights = np.random.default_rng(0).multinomial(
        num_tasks, np.full(num_tasks, 1 / num_tasks), NUM_RESAMPLES
    )
    weights = np.concatenate([np.ones((1, num_tasks)), weights])
    known = known[:, :enough]
    sums = weights @ np.where(known, differences[:, :enough], 0.0)
    means = sums / np.maximum(weights @ known, 1.0)
    counts = np.array([_crossing(row, places) for row in means])
    low, high = np.quantile(counts[1:], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2])
    return RowsSaved(float(counts[0]), float(low), float(high), int(places[-1]), num_tasks)


def _crossing(means: Float[np.ndarray, " n"], places: Float[np.ndarray, " n"]) -> float:
    """The place of the first mean that is not negative, interpolated; the last if none is."""
    above = np.flatnonzero(means >= 0)
    if len(above) == 0:
        return float(places[-1])
    end = int(above[0])
    if end == 0:
        return 0.0
    share = means[end - 1] / (means[end - 1] - means[end])
    return float(places[end - 1] + share * (places[end] - places[end - 1]))


@dataclass(frozen=True)
class LearningCurve(Serializable):
    """Gain of a Gaussian over the cold start, by the number of past tasks that it was learned from.

    Attributes:
        num_tasks: Numbers of past tasks, nested.
        gains: Gain of each, in nats per task held out.
        limit: Gain from any number of past tasks, if what n of them miss is proportional to 1 / n.
        enough: Past tasks from which nine tenths of it are gained; None if it may be nothing.
    """

    num_tasks: tuple[int, ...]
    gains: tuple[Gain, ...]
    limit: Gain
    enough: int | None


def curve_sizes(num_tasks: int) -> list[int]:
    """A quarter, a half and all of the tasks, of at most 4,000; none of very few."""
    most = min(num_tasks, 4 * MAX_TASKS)
    return [most // 4, most // 2, most] if most >= 12 else []


def learning_curve(
    turns: Sequence[HeldOut],
    sizes: Sequence[int],
    likelihood: AbstractLikelihood,
    seed: int = 0,
) -> LearningCurve:
    """Fit gain(n) = limit - slope / n to the gains of tasks held out, by least squares."""
    every = []
    for turn in turns:
        cold = task_log_evidence(by_name(turn.families, COLD), turn.logs, likelihood, seed)
        every.append(
            [task_log_evidence(one, turn.logs, likelihood, seed) - cold for one in turn.fewer]
        )
    over_cold = np.concatenate(every, axis=1)
    x = 1.0 / np.array(sizes)
    x -= x.mean()
    slopes = -(x @ over_cold) / np.sum(x**2)
    limit, enough = gain(over_cold[-1] + slopes / sizes[-1]), None
    if limit.mean > 2 * limit.error:
        enough = int(np.ceil(max(slopes.mean(), 0.0) / ((1 - POSSIBLE_SHARE) * limit.mean)))
    return LearningCurve(tuple(sizes), tuple(gain(values) for values in over_cold), limit, enough)
