"""The likelihood that rewards suggest, with what it needs estimated; and a missing intercept."""

import numpy as np

from ..evidence.base import AbstractLikelihood
from ..evidence.linear import Linear
from ..fitting.rows import AnyLogs
from ..logs.logs import Logs
from ..logs.statistics import segment_sums

MAX_RATINGS = 11  # different whole numbers that look like ratings
MIN_ZEROS = 0.1  # share of zeros among positive numbers that linear rewards do not produce
MIN_EXPLAINED = 0.05  # share of the squared residuals that an intercept must explain
MAX_DISPERSION = 1e4  # of counts that are as good as Poisson's
NUM_ERRORS = 5.0  # standard errors by which an excess variance is one


def likelihood_advice(logs: AnyLogs) -> tuple[str, str]:
    """The likelihood that the rewards suggest, by its name on the command line, and why."""
    if not isinstance(logs, Logs):
        return "linear", "statistics of rows serve linear rewards alone"
    rewards = logs.rewards
    values = np.unique(rewards)
    if np.isin(values, (0.0, 1.0)).all():
        return "logistic", "rewards are 0 or 1"
    share = float(np.mean(rewards == 0))
    if values[0] >= 0 and np.all(values == np.round(values)):
        if len(values) <= MAX_RATINGS and (values[0] > 0 or share < MIN_ZEROS):
            return "linear", (
                f"rewards are whole numbers from {values[0]:g} to {values[-1]:g}, as ratings are; "
                "counts would have no upper end"
            )
        return _counts(logs)
    if values[0] == 0 and share > MIN_ZEROS:
        return "zero-inflated", (
            f"rewards are 0 in {100 * share:.0f} % of the rows and positive in the others, which "
            "Gaussian noise never produces"
        )
    return "linear", "rewards are numbers of any size"


def _counts(logs: Logs) -> tuple[str, str]:
    """Poisson counts, unless the variance within tasks exceeds the mean beyond chance."""
    excess, error, expected, _ = _count_variance(logs)
    if error == 0 or excess <= NUM_ERRORS * error:
        return "poisson", "rewards are counts whose variance within tasks is about their mean"
    return "negative-binomial", (
        f"rewards are counts whose variance within tasks is {1 + excess / expected:.1f} times "
        f"their mean; a dispersion of {count_dispersion(logs):.2g} explains it, or features do, if "
        "they differ"
    )


def count_dispersion(logs: Logs) -> float:
    """The dispersion of negative binomial counts that explains their variance within tasks."""
    excess, error, _, squares = _count_variance(logs)
    return float(np.clip(squares / max(excess, error, 1e-300), 1e-3, MAX_DISPERSION))


def _count_variance(logs: Logs) -> tuple[float, float, float, float]:
    """Variance within tasks beyond the mean, its error, the mean, and the mean squared; summed."""
    counts = logs.counts.astype(np.float64)
    sums = segment_sums(np.column_stack([logs.rewards, logs.rewards**2]), logs.starts)
    several = counts > 1
    n, mean = counts[several], sums[several, 0] / counts[several]
    squares = sums[several, 1] - n * mean**2  # (n - 1) times the variance
    expected = float(np.sum((n - 1) * mean))
    error = float(np.sqrt(np.sum((n - 1) * (2 * mean**2 + mean))))
    return float(np.sum(squares)) - expected, error, expected, float(np.sum((n - 1) * mean**2))


def missing_intercept(logs: AnyLogs, likelihood: AbstractLikelihood) -> str:
    """Warning if an intercept would explain much; empty if not, or if rows are not known."""
    if not isinstance(logs, Logs):
        return ""
    at_zero = float(np.asarray(likelihood.mean(np.zeros(1)))[0])
    x, y, w = logs.features, logs.rewards - at_zero, logs.weights
    total = float(np.sum(w))
    sums = np.column_stack([np.ones(len(x)), x, y])
    gram = (sums.T * w) @ sums / total
    dim = x.shape[1]

    def unexplained(first: int) -> float:
        own, along = gram[first : dim + 1, first : dim + 1], gram[first : dim + 1, -1]
        return float(gram[-1, -1] - along @ np.linalg.lstsq(own, along, rcond=None)[0])

    without, beside = unexplained(1), unexplained(0)
    if without <= 0 or 1 - beside / without < MIN_EXPLAINED:
        return ""
    mean = "" if isinstance(likelihood, Linear) else f" instead of {at_zero:g}"
    return (
        f"no intercept: a feature that is always 1 would explain {100 * (1 - beside / without):.0f}"
        f" % of the squared residuals of one regression for all tasks, because mean rewards differ "
        f"from what all-zero features give{mean}; pass intercept=True, or --intercept"
    )
