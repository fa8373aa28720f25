"""Posteriors of responses beyond generalized linear models, against exact ones.

`python -m benchmarks.response` draws tasks from the shapes H and corners, or from mixtures fitted
to them. Of two parameters, exact draws come from a grid; of four, from weighted draws of the prior.

Cells run side by side after `--section priors`, which learns what they share: a process for each of
`--section cosine-linear --only "corners, learned, TwistedSMC, N = 20,"` and so on (with the comma),
with `taskset -c CORE` and `--json FILE`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

import diffprior as dp
from diffprior.evaluate.distances import distance_over_floor
from diffprior.mixture import GaussianMixture
from diffprior.problems.base import AbstractProblem
from diffprior.problems.synthetic import uniform_in_ball

from .distributions import log_density
from .harness import NUM_SAMPLES, Bench, Measurement, command

NOISE_STD, CAPACITIES = 0.5, (8, 24, 100)
SHAPES, ROWS = ("corners", "H"), (1, 5, 20, 100)
EDGE, CELLS, ATOMS = 4.5, 512, 2**19  # of the grid, and draws of the prior in its place
DRAWS, RANKED = 300, 99  # with 99 draws, ranks 5 to 94 of 0 to 99 make intervals of 90 % exactly
FEWEST = 600  # effective atoms, with fewer of which the reference is too poor to score against
FAMILIES = {"linear": lambda: dp.Linear(NOISE_STD), "logistic": dp.Logistic}


def cosine(theta: Array, x: Array) -> Array:
    """Cos(3 x'theta)."""
    return jnp.cos(3.0 * x @ theta)


def emax(theta: Array, x: Array) -> Array:
    """A saturating dose response: largest effect, and logarithm of the dose of half of it."""
    dose = 0.1 + 2.5 * (1.0 + x[0])
    return theta[0] * dose / (dose + jnp.exp(theta[1]))


def power_law(theta: Array, x: Array) -> Array:
    """Demand at a price: logarithm of its level, and elasticity."""
    return jnp.exp(theta[0] / 3.0 - (1.0 + theta[1] / 3.0) * jnp.log(1.5 + x[0]))


def network(theta: Array, x: Array) -> Array:
    """A network of two layers and four weights."""
    return theta[2:] @ jnp.tanh(theta[:2] * x)


class World(NamedTuple):
    """True parameters, prior of the sampler, and atoms of the exact posterior."""

    truth: Callable[[Key[Array, ""], int], Float[Array, "n d"]]
    prior: Any
    atoms: Float[Array, "n d"]
    log_prior: Float[Array, " n"]
    width: float  # of the cell around each atom


def shapes(name: str, dim: int, key: Key[Array, ""], n: int) -> Float[Array, "n d"]:
    """Independent draws of a shape for each two parameters."""
    draw = dp.synthetic(name).sample_parameters
    return jnp.concatenate([draw(k, n) for k in jax.random.split(key, dim // 2)], axis=1)


def learned(bench: Bench, shape: str, dim: int) -> dp.DiffusionPrior:
    """A prior learned from draws of a shape, or from the cache."""
    samples = shapes(shape, dim, jax.random.key(100), NUM_SAMPLES)
    return bench.learned(f"{shape}, {dim}", np.asarray(samples, float))


def world(bench: Bench, shape: str, kind: str, dim: int) -> World:
    """A mixture that is known exactly, or the shape with a learned denoiser."""
    sample = functools.partial(shapes, shape, dim)
    samples = np.asarray(sample(jax.random.key(100), NUM_SAMPLES), float)
    known = kind == "exact"
    prior: Any = dp.MixturePrior.fit(samples, 16) if known else learned(bench, shape, dim)
    truth = prior.sample if known else sample
    if dim != 2:
        atoms = jnp.asarray(truth(jax.random.key(7), ATOMS), float)
        return World(truth, prior, atoms, jnp.zeros(ATOMS), 0.0)
    axis = (np.arange(CELLS) + 0.5) * (2 * EDGE / CELLS) - EDGE
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    if known:
        parts = (np.asarray(a, float) for a in (prior.weights, prior.means, prior.covs))
        log_prior = GaussianMixture.from_covs(*parts).log_density(grid)
    else:
        log_prior = log_density(shape, grid)
    atoms = jnp.asarray(grid, float)
    return World(truth, prior, atoms, jnp.asarray(log_prior, float), 2 * EDGE / CELLS)


def priors(bench: Bench) -> list[Measurement]:
    """Learned priors, for processes that share the folder."""
    for shape, dim in itertools.product(SHAPES, (2, 4)):
        if bench.wants(f"{shape}, {dim}"):
            learned(bench, shape, dim)
    return []


@eqx.filter_jit
def exact_draws(world: World, key: Array, evidence: dp.AbstractEvidence, n: int) -> Any:
    """Draws (n, d) of the posterior, and how many atoms they come from, effectively."""
    fit = jax.lax.map(evidence.log_likelihood, world.atoms, batch_size=2**14)
    weights = jax.nn.softmax(world.log_prior + fit)
    places = jax.random.choice(key, len(weights), (n,), p=weights)
    jitter = jax.random.uniform(key, (n, world.atoms.shape[1]), minval=-0.5, maxval=0.5)
    return world.atoms[places] + world.width * jitter, 1.0 / jnp.sum(weights**2)


@eqx.filter_jit
def drawn(sampler: dp.AbstractSampler, key: Array, evidence: dp.AbstractEvidence, n: int) -> Any:
    """Draws (n, d), and how they went."""
    return jax.vmap(lambda k: sampler.draw(k, evidence))(jax.random.split(key, n))


def score(world: World, sampler: Any, likelihood: dp.Response, rows: int, quick: bool) -> Any:
    """Coverage of 90 % intervals, distance over floor, and the diagnostic."""
    key, dim = jax.random.key(rows), world.atoms.shape[1]
    num_tasks, num_scored = (6, 2) if quick else (128, 16)
    thetas = np.asarray(world.truth(key, num_tasks), float)
    hits, sizes, parts = [], [], []
    capacity = next(size for size in CAPACITIES if size >= rows)
    for i, theta in enumerate(thetas):
        keys = jax.random.split(jax.random.key(1000 * rows + i), 6)
        x = jax.random.normal(keys[0], (rows, 2))
        x = x / jnp.linalg.norm(x, axis=1)[:, None] * jax.random.uniform(keys[1], (rows, 1)) ** 0.5
        eta = jax.vmap(likelihood.function.fn, (None, 0))(jnp.asarray(theta, float), x)
        rewards = likelihood.sample(keys[2], eta)
        evidence = likelihood.empty(dim, capacity).add(x, rewards, jnp.ones(rows))
        n = DRAWS if i < num_scored else RANKED
        draws, info = drawn(sampler, keys[3], evidence, n)
        draws = np.where(np.asarray(info.failed)[:, None], np.nan, draws)
        ranks = (draws[:RANKED] < theta).sum(axis=0)
        hits.append((ranks >= 5) & (ranks <= 94))
        sizes.append(float(np.median(info.effective_sample_size)) / sampler.num_proposals)
        if i < num_scored:
            (one, atoms), (other, _) = (exact_draws(world, k, evidence, n) for k in keys[4:])
            parts += [(draws, one, other)] * bool(atoms > FEWEST)
    found = {"coverage": float(np.mean(hits)), "ESS": float(np.mean(sizes))}
    if len(parts) > num_scored // 2:
        ratio = distance_over_floor(*(np.stack(column) for column in zip(*parts, strict=True)))
        found |= {"over floor": ratio.ratio, "se": ratio.standard_error}
    return found


def section(fn: Callable[[Array, Array], Array], dim: int, family: str) -> Any:
    """All cells of a response function and a family."""

    def cells(bench: Bench) -> list[Measurement]:
        likelihood, found = dp.Response(fn, FAMILIES[family](), dim=dim, num_features=2), []
        for shape, kind in itertools.product(SHAPES, ("exact", "learned")):
            samplers = {"TwistedSMC": functools.partial(dp.TwistedSMC, num_particles=64)}
            samplers |= {"Exact": dp.Exact} if kind == "exact" else {}
            cases = {
                f"{shape}, {kind}, {name}, N = {n}": (make, n)
                for (name, make), n in itertools.product(samplers.items(), ROWS)
            }
            wanted = {case: about for case, about in cases.items() if bench.wants(f"{case},")}
            own = world(bench, shape, kind, dim) if wanted else None
            for case, (make, n) in wanted.items():
                assert own is not None
                figures = score(own, make(own.prior), likelihood, n, bench.quick)
                found.append(Measurement(case, figures))
                print(fn.__name__, family, found[-1], flush=True)
        return found

    cells.__doc__ = f"{fn.__doc__} Rewards are {family}."
    return cells


class Waves(AbstractProblem):
    """Actions uniform in the unit disk, fixed per run, and parameters from the shape corners."""

    likelihood: dp.AbstractLikelihood
    dim: int = eqx.field(static=True)
    num_actions: int = 100
    fresh_actions: bool = False

    def sample_parameters(self, key: Array, num_samples: int) -> Float[Array, "n d"]:
        return shapes("corners", self.dim, key, num_samples)

    def features(self, key: Array) -> Float[Array, "k p"]:
        return uniform_in_ball(key, self.num_actions, 2)


def regret(bench: Bench) -> list[Measurement]:
    """Regret after 200 rounds among 100 actions: the response, a linear model of its features, and
    the exact posterior of a prior of many atoms.
    """
    rows, (num_runs, num_rounds) = [], (2, 10) if bench.quick else (16, 200)
    for fn, dim in ((cosine, 2), (network, 4)):
        problem = Waves(dp.Response(fn, dp.Linear(NOISE_STD), dim=dim, num_features=2), dim)
        samples = np.asarray(problem.sample_parameters(jax.random.key(100), NUM_SAMPLES), float)
        linear = dp.Exact(dp.GaussianPrior(np.zeros(2), np.eye(2)))
        agents = {
            "Response, mixture": dp.MixturePrior.fit(samples, 16),
            "Response, Gaussian": dp.GaussianPrior.fit(samples),
            "linear": dp.ThompsonSampling(linear, dp.Linear(NOISE_STD)),
            "exact": dp.EmpiricalPrior(samples),
        }
        found = dp.simulate(problem, agents, num_runs, num_rounds, throw=False)
        for name in agents:
            mean, error = found.mean(name)[-1], found.standard_error(name)[-1]
            quantities = {"regret": float(mean), "se": float(error)}
            rows.append(Measurement(f"{fn.__name__}, {name}", quantities))
    return rows


FUNCTIONS = ((cosine, 2), (emax, 2), (power_law, 2), (network, 4))
SECTIONS = {
    f"{fn.__name__}-{family}": section(fn, dim, family)
    for (fn, dim), family in itertools.product(FUNCTIONS, FAMILIES)
} | {"regret": regret, "priors": priors}

if __name__ == "__main__":
    command(SECTIONS)
