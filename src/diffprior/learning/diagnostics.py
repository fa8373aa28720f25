"""Diagnostics of logs and priors: reliability, calibration, warnings, and simulated regret."""

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from ..bandits.simulate import simulate
from ..evaluate.comparison import COLD
from ..evidence.base import AbstractLikelihood
from ..evidence.families import Logistic
from ..evidence.linear import Linear
from ..executors import AbstractExecutor
from ..files.base import Serializable
from ..fitting.em import HERE, AbstractBlock, Additive
from ..fitting.rows import AnyLogs, RowTasks, block_order, blocks_of, symmetric
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from ..problems.base import RowProblem
from ..reporting.tables import plus_minus
from ..samplers.choose import best_sampler
from .likelihoods import Noise, missing_intercept
from .scoring import Family, first_halves

PREDICTIVE_DRAWS = 99
MIN_RELIABILITY = 0.1  # below which a direction counts as unseen
MIN_TASKS = 200  # to look for selection; with fewer only a Gaussian is learned
SIGNIFICANCE = 1e-4  # p-value below which a pattern is reported
TAIL_RATIO = 1.9  # spread of the lowest tenth over that of the next two; about 5 if Gaussian


@dataclass(frozen=True, eq=False)
class Reliability:
    """Information of one task about theta by direction, from 0 (none) to 1 (all), largest first.

    `values` are squared correlations of theta with its best estimate from one task, `directions`
    unit vectors in units of the prior's standard deviations, one per row, and `learnable_order` the
    order of structure that this number of tasks can show, ln n / ln(1 / B).
    """

    values: Float[np.ndarray, " d"]
    directions: Float[np.ndarray, "d d"]
    learnable_order: float


@dataclass(frozen=True, eq=False)
class TaskMoments(Additive):
    """Covariances of posteriors under a Gaussian, in its units, as triangles, summed over tasks."""

    count: int
    cov_z: Float[np.ndarray, " p"]

    @staticmethod
    def of(gaussian: GaussianMixture, block: AbstractBlock) -> "TaskMoments":
        """Sum over the tasks of a block."""
        loaded = [tasks for tasks in block.load() if isinstance(tasks, RowTasks)]
        return TaskMoments.total(
            TaskMoments(tasks.num_tasks, tasks.condition(gaussian).cov_z[:, 0].sum(axis=1))
            for tasks in loaded
        )


def reliability(
    gaussian: GaussianMixture, blocks: Sequence[AbstractBlock], executor: AbstractExecutor = HERE
) -> Reliability:
    """Compute the eigenvalues of I - C^-1 mean Cov(theta | h) under the Gaussian."""
    sums = executor.total(TaskMoments, functools.partial(TaskMoments.of, gaussian), blocks)
    num_tasks = sums.count
    values, vectors = np.linalg.eigh(symmetric(sums.cov_z / num_tasks))
    shares = np.clip(1.0 - values, 0.0, 1.0)
    towards = np.linalg.solve(gaussian.factors[0].T, vectors).T  # functionals w' theta
    towards = towards * np.sqrt(np.diagonal(gaussian.covs[0]))
    towards /= np.linalg.norm(towards, axis=1, keepdims=True)
    mean = float(np.clip(np.mean(shares), 1e-9, 1 - 1e-9))
    order = float(np.log(max(num_tasks, 2)) / -np.log(mean))
    return Reliability(shares, towards, order)


@dataclass(frozen=True)
class NextRewards(Serializable):
    """Next rewards of tasks beside their predictions.

    Attributes:
        mean: Mean of the rewards.
        predicted: Mean of the predictions.
        error: Standard error over tasks of the difference.
        coverage: Share of rewards inside their 90 % predictive intervals; None of zeros and ones,
            of which it says nothing.
        coverage_error: Its standard error over tasks.
    """

    mean: float
    predicted: float
    error: float
    coverage: float | None
    coverage_error: float | None

    def __str__(self) -> str:
        """In one line."""
        line = f"next rewards average {self.mean:.4g}, predicted {self.predicted:.4g}"
        line += f" (difference {plus_minus(self.predicted - self.mean, self.error, signed=True)})"
        if self.coverage is not None and self.coverage_error is not None:
            share = plus_minus(100 * self.coverage, 100 * self.coverage_error)
            line += f"; 90 % intervals cover {share} %"
        return line


def predict_second_halves(
    family: Family, logs: Logs, likelihood: AbstractLikelihood, seed: int = 0
) -> tuple[NextRewards | None, Float[np.ndarray, " n"] | None]:
    """Predict the second half of each task's rows from the first.

    Also returns the probability of a smaller reward, ties at random, uniform if predictions are
    right.
    """
    logs = logs.select(logs.counts >= 2)
    if logs.num_tasks < 2:
        return None, None
    first, is_first = first_halves(logs)
    draws = family.posterior_draws(first, likelihood, seed, count=PREDICTIVE_DRAWS)
    rows = np.flatnonzero(~is_first)
    own = logs.row_tasks[rows]
    eta = np.einsum("ri,mri->mr", logs.features[rows], draws[:, own])
    key = jax.random.key(seed)
    rewards = np.asarray(likelihood.sample(key, jax.numpy.asarray(eta, float)), np.float64)
    seen = logs.rewards[rows]
    tie = np.random.default_rng(seed).random(len(rows))
    below = np.sum(rewards < seen, axis=0) + tie * (1 + np.sum(rewards == seen, axis=0))
    places = below / (PREDICTIVE_DRAWS + 1)
    inside = ((places > 0.05) & (places < 0.95)).astype(float)
    predicted = np.asarray(likelihood.mean(eta), np.float64).mean(axis=0)

    def error(values: np.ndarray) -> float:
        by_task = np.bincount(own, values) / np.maximum(np.bincount(own), 1)
        return float(by_task.std(ddof=1) / np.sqrt(len(by_task)))

    tells = not isinstance(likelihood, Logistic)
    covered = (float(inside.mean()), error(inside)) if tells else (None, None)
    means = (float(seen.mean()), float(predicted.mean()), error(predicted - seen))
    return NextRewards(*means, *covered), places


def data_warnings(
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    gaussian: GaussianMixture,
    seen: Reliability,
    noise: Noise | None,
) -> tuple[str, ...]:
    """Warnings about data that may mislead whatever is learned."""
    found, least = [], np.min(logs.counts)
    if logs.num_tasks < MIN_TASKS:
        found.append(
            f"too few tasks: {logs.num_tasks}; below {MIN_TASKS} only a Gaussian is learned, and "
            "its covariance is rough"
        )
    if noise is not None and noise.how == "joint":
        found.append(
            f"the noise rests on {noise.degrees_of_freedom:.0f} residual degrees of freedom, so it "
            "was estimated jointly with a Gaussian prior; give noise_std if you know it"
        )
    found.append(missing_intercept(logs, likelihood))
    if least >= 5 and np.max(logs.counts) > least and logs.num_tasks >= 50:
        found.append(
            f"selection: no task has fewer than {least:.0f} rows; if short or abandoned tasks were "
            "left out, the prior is that of the survivors; add them, also those with one row"
        )
    found += [_unseen(seen, logs.feature_names), _survivors(logs), _informative_lengths(logs)]
    found.append(_drift(logs, likelihood, gaussian))
    return tuple(text for text in found if text)


def _unseen(seen: Reliability, names: tuple[str, ...]) -> str:
    hidden = np.flatnonzero(seen.values < MIN_RELIABILITY)
    if len(hidden) == 0:
        return ""
    mostly = [
        " and ".join(names[j] for j in np.argsort(-np.abs(seen.directions[i]))[:2])
        for i in hidden[:3]
    ]
    return (
        f"unseen directions: one task says next to nothing about {len(hidden)} of "
        f"{len(seen.values)} directions (mostly {'; '.join(mostly)}); there the prior is little "
        "more than its Gaussian start"
    )


def mean_rewards(logs: AnyLogs) -> np.ndarray:
    """Mean reward per task; for statistics, along the first feature."""
    if isinstance(logs, Logs):
        sums = np.bincount(logs.row_tasks, logs.rewards, minlength=logs.num_tasks)
        return np.asarray(sums / np.maximum(logs.counts, 1))
    return np.asarray(logs.xy[:, 0] / np.maximum(logs.xx[:, 0], 1e-300))


def _survivors(logs: AnyLogs) -> str:
    """Mean rewards cut off from below: noise alone would leave a lower tail.

    The lowest tenth of a tail is spread over several times the width of each of the next two; of
    what was cut off, over about the same. Means that several tasks share are of rewards with a
    natural bound, such as no click at all, and tell nothing.
    """
    if logs.num_tasks < MIN_TASKS:
        return ""
    means = np.sort(mean_rewards(logs))
    each = len(means) // 10
    lowest, next_ = means[each - 1] - means[0], (means[3 * each - 1] - means[each - 1]) / 2
    if means[1] == means[0] or lowest > TAIL_RATIO * next_:
        return ""
    return (
        "selection: mean rewards of tasks break off below as if only the better ones had been "
        "logged; a prior of survivors promises new tasks too much, so add the others"
    )


def _informative_lengths(logs: AnyLogs) -> str:
    from scipy import stats  # slow to import, and not needed to decide

    counts = np.asarray(logs.counts, float)
    if logs.num_tasks < 50 or counts.max() == counts.min():
        return ""
    rho, p = stats.spearmanr(counts, mean_rewards(logs))
    if not (p < SIGNIFICANCE and abs(rho) > 0.1):
        return ""
    return (
        f"informative lengths: tasks with more rows pay {'more' if rho > 0 else 'less'} (rank "
        f"correlation {rho:+.2f}); fine if the policy or a stopping rule did that by looking at "
        "the rows, misleading if traffic follows quality for reasons that are not in the table"
    )


def _drift(logs: AnyLogs, likelihood: AbstractLikelihood, gaussian: GaussianMixture) -> str:
    from scipy import stats  # slow to import, and not needed to decide

    if not isinstance(logs, Logs) or logs.times is None or logs.num_tasks < 100:
        return ""
    begin = logs.times[logs.starts[:-1][logs.counts > 0]]
    if len(begin) < logs.num_tasks or np.ptp(begin) == 0:
        return ""
    z = np.empty((logs.num_tasks, logs.dim))
    parts = [b.condition(gaussian).mean_z[:, 0].T for b in blocks_of(logs, likelihood)]
    z[block_order(logs)] = np.concatenate(parts)
    late = begin > np.median(begin)
    if late.all() or not late.any():
        return ""
    worst = min(
        float(stats.ttest_ind(z[late, j], z[~late, j], equal_var=False).pvalue)
        for j in range(logs.dim)
    )
    if worst * logs.dim > SIGNIFICANCE:
        return ""
    return (
        "drift: tasks that began later differ from earlier ones; learn from recent tasks alone if "
        "the next ones will be like them"
    )


TEMPERATURES = (1.0, 0.5, 0.25)
MAX_ACTIONS = 4000  # rows of the logs that serve as actions
ACTIONS_PER_ROUND = 10


@dataclass(frozen=True)
class Regret(Serializable):
    """Expected regret of one family at one temperature, and its standard error.

    `over_cold` and `over_gaussian` are paired differences at the same temperature.
    """

    family: str
    temperature: float
    mean: float
    error: float
    over_cold: float
    over_cold_error: float
    over_gaussian: float
    over_gaussian_error: float


@dataclass(frozen=True)
class Simulation(Serializable):
    """Regrets of all families at equal temperatures, and what follows for the chosen one."""

    regrets: tuple[Regret, ...]
    num_rounds: int
    num_runs: int
    recommended_temperature: float


def simulate_regret(
    families: Sequence[Family],
    basis: Family,
    chosen_name: str,
    logs: Logs,
    likelihood: AbstractLikelihood,
    seed: int = 0,
    advance: Callable[[float], None] = lambda share: None,
) -> Simulation:
    """Simulate Thompson sampling with each prior in tasks like those held out.

    Parameters are draws given each held-out task under the chosen prior, actions are rows of the
    logs, ten different ones each round. The temperature recommended for the chosen family is the
    highest whose regret is within a standard error of its least. `advance` is called with the share
    of the work that was done.
    """
    linear = isinstance(likelihood, Linear)
    num_runs, num_rounds = (64, 200) if linear else (32, 100)
    copies = -(-256 // max(logs.num_tasks, 1))
    draws = basis.posterior_draws(logs.by_hash(), likelihood, seed, 31, count=copies)
    thetas = draws.reshape(-1, logs.dim)
    actions = _actions(logs, seed)
    problem = RowProblem(
        thetas, actions, likelihood, num_actions=min(ACTIONS_PER_ROUND, len(actions))
    )
    priors, regrets = {f.name: f.prior for f in families}, []
    for temperature in TEMPERATURES:
        agents = {name: best_sampler(prior, temperature) for name, prior in priors.items()}
        result = simulate(
            problem, agents, num_runs=num_runs, num_rounds=num_rounds, seed=seed,
            progress=False, throw=False,
        )  # fmt: skip
        for name in priors:
            over = (result.paired_difference(name, other) for other in (COLD, "Gaussian"))
            figures = (result.mean(name), result.standard_error(name), *itertools.chain(*over))
            regrets.append(Regret(name, temperature, *(float(figure[-1]) for figure in figures)))
        advance(1 / len(TEMPERATURES))
    own = [regret for regret in regrets if regret.family == chosen_name]
    least = min(own, key=lambda regret: regret.mean)
    recommended = max(r.temperature for r in own if r.mean <= least.mean + least.error)
    return Simulation(tuple(regrets), num_rounds, num_runs, recommended)


def _actions(logs: Logs, seed: int) -> np.ndarray:
    unique = np.unique(logs.features, axis=0)
    if len(unique) <= MAX_ACTIONS:
        return unique
    chosen = np.random.default_rng(seed).choice(len(unique), MAX_ACTIONS, replace=False)
    return unique[np.sort(chosen)]
