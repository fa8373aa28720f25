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
    none = jnp.zeros((4, 6, len(others)), bool)
    got = jax.jit(targets.posterior_means)(
        jnp.asarray(u), jnp.asarray(precision), rows.samples[index], others, none, near
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
    given = (u, jnp.asarray(precision)[None], s_0, others, jnp.zeros((1, 200, 64), bool))
    found = [targets.posterior_means(*given, near) for near in (None, all_near)]
    errors = [np.mean((means[0] - want) ** 2) for means in found]
    assert errors[1] < 0.2 * errors[0]


def test_a_sample_drawn_again_counts_once() -> None:
    """Among others that are all samples, it is the posterior over them that remains."""
    rows = Rows(jnp.asarray(np.random.default_rng(3).standard_normal((30, 5))), None)
    own = jnp.arange(4)
    u = rows.samples[own] + 0.3
    itself = (own[:, None] == jnp.arange(30)[None])[None]
    got = targets.posterior_means(u[None], jnp.eye(5)[None], u[None] - 0.3, rows.samples, itself)
    want = [exact(np.asarray(row), np.eye(5), rows) for row in u]
    assert_allclose(got[0], np.stack(want), rtol=1e-6, atol=1e-6)
