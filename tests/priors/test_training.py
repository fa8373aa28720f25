"""What the network is trained towards, how training stops, and what a short training comes to."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import diffprior as dp
import reference
from diffprior.linalg import Spectral
from diffprior.mixture import GaussianMixture
from diffprior.priors import descent
from diffprior.priors.corrected import CorrectedDenoiser
from diffprior.priors.correction import LOG_PRECISION, Correction
from diffprior.priors.correction_loss import CorrectionLoss
from diffprior.priors.random_evidence import random_evidence, random_rotations
from statistic import assert_mean

NUM_OTHERS = 8  # few, so that leaving a sample out of its own target would show
KEY = jax.random.key(3)


def loss(base: GaussianMixture | None) -> CorrectionLoss:
    """Under one piece of evidence."""
    made = CorrectionLoss.of(None, random_rotations(2, 0)[:4], NUM_OTHERS, KEY, pool_size=1)
    pool = jax.tree.map(lambda leaf: leaf.astype(float), made.pool)
    if base is not None:
        precision = Spectral(pool.vectors[0], jnp.exp(pool.log_precision[0])).matrix()
        factored = jax.tree.map(lambda leaf: leaf[None], base.factor(precision))
        pool = pool._replace(factored=factored)
    return CorrectionLoss(base, made.rotations, pool, made.middle, NUM_OTHERS)


def rows(blobs: Any, num: int) -> descent.Rows:
    rng = np.random.default_rng(2)
    which = rng.choice(2, num, p=blobs.weights)
    return descent.Rows(jnp.asarray(blobs.means[which] + 0.4 * rng.standard_normal((num, 2))), None)


def base(blobs: Any) -> GaussianMixture:
    """Not the mixture that samples are of."""
    weights = jnp.log(jnp.array([0.3, 0.7]))
    return GaussianMixture(
        weights, 0.8 * jnp.asarray(blobs.means), jnp.stack([jnp.eye(2)] * 2), 0.3 * jnp.ones((2, 2))
    )


def evidence(made: CorrectionLoss) -> tuple[Spectral, np.ndarray]:
    precision = Spectral(made.pool.vectors[0], jnp.exp(made.pool.log_precision[0]))
    return precision, np.asarray(precision.matrix())


def noisy(x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """u from x = (I + P)^-1 P u."""
    return x @ np.linalg.solve(matrix, np.eye(2) + matrix).T


def mean_of_candidates(u: np.ndarray, candidates: np.ndarray, matrix: np.ndarray) -> np.ndarray:
    """E[s_0 | u] if s_0 is one of the candidates, by Bayes' rule."""
    gaps = u - candidates
    weights = np.exp(-0.5 * np.einsum("ni,ij,nj->n", gaps, matrix, gaps))
    return weights @ candidates / weights.sum()


@pytest.mark.parametrize("mixed", [False, True])
def test_error_is_that_of_the_denoised_mean(blobs: Any, mixed: bool) -> None:
    """|(I + P)^(1/2) (target - mean)|^2, the mean being what `denoise` returns for P and P u."""
    own, data = base(blobs) if mixed else None, rows(blobs, 50)
    start = Correction.initialize(jax.random.key(0), 2, 2 if mixed else 1, width=5, depth=2)
    rng = np.random.default_rng(0)
    net = jax.tree.map(lambda leaf: jnp.asarray(0.5 * rng.standard_normal(leaf.shape)), start)
    made = loss(own)
    (precision, matrix), (_, batch) = evidence(made), made.batch(KEY, data, 16)
    got = made.errors(net, KEY, data, 16).shrunk(1.0)
    denoiser = CorrectedDenoiser(own, net, None, 2)
    denoise = eqx.filter_jit(lambda shift: denoiser.denoise(precision, shift).mean)
    half = np.asarray(precision.apply(lambda p: jnp.sqrt(1 + p)))
    others = np.asarray(data.indices(jax.random.split(KEY, 4)[1], NUM_OTHERS))
    samples, drawn = np.asarray(data.samples), np.asarray(made.drawn(KEY, data, 16))
    assert np.isin(drawn, others).any()
    for index, u in enumerate(noisy(np.asarray(batch.x[0]), matrix)):
        own_row = drawn[index]
        candidates = samples[np.append(own_row, others[others != own_row])]
        target = mean_of_candidates(u, candidates, matrix)
        gap = half @ (target - denoise(jnp.asarray(matrix @ u)))
        assert_allclose(got[index], gap @ gap, rtol=1e-6)


def test_mean_of_the_target_is_what_the_base_leaves(blobs: Any) -> None:
    """E[target g(u)] = E[F*(u) g(u)] for some g, F* being that of the mixture by the twin.

    Over many batches, since the samples of one share their others."""
    made, data = loss(None), rows(blobs, 100_000)
    precision, matrix = evidence(made)
    keys = jax.random.split(jax.random.key(4), 300)
    batch = jax.vmap(lambda key: made.batch(key, data, 16)[1])(keys)
    x, target = (np.asarray(part).reshape(-1, 2) for part in (batch.x, batch.target))
    u = noisy(x, matrix)
    mixture = (blobs.weights, blobs.means, blobs.covs)
    means = np.stack([reference.mixture_denoise(*mixture, matrix, matrix @ row)[0] for row in u])
    half = np.asarray(precision.apply(lambda p: jnp.sqrt(1 + p)))
    gaps = target - (means - x) @ half
    functions = np.concatenate([np.ones((len(u), 1)), np.tanh(u), u], axis=1)
    products = (gaps[:, :, None] * functions[:, None, :]).reshape(300, 16, 2, 5)
    assert_mean(products.mean(axis=1), np.zeros((2, 5)))


def test_training_evidence_spans_the_range() -> None:
    rotations = random_rotations(3, 0)[:64]
    basis, log_precision = random_evidence(jax.random.key(0), rotations, 2000)
    assert_allclose(basis @ jnp.swapaxes(basis, 1, 2), np.stack([np.eye(3)] * 2000), atol=1e-5)
    low, high = LOG_PRECISION
    assert log_precision.dtype == basis.dtype == jnp.float32
    assert low <= jnp.min(log_precision) < low + 0.5 and high - 0.5 < jnp.max(log_precision) <= high
    assert 0.2 < np.mean(np.ptp(np.asarray(log_precision), axis=1) == 0) < 0.4


def test_shrinking_is_towards_the_base() -> None:
    """The factor of least error, from its closed form and from a grid."""
    made, data = (
        loss(None),
        descent.Rows(jnp.asarray(np.random.default_rng(0).normal(size=(40, 2))), None),
    )
    start = Correction.initialize(jax.random.key(0), 2, 1, width=5, depth=2)
    rng = np.random.default_rng(1)
    net = jax.tree.map(lambda leaf: jnp.asarray(0.3 * rng.standard_normal(leaf.shape)), start)
    errors = made.errors(net, KEY, data, 160)
    grid = np.linspace(0, 1, 101)
    losses = [float(jnp.mean(errors.shrunk(factor))) for factor in grid]
    assert_allclose(errors.best_factor(), grid[np.argmin(losses)], atol=0.01)
    for factor in (0.0, 0.4):
        own = made.errors(net.shrunk(factor), KEY, data, 160).shrunk(1.0)
        assert_allclose(own, errors.shrunk(factor), rtol=1e-6)


def pulled_to_one(recipe: descent.Recipe, evaluate: Any) -> tuple[Any, descent.Fitted]:
    """Descent of one number from 0, whose training loss is least at 1."""
    return descent.optimize(
        jnp.zeros((1, 1), jnp.float32),
        lambda p, key, rows, size: jnp.sum((p - rows.samples[:1]) ** 2),
        descent.Rows.of(np.full((4, 1), 1.0), None),
        recipe,
        (jax.random.key(0), jax.random.key(1)),
        False,
        evaluate,
    )


@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_best_evaluation_is_kept_and_patience_ends(
    monkeypatch: pytest.MonkeyPatch, orthogonal: bool
) -> None:
    """Training pulls a number to 1, while the held-out samples like 1/2 best."""
    monkeypatch.setattr(descent, "CHUNK", 50)
    recipe = descent.Recipe(5000, 1, 2e-2, orthogonal)
    params, fitted = pulled_to_one(recipe, lambda p: np.asarray((p[0] - 0.5) ** 2))
    assert fitted.best == int(np.argmin(fitted.losses))
    assert 0 < fitted.best == len(fitted.losses) - 1 - descent.PATIENCE
    assert_allclose((params[0, 0] - 0.5) ** 2, fitted.losses[fitted.best], rtol=1e-4)


def test_weights_that_diverge_are_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Held-out losses are finite up to the second evaluation."""
    monkeypatch.setattr(descent, "CHUNK", 5)
    seen = []

    def evaluate(params: Any) -> np.ndarray:
        seen.append(params)
        return np.full(3, 1.0 / len(seen) if len(seen) < 3 else np.nan)

    params, fitted = pulled_to_one(descent.Recipe(500, 1, 2e-2, False), evaluate)
    assert fitted == descent.Fitted((1.0, 0.5), 1) and len(seen) == 3
    assert_allclose(params, seen[1])


def test_losses_are_as_good_as_their_noise_allows() -> None:
    """Held-out samples that agree that weights are worse, and such that do not."""
    best = np.ones(4)
    assert descent.as_good(best + np.array([-0.5, 0.6, -0.5, 0.6]), best, 1.0)
    assert not descent.as_good(best + np.array([0.1, 0.15, 0.1, 0.15]), best, 1.0)
    assert descent.as_good(best + 0.1, best, 1.0, worth=0.2)
    assert not descent.as_good(best + 0.1, best, 1.0, worth=0.05)


def test_learned_denoiser_beats_the_linear_one_where_blobs_are_told_apart(
    learned: dp.DiffusionPrior,
) -> None:
    """Measured over three seeds: 0.77 to 0.88 of the linear predictor's error at these stages."""
    stages = [stage for stage in learned.report.stages if 1 <= stage.log_snr <= 3]
    assert len(stages) >= 4
    assert all(stage.learned < 0.95 * stage.linear for stage in stages)


def test_learned_denoiser_is_nearer_the_exact_one_than_a_gaussian(
    learned: dp.DiffusionPrior, blobs: Any
) -> None:
    """Evidence of ranks one and two. Measured over three seeds: 0.14 to 0.23 of its error."""
    exact = dp.MixturePrior(blobs.weights, blobs.means, blobs.covs)
    gaussian = dp.GaussianPrior(blobs.samples.mean(axis=0), np.cov(blobs.samples.T))
    rng, gaps = np.random.default_rng(3), []
    for index in range(60):
        rows = rng.standard_normal((1 + index % 2, 2)) * np.exp(rng.uniform(-1, 1))
        shift = rows.T @ (rows @ blobs.samples[index] + rng.standard_normal(len(rows)))
        means = [p.denoise(rows.T @ rows, shift).mean for p in (exact, learned, gaussian)]
        gaps.append([np.sum((mean - means[0]) ** 2) for mean in means[1:]])
    ours, theirs = np.mean(gaps, axis=0)
    assert ours < 0.4 * theirs


def test_scaling_by_a_power_of_two_changes_nothing_else(
    learned: dp.DiffusionPrior, blobs: Any
) -> None:
    """The same seed on exactly the same unit samples: training is repeatable to the last bit."""
    scaled = blobs.fit(blobs.samples / 128)
    ours, theirs = (p.denoiser.correction.weights_hidden for p in (scaled, learned))
    assert_array_equal(ours, theirs)
    key = jax.random.key(0)
    assert_array_equal(128 * scaled.sample(key, 100), learned.sample(key, 100))


def test_paper_preset_learns_a_regressor_for_each_stage(blobs: Any) -> None:
    """Measured with the whole recipe: 0.77 to 0.86 of the linear predictor's error."""
    grid = dp.Schedule.constant(5)
    prior = dp.DiffusionPrior.fit(
        blobs.samples, preset="paper", schedule=grid, num_steps=500, progress=False
    )
    assert prior.schedule == grid and len(prior.report.stages) == 5
    assert_allclose([s.log_snr for s in prior.report.stages], np.log(grid.snr[::-1]), rtol=1e-9)
    assert all(stage.learned < 0.95 * stage.linear for stage in prior.report.stages)
    draws = np.asarray(prior.sample(jax.random.key(0), 500))
    assert draws.shape == (500, 2) and np.all(np.isfinite(draws))
    with pytest.raises(ValueError, match="own grid"):
        prior.denoise(np.diag([1.0, 2.0]), np.zeros(2))
