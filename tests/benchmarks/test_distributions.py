"""Distributions that samplers are scored on: densities and exact draws, against grids."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import distributions
from benchmarks.distributions import (
    SHAPES,
    MixtureDistribution,
    distribution,
    log_density,
)
from benchmarks.exact_draws import in_the_plane
from statistic import assert_mean

DRAWS = 2000


def grid(low: float, high: float, count: int) -> tuple[np.ndarray, float]:
    """Midpoints of the cells of a square, and the area of one."""
    width = (high - low) / count
    axis = low + width * (np.arange(count) + 0.5)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2), width**2


def grid_moments(points: np.ndarray, logs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean, and mean of squares."""
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return weights @ points, weights @ points**2


@pytest.mark.parametrize("name", SHAPES)
def test_log_density_matches_samples(name: str) -> None:
    """The total is one, and so are shares of a coarse histogram."""
    points, area = grid(-6.0, 6.0, 1200)
    masses = np.exp(np.asarray(log_density(name, jnp.asarray(points)))) * area
    assert masses.sum() == pytest.approx(1.0, abs=0.01)
    cells = np.floor((points + 6.0) / 1.5).astype(int) @ [8, 1]
    expected = np.bincount(cells, masses, minlength=64)
    samples = np.clip(distribution(name).sample(0, 100_000), -5.99, 5.99)
    found = np.bincount(np.floor((samples + 6.0) / 1.5).astype(int) @ [8, 1], minlength=64) / 1e5
    assert np.all(np.abs(found - expected) < 5 * np.sqrt(expected / 1e5) + 2e-3)


def test_draws_in_the_plane_have_the_moments_of_a_grid() -> None:
    name = "H"
    source = distribution(name)
    tasks = source.tasks(1000, 2, 0)
    draws = source.posterior(1, tasks, DRAWS)
    for draw, precision, shift in zip(
        draws, tasks.evidence.precision, tasks.evidence.shift, strict=True
    ):
        center, reach = draw.mean(axis=0), max(6 * draw.std(axis=0).max(), 0.1)
        points = center + grid(-reach, reach, 300)[0]
        logs = np.asarray(log_density(name, jnp.asarray(points))) + points @ np.asarray(shift)
        logs = logs - 0.5 * np.sum((points @ np.asarray(precision)) * points, axis=1)
        for values, expected in zip((draw, draw**2), grid_moments(points, logs), strict=True):
            error = values.std(axis=0) / np.sqrt(DRAWS)
            assert np.all(np.abs(values.mean(axis=0) - expected) < 5 * error + 1e-3 * reach)


def test_strong_evidence_leaves_many_points_to_choose_from() -> None:
    """Ten thousand observations of H: far more than are drawn, so that sets of draws are apart."""
    source = distribution("H")
    tasks = source.tasks(10_000, 1, 0)
    atoms = jnp.asarray(source.sample(3, distributions.NUM_ATOMS))
    evidence = (tasks.evidence.precision[0], tasks.evidence.shift[0])
    key = jax.random.key(0)
    size = in_the_plane(key, lambda x: log_density("H", x), atoms, *evidence, 10)[1]
    assert size > 20_000


def test_draws_on_a_sheet_have_the_moments_of_weighted_atoms() -> None:
    source = distribution("sheet-4")
    tasks = source.tasks(10, 1, 0)
    draws = source.posterior(1, tasks, 1000)
    atoms = source.sample(99, 100_000)
    for draw, precision, shift in zip(
        draws, tasks.evidence.precision, tasks.evidence.shift, strict=True
    ):
        logs = atoms @ np.asarray(shift)
        logs = logs - 0.5 * np.sum((atoms @ np.asarray(precision)) * atoms, axis=1)
        mean, square = grid_moments(atoms, logs)
        assert len(np.unique(draw[:, 0])) == 1000
        assert np.all(np.abs(draw.mean(axis=0) - mean) < 5 * draw.std(axis=0) / np.sqrt(1000))
        assert_mean(draw[:, 0] ** 2, square[0])


def test_draws_given_clicks_have_the_moments_of_a_grid() -> None:
    source = distribution("clusters-2", "logistic")
    assert isinstance(source, MixtureDistribution)
    tasks = source.tasks(5, 1, 0, "logistic")
    (draw,) = source.posterior(1, tasks, DRAWS)
    points = grid(-7.0, 7.0, 280)[0]
    evidence, prior = jax.tree.map(lambda leaf: np.asarray(leaf[0]), tasks.evidence), source.prior
    eta = points @ evidence.features[:5].T
    logs = np.sum(eta * evidence.rewards[:5] - np.logaddexp(0, eta), axis=1)
    away = (points[:, None] - np.asarray(prior.means)) / 0.3
    logs += np.log(np.exp(-0.5 * np.sum(away**2, axis=2)).sum(axis=1) + 1e-300)
    mean, square = grid_moments(points, logs)
    for column in range(2):
        assert_mean(draw[:, column], mean[column])
        assert_mean(draw[:, column] ** 2, square[column])


def test_chains_over_blocks_have_the_moments_of_weighted_draws() -> None:
    source = distribution("blocks-4")
    tasks = source.tasks(8, 1, 0)
    (draw,) = source.posterior(1, tasks, 500)
    atoms = source.sample(99, 100_000)
    precision, shift = (np.asarray(a[0]) for a in (tasks.evidence.precision, tasks.evidence.shift))
    logs = atoms @ shift - 0.5 * np.sum((atoms @ precision) * atoms, axis=1)
    mean = grid_moments(atoms, logs)[0]
    error = draw.std(axis=0) / np.sqrt(500)
    atoms_of_blocks = draw.std(axis=0) / np.sqrt(distributions.BLOCK_ATOMS)
    assert np.all(np.abs(draw.mean(axis=0) - mean) < 5 * (error + atoms_of_blocks))


def test_distribution_without_exact_posterior_raises() -> None:
    with pytest.raises(ValueError, match="`likelihood`"):
        distribution("sheet-4", "logistic")
    with pytest.raises(ValueError, match="`name`"):
        distribution("blocks-3")
