"""The search for a mixture: how many components, and how their covariances are estimated.

One rule, for samples and for tasks with rows: candidates are fitted to most tasks and scored on
those held out, in turn; the best is refitted to all.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from ..executors import AbstractExecutor
from ..mixture import GaussianMixture
from .em import (
    HERE,
    MIN_VARIANCE,
    AbstractBlock,
    AbstractTasks,
    CovarianceModel,
    Samples,
    fit_gaussian,
    fit_mixture,
    initial_mixture,
    log_evidence,
    one_thread,
)

CORRECTION_DRAWS = 32  # points per task in the last steps of EM, where it is not exact
SHORT_STEPS, LONG_STEPS, LAST_STEPS = 12, 100, 12  # of EM: of each start, of the best, corrected
MAX_FREE = 128  # components with a covariance of each one's own
FACTORS_FROM = 32  # components from which covariances of few factors are tried
NUM_STARTS = 3  # of EM, with fewer components, which the choice is the best of
PARAMETERS_PER_FACTOR = (8, 4, 2)  # ranks that are tried
# Tasks' worth of the pooled covariance in one of few factors: alone, and in each of two mixtures,
# whose mean is smooth without it.
FACTOR_POOLING, RUN_POOLING = 2.0, 0.5
PATIENCE = 2  # numbers of components in a row that may be clearly worse; of many components, one
PLANE_DIM = 2  # parameters up to which many tasks leave nothing to be gained by tying
BLUR = 0.1  # noise, as a share of their spread, through which samples of more are scored
Blocks = Sequence[AbstractTasks]


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Which mixtures are tried, and what decides between them."""

    max_components: int = 256  # 2, 4, 8, ... are tried until more is clearly worse
    max_tied: int = 32  # of them with one covariance for all; 0 for none
    pooling_per_parameter: float = 1.0  # tasks' worth of the pooled covariance in each one's own
    tasks_per_component: float = 10.0  # at least
    # Components of few factors from which the mean of two mixtures is tried: each cuts a curved
    # sheet into flat pieces elsewhere.
    average_from: int = 128
    num_folds: int = 5  # of the tasks, that are held out in turn
    one_fold_from: int = 5000  # tasks from which one part, a tenth, is enough
    max_tasks: int = 20_000  # that are looked at


@dataclass(frozen=True)
class MixtureCandidate:
    """A mixture of so many components, or the mean of several such mixtures."""

    num_components: int
    model: CovarianceModel
    num_runs: int = 1

    def __str__(self) -> str:
        runs = f", {self.num_runs} runs" if self.num_runs > 1 else ""
        return f"{self.num_components}{self.model}{runs}"


GAUSSIAN = MixtureCandidate(1, CovarianceModel(0.0))


@dataclass(frozen=True, eq=False)
class Search:
    """Candidates, their evidence on tasks that were held out from them, and the best of them."""

    gaussian: GaussianMixture  # fitted to all tasks
    mixture: GaussianMixture  # the best fitted to all tasks, if it pays; else the Gaussian
    best: MixtureCandidate  # the Gaussian where no other was tried
    scores: dict[MixtureCandidate, float]  # mean log evidence per held-out task
    error: float  # standard error of the difference between the best and the Gaussian
    values: dict[MixtureCandidate, Float[np.ndarray, " m"]]  # log evidence of held-out tasks

    @property
    def score(self) -> float:
        """Mean log evidence per held-out task of the best candidate."""
        return self.scores[self.best]

    @property
    def gaussian_score(self) -> float:
        """That of the Gaussian."""
        return self.scores[GAUSSIAN]

    @property
    def gain(self) -> float:
        """Mean gain of the best over the Gaussian, in nats per held-out task."""
        return self.score - self.gaussian_score

    @property
    def pays(self) -> bool:
        """Whether the best beats the Gaussian by more than a standard error."""
        return self.gain > self.error and self.gain > 0

    @property
    def grows(self) -> bool:
        """Whether no larger mixture was tried than the best: there may be finer structure."""
        return self.best.num_components == max(one.num_components for one in self.scores)

    @property
    def candidate(self) -> MixtureCandidate:
        """The best candidate; the Gaussian where no mixture pays."""
        return self.best if self.pays else GAUSSIAN

    @property
    def name(self) -> str:
        """The best candidate as reports say it."""
        return f"mixture of {self.best.num_components}"


def search_samples(
    unit: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None = None,
    *,
    seed: int = 0,
    config: SearchConfig | None = None,
    groups: Int[np.ndarray, " n"] | None = None,
    refit: bool = True,
) -> Search:
    """The mixture of greatest likelihood on samples that it was not fitted to; without `refit` only
    which it is, for `fit_samples`.
    """
    config = config or SearchConfig()
    x, counts, own = _thinned(unit, weights, seed, groups)
    num_groups = int(own.max()) + 1
    one_fold = num_groups >= config.one_fold_from
    num_folds = 10 if one_fold else min(config.num_folds, num_groups)
    blur = 0.0 if x.shape[1] <= PLANE_DIM else BLUR

    def subset(which: Bool[np.ndarray, " n"], turn: int = 0) -> list[AbstractTasks]:
        return [Samples(x[which], counts[which], blur, seed)]

    room = num_groups * (1 - 1 / config.num_folds) / config.tasks_per_component
    config = dataclasses.replace(config, max_components=min(config.max_components, int(room)))
    with one_thread():
        splits = Splits.of(subset, own % num_folds, 1 if one_fold else num_folds, own)
        return search(subset(np.ones(len(x), bool)), splits, config, seed=seed, refit=refit)


def fit_samples(
    unit: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None,
    candidate: MixtureCandidate,
    *,
    seed: int = 0,
) -> GaussianMixture:
    """A mixture of samples, as one that a search chose of others."""
    x, counts, _ = _thinned(unit, weights, seed, None)
    blocks: Blocks = [Samples(x[counts > 0], counts[counts > 0])]
    with one_thread():
        return fit_candidate(blocks, gaussian_of(blocks), candidate, seed)


def _thinned(
    unit: np.ndarray,
    weights: np.ndarray | None,
    seed: int,
    groups: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Samples in single precision and random order, their weights and tasks, some of very many."""
    order = np.random.default_rng(seed).permutation(len(unit))[: SearchConfig.max_tasks]
    counts = np.ones(len(unit)) if weights is None else np.asarray(weights, np.float64)
    own = np.arange(len(order))
    if groups is not None:
        labels, numbers = np.unique(groups[order], return_inverse=True)
        own = np.random.default_rng([seed, 1]).permutation(len(labels))[numbers]
    chosen = counts[order]
    return unit[order].astype(np.float32), chosen / np.mean(chosen), own


class Split(NamedTuple):
    """Tasks to fit to, the Gaussian of them, and tasks to score on."""

    seen: Blocks
    gaussian: GaussianMixture
    held_out: Blocks


@dataclass(frozen=True, eq=False)
class Splits:
    """Tasks held out in turn, with their weights, which sum to one, and groups."""

    parts: tuple[Split, ...]
    weights: Float[np.ndarray, " m"]
    groups: Int[np.ndarray, " m"]

    @staticmethod
    def of(
        subset: Callable[[Bool[np.ndarray, " n"], int], Blocks],
        fold: Int[np.ndarray, " n"],
        num_turns: int,
        groups: Int[np.ndarray, " n"] | None = None,
        start: GaussianMixture | None = None,
    ) -> "Splits":
        """Hold out each of the first `num_turns` parts in turn.

        `subset` makes the tasks of a mask in a turn.
        """
        parts = []
        for turn in range(num_turns):
            seen, held_out = subset(fold != turn, turn), subset(fold == turn, turn)
            gaussian = gaussian_of(seen, start=start)
            seen = [block.expanded(gaussian) for block in seen]
            held_out = [block.scoring().expanded(gaussian) for block in held_out]
            parts.append(Split(seen, gaussian, held_out))
        blocks = [block for part in parts for block in part.held_out]
        weights = np.concatenate([block.task_weights for block in blocks])
        own = np.arange(len(weights))
        if groups is not None:
            own = np.concatenate([groups[fold == turn] for turn in range(num_turns)])
        return Splits(tuple(parts), weights / weights.sum(), own)

    def mean(self, values: Float[np.ndarray, " m"]) -> float:
        """Weighted mean over the held-out tasks."""
        return float(self.weights @ values)

    def difference(
        self, values: Float[np.ndarray, " m"], others: Float[np.ndarray, " m"]
    ) -> tuple[float, float]:
        """Mean difference, and its standard error over groups."""
        gain = values - others
        mean = self.mean(gain)
        by_group = np.bincount(self.groups, self.weights * (gain - mean))
        return mean, float(np.sqrt(np.sum(by_group**2)))

    def clearly_better(
        self, values: Float[np.ndarray, " m"], others: Float[np.ndarray, " m"]
    ) -> bool:
        """Whether the mean difference is positive and exceeds its standard error."""
        failed, other_failed = (not np.isfinite(self.mean(one)) for one in (values, others))
        if failed or other_failed:
            return not failed
        mean, error = self.difference(values, others)
        return mean > max(error, 0.0)


def search(
    blocks: Blocks,
    splits: Splits,
    config: SearchConfig,
    *,
    seed: int = 0,
    executor: AbstractExecutor = HERE,
    gaussian: GaussianMixture | None = None,
    required: bool = False,
    refit: bool = True,
) -> Search:
    """Fit candidates to most tasks, score them on the others, in turn; refit the best to all.

    It is refitted if it pays, or if a mixture is `required`.
    """
    gaussian = gaussian_of(blocks) if gaussian is None else gaussian
    blocks = [block.expanded(gaussian) for block in blocks]
    tried = _Tried(splits, seed, executor)
    _try_candidates(tried, blocks[0].dim, config)
    mixtures = [one for one in tried.values if one != GAUSSIAN]
    best = max(mixtures, key=tried.mean, default=GAUSSIAN)
    _, error = splits.difference(tried.values[best], tried.values[GAUSSIAN])
    scores = {one: splits.mean(values) for one, values in tried.values.items()}
    found = Search(gaussian, gaussian, best, scores, error, tried.values)
    if not (refit and (found.pays or required)):
        return found
    mixture = fit_candidate(blocks, gaussian, best, seed)
    return dataclasses.replace(found, mixture=refined(blocks, gaussian, mixture, best, executor))


def refined(
    blocks: Sequence[AbstractBlock],
    gaussian: GaussianMixture,
    mixture: GaussianMixture,
    candidate: MixtureCandidate,
    executor: AbstractExecutor,
    num_steps: int = 0,
) -> GaussianMixture:
    """Some steps of EM from a mixture found otherwise; a dozen corrected ones, if not exact."""
    exact, floor = blocks[0].exact, MIN_VARIANCE * np.asarray(gaussian.covs[0])
    num_steps = num_steps if exact else LAST_STEPS
    if num_steps == 0 or mixture.num_components == 1:
        return mixture
    fit = functools.partial(fit_mixture, blocks, mixture, candidate.model, floor)
    draws = 0 if exact else CORRECTION_DRAWS
    return fit(max_steps=num_steps, tolerance=-np.inf, num_draws=draws, executor=executor).mixture


@dataclass(frozen=True, eq=False)
class _Tried:
    """Log evidence of held-out tasks under every candidate so far."""

    splits: Splits
    seed: int
    executor: AbstractExecutor
    values: dict[MixtureCandidate, Float[np.ndarray, " m"]] = dataclasses.field(
        default_factory=dict
    )

    def add(self, *candidates: MixtureCandidate) -> None:
        for one in candidates:
            if one not in self.values:
                score = functools.partial(_scored, one, self.seed)
                self.values[one] = np.concatenate([*self.executor.map(score, self.splits.parts)])

    def mean(self, candidate: MixtureCandidate) -> float:
        return self.splits.mean(self.values[candidate])

    @property
    def best(self) -> MixtureCandidate:
        return max(self.values, key=self.mean)


def _scored(candidate: MixtureCandidate, seed: int, split: Split) -> Float[np.ndarray, " m"]:
    """Log evidence of the tasks held out; minus infinity where EM failed.

    From one start, because the likeliest of several overfits more.
    """
    mixture = fit_candidate(split.seen, split.gaussian, candidate, seed, num_starts=1)
    return np.nan_to_num(log_evidence(split.held_out, mixture), nan=-np.inf, neginf=-np.inf)


def _try_candidates(tried: _Tried, dim: int, config: SearchConfig) -> None:
    """Free covariances, then tied ones, then those of few factors, then what is in between."""
    free = CovarianceModel(config.pooling_per_parameter * dim)
    tried.add(GAUSSIAN)
    most, most_free = config.max_components, min(config.max_components, MAX_FREE)
    _climb(tried, free, 2, most_free)
    if dim > PLANE_DIM or len(tried.splits.parts) > 1:
        _climb(tried, CovarianceModel(np.inf), 2, min(most, config.max_tied))
    if tried.best.num_components >= FACTORS_FROM and dim > PLANE_DIM:
        first = tried.best.num_components
        for rank in sorted({dim // each for each in PARAMETERS_PER_FACTOR} - {0}):
            _climb(tried, CovarianceModel(FACTOR_POOLING, rank), first, most)
    best = tried.best
    limit = most_free if best.model.rank is None else most
    k = best.num_components
    tried.add(
        *(MixtureCandidate(m, best.model) for m in (3 * k // 4, 3 * k // 2) if 1 < m <= limit)
    )
    if tried.best.model.rank is not None and tried.best.num_components >= config.average_from:
        _try_averages(tried, most)


def _climb(tried: _Tried, model: CovarianceModel, k: int, most: int) -> None:
    """Double the components until that is clearly worse, of few twice: a start may come out bad."""
    before = MixtureCandidate(k // 2, model)
    best = before if before in tried.values else GAUSSIAN
    worse = 0
    while k <= most and worse < PATIENCE:
        new = MixtureCandidate(k, model)
        tried.add(new)
        clearly = tried.splits.clearly_better(tried.values[best], tried.values[new])
        many = PATIENCE if k > FACTORS_FROM else worse + 1
        worse = many if clearly else 0
        best = max(best, new, key=tried.mean)
        k *= 2


def _try_averages(tried: _Tried, most: int) -> None:
    """Means of two mixtures: for each rank, of a third more components than suit one mixture."""
    ranks = {one.model.rank for one in tried.values} - {None}
    for rank in ranks:
        alike = [one for one in tried.values if one.model.rank == rank]
        k = min(4 * max(alike, key=tried.mean).num_components // 3, most)
        tried.add(MixtureCandidate(k, CovarianceModel(RUN_POOLING, rank), num_runs=2))


def gaussian_of(
    blocks: Sequence[AbstractBlock],
    executor: AbstractExecutor = HERE,
    start: GaussianMixture | None = None,
    min_gain: float = 1e-7,
) -> GaussianMixture:
    """The Gaussian of some tasks; of generalized linear models, less precisely."""
    fit = functools.partial(fit_gaussian, blocks, executor=executor)
    if blocks[0].exact:
        return fit(start=start, tolerance=1e-5, min_gain=min_gain).mixture
    if start is None:
        start = fit(tolerance=1e-3, min_gain=1e-4, max_steps=60).mixture
    return fit(start=start, tolerance=1e-2, max_steps=12, num_draws=CORRECTION_DRAWS).mixture


def fit_candidate(
    blocks: Blocks,
    gaussian: GaussianMixture,
    candidate: MixtureCandidate,
    seed: int = 0,
    num_starts: int = NUM_STARTS,
) -> GaussianMixture:
    """A candidate fitted to tasks, the best of several starts; of one component, `gaussian`."""
    if candidate.num_components == 1:
        return gaussian
    draws = np.concatenate([block.draw(gaussian, seed)[0] for block in blocks])
    weights = np.concatenate([block.task_weights for block in blocks])
    about = (blocks, gaussian, draws, weights, candidate, num_starts)
    runs = [_fit_run(*about, (seed, run)) for run in range(candidate.num_runs)]
    return GaussianMixture.average(runs, [1 / len(runs)] * len(runs))


def _fit_run(
    blocks: Blocks,
    gaussian: GaussianMixture,
    draws: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    candidate: MixtureCandidate,
    num_starts: int,
    seed: tuple[int, int],
) -> GaussianMixture:
    k, model = candidate.num_components, candidate.model
    floor = MIN_VARIANCE * np.asarray(gaussian.covs[0])
    num_starts = num_starts if k < FACTORS_FROM else 1
    fits = []
    for start in range(num_starts):
        rng = np.random.default_rng([*seed, k, start])
        first = initial_mixture(draws, weights, gaussian, k, model, rng)
        steps = SHORT_STEPS if num_starts > 1 else LONG_STEPS
        fits.append(fit_mixture(blocks, first, model, floor, max_steps=steps))
    found = max(fits, key=lambda fit: np.nan_to_num(fit.log_evidence, nan=-np.inf))
    if found.num_steps == SHORT_STEPS and num_starts > 1:
        found = fit_mixture(blocks, found.mixture, model, floor, max_steps=LONG_STEPS)
    return found.mixture
