"""Likelihoods by name, with what they need estimated from logs."""

from collections.abc import Callable
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize_scalar

from ..checks import choice
from ..evidence.base import AbstractLikelihood
from ..evidence.families import LIKELIHOODS, NegativeBinomial, ZeroInflated
from ..evidence.glm import AbstractFamily
from ..fitting.rows import AnyLogs, blocks_of
from ..fitting.search import gaussian_of
from ..logs.labels import folds
from ..logs.logs import Logs
from ..logs.shards import ShardedLogs
from .advice import count_dispersion, likelihood_advice
from .scoring import closed_form, first_tasks, gain, task_log_evidence
from .tasks import resolve

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
    assert isinstance(few, Logs)
    seen, held_out = (few.select(folds(few.hashes, 2, FOLD_SALT) == part) for part in (0, 1))
    values: dict[str, np.ndarray] = {}
    for name in COUNTS:
        likelihood, _ = resolve(seen, _estimated(name, seen))
        gaussian = closed_form(name, gaussian_of(blocks_of(seen, likelihood)))
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
    assert isinstance(few, Logs)
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
        family = closed_form("Gaussian", gaussian)
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
