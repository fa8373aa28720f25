"""One row for every likelihood, prior and sampler, and small random problems to try them on.

Contract tests run over all rows, so a new class is tested by adding its row here.
"""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

import diffprior as dp
import reference
from diffprior.denoisers.network import CorrectedDenoiser, Correction, NetworkDenoiser
from diffprior.mixture import GaussianMixture
from diffprior.priors.base import AbstractClosedFormPrior

Array = NDArray[np.float64]
DIM = 3
NOISE_STD = 0.7
DISPERSION = 2.5
LOG_STD = 0.7  # of positive rewards


def tolerance(double: float, single: float) -> float:
    """The tolerance of the precision that the tests run in."""
    return double if jax.config.read("jax_enable_x64") else single


def representable(values: Array) -> Array:
    """Values rounded to the working precision, so that the twin sees the numbers that we see."""
    return np.asarray(values, dtype=jnp.result_type(float)).astype(np.float64)


def random_cov(rng: np.random.Generator, dim: int, scale: float = 1.0) -> Array:
    """A well conditioned covariance with correlations."""
    root = rng.standard_normal((dim, dim))
    return representable(scale * (root @ root.T / dim + 0.5 * np.eye(dim)))


@dataclass(frozen=True)
class LikelihoodCase:
    """A likelihood, what the twin calls it, and how its rewards arise."""

    name: str
    make: Callable[[], dp.AbstractLikelihood]
    family: str
    dispersion: float
    draw: Callable[[np.random.Generator, Array], Array]


def _draw_gaussian(rng: np.random.Generator, eta: Array) -> Array:
    return eta + NOISE_STD * rng.standard_normal(len(eta))


def _draw_logistic(rng: np.random.Generator, eta: Array) -> Array:
    return (rng.random(len(eta)) < reference.family_mean(eta, "logistic")).astype(float)


def _draw_poisson(rng: np.random.Generator, eta: Array) -> Array:
    return rng.poisson(np.exp(np.minimum(eta, 3.0))).astype(float)


def _draw_negative_binomial(rng: np.random.Generator, eta: Array) -> Array:
    gammas = rng.gamma(DISPERSION, 1 / DISPERSION, len(eta))
    return rng.poisson(np.exp(np.minimum(eta, 3.0)) * gammas).astype(float)


def _draw_zero_inflated(rng: np.random.Generator, eta: Array) -> Array:
    amounts = 2.0 * np.exp(0.5 * np.minimum(eta, 3.0) + LOG_STD * rng.standard_normal(len(eta)))
    return amounts * _draw_logistic(rng, eta)


LINEAR = LikelihoodCase(
    "linear", lambda: dp.Linear(NOISE_STD), "gaussian", NOISE_STD**2, _draw_gaussian
)
IDENTITY = LikelihoodCase(
    "identity", lambda: dp.Identity(NOISE_STD), "gaussian", NOISE_STD**2, _draw_gaussian
)
LOGISTIC = LikelihoodCase("logistic", dp.Logistic, "logistic", 1.0, _draw_logistic)
POISSON = LikelihoodCase("poisson", dp.Poisson, "poisson", 1.0, _draw_poisson)
NEGATIVE_BINOMIAL = LikelihoodCase(
    "negative-binomial",
    lambda: dp.NegativeBinomial(DISPERSION),
    "negative-binomial",
    DISPERSION,
    _draw_negative_binomial,
)
ZERO_INFLATED = LikelihoodCase(
    "zero-inflated",
    lambda: dp.ZeroInflated(2.0, LOG_STD, 0.5),
    "zero-inflated",
    LOG_STD,
    _draw_zero_inflated,
)
GLMS = (IDENTITY, LOGISTIC, POISSON, NEGATIVE_BINOMIAL, ZERO_INFLATED)
LIKELIHOODS = (LINEAR, *GLMS)


def inner_product(theta: jax.Array, x: jax.Array) -> jax.Array:
    """The response of a generalized linear model."""
    return x @ theta


RESPONSES = tuple(
    dataclasses.replace(
        case,
        name=f"response-{case.name}",
        make=lambda case=case: dp.Response(inner_product, case.make(), name="inner product"),
    )
    for case in (LINEAR, LOGISTIC)
)


@dataclass(frozen=True)
class Problem:
    """A history and a Gaussian prior."""

    features: Array
    rewards: Array
    mean: Array
    cov: Array

    def gaussian(self) -> dp.Gaussian:
        """The prior as the package writes it."""
        return dp.Gaussian(jnp.asarray(self.mean), jnp.asarray(self.cov))

    def evidence(self, likelihood: dp.AbstractLikelihood) -> dp.AbstractEvidence:
        """The history as evidence."""
        return likelihood.observe(self.features, self.rewards)

    def for_twin(self) -> tuple[Array, Array, Array, Array]:
        """Arguments as the twin takes them."""
        return self.mean, self.cov, self.features, self.rewards


def problem(seed: int, dim: int, num_rows: int, case: LikelihoodCase = LINEAR) -> Problem:
    """A random problem whose linear predictors are of order one."""
    rng = np.random.default_rng(seed)
    features = representable(rng.standard_normal((num_rows, dim)) / np.sqrt(dim))
    rewards = representable(case.draw(rng, features @ rng.standard_normal(dim)))
    return Problem(features, rewards, representable(rng.standard_normal(dim)), random_cov(rng, dim))


@dataclass(frozen=True)
class PriorCase:
    """A closed-form prior, and its exact denoiser by the twin."""

    name: str
    make: Callable[[], AbstractClosedFormPrior]
    denoise: Callable[[Array, Array], tuple[Array, Array]]


_RNG = np.random.default_rng(7)
MEAN, COV = representable(_RNG.standard_normal(DIM)), random_cov(_RNG, DIM)
WEIGHTS = np.array([0.5, 0.25, 0.25])
MEANS = representable(2 * _RNG.standard_normal((3, DIM)))
COVS = np.stack([random_cov(_RNG, DIM, scale) for scale in (0.3, 1.0, 0.1)])
ATOMS = representable(_RNG.standard_normal((40, DIM)))
ATOM_WEIGHTS = representable(_RNG.random(40))

GAUSSIAN = PriorCase(
    "gaussian",
    lambda: dp.GaussianPrior(MEAN, COV),
    lambda precision, shift: reference.condition_gaussian(MEAN, COV, precision, shift),
)
MIXTURE = PriorCase(
    "mixture",
    lambda: dp.MixturePrior(WEIGHTS, MEANS, COVS),
    lambda precision, shift: reference.mixture_denoise(WEIGHTS, MEANS, COVS, precision, shift),
)
EMPIRICAL = PriorCase(
    "empirical",
    lambda: dp.EmpiricalPrior(ATOMS, ATOM_WEIGHTS),
    lambda precision, shift: reference.empirical_denoise(ATOMS, precision, shift, ATOM_WEIGHTS),
)
PRIORS = (GAUSSIAN, MIXTURE, EMPIRICAL)


def network_denoiser(
    dim: int, size: float = 0.3, *, width: int = 8, depth: int = 3, isotropic: bool = False
) -> NetworkDenoiser:
    """The denoiser of 0.2.0 with random weights of this size; with 0 that of a unit Gaussian."""
    rng, inputs = np.random.default_rng(dim), dim + (2 if isotropic else dim * (dim + 1))
    shapes = ((inputs, width), (width,), (depth - 1, width, width), (depth - 1, width))
    shapes = (*shapes, (width, dim), (dim,))
    draws = ((size * rng.standard_normal(shape)).astype(np.float32) for shape in shapes)
    weights = (jax.device_put(draw.astype(jnp.result_type(float))) for draw in draws)
    return NetworkDenoiser(*weights, isotropic)


@functools.cache
def diffusion() -> dp.DiffusionPrior:
    """The Gaussian as a diffusion model with its exact denoiser."""
    return dp.DiffusionPrior.from_prior(GAUSSIAN.make())


def mixture_based(weights: Array, means: Array, covs: Array) -> dp.DiffusionPrior:
    """A mixture as the base of a learned prior, with nothing to correct."""
    closed = dp.DiffusionPrior.from_prior(dp.MixturePrior(weights, means, covs))
    inverse = np.linalg.inv(np.asarray(closed.scale, np.float64))
    unit = (means - np.asarray(closed.offset, np.float64)) @ inverse.T
    variances, vectors = np.linalg.eigh(inverse @ covs @ inverse.T)
    parts = (np.log(weights), unit, vectors, variances)
    base = GaussianMixture(*(jnp.asarray(part, jnp.result_type(float)) for part in parts))
    return dataclasses.replace(closed, denoiser=CorrectedDenoiser(base, None, None, len(means[0])))


def corrected(prior: dp.DiffusionPrior, size: float = 0.3) -> dp.DiffusionPrior:
    """The same with a network of random weights, of one input for each component."""
    denoiser: Any = prior.denoiser
    dtype = jnp.result_type(float)
    net = Correction.initialize(
        np.random.default_rng(1), prior.dim, denoiser.base.num_components, width=16, depth=3
    )
    out = size * jax.random.normal(jax.random.key(2), net.weights_out.shape)
    net = eqx.tree_at(lambda n: n.weights_out, net, out)
    net = jax.tree.map(lambda leaf: leaf.astype(dtype), net)
    return dataclasses.replace(prior, denoiser=dataclasses.replace(denoiser, correction=net))


@functools.cache
def on_a_mixture() -> dp.DiffusionPrior:
    """The mixture as the base of a learned prior."""
    return mixture_based(WEIGHTS, MEANS, COVS)


@dataclass(frozen=True)
class SamplerCase:
    """A sampler with a prior of DIM parameters; `make` takes a temperature."""

    name: str
    make: Callable[..., dp.AbstractSampler]


SAMPLERS = (
    *(
        SamplerCase(f"exact-{case.name}", lambda case=case, **o: dp.Exact(case.make(), **o))
        for case in PRIORS
    ),
    SamplerCase("laplace-dps", lambda **o: dp.LaplaceDPS(diffusion(), steps=3, **o)),
    SamplerCase("few-passes", lambda **o: dp.FewPasses(on_a_mixture(), **o)),
    SamplerCase("evidence-dps", lambda **o: dp.EvidenceDPS(diffusion(), steps=3, **o)),
    SamplerCase(
        "twisted-smc",
        lambda **o: dp.TwistedSMC(diffusion(), num_particles=3, steps=3, **o),
    ),
    SamplerCase("dps", lambda **o: dp.DPS(diffusion(), steps=3, **o)),
    SamplerCase(
        "particle-filter",
        lambda **o: dp.ParticleFilter(diffusion(), num_particles=20, num_rounds=2, **o),
    ),
)


def case_name(case: LikelihoodCase | PriorCase | SamplerCase) -> str:
    """For `ids=` of a parametrized test."""
    return case.name


def unusable_evidence(dim: int) -> dp.AbstractEvidence:
    """Evidence that no rows give, of infinite precision, given which no draw is finite."""
    one = dp.Linear(1.0).observe(np.eye(dim), np.ones(dim))
    return eqx.tree_at(lambda e: e.precision, one, jnp.full_like(one.precision, jnp.inf))
