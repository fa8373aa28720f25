"""Likelihoods given, named or suggested by rewards, with what they need estimated from logs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from ..checks import choice, kind_of
from ..evidence.base import AbstractLikelihood
from ..evidence.families import LIKELIHOODS, NegativeBinomial, ZeroInflated
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..fitting.em import fit_gaussian
from ..fitting.rows import AnyLogs, blocks_of, linear_blocks
from ..fitting.search import gaussian_of
from ..logs.logs import Logs
from ..logs.shards import ShardedLogs
from ..logs.statistics import TaskStatistics, folds, pooled_residuals, segment_sums
from .scoring import family_of, gain, task_log_evidence
from .search import first_tasks

MIN_RESIDUAL_FREEDOM = 200  # degrees of freedom from which pooled residuals are trusted alone
MAX_NOISE_TASKS = 100_000
MAX_RATINGS = 11  # different whole numbers that look like ratings
MIN_ZEROS = 0.1  # share of zeros among positive numbers that linear rewards do not produce
MIN_EXPLAINED = 0.05  # share of the squared residuals that an intercept must explain
MAX_DISPERSION = 1e4  # of counts that are as good as Poisson's
NUM_ERRORS = 5.0  # standard errors by which an excess variance is one


@dataclass(frozen=True)
class Noise:
    """The noise, and where it came from."""

    noise_std: float
    degrees_of_freedom: float
    how: str  # "given", "pooled" residuals or "joint" with a Gaussian prior


def estimate_noise(statistics: TaskStatistics) -> Noise:
    """Pooled residuals within tasks, sum RSS / sum (N - rank); unbiased whatever the prior is.

    With fewer than 200 degrees of freedom, jointly with a Gaussian prior by maximum likelihood.
    """
    statistics = first_tasks(statistics, MAX_NOISE_TASKS)
    residual, freedom = pooled_residuals(statistics)
    if freedom >= MIN_RESIDUAL_FREEDOM:
        return Noise(float(np.sqrt(residual / freedom)), freedom, "pooled")
    start = max(residual / freedom, 0.0) if freedom >= 1 and residual > 0 else 0.0
    if start == 0.0:
        start = max(float(statistics.yy.sum()) / max(float(statistics.counts.sum()), 1.0), 1e-300)
    noise_std = float(np.sqrt(start))
    fit = fit_gaussian(linear_blocks(statistics, noise_std), noise_std=noise_std)
    return Noise(float(fit.noise_std or noise_std), freedom, "joint")


def resolve(logs: AnyLogs, likelihood: object) -> tuple[AbstractLikelihood, Noise | None]:
    """The likelihood with its noise, estimated where it is linear and unknown."""
    if not isinstance(likelihood, AbstractLikelihood):
        raise ValueError(
            f"`likelihood`: expected a likelihood, got {kind_of(likelihood)}; "
            "pass dp.Linear(), dp.Logistic(), dp.Poisson() or another"
        )
    if isinstance(likelihood, Linear):
        if likelihood.noise_std is not None:
            return likelihood, Noise(float(likelihood.noise_std), 0.0, "given")
        found = estimate_noise(logs.statistics())
        return Linear(noise_std=found.noise_std), found
    if not isinstance(logs, Logs):
        raise ValueError(
            f"`logs`: expected rows for {type(likelihood).__name__} rewards, got statistics, which "
            "serve linear rewards alone; pass dp.Logs"
        )
    if not isinstance(likelihood, AbstractFamily):
        raise ValueError(
            f"`likelihood`: expected Linear or a family of rewards, got "
            f"{type(likelihood).__name__}; derive it from dp.AbstractFamily"
        )
    likelihood.check_rewards(logs.rewards)
    return likelihood, None


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


AUTO = "auto"
COUNTS = ("poisson", "negative-binomial", "linear")  # compared where rewards are counts
COMPARED_TASKS, MIN_COMPARED = 400, 20  # tasks, half of them to score on
ESTIMATED_TASKS, NUM_DRAWS, NUM_STEPS, FOLD_SALT = 1000, 8, 8, 13
MIN_POSITIVE = 10  # rewards whose amounts are estimated
LEAST_LOG_STD = 1e-3
MIN_GAIN = 0.01  # nats per task, that a richer likelihood is worth
DISPERSIONS = (1e-3, 1e4)  # that are searched

Found = TypeVar("Found", bound=AbstractFamily)


def named_likelihood(name: str, logs: AnyLogs | ShardedLogs) -> tuple[AbstractLikelihood, str]:
    """The likelihood of a name, and why; `auto` is what the rewards suggest.

    Where rewards are counts, candidates are compared by the log evidence of held-out tasks. Only
    the noise of linear rewards is left to be estimated.
    """
    choice("likelihood", name, (AUTO, *LIKELIHOODS))
    some = logs.shards[0].read() if isinstance(logs, ShardedLogs) else logs
    if not isinstance(some, Logs):
        if name in (AUTO, "linear"):
            return LIKELIHOODS["linear"](), likelihood_advice(some)[1]
        raise ValueError(
            f"`logs`: expected rows with {name} rewards, got statistics, which serve linear "
            "rewards alone; pass dp.Logs"
        )
    if name != AUTO:
        return _estimated(name, some), "as asked for"
    name, why = likelihood_advice(some)
    if name not in COUNTS[:2] or some.num_tasks < MIN_COMPARED:
        return _estimated(name, some), why
    return _compared(some)


def _compared(logs: Logs) -> tuple[AbstractLikelihood, str]:
    """The simplest likelihood of counts that no other beats by a standard error on other tasks."""
    few = first_tasks(logs, COMPARED_TASKS)
    seen, held_out = (few.select(folds(few.hashes, 2, FOLD_SALT) == part) for part in (0, 1))
    values: dict[str, np.ndarray] = {}
    for name in COUNTS:
        likelihood, _ = resolve(seen, _estimated(name, seen))
        gaussian = family_of(name, gaussian_of(blocks_of(seen, likelihood)))
        values[name] = task_log_evidence(gaussian, held_out, likelihood)
    best = COUNTS[0]
    for name in COUNTS[1:]:
        over = gain(values[name] - values[best])
        best = name if over.mean > max(over.error, MIN_GAIN) else best
    figures = ", ".join(f"{name} {value.mean():.2f}" for name, value in values.items())
    return _estimated(best, logs), f"log evidence of {held_out.num_tasks} other tasks: {figures}"


def _estimated(name: str, logs: Logs) -> AbstractLikelihood:
    if name not in ("negative-binomial", "zero-inflated"):
        return LIKELIHOODS[name]()
    few = first_tasks(logs, ESTIMATED_TASKS)
    if name == "negative-binomial":
        NegativeBinomial(1.0).check_rewards(logs.rewards)
        return _by_em(few, NegativeBinomial(count_dispersion(few)), _dispersion)
    ZeroInflated(1.0, 1.0).check_rewards(logs.rewards)
    num_positive = int(np.sum(few.rewards > 0))
    if num_positive < MIN_POSITIVE:
        raise ValueError(
            f"`rewards`: expected at least {MIN_POSITIVE} positive ones with zero-inflated "
            f"rewards, got {num_positive}; collect more"
        )
    return _by_em(few, _amounts(few, np.zeros((1, few.num_rows))), _amounts)


def _by_em(
    logs: Logs, found: Found, maximize: Callable[[Logs, Float[np.ndarray, "m n"]], Found]
) -> Found:
    """Maximum likelihood of what a family needs, by EM over parameters, whose prior is Gaussian.

    `maximize` takes draws of the linear predictors of all rows.
    """
    gaussian = None
    for step in range(NUM_STEPS):
        gaussian = gaussian_of(blocks_of(logs, found), start=gaussian)
        family = family_of("Gaussian", gaussian)
        theta = family.posterior_draws(logs, found, step, count=NUM_DRAWS)
        found = maximize(logs, np.einsum("nd,mnd->mn", logs.features, theta[:, logs.row_tasks]))
    return found


def _dispersion(logs: Logs, eta: Float[np.ndarray, "m n"]) -> NegativeBinomial:
    """The dispersion of counts given draws of their linear predictors."""
    rewards = jnp.broadcast_to(logs.rewards, eta.shape)

    def loss(log_dispersion: float) -> float:
        family = NegativeBinomial(np.exp(log_dispersion))
        values = family.log_density(rewards, jnp.asarray(eta))
        return -float(np.mean(np.asarray(values) @ logs.weights))

    bounds = np.log(DISPERSIONS)
    return NegativeBinomial(np.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x))


def _amounts(logs: Logs, eta: Float[np.ndarray, "m n"]) -> ZeroInflated:
    """A regression of the logarithms of positive rewards on draws of their linear predictors."""
    positive = logs.rewards > 0
    eta, amounts = eta[:, positive], np.log(logs.rewards[positive])
    share = logs.weights[positive] / logs.weights[positive].sum()
    center, middle = float(np.mean(eta @ share)), float(amounts @ share)
    apart = eta - center
    variance = float(np.mean(apart**2 @ share))
    slope = max(float(np.mean(apart @ (share * amounts))) / variance, 0.0) if variance > 0 else 0.0
    spread = np.sqrt(np.mean((amounts - middle - slope * apart) ** 2 @ share))
    return ZeroInflated(np.exp(middle - slope * center), max(spread, LEAST_LOG_STD), slope)
