"""Targets of the training are posterior means over all samples that could be meant."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

from diffprior.priors import targets
from diffprior.priors.descent import Rows

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
def test_neighbours_and_all_others_are_the_posterior_over_all_samples(
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
    near = targets.Neighbours.of(rows, len(others)).pick(index)
    got = jax.jit(targets.posterior_means)(
        jnp.asarray(u), jnp.asarray(precision), rows.samples[index], others, near
    )
    for g in range(4):
        want = [exact(row, precision[g], rows) for row in u[g]]
        assert_allclose(got[g], np.stack(want), rtol=1e-9, atol=1e-9)


def test_neighbours_leave_less_noise_than_samples_at_random() -> None:
    """Under evidence of which a few samples in a thousand are likely."""
    rng = np.random.default_rng(2)
    rows = Rows(jnp.asarray(rng.standard_normal((4000, 2))), None)
    index = jnp.asarray(rng.integers(0, 4000, (1, 200)).astype(np.int32))
    precision, s_0 = np.exp(5.0) * np.eye(2), rows.samples[index]
    u = s_0 + np.exp(-2.5) * rng.standard_normal((1, 200, 2))
    want = np.stack([exact(row, precision, rows) for row in np.asarray(u[0])])
    others, all_near = rows.samples[:64], targets.Neighbours.of(rows, 64).pick(index)
    errors = [
        np.mean(
            (targets.posterior_means(u, jnp.asarray(precision)[None], s_0, others, near)[0] - want)
            ** 2
        )
        for near in (None, all_near)
    ]
    assert errors[1] < 0.2 * errors[0]
