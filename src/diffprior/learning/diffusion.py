"""The last rung: a diffusion model distilled from the best closed form, and polished by EM."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, UInt64

from ..denoisers.base import RESIDUAL_STAGES, exact_residual
from ..denoisers.corrected import CorrectedDenoiser
from ..evaluate.tasks import as_tasks
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..executors import InProcess
from ..files.cache import array_digest
from ..fitting.config import PRIOR_STAGES, FitConfig
from ..fitting.samples import with_hedge
from ..logs.labels import Selection, folds, uniforms
from ..logs.logs import Logs
from ..mixture import GaussianMixture
from ..priors.diffusion import EXACT_DRAWS, DiffusionPrior, Metadata
from ..priors.from_tasks.components import Components
from ..priors.from_tasks.data import AnyLogs
from ..priors.from_tasks.fit import draws_from
from ..samplers.base import AbstractSampler
from ..samplers.dps import DPS
from ..samplers.laplace_dps import LaplaceDPS
from ..samplers.twisted_smc import TwistedSMC
from ..schedule import Schedule
from .families import Family, hedged
from .judge import Gain, gain, task_log_evidence
from .passes import Passes
from .source import AbstractSource, Piece, logs_of

MOST_COMPONENTS = 64  # of a closed form that is the base of the denoiser
NUM_DRAWS = 20_000  # of the closed form, to train on
JUDGED = 500  # tasks that decide, at most
MAX_ROUNDS = 8
LEAST_ROOM = 0.05  # nats a task to be gained at most, from which polishing is tried
ROUND_STEPS = 1000  # of the optimizer in one round, a quarter of a first fit's
LEAST_DRAWS = 4000  # to train on in a round; fewer tasks have several draws each
ROUND_TASKS = 200_000  # that a round draws from, about; a fresh share of them where they are more
REPORT_SHARE = 0.1  # of tasks, which are kept for the report
NUM_FOLDS, FOLD_SALT = 9, 3  # of the others; the first of them judges
AT_ONCE = 256
HERE = Passes(InProcess())


@dataclass(frozen=True)
class Rung:
    """The diffusion model, whether it beats the closed form, and a sentence about it."""

    family: Family
    pays: bool
    sentence: str


def diffusion_rung(
    basis: Family,
    rest: AnyLogs,
    source: AbstractSource,
    likelihood: AbstractLikelihood,
    seed: int,
    hedge: float,
    room: float,
    passes: Passes,
    advance: Callable[[str], None],
) -> Rung:
    """Distil the closed form into a network, polish it while that pays, and compare the two.

    `room` is what any prior could still gain, nats a task: where it is next to nothing, polishing
    is not tried. A ninth of the tasks judges. The closed form was fitted to them too, so that the
    comparison favors it: the diffusion model is chosen only where it is clearly better.
    """
    advance("diffusion")
    assert basis.components is not None
    prior = distil(basis.components, seed, hedge)
    if not isinstance(rest, Logs):
        told = "the diffusion model distilled from it was not polished or judged: there are no rows"
        return Rung(Family("diffusion", prior, None), False, told)
    family, exact = Family("diffusion", prior, None), len(basis.components) < MOST_COMPONENTS
    if room <= LEAST_ROOM and exact:
        told = f"no prior could gain more than {room:.3f} nats, so that it was not polished"
        return Rung(family, False, f"the diffusion model is that same prior: {told}")
    judged = _some(rest.select(folds(rest.hashes, NUM_FOLDS, FOLD_SALT) == 0))
    base = task_log_evidence(basis, judged, likelihood, seed)
    values, rounds = task_log_evidence(family, judged, likelihood, seed), 0
    while room > LEAST_ROOM and rounds < MAX_ROUNDS:
        advance("polish")
        pieces = source.pieces(learning_tasks(source.num_tasks, rounds))
        better = polish(family.prior, pieces, likelihood, rounds, seed, passes=passes)
        trial = Family("diffusion", better, None)
        new = task_log_evidence(trial, judged, likelihood, seed)
        step = gain(new - values)
        if step.mean <= step.error:
            break
        family, values, rounds = trial, new, rounds + 1
    return _told(family, gain(values - base), rounds)


def learning_tasks(num_tasks: int, round_: int) -> Selection:
    """Tasks that a round learns from: all but those of the report and those that judge, or a fresh
    share of them where they are very many."""
    share = min(1.0, ROUND_TASKS / num_tasks)
    return Selection(REPORT_SHARE, NUM_FOLDS, FOLD_SALT, share, 50 + round_)


def _told(family: Family, difference: Gain, rounds: int) -> Rung:
    figures = f"{difference.mean:+.3f} +- {difference.error:.3f} nats a task beside it"
    after = f", polished in {rounds} rounds of EM" if rounds else ""
    if difference.mean > difference.error:
        return Rung(family, True, f"chosen is the diffusion model{after}: {figures}")
    return Rung(family, False, f"the diffusion model distilled from it{after} has {figures}")


def distil(components: Components, seed: int, hedge: float = 0.0) -> DiffusionPrior:
    """A diffusion model of a closed form, with the hedge in it.

    Components that are few enough to be the base of its denoiser are that, so that nothing is lost;
    a network has something to learn only in rounds of EM. Of more, many draws are trained on.
    """
    if len(components) < MOST_COMPONENTS:
        return on_components(hedged(components, hedge))
    draws = with_hedge(draws_from(components, NUM_DRAWS, seed), hedge, seed)
    return DiffusionPrior.fit(draws, seed=seed, progress=False)


def on_components(components: Components) -> DiffusionPrior:
    """The diffusion model whose denoiser is that of the components, and which can learn on."""
    offset, cov = components.moments()
    scale = np.linalg.cholesky(cov)
    inverse, dtype = np.linalg.inv(scale), jnp.result_type(float)
    means, covs = (components.means - offset) @ inverse.T, inverse @ components.covs @ inverse.T
    base = GaussianMixture.from_covs(components.weights, means, covs, min_variance=1e-6)
    base = base.on_device(jnp.float32)
    denoiser = CorrectedDenoiser(base, None, None, components.dim)
    denoiser = jax.tree.map(lambda leaf: leaf.astype(dtype), denoiser)
    draws = (draws_from(components, EXACT_DRAWS, seed=0) - offset) @ inverse.T
    grid = Schedule.log_snr(RESIDUAL_STAGES)
    return DiffusionPrior(
        jnp.asarray(offset, dtype),
        jnp.asarray(scale, dtype),
        denoiser,
        jnp.asarray(np.log(grid.snr[::-1]), dtype),
        exact_residual(denoiser, grid, jnp.asarray(draws, dtype)),
        Schedule.log_snr(PRIOR_STAGES),
        Metadata(None),
    )


def polish(
    prior: Any,
    pieces: Sequence[Logs | Piece],
    likelihood: AbstractLikelihood,
    round_: int,
    seed: int = 0,
    sampler: AbstractSampler | None = None,
    passes: Passes = HERE,
) -> DiffusionPrior:
    """One round of expectation maximization of a diffusion model.

    Args:
        prior: the diffusion model so far; its coordinates and weights are kept.
        pieces: the tasks to learn from, shared out among the workers of `passes`.
        likelihood: how rewards arise.
        round_: number of the round, from 0; with a task's label it decides that task's draws.
        seed: of the training.
        sampler: for the E-step; `TwistedSMC` by default, which is exact in the limit.
        passes: where the E-step runs, and whether the round is kept.

    Returns:
        The model trained on a fresh draw given each task, or several where tasks are few; draws of
        one task are on one side of the split that stops the training.

    Raises:
        ValueError: a sampler whose posterior is too narrow.
    """
    chosen = check_exact(sampler or TwistedSMC(prior, num_particles=16))
    draw = functools.partial(draw_piece, chosen, likelihood, round_)
    drawn = passes.total(Draws, functools.partial(draw, range(1)), pieces)
    copies = -(-LEAST_DRAWS // max(len(drawn.hashes), 1))
    if copies > 1:
        more = passes.total(Draws, functools.partial(draw, range(1, copies)), pieces)
        drawn = Draws.total([drawn, more])
    drawn = drawn.by_task()
    groups = np.unique(drawn.hashes, return_inverse=True)[1]
    steps = {"steps": ROUND_STEPS, "seed": seed + 1 + round_}

    def train() -> DiffusionPrior:
        return DiffusionPrior.fit(
            drawn.points,
            groups=groups,
            initial=prior,
            config=FitConfig(num_steps=steps["steps"]),
            seed=steps["seed"],
            progress=False,
        )

    about = {"round": round_, "points": array_digest(drawn.points), **steps}
    return passes.keep("round of EM", about, train, prior)


@dataclass(frozen=True, eq=False)
class Draws:
    """Draws of parameters given tasks, and the hash of the task of each; none that failed."""

    points: Float[np.ndarray, "n d"]
    hashes: UInt64[np.ndarray, " n"]

    def by_task(self) -> "Draws":
        """In the order of hashes, which is the same from any shards."""
        order = np.argsort(self.hashes, kind="stable")
        return Draws(self.points[order], self.hashes[order])

    @staticmethod
    def total(parts: Iterable["Draws"]) -> "Draws":
        """All of them, one after the other."""
        every = list(parts)
        return Draws(
            np.concatenate([part.points for part in every]),
            np.concatenate([part.hashes for part in every]),
        )


def draw_piece(
    sampler: AbstractSampler,
    likelihood: AbstractLikelihood,
    round_: int,
    copies: range,
    piece: Logs | Piece,
) -> Draws:
    """Draws of these numbers given each task of a piece."""
    logs = logs_of(piece)
    every = [posterior_draws(sampler, logs, likelihood, round_, copy) for copy in copies]
    points, hashes = np.concatenate(every), np.tile(logs.hashes, len(copies))
    kept = np.isfinite(points).all(axis=1)
    return Draws(points[kept], hashes[kept])


def check_exact(sampler: AbstractSampler) -> AbstractSampler:
    """The sampler, if its posterior is exact enough for an E-step."""
    if isinstance(sampler, LaplaceDPS | DPS):
        raise ValueError(
            f"`sampler`: expected one whose posterior is exact, got {type(sampler).__name__}; its "
            "posterior has about half the variance, and EM amplifies a relative error of the "
            "variance by (1 - B) / B^2, where B is how much a task says: the prior collapses; use "
            "TwistedSMC or EvidenceDPS"
        )
    return sampler


def posterior_draws(
    sampler: AbstractSampler,
    logs: Logs,
    likelihood: AbstractLikelihood,
    round_: int,
    copy: int = 0,
) -> Float[np.ndarray, "n d"]:
    """One draw given each task, NaN where it failed; its label, the round and the copy decide it.

    A pure function of the tasks given, so that shards of them may be drawn anywhere.
    """
    tasks = as_tasks(logs, likelihood)
    seeds = (uniforms(logs.hashes, 1, 6, round_, copy)[:, 0] * 2**31).astype(np.uint32)
    draws = np.empty((logs.num_tasks, logs.dim))
    for which, evidence in tasks.batches(AT_ONCE):
        keys = jax.vmap(jax.random.key)(jnp.asarray(seeds[which]))
        values, failed = _draw(sampler, keys, evidence)
        draws[which] = np.where(np.asarray(failed)[:, None], np.nan, np.asarray(values))
    return draws


@eqx.filter_jit
def _draw(
    sampler: AbstractSampler, keys: Key[Array, " b"], evidence: AbstractEvidence
) -> tuple[Float[Array, "b d"], Array]:
    values, info = jax.vmap(sampler.draw)(keys, evidence)
    return values, info.failed


def _some(logs: Logs) -> Logs:
    if logs.num_tasks <= JUDGED:
        return logs
    return logs.select(np.sort(np.argsort(logs.hashes, kind="stable")[:JUDGED]))
