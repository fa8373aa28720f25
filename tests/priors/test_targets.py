"""Targets of the training are posterior means over all samples that could be meant."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from diffprior.priors import correction_loss, targets
from diffprior.priors.correction_loss import CorrectionLoss
from diffprior.priors.descent import Rows
from diffprior.priors.random_evidence import random_rotations

PRECISIONS = np.exp([-2.0, 1.0, 3.0, 5.0])  # from where all samples are likely to where few are


def scattered(dim: int, weighted: bool) -> Rows:
    """Samples, some of them equal, and whole numbers of times that each counts."""
    rng = np.random.default_rng(0)
    samples = np.concatenate([rng.standard_normal((60, dim)), np.full((12, dim), 0.3)])
    weights = rng.integers(1, 4, 72) if weighted else None
    return Rows(jnp.asarray(samples), None if weights is None else jnp.asarray(weights, float))


def exact(u: np.ndarray, precision: np.ndarray, rows: Rows) -> np.ndarray:
    """E[s_0 | u] over the rows, by Bayes' rule."""
    samples = np.asarray(rows.samples)
    gaps = u - samples
    counts = np.ones(len(samples)) if rows.weights is None else np.asarray(rows.weights)
    weights = counts * np.exp(-0.5 * np.einsum("ni,ij,nj->n", gaps, precision, gaps))
    return weights @ samples / weights.sum()


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("most", [20, 64, 100])
def test_neighbors_and_all_others_are_the_posterior_over_all_samples(
    dim: int, weighted: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every row among the others as often as it counts, none is left out or counted twice."""
    monkeypatch.setattr(targets, "MOST_NEAR", most)
    rows, rng = scattered(dim, weighted), np.random.default_rng(1)
    counts = np.ones(72, int) if rows.weights is None else np.asarray(rows.weights, int)
    others = jnp.repeat(rows.samples, counts, axis=0, total_repeat_length=int(counts.sum()))
    index = jnp.asarray(rng.integers(0, 72, (4, 6)).astype(np.int32))
    roots = rng.standard_normal((4, dim, dim)) + 2 * np.eye(dim)
    precision = PRECISIONS[:, None, None] * np.einsum("gij,gkj->gik", roots, roots)
    u = np.asarray(rows.samples[index]) + 0.1 * rng.standard_normal((4, 6, dim))
    near = targets.Neighbors.of(rows, len(others)).pick(index)
    once = jnp.zeros((4, 6, len(others)))
    got = jax.jit(targets.posterior_means)(
        jnp.asarray(u), jnp.asarray(precision), rows.samples[index], others, once, near
    )
    for g in range(4):
        want = [exact(row, precision[g], rows) for row in u[g]]
        assert_allclose(got[g], np.stack(want), rtol=1e-9, atol=1e-9)


def test_neighbors_leave_less_noise_than_samples_at_random() -> None:
    """Under evidence of which a few samples in a thousand are likely."""
    rng = np.random.default_rng(2)
    rows = Rows(jnp.asarray(rng.standard_normal((4000, 2))), None)
    index = jnp.asarray(rng.integers(0, 4000, (1, 200)).astype(np.int32))
    precision, s_0 = np.exp(5.0) * np.eye(2), rows.samples[index]
    u = s_0 + np.exp(-2.5) * rng.standard_normal((1, 200, 2))
    want = np.stack([exact(row, precision, rows) for row in np.asarray(u[0])])
    others, all_near = rows.samples[:64], targets.Neighbors.of(rows, 64).pick(index)
    given = (u, jnp.asarray(precision)[None], s_0, others, jnp.zeros((1, 200, 64)))
    found = [targets.posterior_means(*given, near) for near in (None, all_near)]
    errors = [np.mean((means[0] - want) ** 2) for means in found]
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_others", [72, 2048])
def test_among_few_rows_each_counts_as_often_as_it_should(
    weighted: bool, num_others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of no more rows than are asked for, all take part: what remains is the posterior over them,
    without the noise of which were drawn."""
    rows = scattered(5, weighted)
    found, means = [], correction_loss.posterior_means

    def spy(u: Any, precision: Any, *rest: Any) -> Any:
        found.append((u, precision, means(u, precision, *rest)))
        return found[-1][-1]

    monkeypatch.setattr(correction_loss, "posterior_means", spy)
    key = jax.random.key(0)
    loss = CorrectionLoss.of(None, random_rotations(5, 0), num_others, key, pool_size=8)
    with jax.numpy_dtype_promotion("standard"):
        loss.batch(key, rows, 64)
    for u, precision, got in zip(*found[0], strict=True):
        want = [exact(np.asarray(row), np.asarray(precision), rows) for row in u]
        assert_allclose(got, np.stack(want), rtol=1e-4, atol=1e-4)


def test_targets_over_samples_of_a_gaussian_are_its_means_on_average() -> None:
    """E[s_0 | u] = (I + P)^-1 P u, with many more draws than rows. The slope of targets on u is
    within five of its errors over sets of rows; counting a row once beside copies of the others
    puts it 20 errors below."""
    slopes, key = [], jax.random.key(1)
    loss = CorrectionLoss.of(None, random_rotations(8, 0), 1024, key, pool_size=1)
    loss = eqx.tree_at(lambda one: one.pool.log_precision, loss, jnp.zeros((1, 8), jnp.float32))
    for seed in range(64):
        samples = np.random.default_rng(seed).standard_normal((100, 8))
        _, batch = loss.batch(jax.random.key(seed), Rows.of(samples, None), 512)
        x = np.asarray(batch.x, np.float64).ravel()  # u / 2
        target = x + np.asarray(batch.target, np.float64).ravel() / np.sqrt(2.0)
        slopes.append(target @ x / (x @ x))
    error = np.std(slopes) / np.sqrt(len(slopes))
    assert abs(np.mean(slopes) - 1.0) < 5 * error and error < 0.004
