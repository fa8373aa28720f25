"""Which base a denoiser stands on, and whether a correction adds to it: by held-out loss."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..mixture import GaussianMixture
from .corrected import SPREAD_AT, CorrectedDenoiser
from .correction import Correction
from .correction_loss import CorrectionLoss, Errors, usual_pool
from .denoisers import AbstractDenoiser
from .descent import Fitted, Recipe, Rows, as_good, optimize
from .em import Choice, as_base, choose_components, fit_kind
from .random_evidence import random_rotations
from .report import Candidate
from .targets import LARGEST, NEAR_UP_TO

HELD_OUT_DRAWS = 8192
JUDGED_EVIDENCE = 512  # pieces of evidence that held-out samples are judged under
LARGE_BASE = 2**16  # numbers in the covariances of a base, K d^2, that make a step slow
LARGEST_BASE = 2**18  # and too slow to correct it
MOST_COMPONENTS, MOST_IN_THE_PLANE = 256, 64
NOISE = 0.5  # standard errors by which a richer denoiser must be better
WORTH = 1e-3  # share of the loss that it must take
LITTLE, MUCH = 0.10, 0.25  # shares of the loss that a mixture alone may take from one Gaussian
LITTLE_IN_ALL = 2.0  # of the loss itself; of many parameters a small share can be much
SMALL = 0.03  # share of a base's loss up to which a correction leaves two passes enough
WEIGHT_DECAY = 0.1  # where past tasks are soon learned by heart


class Chosen(NamedTuple):
    """The denoiser that is kept, how its training went, and all that were tried."""

    denoiser: AbstractDenoiser
    judged: AbstractDenoiser  # the same, as it is without what is held out
    fitted: Fitted
    candidates: tuple[Candidate, ...] = ()
    chosen: int = 0
    mixture_gain: float = 0.0  # nats a sample over one Gaussian, on samples held out in turn


class _Trained(NamedTuple):
    denoiser: CorrectedDenoiser
    fitted: Fitted
    errors: Float[np.ndarray, " m"]  # of each held-out task, mean over evidence
    candidate: Candidate

    def as_gaussian(self) -> "_Trained":
        """What was judged as a mixture of one Gaussian, as that."""
        denoiser = CorrectedDenoiser(None, None, None, self.denoiser.dim)
        candidate = dataclasses.replace(self.candidate, base="Gaussian", num_components=1)
        return self._replace(denoiser=denoiser, candidate=candidate)


class TrainingPlan(NamedTuple):
    """How a correction is trained."""

    recipe: Recipe
    width: int
    depth: int
    middle: tuple[float, float]  # log precisions that training dwells on


def training_plan(dim: int, num_components: int) -> TrainingPlan:
    """What serves `dim` parameters well, on a mixture of so many components or on one Gaussian.

    A mixture knows what weak evidence leaves open, so its correction dwells on stronger evidence;
    in the plane on evidence of any strength, for there histories long enough to need it are common.
    One Gaussian leaves most to a wide network; many components leave little, and each step goes
    through all of them.
    """
    mixed = num_components > 1
    middle = (-4.0, 6.0 if mixed else 3.0)
    if dim <= 3:
        middle = (-4.0, 9.0 if mixed else 6.0)
        return TrainingPlan(Recipe(1500, 512, 1.5e-2, True, 512, noise=1.0), 64, 4, middle)
    if dim <= 8:
        return TrainingPlan(Recipe(3500, 1024, 7e-3 if mixed else 2e-2, True, 1024), 128, 4, middle)
    large = mixed and num_components * dim**2 >= LARGE_BASE
    steps, others = (3000 if mixed else 8000, 2048) if dim <= 16 else (3000, 1024)
    decay = WEIGHT_DECAY if mixed or dim > 16 else 0.0
    rate, decay = (7e-3, 0.0) if mixed and dim > 32 else (2e-2, decay)
    recipe = Recipe(1500 if large else steps, 1024, rate, True, others, decay)
    width, depth = (192, 4) if dim <= 16 else (256, 4) if mixed else (384, 3)
    return TrainingPlan(recipe, width, depth, middle)


def fit_corrected(
    train: Rows,
    held_out: Rows,
    *,
    seed: int,
    progress: bool | None,
    initial: CorrectedDenoiser | None = None,
    num_steps: int | None = None,
    width: int | None = None,
    depth: int | None = None,
    groups: Int[np.ndarray, " n"] | None = None,
    fast: bool = False,
) -> Chosen:
    """Find a mixture, train a network on it and on one Gaussian, and keep what does best.

    The base alone stays when a network adds nothing to it: the mixture if the likelihood of samples
    held out in turn prefers one, and one Gaussian if not. Of denoisers that do about as well, by
    half a standard error of the held-out loss, the simplest is kept: few samples justify little.
    Where the mixture alone takes much of the Gaussian's loss, only the mixture is corrected (a
    large one not even then), where it takes little, only the Gaussian: the other has not been seen
    to win there. A mixture is judged and corrected as fitted to `train`; one that stays alone is
    that of all samples. `initial` is trained on from where it stands; `groups` number the tasks
    that the rows of `train`, then those of `held_out`, belong to. With `fast` a mixture is kept
    wherever there is one, so that draws need a few passes only.
    """
    dim = train.samples.shape[1]
    rotations = random_rotations(dim, seed)
    sizes = {"num_steps": num_steps, "width": width, "depth": depth}
    found = None if initial is not None else _mixture(train, held_out, groups, seed)
    bases = [None] if initial is None else [initial.base]
    bases += [] if found is None else [_seen_by(train, held_out, found, seed)]
    judged_under = min(JUDGED_EVIDENCE, *map(usual_pool, bases))
    tasks = np.arange(len(held_out.samples)) if groups is None else groups[len(train.samples) :]
    tasks = np.unique(tasks, return_inverse=True)[1]
    trainer = _Trainer(rotations, train, held_out, tasks, seed, progress, sizes, judged_under)
    alone = [trainer.alone(base, like=bases[-1]) for base in bases]
    start = None if initial is None else initial.correction
    worth = bases if start is not None else [base for base in bases if not _too_large(base)]
    if len(alone) == 2:
        worth = _worth_correcting(bases, alone[0].candidate.loss, alone[1].candidate.loss, fast)
    corrected = [trained for base in worth for trained in trainer.corrected(base, start)]
    tried = [*alone, *corrected]
    kept = _first_as_good([alone[-1], *corrected], fast)
    candidates = tuple(t.candidate for t in tried)
    judged = dataclasses.replace(kept.denoiser, mostly_base=kept.denoiser.mostly_base or fast)
    denoiser = judged
    if found is not None and judged.base is not None and judged.correction is None:
        denoiser = dataclasses.replace(judged, base=as_base(found.components))
    index = next(i for i, one in enumerate(tried) if one is kept)
    gain = 0.0 if found is None else found.score - found.gaussian_score
    return Chosen(denoiser, judged, kept.fitted, candidates, index, gain)


def _first_as_good(ordered: "list[_Trained]", fast: bool) -> "_Trained":
    """The first that does about as well as the best; if `fast`, of those on a mixture."""
    mixed = [t for t in ordered if t.denoiser.base is not None]
    ordered = mixed if fast and mixed else ordered
    best = min(ordered, key=lambda t: t.candidate.loss)
    return next(t for t in ordered if as_good(t.errors, best.errors, NOISE, WORTH))


def _mixture(train: Rows, held_out: Rows, groups: np.ndarray | None, seed: int) -> Choice | None:
    """The mixture that samples held out in turn prefer to one Gaussian, if there is one."""
    samples, weights = _both(train, held_out)
    largest = MOST_IN_THE_PLANE if samples.shape[1] <= 2 else MOST_COMPONENTS
    found = choose_components(samples, weights, seed=seed, largest=largest, groups=groups)
    return None if found.num_components == 1 else found


def _seen_by(train: Rows, held_out: Rows, found: Choice, seed: int) -> GaussianMixture:
    """The mixture as it would have come out without what is held out, which counts zero times: so
    the programs that chose it serve again."""
    samples, weights = _both(train, held_out)
    weights = np.ones(len(samples)) if weights is None else weights
    seen = np.where(np.arange(len(samples)) < len(train.samples), weights, 0.0)
    kind = (found.num_components, found.kind)
    return as_base(fit_kind(samples, seen, *kind, seed=seed))


def _worth_correcting(
    bases: list[GaussianMixture | None], gaussian: float, mixture: float, fast: bool
) -> list[GaussianMixture | None]:
    """Of a Gaussian and a mixture, by the loss of each alone."""
    taken = gaussian - mixture
    if _too_large(bases[1]):
        return [] if taken > MUCH * gaussian or fast else bases[:1]
    if taken > MUCH * gaussian or fast:
        return bases[1:]
    return bases[:1] if taken < min(LITTLE * gaussian, LITTLE_IN_ALL) else bases


def _too_large(base: GaussianMixture | None) -> bool:
    """Whether training would be slow: of many numbers, or the mean of two large mixtures, to which
    a network has not been seen to add."""
    if base is None:
        return False
    return base.vectors.size > LARGEST_BASE or base.num_components > MOST_COMPONENTS


def _both(train: Rows, held_out: Rows) -> tuple[np.ndarray, np.ndarray | None]:
    samples = np.concatenate([train.samples, held_out.samples])
    if train.weights is None or held_out.weights is None:
        return samples, None
    return samples, np.concatenate([train.weights, held_out.weights])


class _Trainer(NamedTuple):
    """Trains corrections of bases, and judges them all by the same held-out samples under the same
    evidence: losses under some evidence are many times those under other."""

    rotations: Any
    train: Rows
    held_out: Rows
    tasks: Int[np.ndarray, " m"]  # that the held-out rows belong to, numbered from 0
    seed: int
    progress: bool | None
    sizes: dict[str, int | None]
    judged_under: int  # pieces of evidence

    def alone(self, base: GaussianMixture | None, like: GaussianMixture | None) -> _Trained:
        """The base without a correction. One Gaussian is judged as a mixture `like` another, by the
        same program."""
        judged_as = like.standard_like() if base is None and like is not None else base
        correction = self._start(judged_as, self._plan(judged_as))
        (found,) = self._judged(judged_as, correction, 0.0, Fitted((), 0))
        return found if judged_as is base else found.as_gaussian()

    def corrected(self, base: GaussianMixture | None, start: Correction | None) -> list[_Trained]:
        """The base with a correction trained on it, as far as held-out samples justify it."""
        plan = self._plan(base)
        recipe = plan.recipe._replace(num_steps=self.sizes["num_steps"] or plan.recipe.num_steps)
        _, held_out_key, key = self._keys()
        loss = CorrectionLoss.of(base, self.rotations, recipe.num_others, key, middle=plan.middle)
        rows = self.train
        if loss.dim <= NEAR_UP_TO and recipe.num_others:
            rows = rows.first(LARGEST)
            loss = loss.between(rows)
        judge = self._judge(base)

        def judged(correction: Correction) -> Float[np.ndarray, " m"]:
            found = _errors(judge, correction, held_out_key, self.held_out, HELD_OUT_DRAWS)
            return self._by_task(found[0].shrunk(1.0), found[1])

        correction, fitted = optimize(
            start or self._start(base, plan),
            loss,
            rows,
            recipe,
            (key, held_out_key),
            self.progress,
            judged,
        )
        return self._judged(base, correction, None, fitted)

    def _plan(self, base: GaussianMixture | None) -> TrainingPlan:
        components = 1 if base is None else base.num_components
        return training_plan(self.train.samples.shape[1], components)

    def _start(self, base: GaussianMixture | None, plan: TrainingPlan) -> Correction:
        size = {name: self.sizes[name] or getattr(plan, name) for name in ("width", "depth")}
        components = 1 if base is None else base.num_components
        dim = self.train.samples.shape[1]
        return Correction.initialize(self._keys()[0], dim, components, **size)

    def _keys(self) -> Any:
        return jax.random.split(jax.random.key(self.seed), 3)

    def _judge(self, base: GaussianMixture | None) -> CorrectionLoss:
        others, key = self._plan(base).recipe.num_others, self._keys()[1]
        return CorrectionLoss.of(base, self.rotations, others, key, self.judged_under)

    def _judged(
        self,
        base: GaussianMixture | None,
        correction: Correction,
        factor: float | None,
        fitted: Fitted,
    ) -> list[_Trained]:
        """With `factor` of the correction, by default that of the least held-out loss."""
        judge, key = self._judge(base), self._keys()[1]
        errors, index, spread = _errors(judge, correction, key, self.held_out, HELD_OUT_DRAWS)
        factor = errors.best_factor() if factor is None else factor
        if fitted.losses and factor == 0.0:
            return []
        squares = np.asarray(errors.shrunk(factor), np.float64)
        kept = correction.shrunk(factor) if fitted.losses else None
        table = _spread_table(spread, factor) if base is None and kept else None
        alone = float(jnp.mean(errors.alone))
        little = bool(np.mean(squares) >= (1.0 - SMALL) * alone)
        denoiser = CorrectedDenoiser(base, kept, table, judge.dim, little)
        losses = fitted.losses if kept else (float(np.mean(squares)),)
        candidate = Candidate(
            "Gaussian" if base is None else "mixture",
            1 if base is None else base.num_components,
            kept is not None,
            factor,
            float(np.mean(squares)),
            fitted.losses,
        )
        by_task = self._by_task(squares, index)
        return [_Trained(denoiser, Fitted(losses, fitted.best), by_task, candidate)]

    def _by_task(self, values: Any, index: Any) -> Float[np.ndarray, " t"]:
        """What each task adds to the mean over all draws, times the number of tasks."""
        tasks, number = self.tasks[np.asarray(index)], int(self.tasks.max()) + 1
        values = np.asarray(values, np.float64)
        return np.bincount(tasks, values, minlength=number) * (number / len(values))


def _spread_table(spread: Any, factor: float) -> Float[Array, " s"]:
    """Mean squared distances from the mean that `factor` times the correction gives, at each of
    `SPREAD_AT`, from those near it."""
    logs, gaps, moved = (np.asarray(a, np.float64).reshape(-1) for a in spread)
    values = (gaps - factor * moved) ** 2
    at = np.asarray(SPREAD_AT)
    near = np.maximum(1.0 - np.abs(logs[None] - at[:, None]) / (at[1] - at[0]), 0.0)
    return jnp.asarray((near @ values + 1e-3) / (np.sum(near, axis=1) + 1e-3), jnp.float32)


@eqx.filter_jit
def _errors(
    judge: CorrectionLoss, correction: Correction, key: Any, held_out: Rows, size: int
) -> tuple[Errors, Any, Any]:
    drawn = judge.drawn(key, held_out, size)
    spread = None if judge.base else judge.spread(correction, key, held_out, size)
    return judge.errors(correction, key, held_out, size), drawn, spread
