"""A diffusion model distilled from a closed form, and rounds of EM that improve it."""

import functools
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, UInt64

from ..denoisers.network import CorrectedDenoiser
from ..evaluate.tasks import draw_tasks
from ..evidence.base import AbstractLikelihood
from ..executors import InProcess
from ..files.cache import array_digest
from ..fitting.attributes import Regression
from ..fitting.config import FitConfig, LearningConfig
from ..fitting.report import FitWarning
from ..fitting.samples import with_hedge
from ..logs.logs import Logs
from ..logs.shards import Shard
from ..logs.statistics import Selection, uniforms
from ..mixture import GaussianMixture
from ..priors.conditional import ConditionalPrior
from ..priors.diffusion import (
    EXACT_DRAWS,
    DiffusionPrior,
    exact_model,
    fit_residuals,
)
from ..samplers.base import AbstractSampler
from ..samplers.twisted_smc import TwistedSMC
from .scoring import Family
from .source import Passes

FOLD_SALT = 3
BATCH_TASKS = 256
FIRST_STEPS = 4  # times the steps of a round, for a network that takes attributes
HERE = Passes(InProcess())
DEFAULTS = LearningConfig()


def learning_tasks(num_tasks: int, round_: int, config: LearningConfig = DEFAULTS) -> Selection:
    """Select the tasks of a round: those that neither the report nor the score uses.

    If there are very many, each round takes a fresh share of them.
    """
    share = min(1.0, config.round_tasks / num_tasks)
    return Selection(config.report_share, config.num_folds, FOLD_SALT, share, 50 + round_)


def distill(components: GaussianMixture) -> DiffusionPrior:
    """Turn a closed form into a diffusion model.

    The components are the base of its denoiser, so that nothing is lost; a network has something to
    learn only in rounds of EM.
    """
    offset, cov = components.moments()
    scale = np.linalg.cholesky(cov)
    inverse, dtype = np.linalg.inv(scale), jnp.result_type(float)
    means, covs = (components.means - offset) @ inverse.T, inverse @ components.covs @ inverse.T
    weights = np.asarray(components.weights)
    base = GaussianMixture.from_covs(weights, np.asarray(means), covs, min_variance=1e-6)
    base = base.on_device(jnp.float32)
    denoiser = CorrectedDenoiser(base, None, None, components.dim)
    denoiser = jax.tree.map(lambda leaf: leaf.astype(dtype), denoiser)
    draws = (components.draw(np.random.default_rng(0), EXACT_DRAWS) - offset) @ inverse.T
    arrays = [jnp.asarray(array, dtype) for array in (offset, scale, draws)]
    return exact_model(arrays[0], arrays[1], denoiser, arrays[2])


def em_round(
    prior: DiffusionPrior,
    pieces: Sequence[Logs | Shard],
    likelihood: AbstractLikelihood,
    round_: int,
    seed: int = 0,
    passes: Passes = HERE,
    config: LearningConfig = DEFAULTS,
    regression: Regression | None = None,
    shape_hedge: float | None = None,
) -> DiffusionPrior:
    """Run one round of expectation maximization of a diffusion model.

    The sampler of the E-step must be exact: one whose posterior is too narrow, such as `DPS`,
    makes the prior collapse. Draws of one task are on one side of the split that stops training.
    With a `regression` on attributes, the model is of its residuals; with a `shape_hedge`, its
    network takes attributes too, if held-out draws justify that, and learns this hedge again.
    """
    sampler = TwistedSMC(prior, num_particles=16)
    drawn = e_step(sampler, pieces, likelihood, round_, passes, config.round_draws, regression)
    first = shape_hedge is not None and not prior.denoiser.takes_attributes
    steps, own_seed = config.round_steps * (FIRST_STEPS if first else 1), seed + 1 + round_
    points, known = drawn.points, None
    groups = np.unique(drawn.hashes, return_inverse=True)[1]
    if shape_hedge is not None and regression is not None:
        points = with_hedge(points, shape_hedge, own_seed)
        count = len(points) - len(groups)
        known = regression.standardized(_attributes(pieces, drawn.hashes))
        some = np.random.default_rng(own_seed).integers(0, len(groups), count)
        known = np.concatenate([known, known[some]])
        groups = np.concatenate([groups, groups.max() + 1 + np.arange(count)])
    train = functools.partial(
        fit_residuals, points, known, config=FitConfig(num_steps=steps), seed=own_seed,
        groups=groups, initial=prior,
    )  # fmt: skip
    settings: dict[str, object] = {"round": round_, "steps": steps, "seed": own_seed}
    settings["points"] = array_digest(drawn.points)
    with warnings.catch_warnings():  # of samples, which are our draws
        warnings.simplefilter("ignore", FitWarning)
        return passes.checkpoint("round of EM", settings, train, prior)


def _attributes(
    pieces: Sequence[Logs | Shard], hashes: UInt64[np.ndarray, " n"]
) -> Float[np.ndarray, "n a"]:
    """Attributes of the tasks of these hashes."""
    parts = [(p.hashes, p.attributes) for p in pieces if isinstance(p, Logs)]
    every, attributes = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(every)
    return attributes[order[np.searchsorted(every, hashes, sorter=order)]]


def e_step(
    sampler: AbstractSampler,
    pieces: Sequence[Logs | Shard],
    likelihood: AbstractLikelihood,
    round_: int,
    passes: Passes,
    min_draws: int,
    regression: Regression | None = None,
) -> "Draws":
    """Fresh posterior draws, one per task, or several if tasks are few, wherever `passes` are."""
    draw = functools.partial(draw_piece, sampler, likelihood, round_, regression)
    drawn = passes.total(Draws, functools.partial(draw, range(1)), pieces)
    copies = -(-min_draws // max(len(drawn.hashes), 1))
    if copies > 1:
        more = passes.total(Draws, functools.partial(draw, range(1, copies)), pieces)
        drawn = Draws.total([drawn, more])
    order = np.argsort(drawn.hashes, kind="stable")  # which does not depend on the shards
    return Draws(drawn.points[order], drawn.hashes[order])


@dataclass(frozen=True, eq=False)
class Draws:
    """Posterior draws, without failed ones, and the hash of the task of each."""

    points: Float[np.ndarray, "n d"]
    hashes: UInt64[np.ndarray, " n"]

    @staticmethod
    def total(parts: Iterable["Draws"]) -> "Draws":
        """Concatenate draws."""
        columns = zip(*((part.points, part.hashes) for part in parts), strict=True)
        return Draws(*map(np.concatenate, columns))


def draw_piece(
    sampler: AbstractSampler,
    likelihood: AbstractLikelihood,
    round_: int,
    regression: Regression | None,
    copies: range,
    piece: Logs | Shard,
) -> Draws:
    """Draw from the posterior of each task of a piece, once for each number of `copies`."""
    logs = piece if isinstance(piece, Logs) else piece.read()
    conditions = None
    prior = Family("", sampler.prior, regression=regression).prior
    if isinstance(prior, ConditionalPrior) and logs.attributes is not None:
        conditions = prior.conditions(logs.attributes)
    about = (sampler, logs, likelihood, round_)
    every = [posterior_draws(*about, copy, conditions) for copy in copies]
    points, hashes = np.concatenate(every), np.tile(logs.hashes, len(copies))
    finite = np.isfinite(points).all(axis=1)
    return Draws(points[finite], hashes[finite])


def posterior_draws(
    sampler: AbstractSampler,
    logs: Logs,
    likelihood: AbstractLikelihood,
    round_: int,
    copy: int = 0,
    conditions: Float[np.ndarray, "n c"] | None = None,
) -> Float[np.ndarray, "n d"]:
    """Draw once from the posterior of each task, less its offset; NaN where that failed.

    Conditions are as of `evidence_batches`. A task's label, the round and the copy determine its
    draw, so that shards may be drawn anywhere.
    """
    seeds = (uniforms(logs.hashes, 1, 6, round_, copy) * 2**31).astype(np.uint32)
    keys = jax.vmap(jax.vmap(jax.random.key))(jnp.asarray(seeds))
    return draw_tasks(sampler, logs, likelihood, keys, conditions, BATCH_TASKS).values[:, 0]
