"""Priors given attributes where the truth is known: theta = B z + r.

`python -m benchmarks.attributes corners H clusters-2 clusters-5 blocks-10 --past-tasks 200 2000`

B and z are standard normal, with four attributes, and the residuals r are of a distribution of
`benchmarks.judging` (clusters also in odd dimensions). Two questions, for each number of past
tasks:

- From parameters: earth mover's distance of posterior draws given attributes from exact ones, over
  that of exact draws from each other (floors); how far coefficients are from B, in standard
  deviations of r.
- From logs of 20 rows with noise 1: log evidence of other tasks given attributes, over what is
  learned without them, and over the true prior where it is a mixture; and what 20 attributes of
  pure noise cost.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

import diffprior as dp

from .distributions import (
    AbstractDistribution,
    MixtureDistribution,
    clusters,
    distribution,
    unit_ball,
)
from .harness import as_numbers, write_json
from .judging import Scorer, Size, draws_of

NUM_ATTRIBUTES, NUM_NOISE = 4, 20
NUM_ROWS, NUM_OTHERS = 20, 2000  # rows of a task, tasks that scores are of
OBSERVATIONS = (0, 4, 20)
SIZE = Size(num_tasks=20, num_draws=300, num_distances=20)


@dataclass(frozen=True)
class Distances:
    """Draws given attributes, over floors, by number of observations; the error of B."""

    source: str
    num_tasks: int
    seed: int
    known: tuple[float, ...]  # of the residuals' prior with the true B
    learned: tuple[float, ...]
    coefficient_error: float


@dataclass(frozen=True)
class Gains:
    """Nats per task, with paired standard errors."""

    source: str
    num_tasks: int
    seed: int
    chosen: str
    attributes: tuple[float, float]
    truth: tuple[float, float] | None  # the true prior, over what is learned
    noise: tuple[float, float]


class World:
    """Tasks whose parameters are B z + r."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.seed, self.source = name, seed, source_of(name)
        self.coefficients = np.random.default_rng([seed, 31]).standard_normal(
            (NUM_ATTRIBUTES, self.source.dim)
        )

    def tasks(self, count: int, part: int) -> tuple[np.ndarray, np.ndarray]:
        """Attributes and parameters of `count` tasks, different for every part."""
        rng = np.random.default_rng([self.seed, part, 32])
        z = rng.standard_normal((count, NUM_ATTRIBUTES))
        return z, z @ self.coefficients + self.source.sample(1000 * self.seed + part, count)

    def logs(self, count: int, part: int, *, useful: bool = True) -> dp.Logs:
        """Rows of tasks, with attributes that are those of the parameters or pure noise."""
        z, thetas = self.tasks(count, part)
        rng = np.random.default_rng([self.seed, part, 33])
        x = unit_ball(rng, (count, NUM_ROWS), self.source.dim)
        y = np.einsum("tnd,td->tn", x, thetas) + rng.standard_normal((count, NUM_ROWS))
        tasks = np.repeat(np.arange(count), NUM_ROWS)
        noise = rng.standard_normal((count, NUM_NOISE))
        known = z if useful else noise
        return dp.Logs(tasks, x.reshape(-1, self.source.dim), y.ravel(), attributes=known)


def source_of(name: str) -> AbstractDistribution:
    """The distribution of residuals."""
    kind, _, dim = name.partition("-")
    if kind == "clusters":
        return MixtureDistribution(clusters(int(dim)))
    return distribution(name)


def distances(world: World, num_tasks: int) -> Distances:
    """Of priors of known parameters."""
    z, thetas = world.tasks(num_tasks, 1)
    residuals = thetas - z @ world.coefficients
    fit = {"seed": world.seed, "progress": False}
    known = dp.DiffusionPrior.fit(residuals, **fit)
    found = dp.DiffusionPrior.fit(thetas, attributes=z, **fit)
    assert isinstance(found, dp.ConditionalPrior)
    new = np.random.default_rng([world.seed, 34]).standard_normal((SIZE.num_tasks, NUM_ATTRIBUTES))
    off = found.offsets(new) - new @ world.coefficients
    parts = []
    for count in OBSERVATIONS:
        scorer = Scorer(world.source, count, world.seed, size=SIZE)
        parts.append((floors(scorer, known, 0 * off), floors(scorer, found.residual, off)))
    errors = np.asarray(found.coefficients) - world.coefficients
    relative = errors / residuals.std(axis=0)
    names = (world.name, num_tasks, world.seed)
    own, learned = zip(*parts, strict=True)
    return Distances(*names, own, learned, float(np.sqrt(np.mean(relative**2))))


def floors(scorer: Scorer, prior: dp.AbstractPrior, off: Float[np.ndarray, "b d"]) -> float:
    """Distance of draws from exact ones where prior means are `off` by so much."""
    scale = jnp.eye(off.shape[1])

    def shift(evidence: dp.AbstractEvidence, offset: Array) -> dp.AbstractEvidence:
        return evidence.reparameterize(offset, scale)

    evidence = jax.vmap(shift)(scorer.tasks.evidence, jnp.asarray(off))
    key = jax.random.key(scorer.seed + 1)
    draws = draws_of(dp.best_sampler(prior), key, evidence, scorer.size.num_draws)
    return scorer.distance(draws + off[:, None], scorer.exact) / scorer.floor


def gains(world: World, num_tasks: int, num_others: int = NUM_OTHERS) -> Gains:
    """Of priors learned from logs."""
    others, noisy = (world.logs(num_others, 2, useful=useful) for useful in (True, False))
    models = [
        dp.learn(logs, dp.Linear(1.0), seed=world.seed, quick=True, progress=False)
        for logs in (
            world.logs(num_tasks, 1),
            without_attributes(world.logs(num_tasks, 1)),
            world.logs(num_tasks, 1, useful=False),
        )
    ]
    given, plain, noise = (
        dp.evaluate.log_evidence(model.prior, logs, dp.Linear(1.0))
        for model, logs in zip(models, (others, others, noisy), strict=True)
    )
    truth = None
    if isinstance(world.source, MixtureDistribution):
        zero = np.zeros(NUM_ATTRIBUTES)
        prior = dp.ConditionalPrior(world.source.prior, world.coefficients, zero)
        truth = _mean(dp.evaluate.log_evidence(prior, others, dp.Linear(1.0)) - given)
    report = models[0].report
    assert report is not None
    names = (world.name, num_tasks, world.seed, report.chosen)
    return Gains(*names, _mean(given - plain), truth, _mean(noise - plain))


def without_attributes(logs: dp.Logs) -> dp.Logs:
    """The rows alone."""
    return dp.Logs(logs.tasks, logs.features, logs.rewards)


def _mean(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


QUESTIONS: dict[str, Callable[[World, int], Distances | Gains]] = {
    "parameters": distances,
    "logs": gains,
}


def main() -> None:
    """Answer both questions; print rows as they come."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sources", nargs="+", help="distributions of residuals")
    parser.add_argument("--past-tasks", type=int, nargs="+", default=[200, 2000, 10_000])
    parser.add_argument("--from", dest="questions", nargs="+", choices=tuple(QUESTIONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for name in options.sources:
        for seed in options.seeds:
            world = World(name, seed)
            for count in options.past_tasks:
                for question in options.questions or QUESTIONS:
                    rows.append(QUESTIONS[question](world, count))
                    print(rows[-1], flush=True)
    write_json(options.json, as_numbers(rows))


if __name__ == "__main__":
    main()
