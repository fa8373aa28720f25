"""Log evidence of tasks under a prior, and priors compared by it on held-out tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike
from scipy.special import logsumexp

from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..evidence.glm import AbstractFamily
from ..evidence.linear import Linear
from ..evidence.response import response_of
from ..fitting.rows import (
    TASKS_AT_ONCE,
    AnyLogs,
    block_order,
    blocks_of,
    row_blocks,
    shifted,
)
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from ..priors.base import AbstractClosedFormPrior, as_prior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..reporting.figures import AbstractResult, plot_intervals
from ..reporting.tables import Table, plus_minus, standard_error
from ..samplers.base import AbstractSampler
from ..samplers.choose import as_closed_form, best_sampler
from ..samplers.twisted_smc import TwistedSMC
from .tasks import check_tasks, draw_keys, draw_tasks, evidence_batches, residual_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AT_ONCE = 256  # tasks side by side, which bounds the memory
NUM_POINTS = 256  # of importance sampling, for each task
MAX_NUMBERS = 2**22  # of points and components, side by side
COLD = "cold start"  # its name in a comparison
COLD_TASKS, COLD_ROWS = 256, 64  # tasks that its variance is chosen on, and first rows of each
LOG_VARIANCES = np.linspace(-14.0, 18.0, 9)  # where the best is looked for first
NUM_CHOICES = 128  # draws from a prior, each of which chooses once in every task


@dataclass(frozen=True, repr=False)
class LogEvidence(AbstractResult):
    """log p(h) of every task under one prior, in nats.

    Args:
        values: One number per task (n,); minus infinity where every estimate failed.
        variances: Of each number, where it is estimated; zero where it is exact.
        failed: Estimates that failed, each of which counts as a probability of zero.
    """

    values: Float[np.ndarray, " n"]
    variances: Float[np.ndarray, " n"]
    failed: int = 0

    @property
    def mean(self) -> float:
        """Mean over tasks."""
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float:
        """Of the mean, over tasks."""
        return standard_error(self.values)

    @property
    def estimation_error(self) -> float:
        """Standard error of the mean for these tasks, which estimating adds."""
        return float(np.sqrt(np.sum(self.variances)) / len(self.values))

    @property
    def shortfall(self) -> float:
        """Bias of the mean, to second order: the log of an unbiased estimate is biased downward."""
        return float(np.mean(self.variances) / 2)

    def table(self) -> Table:
        """Mean, standard error, and what estimating adds to it."""
        row = (
            plus_minus(self.mean, self.standard_error),
            f"{self.estimation_error:.2g}",
            str(len(self.values)),
            str(self.failed),
        )
        return Table(("log evidence per task", "of estimating", "tasks", "failed"), [row])


def log_evidence(
    prior: object,
    logs: Logs,
    likelihood: AbstractLikelihood,
    *,
    num_estimates: int = 8,
    seed: int = 0,
) -> Float[np.ndarray, " n"]:
    """Log p(h) of every task under a prior, in nats: one number per task.

    The difference of two priors' numbers on tasks that neither has seen says which describes new
    tasks better, with no exploration involved; `compare` adds the paired standard error, and
    `estimate_log_evidence` the error of each number.

    Arguments and errors are as of `estimate_log_evidence`.

    Returns:
        One number per task (n,).
    """
    return estimate_log_evidence(
        prior, logs, likelihood, num_estimates=num_estimates, seed=seed
    ).values


def estimate_log_evidence(
    prior: object,
    logs: Logs,
    likelihood: AbstractLikelihood,
    *,
    num_estimates: int = 8,
    seed: int = 0,
) -> LogEvidence:
    """Log p(h) of every task, with the variance of each number.

    Closed forms are exact where rewards are linear, and so are learned priors that no network
    corrects. For other rewards, a Gaussian or a mixture is estimated by importance sampling about
    its approximate posterior, and any other closed form is Laplace's approximation. Priors without
    a closed form are estimated by `TwistedSMC`, and a `Response` by the sampler that serves it
    best. Estimates by sampling are unbiased for p(h), so that priors of different kinds can be
    compared.

    Args:
        prior: Any prior, or any object with its four members; one given attributes takes those of
            the logs.
        logs: Tasks.
        likelihood: How rewards arise.
        num_estimates: Independent runs of `TwistedSMC` for each task.
        seed: Of the estimates.

    Returns:
        Numbers and their variances.

    Raises:
        ValueError: If features or rewards do not fit the prior or the likelihood.
    """
    prior = as_prior(prior)
    check_tasks(logs, likelihood, prior.dim)
    prior, conditions = residual_of(prior, logs)
    prior = as_closed_form(prior) or prior
    is_row = isinstance(likelihood, Linear | AbstractFamily)
    if is_row and isinstance(prior, GaussianPrior | MixturePrior):
        offsets = None if conditions is None else conditions[:, : prior.dim]
        return mixture_log_evidence(mixture_of(prior), logs, likelihood, offsets, seed=seed)
    if response_of(likelihood) is None and isinstance(prior, AbstractClosedFormPrior):
        values = np.empty(logs.num_tasks)
        for which, evidence, _ in evidence_batches(logs, likelihood, AT_ONCE, conditions):
            values[which] = np.asarray(_closed_forms(prior, evidence), np.float64)
        return _with_failures(values, np.zeros(logs.num_tasks))
    sampler: AbstractSampler = TwistedSMC(prior)
    if response_of(likelihood) is not None:
        sampler = best_sampler(prior, likelihood=likelihood)
    keys = draw_keys(seed, logs.num_tasks, num_estimates)
    return log_mean(draw_tasks(sampler, logs, likelihood, keys, conditions=conditions).log_evidence)


def log_mean(logs: Float[np.ndarray, "n m"]) -> LogEvidence:
    """Log of the mean over the second axis, its variance by the delta method."""
    failed = np.isnan(logs) | (logs == np.inf)
    logs = np.where(failed, -np.inf, logs)
    count = logs.shape[1]
    with np.errstate(invalid="ignore"):
        values = logsumexp(logs, axis=1) - np.log(count)
        ratios = np.where(np.isfinite(values)[:, None], np.exp(logs - values[:, None]), 0.0)
    variances = np.var(ratios, axis=1, ddof=1) / count if count > 1 else np.full(len(logs), np.nan)
    return LogEvidence(values, variances, int(np.sum(failed)))


def mixture_log_evidence(
    mixture: GaussianMixture,
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    offsets: Float[np.ndarray, "n d"] | None = None,
    num_points: int = NUM_POINTS,
    seed: int = 0,
) -> LogEvidence:
    """Log p(h) of every task, by importance sampling unless rewards are linear; in NumPy."""
    order = block_order(logs)
    if isinstance(likelihood, AbstractFamily) and isinstance(logs, Logs):
        at_once = MAX_NUMBERS // (num_points * mixture.num_components * mixture.dim)
        blocks = row_blocks(logs, likelihood, tasks_at_once=min(max(1, at_once), TASKS_AT_ONCE))
        blocks = blocks if offsets is None else shifted(blocks, offsets[order])
    else:
        blocks = blocks_of(logs, likelihood, offsets)
    found = [block.estimate(mixture, num_points, seed) for block in blocks]
    values, variances = np.empty((2, logs.num_tasks))
    values[order], variances[order] = map(np.concatenate, zip(*found, strict=True))
    return _with_failures(values, variances)


def mixture_of(prior: GaussianPrior | MixturePrior) -> GaussianMixture:
    """The components of a prior, in double precision."""
    if isinstance(prior, GaussianPrior):
        return GaussianMixture.single(_exact(prior.mean), _exact(prior.cov))
    weights, means, covs = map(_exact, (prior.weights, prior.means, prior.covs))
    return GaussianMixture.from_covs(weights, means, covs)


def _exact(array: ArrayLike) -> Float[np.ndarray, "..."]:
    return np.asarray(array, np.float64)


def _with_failures(
    values: Float[np.ndarray, " n"], variances: Float[np.ndarray, " n"]
) -> LogEvidence:
    failed = ~np.isfinite(values)
    return LogEvidence(np.where(failed, -np.inf, values), variances, int(failed.sum()))


@eqx.filter_jit
def _closed_forms(prior: AbstractClosedFormPrior, evidence: AbstractEvidence) -> Float[Array, " b"]:
    found: Array = jax.lax.map(lambda one: prior.posterior(one)[1], evidence)
    return found


def cold_start(logs: Logs, likelihood: AbstractLikelihood, *, seed: int = 0) -> GaussianPrior:
    """N(0, s I), the prior of who has learned nothing from past tasks but the scale of parameters.

    Args:
        logs: Tasks; the first 64 rows of at most 256 of them are used.
        likelihood: How rewards arise.
        seed: Of estimates.

    Returns:
        The prior with the s under which the tasks are most probable.
    """
    check_tasks(logs, likelihood)
    few = logs.select(np.unique(np.linspace(0, logs.num_tasks - 1, COLD_TASKS).astype(int)))
    few, dim = few.first_rows(COLD_ROWS), likelihood.num_parameters(logs.dim)

    def prior(variance: float) -> GaussianPrior:
        return GaussianPrior(np.zeros(dim), variance * np.eye(dim))

    def score(variance: float) -> float:
        return estimate_log_evidence(prior(variance), few, likelihood, seed=seed).mean

    return prior(best_variance(score))


def best_variance(score: Callable[[float], float]) -> float:
    """The s with the highest score of N(0, s I): the best of a grid, refined."""
    from scipy.optimize import minimize_scalar

    def loss(log_variance: float) -> float:
        return -score(float(np.exp(log_variance)))

    best, step = min(LOG_VARIANCES, key=loss), LOG_VARIANCES[1] - LOG_VARIANCES[0]
    bounds = (best - step, best + step)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.02})
    return float(np.exp(found.x))


def first_rewards(
    prior: object, logs: Logs, likelihood: AbstractLikelihood, *, seed: int = 0
) -> Float[np.ndarray, " n"]:
    """Reward that a prior's first choice earns in every task, replayed on its logged rows.

    Each draw from the prior chooses the row with the highest predicted reward; what counts are the
    rewards that were observed, the mean over rows that are equally good, and over draws. Of rows
    chosen at random this is their mean reward, whatever the prior.

    Arguments are as of `cold_start`.

    Returns:
        One number per task (n,); NaN of tasks without rows.
    """
    check_tasks(logs, likelihood)
    prior, conditions = residual_of(as_prior(prior), logs)
    draws = _exact(prior.sample(jax.random.key(seed), NUM_CHOICES))
    return choice_rewards(logs, draws, None if conditions is None else conditions[:, : prior.dim])


def choice_rewards(
    logs: Logs, draws: Float[np.ndarray, "m d"], offsets: Float[np.ndarray, "n d"] | None = None
) -> Float[np.ndarray, " n"]:
    """Mean reward of the rows of each task that draws, moved by the task's offset, choose."""
    known = np.flatnonzero(logs.counts)
    starts, rows = logs.starts[known], np.repeat(np.arange(len(known)), logs.counts[known])
    moved = 0.0 if offsets is None else np.sum(logs.features * offsets[logs.row_tasks], axis=1)
    earned, values = np.zeros(len(known)), np.full(logs.num_tasks, np.nan)
    for theta in draws if len(known) else ():
        predicted = logs.features @ theta + moved
        best = predicted >= np.maximum.reduceat(predicted, starts)[rows]
        counts = np.add.reduceat(best.astype(float), starts)
        earned += np.add.reduceat(best * logs.rewards, starts) / counts
    values[known] = earned / len(draws)
    return values


@dataclass(frozen=True, repr=False)
class Comparison(AbstractResult):
    """The same tasks under several priors: their log evidence, and rewards of first choices.

    Args:
        log_evidence: Of every prior, by name.
        first_rewards: Reward of the first choice in each task (n,), by name.
        baseline: The prior that the others are compared with, after the cold start.
        num_observations: Rows of each task (n,).
    """

    log_evidence: dict[str, LogEvidence]
    first_rewards: dict[str, Float[np.ndarray, " n"]]
    baseline: str
    num_observations: np.ndarray

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the priors: the cold start, then in the order given."""
        return tuple(self.log_evidence)

    @property
    def best(self) -> str:
        """The prior with the highest mean log evidence."""
        return max(self.names, key=lambda name: self.log_evidence[name].mean)

    def difference(self, name: str, other: str | None = None) -> tuple[float, float]:
        """Mean of log p(h) under a prior `name` minus that under `other`, by default the baseline.

        With its standard error over the tasks, which are the same for both: paired.
        """
        differences = self._of(name).values - self._of(other or self.baseline).values
        return float(np.mean(differences)), standard_error(differences)

    def reward_difference(self, name: str, other: str = COLD) -> tuple[float, float]:
        """Mean reward of first choices under a prior `name` minus that under `other`.

        With its standard error over the tasks of at least two rows.
        """
        self._of(name), self._of(other)
        several = self.num_observations >= 2
        differences = (self.first_rewards[name] - self.first_rewards[other])[several]
        mean = float(np.mean(differences)) if len(differences) else float("nan")
        return mean, standard_error(differences)

    def to_dict(self) -> dict[str, object]:
        """The table as plain numbers."""
        priors: dict[str, dict[str, object]] = {}
        for name, found in self.log_evidence.items():
            priors[name] = {
                "log_evidence": found.mean,
                "standard_error": found.standard_error,
                "estimation_error": found.estimation_error,
                "failed": found.failed,
            }
            for key, pair in (
                ("over_cold_start", self.difference(name, COLD)),
                ("difference", self.difference(name)),
                ("first_reward_over_cold_start", self.reward_difference(name)),
            ):
                priors[name] |= dict(zip((key, f"{key}_standard_error"), pair, strict=True))
        about = {"num_tasks": len(self.num_observations), "baseline": self.baseline}
        return {**about, "priors": priors}

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot gains over the cold start in nats per task, with two standard errors, in `ax`,
        by default a new figure.
        """
        names = [name for name in self.names if name != COLD]
        found = np.array([self.difference(name, COLD) for name in names]).reshape(-1, 2)
        ends = found[:, :1] + 2 * found[:, 1:] * np.array([-1.0, 1.0])
        return plot_intervals(ax, names, found[:, 0], ends, f"nats per task over a {COLD}", 0.0)

    def table(self) -> Table:
        """Log evidence and rewards of first choices, one row for each prior."""
        others = dict.fromkeys((COLD, self.baseline))
        rows = [
            (
                name,
                plus_minus(found.mean, found.standard_error),
                *(
                    "" if name == other else plus_minus(*self.difference(name, other), signed=True)
                    for other in others
                ),
                "" if name == COLD else plus_minus(*self.reward_difference(name), signed=True),
                str(found.failed),
            )
            for name, found in self.log_evidence.items()
        ]
        over = (f"over {other}" for other in others)
        columns = ("prior", "log evidence per task", *over, "reward of first choices", "failed")
        caption = f"{len(self.num_observations)} tasks; rewards over those of the {COLD}"
        return Table(columns, rows, caption)

    def _of(self, name: str) -> LogEvidence:
        if name not in self.log_evidence:
            listed = ", ".join(map(repr, self.names))
            raise ValueError(f"`name`: expected one of {listed}, got {name!r}; pick one of those")
        return self.log_evidence[name]


def compare(
    priors: Mapping[str, object],
    logs: Logs,
    likelihood: AbstractLikelihood,
    *,
    samples: ArrayLike | None = None,
    baseline: str | None = None,
    num_estimates: int = 8,
    seed: int = 0,
) -> Comparison:
    """Compare priors on tasks that none of them has seen, first of all with starting cold.

    The table begins with "cold start", N(0, s I) with the best s: what past tasks are worth is the
    gain over it, in nats and in the rewards of first choices. Whether more than a Gaussian is worth
    it is the gain over the baseline, if that is one.

    Args:
        priors: Priors by name, in a dictionary.
        logs: Tasks; tasks, not rows, must be held out of what the priors saw.
        likelihood: How rewards arise.
        samples: Parameters of past tasks (n, d). With them, "Gaussian" and "mixture, K chosen", the
            number of components chosen by held-out samples, are added to the table: where a
            mixture does as well as a learned prior, it is enough, and faster.
        baseline: The prior to compare the others with besides the cold start; by default the first
            of the others.
        num_estimates: Independent estimates of each number, where it has no closed form.
        seed: Of the estimates.

    Returns:
        The numbers of every prior, and paired differences with their standard errors.

    Raises:
        ValueError: If priors are not by name or none, or the baseline is none of them.
    """
    if not isinstance(priors, Mapping):
        raise ValueError(
            f"`priors`: expected priors by name, got {type(priors).__name__}; "
            'pass a dictionary such as {"learned": prior}'
        )
    check_tasks(logs, likelihood)
    everyone: dict[str, object] = {**priors}
    if samples is not None:
        mixture = MixturePrior.fit(samples, seed=seed)
        fitted = {"Gaussian": GaussianPrior.fit(samples), "mixture, K chosen": mixture}
        everyone = {**fitted, **priors}
    baseline = baseline or next(iter(everyone), None)
    if baseline not in {COLD: None, **everyone} or not everyone:
        listed = ", ".join(map(repr, everyone)) or "at least one prior"
        raise ValueError(f"`baseline`: expected {listed}, got {baseline!r}; name one of the priors")
    everyone = {COLD: cold_start(logs, likelihood, seed=seed), **everyone}
    found, rewards = dict[str, LogEvidence](), dict[str, np.ndarray]()
    for name, prior in everyone.items():
        found[name] = estimate_log_evidence(
            prior, logs, likelihood, num_estimates=num_estimates, seed=seed
        )
        rewards[name] = first_rewards(prior, logs, likelihood, seed=seed)
    return Comparison(found, rewards, str(baseline), logs.counts)
