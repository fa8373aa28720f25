"""Families of priors learned from logs, and their scores on tasks held out."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Float

from ..evaluate.comparison import (
    COLD,
    COLD_TASKS,
    NUM_CHOICES,
    best_variance,
    choice_rewards,
    log_evidence,
    mixture_log_evidence,
)
from ..evidence.base import AbstractLikelihood
from ..files.base import Serializable
from ..fitting.attributes import Regression, offsets_of
from ..fitting.em import SCORING_DRAWS
from ..fitting.rows import AnyLogs, block_order, blocks_of
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from ..priors.base import AbstractPrior
from ..priors.conditional import ConditionalPrior
from ..priors.gaussian import GaussianPrior
from ..priors.mixture import MixturePrior
from ..reporting.tables import plus_minus, standard_error
from .search import first_tasks

NUM_ESTIMATES = 8
HEDGE_SCALE = 3.0  # standard deviations of the wide Gaussian, relative to those of the prior


@dataclass(frozen=True, eq=False)
class Family:
    """A prior learned from logs; `components` if it has a closed form.

    With a `regression` on attributes, the others are of what it leaves.
    """

    name: str
    residual: AbstractPrior
    components: GaussianMixture | None = None
    regression: Regression | None = None

    @functools.cached_property
    def prior(self) -> AbstractPrior:
        """The prior, given attributes if there is a regression."""
        known = self.regression
        if known is None:
            return self.residual
        return ConditionalPrior(self.residual, known.coefficients, known.center, known.scale)

    def hedged(self, share: float, cold: "Family") -> "Family":
        """The family with a hedge of weight `share` mixed into its closed form, if any."""
        if self.components is None:
            return self
        return family_of(self.name, hedged(self.components, share, cold), self.regression)

    def offsets(self, logs: AnyLogs) -> Float[np.ndarray, "t d"] | None:
        """Offset of each task's expected parameters by its attributes; None without."""
        return offsets_of(self.regression, logs)

    def posterior_draws(
        self, logs: AnyLogs, likelihood: AbstractLikelihood, *numbers: int, count: int = 1
    ) -> Float[np.ndarray, "m t d"]:
        """Draws of parameters given each task under a closed form, in the order of the logs."""
        assert self.components is not None
        offsets, draws = self.offsets(logs), np.empty((count, logs.num_tasks, logs.dim))
        blocks = blocks_of(logs, likelihood, offsets)
        parts = [block.draw(self.components, *numbers, count=count) for block in blocks]
        draws[:, block_order(logs)] = np.concatenate(parts, axis=1)
        return draws if offsets is None else draws + offsets

    def draw(self, seed: int, count: int) -> Float[np.ndarray, "n d"]:
        """Draws from the prior; nothing is compiled for a closed form."""
        if self.components is not None:
            return self.components.draw(np.random.default_rng(seed), count)
        return np.asarray(self.prior.sample(jax.random.key(seed), count), np.float64)


def family_of(
    name: str, components: GaussianMixture, regression: Regression | None = None
) -> Family:
    """Make a family whose prior is a Gaussian or a mixture."""
    if components.num_components == 1:
        gaussian = GaussianPrior(components.means[0], components.covs[0])
        return Family(name, gaussian, components, regression)
    mixture = MixturePrior(components.weights, components.means, components.covs)
    return Family(name, mixture, components, regression)


def cold_start(logs: AnyLogs, likelihood: AbstractLikelihood) -> Family:
    """N(0, s I) with the s under which tasks are most probable, as `evaluate.cold_start`."""
    few = first_tasks(logs, COLD_TASKS)

    def cold(variance: float) -> Family:
        gaussian = GaussianMixture.single(np.zeros(logs.dim), variance * np.eye(logs.dim))
        return family_of(COLD, gaussian)

    return cold(best_variance(lambda s: task_log_evidence(cold(s), few, likelihood).mean()))


def hedged(components: GaussianMixture, share: float, cold: Family) -> GaussianMixture:
    """Add two Gaussians of weight `share` together: a wide one, and the cold start.

    The first is around all components and wide in every direction, since parameters that were
    correlated in all past tasks need not be in the next. Where the prior is wrong, a task is then
    learned almost as from a cold start, log(2 / share) nats later; the cost where it is right is
    at most -log(1 - share) nats.
    """
    if share == 0.0 or cold.components is None:
        return components
    mean, cov = components.moments()
    wide = GaussianMixture.single(mean, HEDGE_SCALE**2 * np.diag(np.diagonal(cov)))
    parts = [components.without_factors(), wide, cold.components]
    return GaussianMixture.average(parts, [1 - share, share / 2, share / 2])


@dataclass(frozen=True)
class Gain(Serializable):
    """Mean difference in nats per task, its paired standard error, and the number of tasks."""

    mean: float
    error: float
    num_tasks: int

    def __str__(self) -> str:
        """The difference with its sign and error, or 0."""
        if self.num_tasks == 0 or (self.mean == self.error == 0.0):
            return "0"
        return plus_minus(self.mean, self.error, signed=True)


@dataclass(frozen=True)
class FamilyResult(Serializable):
    """Scores of one family on tasks held out.

    `log_evidence` is the mean log p(h) per task, with differences from the cold start, N(0, s I),
    and from the Gaussian. `first_reward` is what first choices among the rows of a task earn over
    those of the cold start, in tasks of several rows; None without rows.
    """

    name: str
    log_evidence: float
    over_cold: Gain
    over_gaussian: Gain
    first_reward: Gain | None
    chosen: bool


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Tasks held out, and families learned from the others, which were `seen`.

    `fewer` are Gaussians of nested parts of these, the smallest first.
    """

    logs: AnyLogs
    families: Sequence[Family]
    fewer: Sequence[Family] = ()
    seen: AnyLogs | None = None


def by_name(families: Sequence[Family], name: str) -> Family:
    """The family of this name."""
    return next(family for family in families if family.name == name)


def task_log_evidence(
    family: Family, logs: AnyLogs, likelihood: AbstractLikelihood, seed: int = 0
) -> Float[np.ndarray, " t"]:
    """Compute log p(h) per task, in the order of the logs."""
    if family.components is None:
        assert isinstance(logs, Logs)
        return log_evidence(family.prior, logs, likelihood, num_estimates=NUM_ESTIMATES, seed=seed)
    about = (family.components, logs, likelihood, family.offsets(logs))
    return mixture_log_evidence(*about, SCORING_DRAWS).values


def first_halves(logs: Logs) -> tuple[Logs, np.ndarray]:
    """Take the first half of each task's rows, rounded down; returns the mask of rows too."""
    first = logs.row_places < np.repeat(logs.counts // 2, logs.counts)
    return logs.select_rows(first), first


def score(
    turns: Sequence[HeldOut], likelihood: AbstractLikelihood, chosen: str, seed: int = 0
) -> tuple[FamilyResult, ...]:
    """Score every family on all tasks held out."""
    evidence: dict[str, np.ndarray] = {}
    rewards: dict[str, np.ndarray] = {}
    for family in turns[0].families:
        parts, earned = [], []
        for turn in turns:
            own = by_name(turn.families, family.name)
            parts.append(task_log_evidence(own, turn.logs, likelihood, seed))
            if isinstance(turn.logs, Logs):
                several = turn.logs.select(turn.logs.counts >= 2)
                draws = own.draw(seed, NUM_CHOICES)
                earned.append(choice_rewards(several, draws, own.offsets(several)))
        evidence[family.name] = np.concatenate(parts)
        rewards[family.name] = np.concatenate(earned) if earned else np.zeros(0)
    return tuple(
        FamilyResult(
            name,
            float(values.mean()),
            gain(values - evidence[COLD]),
            gain(values - evidence["Gaussian"]),
            gain(rewards[name] - rewards[COLD]) if len(rewards[name]) else None,
            name == chosen,
        )
        for name, values in evidence.items()
    )


def gain(differences: Float[np.ndarray, " n"]) -> Gain:
    """Compute the mean and paired standard error of differences."""
    if len(differences) == 0:
        return Gain(float("nan"), float("nan"), 0)
    return Gain(float(np.mean(differences)), standard_error(differences), len(differences))
