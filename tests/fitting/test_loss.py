"""The loss of a correction: random evidence, posterior means as targets, and what a base leaves."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose

import reference
from diffprior.denoisers.network import LOG_PRECISION, CorrectedDenoiser, Correction
from diffprior.fitting.samples import Rows
from diffprior.fitting.training import (
    BatchDraws,
    CorrectionLoss,
    Neighbors,
    RandomEvidence,
    posterior_means,
)
from diffprior.linalg import Spectral
from diffprior.mixture import GaussianMixture
from statistic import assert_mean

PRECISIONS = np.exp([-2.0, 1.0, 3.0, 5.0])  # from where all samples are likely to where few are
FEW = 8  # other samples, so that leaving a sample out of its own target would show
SEED = 4
batch_of = eqx.filter_jit(lambda loss, drawn, rows: loss.batch(drawn, rows))
compute_means = jax.jit(posterior_means)


def draws(loss: CorrectionLoss, seed: int, rows: Rows, size: int) -> BatchDraws:
    drawn = loss.draw(np.random.default_rng(seed), rows, size, 1)
    return jax.tree.map(lambda leaf: leaf[0], drawn)


def compute_batch(loss: CorrectionLoss, seed: int, rows: Rows, size: int) -> Any:
    return batch_of(loss, draws(loss, seed, rows, size), rows)


def compute_errors(loss: CorrectionLoss, net: Correction, rows: Rows, size: int) -> Any:
    errors = eqx.filter_jit(lambda loss, *given: loss.errors(*given))
    return errors(loss, net, *compute_batch(loss, SEED, rows, size))


def create(dim: int, target_samples: int, pool_size: int) -> CorrectionLoss:
    rng, evidence = np.random.default_rng(SEED), RandomEvidence.of(dim, 0)
    return CorrectionLoss.create(rng, None, evidence, target_samples, pool_size)


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


@pytest.mark.parametrize("dim", [1, 3])
@pytest.mark.parametrize(("weighted", "count"), [(False, 20), (True, 64), (True, 100)])
def test_neighbors_and_all_others_are_the_posterior_over_all_samples(
    dim: int, weighted: bool, count: int
) -> None:
    """With every row among the others as often as it counts, none is left out or counted twice."""
    rows, rng = scattered(dim, weighted), np.random.default_rng(1)
    counts = np.ones(72, int) if rows.weights is None else np.asarray(rows.weights, int)
    others = jnp.asarray(np.repeat(np.asarray(rows.samples), counts, axis=0))
    index = rng.integers(0, 72, (4, 6)).astype(np.int32)
    roots = rng.standard_normal((4, dim, dim)) + 2 * np.eye(dim)
    precision = PRECISIONS[:, None, None] * np.einsum("gij,gkj->gik", roots, roots)
    s_0 = np.asarray(rows.samples)[index]
    u = s_0 + 0.1 * rng.standard_normal((4, 6, dim))
    near = Neighbors.of(rows, count, len(others)).pick(jnp.asarray(index))
    once = np.zeros((4, 6, len(others)))
    got = compute_means(u, precision, s_0, others, once, near)
    for g in range(4):
        want = [exact(row, precision[g], rows) for row in u[g]]
        assert_allclose(got[g], np.stack(want), rtol=1e-9, atol=1e-9)


def test_neighbors_leave_less_noise_than_random_samples() -> None:
    """Under evidence of which a few samples in a thousand are likely."""
    rng = np.random.default_rng(2)
    rows = Rows(jnp.asarray(rng.standard_normal((4000, 2))), None)
    index = rng.integers(0, 4000, (1, 200)).astype(np.int32)
    precision, s_0 = np.exp(5.0) * np.eye(2), np.asarray(rows.samples)[index]
    u = s_0 + np.exp(-2.5) * rng.standard_normal((1, 200, 2))
    want = np.stack([exact(row, precision, rows) for row in u[0]])
    near = Neighbors.of(rows, 64, 64).pick(jnp.asarray(index))
    given = (u, precision[None], s_0, np.asarray(rows.samples)[:64], np.zeros((1, 200, 64)))
    errors = [np.mean((compute_means(*given, some)[0] - want) ** 2) for some in (None, near)]
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.parametrize(("weighted", "target_samples"), [(False, 72), (True, 2048)])
def test_among_few_rows_each_counts_as_often_as_it_should(
    weighted: bool, target_samples: int
) -> None:
    """Of no more rows than are asked for, all take part: what remains is the posterior over them,
    without the noise of which were drawn."""
    rows = scattered(3, weighted)
    rows = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rows)
    made = create(3, target_samples, 8)
    pool, batch = compute_batch(made, 0, rows, 64)
    for vectors, logs, x, target in zip(
        *pool[:2], np.asarray(batch.x, float), np.asarray(batch.target, float), strict=True
    ):
        matrix = np.asarray(Spectral(vectors, jnp.exp(logs)).matrix(), float)
        root = np.asarray(Spectral(vectors, jnp.sqrt(1 + jnp.exp(logs))).matrix(), float)
        u = noisy(x, matrix)
        want = np.stack([exact(row, matrix, rows) for row in u])
        assert_allclose(target, (want - x) @ root, rtol=1e-3, atol=2e-3)


def test_targets_over_samples_of_a_gaussian_are_its_means_on_average() -> None:
    """E[s_0 | u] = (I + P)^-1 P u, with many more draws than rows. The slope of targets on u is
    within five of its errors over sets of rows; counting a row once beside copies of the others
    puts it 20 errors below."""
    made = create(9, 1024, 1)
    made = eqx.tree_at(lambda one: one.pool.log_precision, made, jnp.zeros((1, 9), jnp.float32))
    slopes = []
    for seed in range(64):
        samples = np.random.default_rng(seed).standard_normal((100, 9))
        _, batch = compute_batch(made, seed, Rows.of(samples, None), 512)
        x = np.asarray(batch.x, np.float64).ravel()  # u / 2
        target = x + np.asarray(batch.target, np.float64).ravel() / np.sqrt(2.0)
        slopes.append(target @ x / (x @ x))
    error = np.std(slopes) / np.sqrt(len(slopes))
    assert abs(np.mean(slopes) - 1.0) < 5 * error and error < 0.004


def under_one_piece(base: GaussianMixture | None) -> CorrectionLoss:
    """The loss in double precision, under one piece of evidence."""
    made = create(2, FEW, 1)
    made = jax.tree.map(lambda leaf: leaf.astype(float), made)
    if base is None:
        return made
    precision, _ = evidence(made)
    factored = jax.tree.map(lambda leaf: leaf[None], base.factor(precision.matrix()))
    pool = made.pool._replace(factored=factored)
    return CorrectionLoss(base, pool, FEW, made.evidence)


def blob_rows(blobs: Any, num: int) -> Rows:
    rng = np.random.default_rng(2)
    which = rng.choice(2, num, p=blobs.weights)
    return Rows(jnp.asarray(blobs.means[which] + 0.4 * rng.standard_normal((num, 2))), None)


def evidence(made: CorrectionLoss) -> tuple[Spectral, np.ndarray]:
    precision = Spectral(made.pool.vectors[0], jnp.exp(made.pool.log_precision[0]))
    return precision, np.asarray(precision.matrix())


def noisy(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """u from x = (I + P)^-1 P u."""
    return x @ np.linalg.solve(matrix, np.eye(len(matrix)) + matrix).T


def random_net(num_components: int, size: float) -> Correction:
    start = Correction.initialize(np.random.default_rng(0), 2, num_components, width=5, depth=2)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(size * rng.standard_normal(leaf.shape)), start)


@pytest.mark.parametrize("mixed", [False, True])
def test_error_is_that_of_the_denoised_mean(blobs: Any, mixed: bool) -> None:
    """|(I + P)^(1/2) (target - mean)|^2, the mean being what `denoise` returns for P and P u."""
    mixture = GaussianMixture(  # not the one that samples are of
        jnp.log(jnp.array([0.3, 0.7])),
        0.8 * jnp.asarray(blobs.means),
        jnp.stack([jnp.eye(2)] * 2),
        0.3 * jnp.ones((2, 2)),
    )
    own, data = mixture if mixed else None, blob_rows(blobs, 50)
    net, made = random_net(2 if mixed else 1, 0.5), under_one_piece(own)
    (precision, matrix), (_, batch) = evidence(made), compute_batch(made, SEED, data, 16)
    got = compute_errors(made, net, data, 16).on_host().shrunk(1.0)
    denoiser = CorrectedDenoiser(own, net, None, 2)
    u = noisy(np.asarray(batch.x[0]), matrix)
    denoise = jax.jit(jax.vmap(lambda shift: denoiser.denoise(precision, shift).mean))
    means = denoise(jnp.asarray(u @ matrix))
    half = np.asarray(precision.apply(lambda p: jnp.sqrt(1 + p)))
    others = draws(made, SEED, data, 16).others
    samples, drawn = np.asarray(data.samples), np.asarray(batch.drawn)[0]
    assert np.isin(drawn, others).any()
    for index, row in enumerate(drawn):
        candidates = samples[np.append(row, others[others != row])]
        target = exact(u[index], matrix, Rows(jnp.asarray(candidates), None))
        gap = half @ (target - means[index])
        assert_allclose(got[index], gap @ gap, rtol=2e-5)


def test_mean_of_the_target_is_what_the_base_leaves(blobs: Any) -> None:
    """E[target g(u)] = E[F*(u) g(u)] for some g, F* being that of the mixture by the twin.

    Over many batches, since the samples of one share their others."""
    made, data = under_one_piece(None), blob_rows(blobs, 100_000)
    precision, matrix = evidence(made)
    drawn = made.draw(np.random.default_rng(4), data, 16, 300)
    batches = eqx.filter_jit(jax.vmap(lambda one: made.batch(one, data)[1]))(drawn)
    x, target = (np.asarray(part).reshape(-1, 2) for part in (batches.x, batches.target))
    u = noisy(x, matrix)
    mixture = (blobs.weights, blobs.means, blobs.covs)
    means = np.stack([reference.mixture_denoise(*mixture, matrix, matrix @ row)[0] for row in u])
    half = np.asarray(precision.apply(lambda p: jnp.sqrt(1 + p)))
    gaps = target - (means - x) @ half
    functions = np.concatenate([np.ones((len(u), 1)), np.tanh(u), u], axis=1)
    products = (gaps[:, :, None] * functions[:, None, :]).reshape(300, 16, 2, 5)
    assert_mean(products.mean(axis=1), np.zeros((2, 5)))


def test_shrinking_is_towards_the_base() -> None:
    """The factor of least error, from its closed form and from a grid."""
    made = under_one_piece(None)
    data = Rows(jnp.asarray(np.random.default_rng(0).normal(size=(40, 2))), None)
    net = random_net(1, 0.3)
    errors = compute_errors(made, net, data, 160).on_host()
    grid = np.linspace(0, 1, 101)
    losses = [np.mean(errors.shrunk(factor)) for factor in grid]
    assert_allclose(errors.best_factor(), grid[np.argmin(losses)], atol=0.01)
    for factor in (0.0, 0.4):
        own = compute_errors(made, net.shrunk(factor), data, 160).on_host()
        assert_allclose(own.shrunk(1.0), errors.shrunk(factor), rtol=1e-6)


def test_training_evidence_spans_the_range() -> None:
    basis, log_precision = RandomEvidence.of(3, 0).draw(np.random.default_rng(0), 2000)
    assert_allclose(basis @ np.swapaxes(basis, 1, 2), np.stack([np.eye(3)] * 2000), atol=1e-5)
    low, high = LOG_PRECISION
    assert log_precision.dtype == basis.dtype == np.float32
    assert low <= np.min(log_precision) < low + 0.5 and high - 0.5 < np.max(log_precision) <= high
    assert 0.2 < np.mean(np.ptp(log_precision, axis=1) == 0) < 0.4
