"""Fitting a diffusion model to the parameters of past tasks: Section 3, Appendix B."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from ..checks import choice, positive_int
from ..schedule import Schedule
from .base import checked_samples, checked_weights
from .choose_base import Chosen, fit_corrected
from .corrected import CorrectedDenoiser
from .denoisers import AbstractDenoiser
from .descent import Rows
from .report import FitReport, StageLoss
from .residuals import PRIOR_STAGES, RESIDUAL_STAGES, held_out_residual
from .screening import screen_samples
from .stagewise import StagewiseDenoiser
from .training import fit_stagewise
from .whitening import split, to_unit, whitening

FEWEST = 20  # samples to learn from


class Frame(NamedTuple):
    """Where a fit starts from: theta = offset + scale z, and weights; None to find them."""

    offset: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, "d d"]
    denoiser: AbstractDenoiser | None


class Options(NamedTuple):
    """Checked options of a fit."""

    preset: str
    fast: bool
    schedule: Schedule
    seed: int
    progress: bool | None
    num_steps: int | None
    width: int | None
    depth: int | None


class FittedModel(NamedTuple):
    """The parts of a diffusion model, in the precision that draws are made in."""

    offset: Float[Array, " d"]
    scale: Float[Array, "d d"]
    denoiser: AbstractDenoiser
    residual_log_snr: Float[Array, " r"]
    residual: Float[Array, " r"]
    schedule: Schedule
    report: FitReport


class _Part(NamedTuple):
    """Samples in unit coordinates and how many times each counts; once if None."""

    samples: Float[np.ndarray, "n d"]
    weights: Float[np.ndarray, " n"] | None


def fit_model(
    samples: Any, sample_weights: Any, groups: Any, initial: Frame | None, options: Options
) -> FittedModel:
    """Screen, whiten, split, learn, and measure on what was held out."""
    array = checked_samples(samples, at_least=FEWEST)
    weights = None if sample_weights is None else checked_weights(sample_weights, len(array))
    numbers = None if groups is None else checked_groups(groups, len(array))
    begin = time.perf_counter()
    if weights is not None:
        array, weights, numbers = _counted(array, weights, numbers)
    notes = screen_samples(array)
    frame = _checked_frame(initial, array, weights, options)
    unit = to_unit(array, frame.offset, frame.scale)
    parts = split(len(unit), options.seed, numbers)
    train, held_out = (
        _Part(unit[rows], None if weights is None else weights[rows]) for rows in parts
    )
    groups = None if numbers is None else numbers[np.concatenate(parts)]
    learned = _learn(train, held_out, groups, frame.denoiser, options)
    grid = options.schedule if options.preset == "paper" else Schedule.log_snr(RESIDUAL_STAGES)
    log_snr = np.log(grid.snr[::-1])
    residual = np.asarray(held_out_residual(learned.judged, grid, *held_out, options.seed))
    report = FitReport(
        len(array),
        len(held_out.samples),
        time.perf_counter() - begin,
        learned.fitted.losses,
        learned.fitted.best,
        _stage_losses(log_snr, residual),
        notes,
        learned.candidates,
        learned.chosen,
        learned.mixture_gain,
    )
    dtype = jnp.result_type(float)
    return FittedModel(
        jnp.asarray(frame.offset, dtype),
        jnp.asarray(frame.scale, dtype),
        jax.tree.map(lambda leaf: leaf.astype(dtype), learned.denoiser),
        jnp.asarray(log_snr, dtype),
        jnp.asarray(residual, dtype),
        options.schedule,
        report,
    )


def _counted(
    samples: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"],
    groups: Int[np.ndarray, " n"] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Rows that count, if there are enough of them."""
    counted = weights > 0
    if np.sum(counted) < FEWEST:
        raise ValueError(
            f"`sample_weights`: expected at least {FEWEST} that are positive, got "
            f"{np.sum(counted)}; give weight to more rows, or use a GaussianPrior"
        )
    if groups is None:
        return samples[counted], weights[counted], None
    groups = np.unique(groups[counted], return_inverse=True)[1]
    if not np.any(groups):
        raise ValueError(
            "`groups`: expected at least two different labels among rows of positive weight, got "
            "one; without a second task nothing can be held out"
        )
    return samples[counted], weights[counted], groups


def checked_options(
    preset: str,
    schedule: Any,
    seed: Any,
    progress: bool | None,
    num_steps: Any,
    width: Any,
    depth: Any,
    fast: bool = False,
) -> Options:
    """Options that cannot be are refused before anything else is done."""
    choice("preset", preset, ("default", "paper"))
    if preset == "paper" and fast:
        raise ValueError(
            "`fast`: expected False with the paper's preset, which has no mixture, got True; "
            "leave it out"
        )
    if preset == "paper" and depth is not None:
        raise ValueError(
            f"`depth`: expected None with the paper's two layers, got {depth!r}; leave it out"
        )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed`: expected a whole number from 0 to 2^32 - 1, got {seed!r}; try 0")
    if depth == 1:
        raise ValueError("`depth`: expected at least 2 hidden layers, got 1; leave it out")
    sizes = {"num_steps": num_steps, "width": width, "depth": depth}
    checked = (None if v is None else positive_int(name, v) for name, v in sizes.items())
    schedule = checked_schedule(schedule, preset)
    return Options(preset, bool(fast), schedule, int(seed), progress, *checked)


def checked_schedule(schedule: Any, preset: str = "default") -> Schedule:
    """A schedule as it is, or by its name; by default the one that the preset wants."""
    usual = 100 if preset == "paper" else PRIOR_STAGES
    if schedule is None:
        schedule = "constant" if preset == "paper" else "log_snr"
    if isinstance(schedule, Schedule):
        return schedule
    named: dict[str, Callable[[int], Schedule]] = {
        "log_snr": Schedule.log_snr,
        "cosine": Schedule.cosine,
        "constant": Schedule.constant,
    }
    if not isinstance(schedule, str) or schedule not in named:
        raise ValueError(
            "`schedule`: expected a Schedule or one of 'log_snr', 'cosine', 'constant', got "
            f"{schedule!r}; pass a name, or Schedule.cosine(num_stages=...)"
        )
    return named[schedule](usual)


def checked_groups(groups: Any, num_samples: int) -> Int[np.ndarray, " n"]:
    """Labels of the tasks that rows belong to, as numbers from 0."""
    labels = np.asarray(groups)
    if labels.shape != (num_samples,):
        raise ValueError(
            f"`groups`: expected shape ({num_samples},), got {labels.shape}; "
            "pass one label for each row of samples"
        )
    numbers = np.unique(labels, return_inverse=True)[1]
    if not np.any(numbers):
        raise ValueError(
            "`groups`: expected at least two different labels, got one; without a second task "
            "nothing can be held out"
        )
    return numbers


def _checked_frame(
    initial: Frame | None,
    samples: Float[np.ndarray, "n d"],
    weights: Float[np.ndarray, " n"] | None,
    options: Options,
) -> Frame:
    """The given start, if it fits the samples and the options, or one made from the samples."""
    if initial is None:
        return Frame(*whitening(samples, weights), None)
    start, dim = initial.denoiser, samples.shape[1]
    fits: bool
    if options.preset == "paper":
        fits = isinstance(start, StagewiseDenoiser) and start.grid == options.schedule
    else:
        fits = isinstance(start, CorrectedDenoiser)
    if not fits or start is None or start.dim != dim:
        raise ValueError(
            f"`initial`: expected a prior of {dim} parameters learned with the same preset (and, "
            f"for the paper's, the same schedule), got {type(start).__name__} of "
            f"{len(initial.offset)} parameters; fit without it"
        )
    if options.width is not None or options.depth is not None:
        name = "width" if options.width is not None else "depth"
        raise ValueError(
            f"`{name}`: expected None with `initial`, got {getattr(options, name)}; "
            "the network keeps its size"
        )
    return initial


def _learn(
    train: _Part, held_out: _Part, groups: np.ndarray | None, start: Any, options: Options
) -> Chosen:
    start = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), start)
    shared: Any = {
        "seed": options.seed,
        "progress": options.progress,
        "initial": start,
        "num_steps": options.num_steps,
        "width": options.width,
    }
    if options.preset == "paper":
        shared |= {"train_weights": train.weights, "held_out_weights": held_out.weights}
        data = (train.samples, held_out.samples)
        denoiser, fitted = fit_stagewise(*data, grid=options.schedule, **shared)
        return Chosen(denoiser, denoiser, fitted)
    shared |= {"depth": options.depth, "groups": groups, "fast": options.fast}
    return fit_corrected(Rows.of(*train), Rows.of(*held_out), **shared)


def _stage_losses(log_snr: np.ndarray, residual: np.ndarray) -> tuple[StageLoss, ...]:
    snr = np.exp(log_snr)
    rows = zip(log_snr, residual, 1 / snr, np.ones_like(snr), 1 / (1 + snr), strict=True)
    return tuple(StageLoss(*(float(value) for value in row)) for row in rows)
