"""Linear tasks: evidence, EM and noise against closed forms, twins and lme4's figures."""

import dataclasses
import pickle

import numpy as np
import pytest

import diffprior as dp
from diffprior.executors import AbstractExecutor
from diffprior.fitting.em import (
    CovarianceModel,
    Samples,
    expectations,
    fit_gaussian,
    log_evidence,
    maximize,
)
from diffprior.fitting.rows import blocks_of, linear_blocks
from diffprior.fitting.samples import with_hedge
from diffprior.fitting.search import (
    MixtureCandidate,
    SearchConfig,
    fit_candidate,
    gaussian_of,
)
from diffprior.learning.likelihoods import estimate_noise
from diffprior.learning.search import search_logs
from diffprior.logs.statistics import folds
from diffprior.mixture import GaussianMixture
from worlds_of_tasks import (
    blobs,
    deconvolution_step,
    marginal_log_density,
    mixed_model_of_repeated_measures,
    repeated_measures,
    rows,
)

FREE = CovarianceModel(2.0)


def by_task(logs: dp.Logs) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and rewards of every task, in the order of blocks."""
    order = np.argsort(logs.hashes, kind="stable")
    parts = [slice(logs.starts[i], logs.starts[i + 1]) for i in order]
    return [(logs.features[part], logs.rewards[part]) for part in parts]


def mixture(dim: int, seed: int = 0) -> GaussianMixture:
    rng = np.random.default_rng(seed)
    halves = rng.standard_normal((3, dim, dim)) / np.sqrt(dim)
    covs = halves @ np.swapaxes(halves, 1, 2) + 0.1 * np.eye(dim)
    return GaussianMixture.from_covs(np.array([0.2, 0.3, 0.5]), rng.standard_normal((3, dim)), covs)


def small_logs(dim: int, n: int = 40, seed: int = 1) -> dp.Logs:
    rng = np.random.default_rng(seed)
    return dp.Logs(*rows(rng, rng.standard_normal((n, dim)), 4.0, 0.7))


@pytest.mark.parametrize("dim", [1, 3, 18])
def test_log_evidence_is_the_density_of_the_rewards(dim: int) -> None:
    logs, components = small_logs(dim), mixture(dim)
    blocks = linear_blocks(logs.statistics(), 0.7, tasks_at_once=16)
    expected = [
        np.logaddexp.reduce(
            [
                np.log(w) + marginal_log_density(x, y, m, c, 0.7)
                for w, m, c in zip(
                    components.weights, components.means, components.covs, strict=True
                )
            ]
        )
        for x, y in by_task(logs)
    ]
    np.testing.assert_allclose(log_evidence(blocks, components), expected, rtol=1e-10)


@pytest.mark.parametrize("dim", [2, 5])
def test_em_steps_are_those_of_extreme_deconvolution(dim: int) -> None:
    logs, ours = small_logs(dim), mixture(dim)
    twin = (ours.weights, ours.means, ours.covs)
    blocks = linear_blocks(logs.statistics(), 0.7, tasks_at_once=16)
    for _ in range(3):
        sums = expectations(blocks, ours)
        ours, _ = maximize(ours, sums)
        *twin, total = deconvolution_step(by_task(logs), *twin, 0.7)
        np.testing.assert_allclose(sums.log_evidence, total, rtol=1e-10)
        for left, right in zip((ours.weights, ours.means, ours.covs), twin, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-7, atol=1e-9)


def test_draws_given_a_task_have_the_posterior_s_moments() -> None:
    rng = np.random.default_rng(0)
    one = dp.Logs(*rows(rng, np.array([[1.0, -0.5]]), 6.0))
    components = mixture(2)
    statistics = one.statistics()
    many = statistics.select(np.zeros(4000, int))
    many = dataclasses.replace(many, hashes=np.arange(4000, dtype=np.uint64))
    block = linear_blocks(many, 1.0, tasks_at_once=4000)[0]
    draws = block.draw(components, 3)[0]
    prior = dp.MixturePrior(components.weights, components.means, components.covs)
    exact = prior.posterior(dp.Linear(noise_std=1.0).observe(one.features, one.rewards))[
        0
    ].moments()
    cov = np.asarray(exact.cov)
    error = (draws.mean(axis=0) - np.asarray(exact.mean)) / np.sqrt(np.diagonal(cov) / 4000)
    assert np.max(np.abs(error)) < 5
    np.testing.assert_allclose(np.cov(draws.T), cov, atol=5 * np.max(cov) * np.sqrt(3 / 4000))
    few = linear_blocks(many.select(np.arange(5)), 1.0)[0]
    np.testing.assert_allclose(few.draw(components, 3)[0], draws[:5], rtol=1e-12)


def subjects() -> dp.Logs:
    tasks, days, rewards = repeated_measures()
    return dp.Logs(tasks, days[:, None], rewards, intercept=True)


def test_a_gaussian_and_its_noise_are_the_mixed_model_of_maximum_likelihood() -> None:
    mean, cov, noise_variance, log_likelihood = mixed_model_of_repeated_measures()
    fit = fit_gaussian(linear_blocks(subjects().statistics(), 50.0), noise_std=50.0)
    assert fit.noise_std is not None and fit.converged
    np.testing.assert_allclose(fit.mixture.means[0], mean, rtol=1e-4)
    scale = np.sqrt(np.diagonal(cov))
    np.testing.assert_allclose(
        fit.mixture.covs[0] / np.outer(scale, scale), cov / np.outer(scale, scale), atol=1e-3
    )
    np.testing.assert_allclose(fit.noise_std**2, noise_variance, rtol=1e-3)
    np.testing.assert_allclose(fit.log_evidence, log_likelihood, atol=1e-4)


def test_results_are_the_same_from_any_shards_order_and_process() -> None:
    logs = small_logs(3, 300)
    blocks = linear_blocks(logs.statistics(), 0.7, tasks_at_once=32)
    shuffled = logs.select(np.random.default_rng(0).permutation(logs.num_tasks))
    again = linear_blocks(shuffled.statistics(), 0.7, tasks_at_once=32)
    parcels = pickle.loads(pickle.dumps(blocks))

    class Backwards(AbstractExecutor):
        def map(self, function, shards):  # type: ignore[no-untyped-def]
            return reversed([function(shard) for shard in reversed(shards)])

    first = fit_gaussian(blocks)
    for other in (fit_gaussian(again), fit_gaussian(parcels, executor=Backwards())):
        np.testing.assert_array_equal(first.mixture.covs, other.mixture.covs)


def test_noise_is_found_from_residuals_or_jointly() -> None:
    rng = np.random.default_rng(0)
    many = dp.Logs(*rows(rng, blobs(rng, 1000), 5.0, 0.5)).statistics()
    found = estimate_noise(many)
    assert found.how == "pooled" and abs(found.noise_std / 0.5 - 1) < 0.03
    few = estimate_noise(many.select(np.arange(60)))
    assert few.how == "joint" and abs(few.noise_std / 0.5 - 1) < 0.3


def test_a_mixture_is_found_from_rows_where_estimates_alone_mislead() -> None:
    rng = np.random.default_rng(3)
    logs = dp.Logs(*rows(rng, blobs(rng, 600), 5.0))
    new = dp.Logs(*rows(rng, blobs(rng, 600), 5.0))
    blocks, held_out = (linear_blocks(part.statistics(), 1.0) for part in (logs, new))
    gaussian = gaussian_of(blocks)
    found = fit_candidate(blocks, gaussian, MixtureCandidate(2, FREE))
    truth = GaussianMixture.from_covs(
        np.full(2, 0.5),
        1.5 * np.array([[1.0, 1.0], [-1.0, -1.0]]),
        0.09 * np.eye(2)[None].repeat(2, 0),
    )
    true = log_evidence(held_out, truth)
    gap = true - log_evidence(held_out, found)
    assert gap.mean() < 0.015 + 2 * gap.std() / np.sqrt(600)
    assert (true - log_evidence(held_out, gaussian)).mean() > 0.1


def test_a_hedge_is_that_share_of_the_samples() -> None:
    samples = np.random.default_rng(0).standard_normal((9900, 2)) * [1.0, 10.0]
    hedged = with_hedge(samples, 0.01, 0)
    assert hedged.shape == (10_000, 2)
    np.testing.assert_array_equal(hedged[:9900], samples)
    np.testing.assert_allclose(hedged[9900:].std(axis=0), [3.0, 30.0], rtol=0.3)
    with pytest.raises(ValueError, match="`hedge`: expected a share"):
        dp.DiffusionPrior.fit(samples, hedge=1.5)


def test_linear_tasks_that_leave_no_doubt_are_samples() -> None:
    """Rows without noise show theta itself: sums and evidence differ by what rows are worth."""
    thetas, prior = np.random.default_rng(0).standard_normal((30, 2)), mixture(2)
    tasks, features = np.repeat(np.arange(30), 2), np.tile(np.eye(2), (30, 1))
    logs = dp.Logs(tasks, features, thetas.ravel())
    std = 1e-4
    blocks = linear_blocks(logs.statistics(), std)
    ours, known = expectations(blocks, prior), expectations([Samples(thetas)], prior)
    for name in ("mass", "first", "second"):
        np.testing.assert_allclose(getattr(ours, name), getattr(known, name), atol=1e-3)
    np.testing.assert_allclose(ours.log_evidence, known.log_evidence, atol=1e-3)


def test_candidates_are_scored_on_whole_tasks_that_they_have_not_seen() -> None:
    """The figures of a turn are those of tasks, all their rows, under what the others gave."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 120), 4.0))
    likelihood = dp.Linear(noise_std=1.0)
    config = SearchConfig(max_components=2, max_tied=0, num_folds=3)
    start, expected = gaussian_of(blocks_of(logs, likelihood)), []
    found = search_logs(logs, likelihood, start, config=config)
    fold = folds(logs.hashes, 3, salt=11)
    for turn in range(3):
        own, out = (
            blocks_of(logs.select(part), likelihood) for part in (fold != turn, fold == turn)
        )
        expected.append(log_evidence(out, gaussian_of(own, start=start)))
    np.testing.assert_allclose(found.gaussian_score, np.concatenate(expected).mean(), rtol=1e-9)
    assert found.pays and found.mixture.num_components >= 2
