"""The six synthetic problems against rejection samplers written from their definitions."""

import functools
import itertools
from collections.abc import Callable

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import special

from diffprior.evidence.families import Logistic
from diffprior.evidence.linear import Linear
from diffprior.priors.mixture import MixturePrior
from diffprior.problems.synthetic import SYNTHETIC, synthetic, uniform_in_ball
from statistic import assert_distribution, assert_mean, assert_moments

Array = NDArray[np.float64]
NUM_SAMPLES = 100_000
ABS = np.abs


def in_rays(x: Array, y: Array) -> Array:
    norm = np.hypot(x, y)
    cosine = np.max([x, y, -x, -y], axis=0) / norm
    return (norm < 3) & (cosine > 0.95)


def in_triangles(x: Array, y: Array) -> Array:
    return ((x > 0) & (ABS(y) < ABS(x))) | ((x < 0) & (ABS(y) < ABS(x) / 3))


def in_h(x: Array, y: Array) -> Array:
    return (ABS(x) > 2.5) | (ABS(y) < 0.25)


def in_corners(x: Array, y: Array) -> Array:
    return ((ABS(x) > 2.5) & (ABS(y) > 1)) | ((ABS(y) > 2.5) & (ABS(x) > 1))


REGIONS = {"rays": in_rays, "triangles": in_triangles, "H": in_h, "corners": in_corners}


def rejected(region: Callable[[Array, Array], Array], rng: np.random.Generator) -> Array:
    """Uniform on the box [-3, 3]^2, kept when in the region."""
    points = rng.uniform(-3, 3, (20 * NUM_SAMPLES, 2))
    return points[region(*points.T)][:NUM_SAMPLES]


def cross(rng: np.random.Generator) -> Array:
    rho = np.where(rng.random(NUM_SAMPLES) < 0.5, 0.99, -0.9)
    x, z = rng.standard_normal((2, NUM_SAMPLES))
    return np.stack([x, rho * x + np.sqrt(1 - rho**2) * z], axis=1)


def swirl(rng: np.random.Generator) -> Array:
    u, v = rng.random((2, NUM_SAMPLES))
    direction = np.stack([np.sin(2 * np.pi * u), np.cos(2 * np.pi * u)])
    return (direction * (3.5 * u - u * (v - 0.5))).T + np.array([1.0, -1.0])


def oracle(name: str) -> Array:
    rng = np.random.default_rng(11)
    others = {"cross": cross, "swirl": swirl}
    return others[name](rng) if name in others else rejected(REGIONS[name], rng)


@functools.cache
def draws(name: str) -> Array:
    samples = synthetic(name).sample_parameters(jax.random.key(3), NUM_SAMPLES)
    return np.asarray(samples, dtype=np.float64)


@pytest.mark.parametrize("name", SYNTHETIC)
def test_distribution_is_that_of_the_definition(name: str) -> None:
    """By a histogram and by moments up to the fourth."""
    ours, theirs = draws(name), oracle(name)
    edges = [np.linspace(-4, 4, 33), np.linspace(-5, 4, 37)]
    a, b = (np.histogram2d(*points.T, bins=edges)[0] for points in (ours, theirs))
    filled = a + b > 0
    chi_square = np.sum((a - b)[filled] ** 2 / (a + b)[filled])
    p_value = special.gammaincc((np.sum(filled) - 1) / 2, chi_square / 2)
    assert p_value > 1e-6, f"chi-square {chi_square:.0f} in {np.sum(filled)} bins"
    powers = [(i, j) for i, j in itertools.product(range(5), range(5)) if 0 < i + j <= 4]
    moments = [
        np.stack([x**i * y**j for i, j in powers], axis=1)
        for x, y in ((ours[:, 0], ours[:, 1]), (theirs[:, 0], theirs[:, 1]))
    ]
    assert_mean(moments[0] - moments[1], np.zeros(len(powers)))


@pytest.mark.parametrize("name", REGIONS)
def test_no_sample_leaves_the_region(name: str) -> None:
    x, y = draws(name).T
    assert np.all(REGIONS[name](x, y) & (ABS(x) <= 3) & (ABS(y) <= 3))


def test_swirl_stays_in_its_band() -> None:
    x, y = (draws("swirl") - np.array([1.0, -1.0])).T
    u = np.mod(np.arctan2(x, y) / (2 * np.pi), 1.0)
    ratio = np.hypot(x, y)[u > 1e-3] / u[u > 1e-3]
    assert np.all((ratio >= 3 - 1e-9) & (ratio <= 4 + 1e-9))


def test_cross_exposes_its_prior() -> None:
    prior = synthetic("cross").true_prior
    assert isinstance(prior, MixturePrior)
    points = draws("cross")
    assert_moments(
        points, *(np.asarray(part) for part in (prior.moments().mean, prior.moments().cov))
    )
    products = np.prod(points, axis=1)
    from_prior = np.prod(np.asarray(prior.sample(jax.random.key(4), NUM_SAMPLES)), axis=1)
    assert_mean(products**2 - from_prior**2, 0.0)
    assert synthetic("H").true_prior is None


@pytest.mark.parametrize("dim", [2, 3])
def test_actions_are_uniform_in_the_unit_ball(dim: int) -> None:
    points = np.asarray(uniform_in_ball(jax.random.key(0), NUM_SAMPLES, dim), dtype=np.float64)
    radius = np.linalg.norm(points, axis=1)
    assert_distribution(radius**dim)
    direction = points / radius[:, None]
    assert_moments(direction, np.zeros(dim), np.eye(dim) / dim)


def test_setting_is_that_of_the_paper() -> None:
    problem = synthetic("cross")
    assert (problem.dim, problem.num_actions, problem.fresh_actions) == (2, 100, False)
    assert isinstance(problem.likelihood, Linear) and problem.likelihood.noise_std == 1.0
    assert problem.features(jax.random.key(0)).shape == (100, 2)
    assert isinstance(synthetic("swirl", Logistic()).likelihood, Logistic)


def test_unknown_name_raises() -> None:
    with pytest.raises(ValueError, match="`name`: expected one of 'cross'.*got 'circle'"):
        synthetic("circle")
