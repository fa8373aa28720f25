"""Fitting a diffusion model to the parameters of past tasks: Section 3, Appendix B."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..denoisers.base import RESIDUAL_STAGES, AbstractDenoiser, held_out_residual
from ..denoisers.network import CorrectedDenoiser, StagewiseDenoiser
from ..schedule import Schedule
from .config import FitConfig
from .report import FitReport, StageLoss, screen_samples
from .samples import (
    checked_groups,
    checked_samples,
    checked_weights,
    split_rows,
    to_device,
    whitened,
    whitening,
    with_hedge,
)
from .selection import Selected, select_denoiser
from .training import fit_stagewise

MIN_SAMPLES = 20
FARTHEST = 1e15  # standard deviations whose squares single precision holds under any evidence


class Start(NamedTuple):
    """The start of a fit: theta = offset + scale z, and a denoiser to train further."""

    offset: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, "d d"]
    denoiser: AbstractDenoiser | None


def fit_model(
    samples: ArrayLike,
    attributes: Float[np.ndarray, "n a"] | None,
    config: FitConfig,
    seed: int,
    progress: bool | None,
    sample_weights: ArrayLike | None,
    groups: ArrayLike | None,
    hedge: float,
    initial: Start | None,
) -> tuple[dict[str, object], FitReport]:
    """Screen, whiten, split, learn, and measure on what was held out: the fields of a
    `DiffusionPrior`, in the precision that draws are made in, and the report.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ValueError(f"`seed`: expected a whole number from 0 to 2^32 - 1, got {seed!r}; try 0")
    seed, schedule = int(seed), config.reverse_schedule()
    data = checked_data(samples, sample_weights, groups, hedge, seed, attributes)
    array, weights, tasks, attributes = data
    begin = time.perf_counter()
    found_warnings = screen_samples(array)
    if initial is None:
        start = Start(*whitening(array, weights), None)
    else:
        start = _checked_start(initial, array.shape[1], config, schedule, attributes)
    unit = whitened(array, start.offset, start.scale)
    if not np.max(np.abs(unit)) < FARTHEST:
        raise ValueError(
            f"`samples`: expected rows within {FARTHEST:.0e} standard deviations of the prior, got "
            f"{np.max(np.abs(unit)):.2g}; drop broken rows, or fit without `initial`"
        )
    train, held_out, tasks = split_rows(unit, weights, tasks, seed, attributes)
    denoiser = jax.tree.map(to_device, start.denoiser)
    how: dict[str, Any] = {"seed": seed, "progress": progress, "initial": denoiser}
    if config.stagewise:
        regressors, training = fit_stagewise(train, held_out, config, schedule, **how)
        selected = Selected(regressors, regressors, training)
    else:
        selected = select_denoiser(train, held_out, config, groups=tasks, **how)
    grid = schedule if config.stagewise else Schedule.log_snr(RESIDUAL_STAGES)
    log_snr = np.log(grid.snr[::-1])
    sizes = (config.residual_draws, seed)
    residual = held_out_residual(selected.validated, grid, *held_out, *sizes)
    report = FitReport(
        len(array),
        len(held_out.samples),
        time.perf_counter() - begin,
        selected.training.losses,
        selected.training.best,
        _stage_losses(log_snr, residual),
        found_warnings,
        selected.candidates,
        selected.chosen,
        selected.mixture_gain,
    )
    fields = {
        "offset": start.offset,
        "scale": start.scale,
        "denoiser": selected.denoiser,
        "residual_log_snr": log_snr,
        "residual": residual,
    }
    dtype = jnp.result_type(float)
    found = jax.tree.map(lambda leaf: to_device(leaf, dtype), fields)
    return found | {"schedule": schedule}, report


def checked_data(
    samples: ArrayLike,
    sample_weights: ArrayLike | None,
    groups: ArrayLike | None,
    hedge: float,
    seed: int,
    attributes: Float[np.ndarray, "n a"] | None,
) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None, np.ndarray | None]:
    """Samples of positive weight, how often each counts, the tasks that they belong to, and their
    attributes; those of a hedge are of samples at random.
    """
    array = checked_samples(samples, at_least=MIN_SAMPLES)
    if hedge:
        if sample_weights is not None or groups is not None:
            raise ValueError(
                "`hedge`: expected samples without weights and groups, got some; leave one of them "
                "out"
            )
        count, array = len(array), with_hedge(array, hedge, seed)
        if attributes is not None:
            some = np.random.default_rng([seed, 2]).integers(0, count, len(array) - count)
            attributes = np.concatenate([attributes, attributes[some]])
    weights = None if sample_weights is None else checked_weights(sample_weights, len(array))
    counted = np.ones(len(array), bool) if weights is None else weights > 0
    if np.sum(counted) < MIN_SAMPLES:
        raise ValueError(
            f"`sample_weights`: expected at least {MIN_SAMPLES} that are positive, got "
            f"{np.sum(counted)}; give weight to more rows, or use a GaussianPrior"
        )
    tasks = None if groups is None else checked_groups(groups, counted)
    rest = (None if each is None else each[counted] for each in (weights, attributes))
    weights, attributes = rest
    return array[counted], weights, tasks, attributes


def _checked_start(
    initial: Start,
    dim: int,
    config: FitConfig,
    schedule: Schedule,
    attributes: Float[np.ndarray, "n a"] | None,
) -> Start:
    """The given start, if it fits the samples, their attributes and the settings."""
    start = initial.denoiser
    if config.stagewise:
        fits = isinstance(start, StagewiseDenoiser) and start.grid == schedule
    else:
        fits = isinstance(start, CorrectedDenoiser)
        weights = getattr(getattr(start, "correction", None), "weights_attributes", None)
        known = 0 if attributes is None else attributes.shape[1]
        fits = fits and (weights is None or 0 < len(weights) == known)
    if not fits or start is None or start.dim != dim:
        raise ValueError(
            f"`initial`: expected a prior of {dim} parameters learned with the same preset (for "
            f"the paper's, the same schedule) and the same attributes, got {type(start).__name__} "
            f"of {len(initial.offset)} parameters; fit without it"
        )
    if config.width is not None or config.depth is not None:
        name = "width" if config.width is not None else "depth"
        raise ValueError(
            f"`{name}`: expected None with `initial`, got {getattr(config, name)}; "
            "the network keeps its size"
        )
    return initial


def _stage_losses(log_snr: np.ndarray, residual: np.ndarray) -> tuple[StageLoss, ...]:
    snr = np.exp(log_snr)
    rows = zip(log_snr, residual, 1 / snr, np.ones_like(snr), 1 / (1 + snr), strict=True)
    return tuple(StageLoss(*(float(value) for value in row)) for row in rows)
