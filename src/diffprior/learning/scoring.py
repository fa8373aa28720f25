"""Families of priors learned from logs, and their scores on tasks held out."""

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from ..evaluate.comparison import estimate_log_evidence
from ..evidence.base import AbstractLikelihood
from ..executors import AbstractExecutor
from ..files.base import Serializable
from ..fitting.attributes import Regression, offsets_of
from ..fitting.em import (
    HERE,
    AbstractBlock,
    AbstractTasks,
    Additive,
    guess_gaussian,
    log_evidence,
    well_conditioned,
)
from ..fitting.rows import AnyLogs, RowTasks, block_order, blocks_of
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from ..priors.base import AbstractPrior
from ..priors.conditional import ConditionalPrior, of_average_task
from ..priors.diffusion import DiffusionPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..reporting.tables import standard_error

NUM_ESTIMATES = 8
RIDGE = 0.1  # of plug-in estimates, relative to the information of an average task
HEDGE_SCALE = 3.0  # standard deviations of the hedge, relative to those of the prior


@dataclass(frozen=True, eq=False)
class Family:
    """A prior learned from logs; `components` if it has a closed form.

    With a `regression` on attributes, these are of its residuals.
    """

    name: str
    prior: AbstractPrior
    components: GaussianMixture | None = None
    regression: Regression | None = None

    @staticmethod
    def given_attributes(name: str, family: "Family", regression: Regression) -> "Family":
        """The family whose residuals have the prior of another."""
        prior = conditional(family.prior, regression)
        return Family(name, prior, family.components, regression)

    def hedged(self, share: float) -> "Family":
        """The family with a wide Gaussian of weight `share` mixed into its closed form, if any."""
        if self.components is None:
            return self
        family = family_of(self.name, hedged(self.components, share))
        if self.regression is None:
            return family
        return Family.given_attributes(self.name, family, self.regression)

    @property
    def residual(self) -> DiffusionPrior:
        """The diffusion model, of residuals if there is a regression."""
        prior = of_average_task(self.prior)
        assert isinstance(prior, DiffusionPrior)
        return prior

    def offsets(self, logs: AnyLogs) -> Float[np.ndarray, "t d"] | None:
        """Offset of each task's expected parameters by its attributes; None without."""
        return offsets_of(self.regression, logs)

    def blocks(self, logs: AnyLogs, likelihood: AbstractLikelihood) -> list[RowTasks]:
        """Evidence about what the closed form is of."""
        return blocks_of(logs, likelihood, self.offsets(logs))

    def posterior_draws(
        self, logs: AnyLogs, likelihood: AbstractLikelihood, *numbers: int, count: int = 1
    ) -> Float[np.ndarray, "m t d"]:
        """Draws of parameters given each task under a closed form, in the order of the logs."""
        draws = np.empty((count, logs.num_tasks, logs.dim))
        parts = self.block_draws(logs, likelihood, *numbers, count=count)
        draws[:, block_order(logs)] = np.concatenate(parts, axis=1)
        return draws

    def block_draws(
        self, logs: AnyLogs, likelihood: AbstractLikelihood, *numbers: int, count: int = 1
    ) -> list[Float[np.ndarray, "m n d"]]:
        """The same in the order of blocks."""
        assert self.components is not None
        blocks, offsets = self.blocks(logs, likelihood), self.offsets(logs)
        parts = [block.draw(self.components, *numbers, count=count) for block in blocks]
        if offsets is None:
            return parts
        ends = np.cumsum([block.num_tasks for block in blocks])[:-1]
        moves = np.split(offsets[block_order(logs)], ends)
        return [part + by for part, by in zip(parts, moves, strict=True)]

    def draw(self, seed: int, count: int) -> Float[np.ndarray, "n d"]:
        """Draws from the prior; nothing is compiled for a closed form."""
        if self.components is not None:
            return self.components.draw(np.random.default_rng(seed), count)
        return np.asarray(self.prior.sample(jax.random.key(seed), count), np.float64)


def conditional(residual: AbstractPrior, regression: Regression) -> ConditionalPrior:
    """The prior of what a regression leaves, as one given attributes."""
    about = (regression.coefficients, regression.center, regression.scale)
    return ConditionalPrior(residual, *about)


def family_of(name: str, components: GaussianMixture) -> Family:
    """Make a family whose prior is a Gaussian or a mixture."""
    return Family(name, prior_of(components), components)


def prior_of(components: GaussianMixture) -> GaussianPrior | MixturePrior:
    """Make a prior of components."""
    if components.num_components == 1:
        return GaussianPrior(components.means[0], components.covs[0])
    return MixturePrior(components.weights, components.means, components.covs)


def hedged(components: GaussianMixture, share: float) -> GaussianMixture:
    """Add a wide Gaussian of weight `share` around all components.

    It is wide in every direction, since parameters that were correlated in all past tasks need not
    be in the next. A task unlike any before can then be learned; the cost for other tasks is at
    most -log(1 - share) nats.
    """
    if share == 0.0:
        return components
    mean, cov = components.moments()
    return GaussianMixture.from_covs(
        np.concatenate([(1 - share) * components.weights, [share]]),
        np.concatenate([components.means, mean[None]]),
        np.concatenate([components.covs, HEDGE_SCALE**2 * np.diag(np.diagonal(cov))[None]]),
    )


@dataclass(frozen=True, eq=False)
class TaskMoments(Additive):
    """Sums over tasks of posteriors under a Gaussian, in its units.

    Means and their products are summed over tasks of several rows and over all, covariances, as
    triangles, over all.
    """

    count: Float[np.ndarray, " 2"]
    mean_z: Float[np.ndarray, "2 d"]
    square_z: Float[np.ndarray, "2 d d"]
    cov_z: Float[np.ndarray, " p"]

    @staticmethod
    def of(gaussian: GaussianMixture, block: AbstractBlock) -> "TaskMoments":
        """Sum over the tasks of a block."""
        return TaskMoments.total(TaskMoments._of(gaussian, tasks) for tasks in block.load())

    @staticmethod
    def _of(gaussian: GaussianMixture, tasks: AbstractTasks) -> "TaskMoments":
        assert isinstance(tasks, RowTasks)
        given = tasks.condition(gaussian)
        z = given.mean_z[:, 0].T
        groups = (z[tasks.counts >= 2], z)
        return TaskMoments(
            np.array([len(group) for group in groups], float),
            np.stack([group.sum(axis=0) for group in groups]),
            np.stack([group.T @ group for group in groups]),
            given.cov_z[:, 0].sum(axis=1),
        )


def naive(blocks: Sequence[AbstractBlock], executor: AbstractExecutor = HERE) -> GaussianMixture:
    """Fit a Gaussian to plug-in estimates: mean and covariance of a ridge regression per task.

    For generalized linear models the estimate is one Newton step from the pooled one. Tasks of one
    row are left out. It is much too wide, because it counts noise of estimates as variation between
    tasks.
    """
    start = guess_gaussian(blocks, executor)
    mean, cov = np.asarray(start.means[0]), np.asarray(start.covs[0])
    start = GaussianMixture.single(mean, cov / RIDGE)
    sums = executor.total(TaskMoments, functools.partial(TaskMoments.of, start), blocks)
    which = 0 if sums.count[0] > 2 * start.dim else 1
    count, mean_z = sums.count[which], sums.mean_z[which] / sums.count[which]
    cov_z = (sums.square_z[which] - count * np.outer(mean_z, mean_z)) / (count - 1)
    factor = start.factors[0]
    cov = factor @ cov_z @ factor.T
    return GaussianMixture.single(start.means[0] + factor @ mean_z, well_conditioned(cov))


@dataclass(frozen=True)
class Gain(Serializable):
    """Mean difference in nats per task, its paired standard error, and the number of tasks."""

    mean: float
    error: float
    num_tasks: int


@dataclass(frozen=True)
class FamilyResult(Serializable):
    """Scores of one family on tasks held out.

    `log_evidence` is the mean log p(h) per task. Differences from the Gaussian are over all tasks,
    over those of few, some and many rows, and in the log evidence of the second half of each task's
    rows given the first, None without rows.
    """

    name: str
    log_evidence: float
    over_gaussian: Gain
    by_length: tuple[Gain, ...]
    next_rows: Gain | None
    chosen: bool


def task_log_evidence(
    family: Family, logs: AnyLogs, likelihood: AbstractLikelihood, seed: int = 0
) -> Float[np.ndarray, " t"]:
    """Compute log p(h) per task, in the order of the logs."""
    if family.components is None:
        assert isinstance(logs, Logs)
        return estimate_log_evidence(
            family.prior, logs, likelihood, num_estimates=NUM_ESTIMATES, seed=seed
        ).values
    values = np.empty(logs.num_tasks)
    values[block_order(logs)] = log_evidence(family.blocks(logs, likelihood), family.components)
    return values


def first_tasks(logs: AnyLogs, count: int) -> AnyLogs:
    """Take at most `count` tasks, those of smallest hash, in the order of the logs."""
    return logs.select(np.sort(np.argsort(logs.hashes, kind="stable")[:count]))


def first_halves(logs: Logs) -> tuple[Logs, np.ndarray]:
    """Take the first half of each task's rows, rounded down; returns the mask of rows too."""
    place = np.arange(logs.num_rows) - np.repeat(logs.starts[:-1], logs.counts)
    first = place < np.repeat(logs.counts // 2, logs.counts)
    return logs.select_rows(first), first


def score(
    families: Sequence[Family],
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    chosen: str,
    seed: int = 0,
) -> tuple[tuple[FamilyResult, ...], tuple[str, ...]]:
    """Score every family on the same tasks; returns the names of the groups by length too."""
    evidence = {f.name: task_log_evidence(f, logs, likelihood, seed) for f in families}
    groups, names = length_groups(np.asarray(logs.counts, float))
    base = evidence["Gaussian"]
    later: dict[str, np.ndarray] | None = None
    several = logs.counts >= 2
    if isinstance(logs, Logs) and np.any(several):
        first, _ = first_halves(logs.select(several))
        later = {
            f.name: evidence[f.name][several] - task_log_evidence(f, first, likelihood, seed)
            for f in families
        }
    results = tuple(
        FamilyResult(
            f.name,
            float(evidence[f.name].mean()),
            gain(evidence[f.name] - base),
            tuple(gain((evidence[f.name] - base)[group]) for group in groups),
            None if later is None else gain(later[f.name] - later["Gaussian"]),
            f.name == chosen,
        )
        for f in families
    )
    return results, names


def gain(differences: Float[np.ndarray, " n"]) -> Gain:
    """Compute the mean and paired standard error of differences."""
    if len(differences) == 0:
        return Gain(float("nan"), float("nan"), 0)
    return Gain(float(np.mean(differences)), standard_error(differences), len(differences))


def length_groups(counts: Float[np.ndarray, " t"]) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """Split tasks by number of rows into about thirds; returns masks and names."""
    low, high = np.quantile(counts, [1 / 3, 2 / 3])
    edges = sorted({int(low), int(high)})
    bounds = [-1, *edges, int(counts.max())]
    groups, names = [], []
    for below, top in itertools.pairwise(bounds):
        mask = (counts > below) & (counts <= top)
        if mask.any():
            groups.append(mask)
            least = max(below + 1, int(counts.min()))
            names.append(f"{least}" if least == top else f"{least} to {top}")
    return groups, tuple(names)
