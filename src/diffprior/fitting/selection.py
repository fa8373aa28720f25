"""The choice of a denoiser: which base, and whether a network corrects it, by held-out loss."""

from dataclasses import replace
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from ..denoisers.base import AbstractDenoiser, jit_once
from ..denoisers.network import SPREAD_AT, CorrectedDenoiser, Correction
from ..mixture import GaussianMixture
from .config import (
    MAX_BASE_SIZE,
    MIN_ABSOLUTE_GAIN,
    MIN_RELATIVE_GAIN,
    MIXTURE_GAIN_RANGE,
    NEGLIGIBLE_GAIN,
    TOLERANCE,
    FitConfig,
    Training,
)
from .report import Candidate
from .samples import Rows, to_device
from .search import Search, fit_samples, search_samples
from .training import (
    NEIGHBORS_MAX_DIM,
    NEIGHBORS_MAX_ROWS,
    TRAINING,
    VALIDATION,
    WEIGHTS,
    BatchDraws,
    CorrectionLoss,
    Errors,
    Pool,
    RandomEvidence,
    TrainingBatch,
    TrainingResult,
    as_good,
    optimize,
    pool_size,
)

MIN_BASE_VARIANCE = 1e-6  # of a base in unit coordinates, which single precision can divide by
MAX_COMPONENTS, MAX_COMPONENTS_2D = 256, 64  # of a mixture, unless a config says otherwise


class Selected(NamedTuple):
    """The chosen denoiser, how its training went, and all candidates."""

    denoiser: AbstractDenoiser
    validated: AbstractDenoiser  # the same, fitted without what is held out
    training: TrainingResult
    candidates: tuple[Candidate, ...] = ()
    chosen: int = 0
    mixture_gain: float = 0.0  # nats per sample over one Gaussian, cross-validated


class Scored(NamedTuple):
    """A denoiser and its losses on held-out samples."""

    denoiser: CorrectedDenoiser
    training: TrainingResult
    errors: Float[np.ndarray, " m"]  # of each held-out task, mean over evidence
    candidate: Candidate


def select_denoiser(
    train: Rows,
    held_out: Rows,
    config: FitConfig,
    *,
    seed: int,
    progress: bool | None,
    initial: CorrectedDenoiser | None = None,
    groups: Int[np.ndarray, " n"] | None = None,
) -> Selected:
    """Find a mixture, train a network on it and on a Gaussian, and keep what does best.

    The base alone stays when a network adds nothing to it: the mixture if cross-validated
    likelihood prefers one, and a Gaussian if not. Of denoisers that do about as well the simplest
    is kept: few samples justify little. Where the mixture alone takes much off the Gaussian's loss,
    only the mixture is corrected (a large one not even then), where it takes little, only the
    Gaussian: the other has not been seen to win there. A mixture is scored and corrected as fitted
    to `train`; one that stays alone is fitted to all samples.

    Where rows have attributes, a network on a Gaussian that takes them too is trained last, and
    chosen if it is better than all others by more than a standard error.
    """
    found, bases = None, [None if initial is None else initial.base]
    if initial is None and (mixtures := _mixtures(train, held_out, config, groups, seed)):
        found = mixtures[0]
        bases.append(mixtures[1])
    tasks = np.arange(len(held_out.samples)) if groups is None else groups[len(train.samples) :]
    trainer = _Trainer(
        config,
        RandomEvidence.of(train.dim, seed),
        train,
        held_out,
        np.unique(tasks, return_inverse=True)[1],
        seed,
        progress,
        min(config.validation_evidence, *(pool_size(base, config) for base in bases)),
    )
    start = None if initial is None else initial.correction
    if initial is not None and train.attributes is not None:
        kept = trainer.as_it_is(initial)
        tried = [kept]
    else:
        alone = [trainer.alone(base, like=bases[-1]) for base in bases]
        if config.num_steps == 0:
            corrected = []
        else:
            losses = [one.candidate.loss for one in alone]
            worth = bases if start is not None else worth_correcting(bases, losses, config)
            corrected = [one for base in worth for one in trainer.corrected(base, start)]
        kept = simplest_as_good([alone[-1], *corrected], config)
        tried = [*alone, *corrected]
    mixed = config.prefer_mixture and kept.denoiser.base is not None
    if train.attributes is not None and config.num_steps != 0 and not mixed:
        given = trainer.given_attributes(kept.denoiser, start)
        tried, kept = [*tried, *given], given[0] if given else kept
    little = kept.denoiser.negligible_correction or config.prefer_mixture
    validated = replace(kept.denoiser, negligible_correction=True)
    denoiser = replace(validated, negligible_correction=little)
    if found is not None and validated.base is not None and validated.correction is None:
        every = _rows_of_both(train, held_out)
        denoiser = replace(
            denoiser, base=_on_device(fit_samples(*every, found.candidate, seed=seed))
        )
    index = next(i for i, one in enumerate(tried) if one is kept)
    gain = 0.0 if found is None else found.score - found.gaussian_score
    candidates = tuple(one.candidate for one in tried)
    return Selected(denoiser, validated, kept.training, candidates, index, gain)


def simplest_as_good(ordered: list[Scored], config: FitConfig) -> Scored:
    """The first that does about as well as the best; of mixtures only, if they are preferred."""
    mixed = [one for one in ordered if one.denoiser.base is not None]
    ordered = mixed if config.prefer_mixture and mixed else ordered
    best = min(ordered, key=lambda one: one.candidate.loss)
    return next(
        one for one in ordered if as_good(one.errors, best.errors, TOLERANCE, MIN_RELATIVE_GAIN)
    )


def worth_correcting(
    bases: list[GaussianMixture | None], losses: list[float], config: FitConfig
) -> list[GaussianMixture | None]:
    """The bases that a network is trained on, by the loss of each alone."""
    if len(bases) == 1:
        return [] if _too_large(bases[0]) else bases
    low, high = MIXTURE_GAIN_RANGE
    gain = losses[0] - losses[1]
    only_mixture = gain > high * losses[0] or config.prefer_mixture
    if _too_large(bases[1]):
        return [] if only_mixture else bases[:1]
    if only_mixture:
        return bases[1:]
    return bases[:1] if gain < min(low * losses[0], MIN_ABSOLUTE_GAIN) else bases


def _too_large(base: GaussianMixture | None) -> bool:
    """Whether training would be slow: of many numbers, or the mean of two large mixtures, to which
    a network has not been seen to add.
    """
    return base is not None and (
        base.vectors.size > MAX_BASE_SIZE or base.num_components > MAX_COMPONENTS
    )


def _mixtures(
    train: Rows, held_out: Rows, config: FitConfig, groups: np.ndarray | None, seed: int
) -> tuple[Search, GaussianMixture] | None:
    """The mixture that cross-validated likelihood prefers to one Gaussian, if there is one; and the
    same fitted without what is held out, which counts zero times.
    """
    largest = config.max_components or (MAX_COMPONENTS_2D if train.dim <= 2 else MAX_COMPONENTS)
    if largest == 1:
        return None
    samples, weights = _rows_of_both(train, held_out)
    limits = replace(config.search, max_components=largest)
    found = search_samples(samples, weights, seed=seed, config=limits, groups=groups, refit=False)
    if not found.pays:
        return None
    seen = np.ones(len(samples)) if weights is None else weights
    seen = np.where(np.arange(len(samples)) < len(train.samples), seen, 0.0)
    again = fit_samples(samples, seen, found.candidate, seed=seed)
    return found, _on_device(again.without_factors())


def _rows_of_both(train: Rows, held_out: Rows) -> tuple[np.ndarray, np.ndarray | None]:
    """Samples and weights, of those held out last."""
    samples = np.concatenate([train.samples, held_out.samples])
    if train.weights is None or held_out.weights is None:
        return samples, None
    return samples, np.concatenate([train.weights, held_out.weights])


def _on_device(mixture: GaussianMixture) -> GaussianMixture:
    """A mixture in unit coordinates as the base of a denoiser."""
    variances = np.maximum(mixture.variances, MIN_BASE_VARIANCE)
    return replace(mixture, variances=variances).on_device(np.float32)


class _Validation(NamedTuple):
    """Held-out samples hidden in noise, under which a base and its corrections are scored."""

    loss: CorrectionLoss
    pool: Pool
    batch: TrainingBatch

    def scores(self, correction: Correction, held_out: Rows) -> "_Scores":
        """Errors of every draw, and their spread under a Gaussian base."""
        errors, spread = _compute_scores(self, correction, held_out)
        return _Scores(errors.on_host(), np.asarray(self.batch.drawn).ravel(), spread)


class _Scores(NamedTuple):
    """Errors of held-out draws, the rows that they are, and their spread under a Gaussian base."""

    errors: Errors
    drawn: Int[np.ndarray, " b"]
    spread: tuple[Array, ...] | None


class _Trainer(NamedTuple):
    """Trains corrections of bases, and scores them all by the same held-out samples under the same
    evidence: losses under some evidence are many times those under other.
    """

    config: FitConfig
    random_evidence: RandomEvidence
    train: Rows
    held_out: Rows
    tasks: Int[np.ndarray, " m"]  # that the held-out rows belong to, numbered from 0
    seed: int
    progress: bool | None
    evidence: int  # pieces that candidates are scored under

    def alone(self, base: GaussianMixture | None, like: GaussianMixture | None) -> Scored:
        """The base without a correction. One Gaussian is scored as a mixture `like` another, by the
        same program.
        """
        scored_as = like.standard_like() if base is None and like is not None else base
        scores = self._validation(scored_as).scores(self._start(scored_as), self.held_out)
        return self._scored(base, None, 0.0, scores)

    def as_it_is(self, denoiser: CorrectedDenoiser) -> Scored:
        """A denoiser that is not trained; without attributes where its network takes them."""
        base, correction = denoiser.base, denoiser.correction
        if correction is None or denoiser.takes_attributes:
            return self.alone(base, like=base)
        scores = self._validation(base).scores(correction, self.held_out)
        return self._scored(base, correction, 1.0, scores)

    def given_attributes(self, rival: CorrectedDenoiser, start: Correction | None) -> list[Scored]:
        """A Gaussian with a network that takes attributes, if it is better than a denoiser that
        does not by more than a standard error. Errors are those of single samples: means over
        samples of other attributes would be wrong.
        """
        single = self._replace(config=replace(self.config, target_samples=0))
        if start is None or start.weights_attributes is None:
            start = single._start(None, self.train.attributes)
        other = single.as_it_is(rival)
        for one in single.corrected(None, start):
            if not as_good(other.errors, one.errors, 1.0, MIN_RELATIVE_GAIN):
                loss = other.candidate.loss
                return [one._replace(candidate=replace(one.candidate, without_attributes=loss))]
        return []

    def corrected(self, base: GaussianMixture | None, start: Correction | None) -> list[Scored]:
        """The base with a correction trained on it, if held-out samples justify one, and as much of
        it as they do.
        """
        training, rows, pieces = self._training(base), self.train, pool_size(base, self.config)
        own = replace(self.random_evidence, log_precision_range=training.log_precision_range)
        rng = np.random.default_rng([self.seed, TRAINING])
        loss = CorrectionLoss.create(rng, base, own, training.target_samples, pieces)
        if rows.dim <= NEIGHBORS_MAX_DIM and training.target_samples:
            rows = rows.first(NEIGHBORS_MAX_ROWS)
            loss = loss.with_neighbors(rows, self.config.num_neighbors)
        validation = self._validation(base)

        def evaluate(correction: Correction) -> Float[np.ndarray, " m"]:
            return self._by_task(validation.scores(correction, self.held_out), 1.0)

        start = self._start(base) if start is None else start
        more = (self.seed, self.progress, evaluate)
        correction, result = optimize(start, loss, rows, training, *more)
        scores = validation.scores(correction, self.held_out)
        factor = scores.errors.best_factor()
        if factor == 0.0:
            return []
        return [self._scored(base, correction.shrunk(factor), factor, scores, result)]

    def _training(self, base: GaussianMixture | None) -> Training:
        return self.config.training(self.train.dim, 1 if base is None else base.num_components)

    def _start(
        self, base: GaussianMixture | None, attributes: Float[Array, "n a"] | None = None
    ) -> Correction:
        training, components = self._training(base), 1 if base is None else base.num_components
        size = {"width": training.width, "depth": training.depth}
        size["num_attributes"] = 0 if attributes is None else attributes.shape[1]
        rng = np.random.default_rng([self.seed, WEIGHTS])
        return Correction.initialize(rng, self.train.dim, components, **size)

    def _validation(self, base: GaussianMixture | None) -> _Validation:
        """Held-out samples under the evidence of every other base, made by the program of training.

        BatchDraws and evidence are the same for every base and correction.
        """
        rng, config = np.random.default_rng([self.seed, VALIDATION]), self.config
        size = (self._training(base).target_samples, pool_size(base, config))
        loss = CorrectionLoss.create(rng, base, self.random_evidence, *size).first(self.evidence)
        drawn = loss.draw(rng, self.held_out, config.validation_draws, 1)
        pool, batch = _hide(loss, jax.tree.map(lambda a: a[0], drawn), self.held_out)
        return _Validation(loss, pool, batch)

    def _scored(
        self,
        base: GaussianMixture | None,
        correction: Correction | None,
        factor: float,
        scores: _Scores,
        result: TrainingResult | None = None,
    ) -> Scored:
        loss = float(np.mean(scores.errors.shrunk(factor)))
        little = loss >= (1.0 - NEGLIGIBLE_GAIN) * float(np.mean(scores.errors.alone))
        table = None
        if correction is not None and scores.spread is not None:
            table = _spread_table(scores.spread, factor)
        denoiser = CorrectedDenoiser(base, correction, table, self.train.dim, little)
        kind, components = ("Gaussian", 1) if base is None else ("mixture", base.num_components)
        losses = () if result is None else result.losses
        candidate = Candidate(kind, components, correction is not None, factor, loss, losses)
        result = result or TrainingResult((loss,), 0)
        return Scored(denoiser, result, self._by_task(scores, factor), candidate)

    def _by_task(self, scores: _Scores, factor: float) -> Float[np.ndarray, " t"]:
        """Contribution of each task to the mean error of all draws, times the number of tasks."""
        values, number = np.asarray(scores.errors.shrunk(factor)), int(self.tasks.max()) + 1
        return np.bincount(self.tasks[scores.drawn], values, minlength=number) * (
            number / len(values)
        )


@jit_once
def _hide(loss: CorrectionLoss, drawn: BatchDraws, held_out: Rows) -> tuple[Pool, TrainingBatch]:
    return loss.batch(drawn, held_out)


@eqx.filter_jit
def _compute_scores(
    validation: _Validation, correction: Correction, held_out: Rows
) -> tuple[Errors, tuple[Array, ...] | None]:
    loss, pool, batch = validation
    errors = loss.errors(correction, pool, batch)
    return errors, None if loss.base else loss.spread(correction, pool, batch, held_out)


def _spread_table(spread: tuple[Array, ...], factor: float) -> Float[Array, " s"]:
    """Mean squared distances from the mean that `factor` times the correction gives, at each of
    `SPREAD_AT`, from those near it.
    """
    logs, gaps, moved = (np.asarray(a, np.float64).reshape(-1) for a in spread)
    values = (gaps - factor * moved) ** 2
    at = np.asarray(SPREAD_AT)
    near = np.maximum(1.0 - np.abs(logs[None] - at[:, None]) / (at[1] - at[0]), 0.0)
    return to_device((near @ values + 1e-3) / (np.sum(near, axis=1) + 1e-3))
