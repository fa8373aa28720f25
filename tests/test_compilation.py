"""How often a growing history compiles, counted by JAX itself."""

import jax
import numpy as np

import diffprior as dp

DIM, NUM_ROWS = 3, 200


def rows() -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(0)
    features, theta = rng.standard_normal((NUM_ROWS, DIM)), rng.standard_normal(DIM)
    rewards = rng.random(NUM_ROWS) < 1 / (1 + np.exp(-features @ theta))
    return list(zip(features, rewards.astype(float), strict=True))


def test_a_growing_logistic_history_compiles_with_its_capacity(compilations: list) -> None:
    """append, condition and sample, once for each of the capacities 128 and 256; and what tells
    failed draws. The last two only now and then: it saves time, not programs."""
    prior = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
    sampler, gaussian = dp.Exact(prior), prior.moments()
    keys = list(jax.random.split(jax.random.key(0), NUM_ROWS))
    evidence = dp.Logistic().observe(dim=DIM)
    compilations.clear()
    for i, (phi, y) in enumerate(rows()):
        evidence = evidence.append(phi, y)
        if i % 40 == 39:
            evidence.condition(gaussian)
            theta = sampler.sample(keys[i], evidence)
    names = list(compilations)
    assert int(evidence.num_rows) == NUM_ROWS and np.all(np.isfinite(theta))
    assert "jit(condition)" in names  # the count sees what it should
    assert len(names) <= 3 * 2 + 2, names


def test_a_growing_linear_history_compiles_once(compilations: list) -> None:
    prior = dp.GaussianPrior(np.zeros(DIM), np.eye(DIM))
    sampler, keys = dp.Exact(prior), list(jax.random.split(jax.random.key(0), NUM_ROWS))
    evidence, counts = dp.Linear(1.0).observe(dim=DIM), []
    for key, (phi, y) in zip(keys, rows(), strict=True):
        evidence = evidence.append(phi, y)
        sampler.sample(key, evidence)
        counts.append(len(compilations))
    assert 0 < counts[0] == counts[-1]
