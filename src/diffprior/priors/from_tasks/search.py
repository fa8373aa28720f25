"""Which mixture: components or kernels, how many or how wide, by the evidence of tasks held out."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ...evidence.base import AbstractLikelihood
from ...executors import AbstractExecutor
from ...logs.labels import folds
from .block import AbstractBlock
from .components import Components
from .data import AnyLogs, blocks_of
from .em import HERE, Pull, log_evidences
from .gaussian import fit_gaussian
from .mixture import NARROW, PSEUDO_TASKS, cluster, improve
from .npmle import MAX_ATOMS, grid, kernels

NUM_COMPONENTS = (2, 5, 10, 20)
WIDTHS = (0.1, 0.2)  # of kernels, as shares of the Gaussian's standard deviations
KERNELS_UP_TO = 3  # parameters
KERNEL_TASKS = 10_000  # tasks from which kernels are too dear
SEARCH_TASKS = 20_000  # tasks that decide; all of them refine the result
FINAL_STEPS = 4  # over all tasks, where they are more
MIXTURE_ROUNDS, GAUSSIAN_ROUNDS = 50, 1000  # of stacking
LEAST_SHARE = 0.1  # of a mixture in an average
CORRECTION_DRAWS = 32
JUDGING_DRAWS = 64


@dataclass(frozen=True)
class Candidate:
    """A mixture of so many components, kernels of such a width, or an average of mixtures."""

    num_components: int = 0
    width: float = 0.0
    averaged: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """As reports say it."""
        if self.averaged:
            *first, last = self.averaged
            return f"mixtures of {', '.join(map(str, first))} and {last}, averaged"
        if self.num_components:
            return f"mixture of {self.num_components}"
        return f"kernels of width {self.width:g}"


@dataclass(frozen=True, eq=False)
class Search:
    """Candidates, their evidence on tasks that were held out from them, and the best of them.

    Attributes:
        gaussian: the Gaussian fitted to all tasks.
        components: the best candidate, fitted to all tasks.
        candidates: what was tried.
        log_evidence: of every task that was held out, under the Gaussian and under each
            candidate, (n, 1 + candidates).
        best: the best candidate's place, or None where none was tried.
    """

    gaussian: Components
    components: Components
    candidates: tuple[Candidate, ...]
    log_evidence: Float[np.ndarray, "n c"]
    best: int | None

    @property
    def gain(self) -> tuple[float, float]:
        """Mean gain of the best candidate over the Gaussian in nats a task, and its error."""
        if self.best is None:
            return 0.0, 0.0
        gains = self.log_evidence[:, 1 + self.best] - self.log_evidence[:, 0]
        return float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))

    @property
    def pays(self) -> bool:
        """Whether the best candidate beats the Gaussian by more than a standard error."""
        gain, error = self.gain
        return gain > error


def default_candidates(dim: int, num_tasks: int, linear: bool) -> tuple[Candidate, ...]:
    """What is tried: components that have at least twenty tasks each, and kernels in few dims."""
    counts = NUM_COMPONENTS if linear else NUM_COMPONENTS[:-1]
    tried = [Candidate(num_components=k) for k in counts if num_tasks >= 20 * k]
    if dim <= KERNELS_UP_TO and num_tasks <= KERNEL_TASKS:
        tried += [Candidate(width=width) for width in (WIDTHS if linear else WIDTHS[:1])]
    return tuple(tried)


def search_mixture(
    logs: AnyLogs,
    likelihood: AbstractLikelihood,
    *,
    candidates: Sequence[Candidate] | None = None,
    seed: int = 0,
    executor: AbstractExecutor = HERE,
    everything: Sequence[AbstractBlock] | None = None,
    advance: Callable[[str], None] = lambda name: None,
) -> Search:
    """Fit every candidate to most tasks, judge it on the others, in turn; refit the best to all.

    Whole tasks are held out, by their labels. Three turns up to 5,000 tasks, beyond that one in
    which a ninth is held out. `everything` are blocks of all tasks, where `logs` are a part of
    them; candidates, and those blocks, are shared out by the executor.
    """
    few = _thinned(logs)
    blocks = blocks_of(few, likelihood)
    linear = blocks[0].exact
    gaussian = gaussian_of(blocks)
    if candidates is None:
        candidates = default_candidates(logs.dim, few.num_tasks, linear)
    num_folds, turns = (3, 3) if few.num_tasks <= 5000 and linear else (4, 1)
    which = folds(few.hashes, num_folds, salt=11)
    evidence = []
    for turn in range(turns if candidates else 0):
        kept, out = few.select(which != turn), few.select(which == turn)
        own, judging = blocks_of(kept, likelihood), blocks_of(out, likelihood)
        start = gaussian_of(own, start=gaussian)
        advance("mixtures")
        fit = functools.partial(fit_candidate, own, start, seed=seed)
        fits = [start, *executor.map(fit, candidates)]
        judged = executor.map(functools.partial(_judged, judging), fits)
        evidence.append(np.stack(list(judged), axis=1))
    if not evidence:
        return Search(gaussian, gaussian, (), np.zeros((0, 1)), None)
    table, tried = np.concatenate(evidence), (Candidate(num_components=1), *candidates)
    shares = averaging_shares(tried, table)
    fit = functools.partial(fit_candidate, blocks, gaussian, seed=seed)
    chosen = [tried[place] for place in shares]
    advance(chosen[0].name if len(chosen) == 1 else "mixtures")
    components = averaged(list(executor.map(fit, chosen)), shares)
    best = next(iter(shares)) - 1
    if len(shares) > 1:
        counts = tuple(candidate.num_components for candidate in chosen)
        table = np.column_stack([table, averaged_evidence(table, shares)])
        best, candidates = len(candidates), [*candidates, Candidate(averaged=counts)]
    if everything is None and few.num_tasks < logs.num_tasks:
        everything = blocks_of(logs, likelihood)
    if everything is not None:
        gaussian, components = refined(everything, gaussian, components, executor)
    return Search(gaussian, components, tuple(candidates), table, best)


def averaging_shares(
    tried: Sequence[Candidate], table: Float[np.ndarray, "n c"]
) -> dict[int, float]:
    """Shares of the Gaussian, which is tried first, and of mixtures that together explain tasks
    held out best: stacking, by EM. Or the best candidate alone, where that explains them better.

    Mixtures of different size err differently, and their average errs less; few rounds leave it
    broad. The Gaussian has a share where tasks cannot tell it from the average. Kernels stay alone:
    they are many already.

    References:
        Wolpert (1992); Yao, Vehtari, Simpson and Gelman (2018).
    """
    best = 1 + int(np.argmax(table[:, 1:].mean(axis=0)))
    mixtures = [place for place, candidate in enumerate(tried) if candidate.num_components > 1]
    if not mixtures:
        return {best: 1.0}
    shares = _stacked(table[:, mixtures], MIXTURE_ROUNDS)
    found = {place: share for place, share in zip(mixtures, shares, strict=True) if share}
    both = np.column_stack([table[:, 0], averaged_evidence(table, found)])
    gaussian, rest = _stacked(both, GAUSSIAN_ROUNDS)
    if gaussian and rest:
        found = {0: gaussian, **{place: rest * share for place, share in found.items()}}
    better = averaged_evidence(table, found).mean() >= table[:, best].mean()
    return found if better or not tried[best].width else {best: 1.0}


def _stacked(logs: Float[np.ndarray, "n c"], rounds: int) -> list[float]:
    """Shares of columns whose average has the highest log on average; small ones are none."""
    ratios = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares = np.full(logs.shape[1], 1 / logs.shape[1])
    for _ in range(rounds):
        shares = shares * np.mean(ratios / (ratios @ shares)[:, None], axis=0)
    shares = np.where(shares < LEAST_SHARE, 0.0, shares)
    return [float(share) for share in shares / shares.sum()]


def averaged_evidence(
    table: Float[np.ndarray, "n c"], shares: dict[int, float]
) -> Float[np.ndarray, " n"]:
    """Log evidence of every task under an average of what was tried."""
    logs = [np.log(share) + table[:, place] for place, share in shares.items()]
    return np.logaddexp.reduce(logs, axis=0)


def averaged(fits: Sequence[Components], shares: dict[int, float]) -> Components:
    """All components of some mixtures, which count by their shares."""
    weights = [share * fit.weights for fit, share in zip(fits, shares.values(), strict=True)]
    return Components(
        np.concatenate(weights),
        np.concatenate([fit.means for fit in fits]),
        np.concatenate([fit.covs for fit in fits]),
    )


def gaussian_of(
    blocks: Sequence[AbstractBlock],
    executor: AbstractExecutor = HERE,
    start: Components | None = None,
) -> Components:
    """The Gaussian of some tasks; for rows of generalized linear models, less precisely."""
    if blocks[0].exact:
        return fit_gaussian(
            blocks, start=start, tolerance=1e-5, least_gain=1e-7, executor=executor
        ).components
    found = fit_gaussian(
        blocks, start=start, tolerance=1e-3, least_gain=1e-4, max_steps=60, executor=executor
    )
    exact = [block.corrected(CORRECTION_DRAWS) for block in blocks]
    final = fit_gaussian(
        exact, start=found.components, tolerance=1e-2, max_steps=12, executor=executor
    )
    return final.components


def fit_candidate(
    blocks: Sequence[AbstractBlock],
    gaussian: Components,
    candidate: Candidate,
    seed: int,
) -> Components:
    """The candidate fitted to some tasks; one component is the Gaussian."""
    if candidate.num_components == 1:
        return gaussian
    blocks = [block.corrected(0) for block in blocks]  # where modes were found is not shared
    draws = np.concatenate(list(HERE.map(functools.partial(_draw, gaussian, seed), blocks)))
    if candidate.width:
        return _kernels(blocks, gaussian, candidate.width, draws)
    pull = Pull(PSEUDO_TASKS, NARROW * gaussian.covs[0])
    linear = blocks[0].exact
    starts = [cluster(draws, gaussian, candidate.num_components, seed + s) for s in range(2)]
    tried = [improve(blocks, start, pull, max_steps=12) for start in starts]
    best = max(tried, key=lambda fit: fit.log_evidence)
    steps = 150 if linear else 40
    found = improve(blocks, best.components, pull, max_steps=steps).components
    if linear:
        return found
    exact = [block.corrected(CORRECTION_DRAWS) for block in blocks]
    return improve(exact, found, pull, max_steps=6, tolerance=-np.inf).components


def refined(
    blocks: Sequence[AbstractBlock],
    gaussian: Components,
    components: Components,
    executor: AbstractExecutor = HERE,
) -> tuple[Components, Components]:
    """A few steps over all tasks, from what a part of them gave."""
    gaussian = fit_gaussian(
        blocks, start=gaussian, tolerance=1e-5, max_steps=6, executor=executor
    ).components
    if len(components) > 50:  # kernels stay where they are
        return gaussian, components
    pull = Pull(PSEUDO_TASKS, NARROW * gaussian.covs[0])
    better = improve(blocks, components, pull, max_steps=FINAL_STEPS, executor=executor)
    return gaussian, better.components


def _kernels(
    blocks: Sequence[AbstractBlock], gaussian: Components, width: float, draws: np.ndarray
) -> Components:
    cov = width**2 * gaussian.covs[0]
    spread = 0.3 * np.sqrt(np.diagonal(gaussian.covs[0]))
    linear = blocks[0].exact
    atoms = grid(draws, spread, MAX_ATOMS if linear and len(draws) <= 3000 else MAX_ATOMS // 2)
    made = kernels(blocks, atoms, cov)
    weights = made.weights(np.full(len(atoms), 1 / len(atoms)), np.ones(len(draws), bool))
    return made.components(weights, below=1e-4)


def _judged(blocks: Sequence[AbstractBlock], fit: Components) -> Float[np.ndarray, " n"]:
    return log_evidences([block.corrected(JUDGING_DRAWS) for block in blocks], fit)


def _draw(gaussian: Components, seed: int, block: AbstractBlock) -> np.ndarray:
    return block.draw(gaussian, seed)


def _thinned(logs: AnyLogs) -> AnyLogs:
    """The tasks of smallest hash, where they are very many."""
    if logs.num_tasks <= SEARCH_TASKS:
        return logs
    order = np.argsort(logs.hashes, kind="stable")
    return logs.select(np.sort(order[:SEARCH_TASKS]))
