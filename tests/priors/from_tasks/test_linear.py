"""Linear tasks: evidence, EM and noise against closed forms, twins and lme4's figures."""

import csv
import pickle
from pathlib import Path

import numpy as np
import pytest

import diffprior as dp
from diffprior.executors import AbstractExecutor
from diffprior.fitting.samples import with_hedge
from diffprior.logs.labels import folds
from diffprior.priors.from_tasks.components import Components
from diffprior.priors.from_tasks.data import blocks_of
from diffprior.priors.from_tasks.em import expectations, log_evidences, maximize
from diffprior.priors.from_tasks.fit import gaussian_from_logs
from diffprior.priors.from_tasks.gaussian import fit_gaussian
from diffprior.priors.from_tasks.linear import linear_blocks
from diffprior.priors.from_tasks.mixture import fit_mixture
from diffprior.priors.from_tasks.noise import estimate_noise
from diffprior.priors.from_tasks.npmle import grid, kernels
from diffprior.priors.from_tasks.search import (
    Candidate,
    averaged,
    averaging_shares,
    gaussian_of,
    search_mixture,
)
from worlds_of_tasks import blobs, deconvolution_step, marginal_log_density, rows


def by_task(logs: dp.Logs) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and rewards of every task, in the order of blocks."""
    order = np.argsort(logs.hashes, kind="stable")
    parts = [slice(logs.starts[i], logs.starts[i + 1]) for i in order]
    return [(logs.features[part], logs.rewards[part]) for part in parts]


def mixture(dim: int, seed: int = 0) -> Components:
    rng = np.random.default_rng(seed)
    halves = rng.standard_normal((3, dim, dim)) / np.sqrt(dim)
    covs = halves @ np.swapaxes(halves, 1, 2) + 0.1 * np.eye(dim)
    return Components(np.array([0.2, 0.3, 0.5]), rng.standard_normal((3, dim)), covs)


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
    np.testing.assert_allclose(log_evidences(blocks, components), expected, rtol=1e-10)


@pytest.mark.parametrize("dim", [2, 5])
def test_em_steps_are_those_of_extreme_deconvolution(dim: int) -> None:
    logs, ours = small_logs(dim), mixture(dim)
    twin = (ours.weights, ours.means, ours.covs)
    blocks = linear_blocks(logs.statistics(), 0.7, tasks_at_once=16)
    for _ in range(3):
        sums = expectations(blocks, ours)
        ours = maximize(ours, sums)
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
    hashes = np.arange(4000, dtype=np.uint64)
    block = linear_blocks(many, 1.0, tasks_at_once=4000)[0]
    object.__setattr__(block, "hashes", hashes)
    draws = block.draw(components, 3)
    prior = dp.MixturePrior(components.weights, components.means, components.covs)
    exact = prior.posterior(dp.Linear(noise_std=1.0).observe(one.features, one.rewards))[
        0
    ].moments()
    cov = np.asarray(exact.cov)
    error = (draws.mean(axis=0) - np.asarray(exact.mean)) / np.sqrt(np.diagonal(cov) / 4000)
    assert np.max(np.abs(error)) < 5
    np.testing.assert_allclose(np.cov(draws.T), cov, atol=5 * np.max(cov) * np.sqrt(3 / 4000))
    np.testing.assert_array_equal(block.select(np.arange(5)).draw(components, 3), draws[:5])


def sleepstudy() -> dp.Logs:
    """Reaction times in ms of 18 subjects over ten days (Belenky et al., 2003)."""
    with (Path(__file__).parent / "sleepstudy.csv").open() as file:
        table = list(csv.DictReader(file))
    data = [(row["subject"], day, float(row[f"day{day}"])) for row in table for day in range(10)]
    subjects, days, reactions = zip(*data, strict=True)
    return dp.Logs(subjects, np.array(days, float)[:, None], reactions, intercept=True)


def test_mixed_model_of_the_sleep_study_equals_lme4() -> None:
    # maximum likelihood of Reaction ~ Days + (Days | Subject) by lme4 and MixedModels.jl
    fit = fit_gaussian(linear_blocks(sleepstudy().statistics(), 50.0), estimate_noise=True)
    assert fit.noise_std is not None and fit.converged
    mean, cov = fit.components.means[0], fit.components.covs[0]
    np.testing.assert_allclose(mean, [251.4051, 10.4673], rtol=1e-5)
    np.testing.assert_allclose(np.diagonal(cov), [565.5107, 32.6821], rtol=1e-4)
    np.testing.assert_allclose(cov[0, 1] / np.sqrt(cov[0, 0] * cov[1, 1]), 0.0813, atol=1e-4)
    np.testing.assert_allclose(fit.noise_std**2, 654.9410, rtol=1e-4)
    np.testing.assert_allclose(fit.log_evidence, -875.9697, atol=1e-4)


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
        np.testing.assert_array_equal(first.components.covs, other.components.covs)


def test_noise_is_found_from_residuals_or_jointly() -> None:
    rng = np.random.default_rng(0)
    many = dp.Logs(*rows(rng, blobs(rng, 1000), 5.0, 0.5)).statistics()
    found = estimate_noise(many)
    assert found.how == "pooled" and abs(found.noise_std / 0.5 - 1) < 0.03
    few = estimate_noise(many.select(np.arange(60)))
    assert few.how == "joint" and abs(few.noise_std / 0.5 - 1) < 0.3


def test_kernels_are_components_of_one_covariance() -> None:
    logs, cov = small_logs(3), 0.2 * mixture(3).covs[0]
    block = linear_blocks(logs.statistics(), 0.7)[0]
    atoms = np.random.default_rng(2).standard_normal((6, 3))
    components = Components(np.ones(6), atoms, np.broadcast_to(cov, (6, 3, 3)))
    np.testing.assert_allclose(
        block.kernel_log_evidence(atoms, cov), block.log_evidence(components), rtol=1e-9
    )


def test_weights_of_kernels_are_the_nonparametric_maximum() -> None:
    """Against plain EM on the same grid, run very long in float64; and the certificate holds."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 200), 5.0))
    blocks = linear_blocks(logs.statistics(), 1.0)
    atoms = grid(3.0 * rng.standard_normal((1000, 2)), np.zeros(2), 100)
    made = kernels(blocks, atoms, 0.05 * np.eye(2))
    weights = made.weights(np.full(100, 0.01), np.ones(200, bool), 2000)
    log_kernel = blocks[0].kernel_log_evidence(atoms, 0.05 * np.eye(2))
    twin = np.full(100, 0.01)
    for _ in range(20_000):
        p = np.exp(log_kernel - log_kernel.max(axis=1, keepdims=True))
        gain = p.T @ (1 / (p @ twin)) / 200
        twin = twin * gain
    best = np.mean(np.log(p @ twin) + log_kernel.max(axis=1))
    assert gain.max() - 1 < 1e-3  # the twin is certified
    assert best - 2e-3 < made.log_evidence(weights).mean() < best + 1e-4


def test_a_mixture_is_found_from_rows_where_estimates_alone_mislead() -> None:
    rng = np.random.default_rng(3)
    logs = dp.Logs(*rows(rng, blobs(rng, 600), 5.0))
    new = dp.Logs(*rows(rng, blobs(rng, 600), 5.0))
    blocks, judge = (linear_blocks(part.statistics(), 1.0) for part in (logs, new))
    gaussian = fit_gaussian(blocks).components
    draws = np.concatenate([block.draw(gaussian, 0) for block in blocks])
    found = fit_mixture(blocks, gaussian, 2, draws=draws).components
    truth = Components(
        np.full(2, 0.5),
        1.5 * np.array([[1.0, 1.0], [-1.0, -1.0]]),
        0.09 * np.eye(2)[None].repeat(2, 0),
    )
    true = log_evidences(judge, truth)
    gap = true - log_evidences(judge, found)
    assert gap.mean() < 0.015 + 2 * gap.std() / np.sqrt(600)
    assert (true - log_evidences(judge, gaussian)).mean() > 0.1


def test_families_are_fitted_from_logs_as_from_parameters() -> None:
    gaussian = gaussian_from_logs(sleepstudy(), dp.Linear())
    np.testing.assert_allclose(np.diagonal(gaussian.covs[0]), [565.5107, 32.6821], rtol=1e-4)
    rng = np.random.default_rng(3)
    logs = dp.Logs(*rows(rng, blobs(rng, 300), 6.0))
    mixture = dp.MixturePrior.fit(logs, num_components=2, likelihood=dp.Linear(noise_std=1.0))
    np.testing.assert_allclose(np.sort(np.asarray(mixture.means)[:, 0]), [-1.5, 1.5], atol=0.2)
    with pytest.raises(ValueError, match="`likelihood`: expected how rewards arise, got NoneType"):
        gaussian_from_logs(logs, None)
    with pytest.raises(ValueError, match="`num_components`: expected at most one"):
        dp.MixturePrior.fit(logs, num_components=301, likelihood=dp.Linear())


def test_a_hedge_is_that_share_of_the_samples() -> None:
    samples = np.random.default_rng(0).standard_normal((9900, 2)) * [1.0, 10.0]
    hedged = with_hedge(samples, 0.01, 0)
    assert hedged.shape == (10_000, 2)
    np.testing.assert_array_equal(hedged[:9900], samples)
    np.testing.assert_allclose(hedged[9900:].std(axis=0), [3.0, 30.0], rtol=0.3)
    with pytest.raises(ValueError, match="`hedge`: expected a share"):
        dp.DiffusionPrior.fit(samples, hedge=1.5)


def test_candidates_are_judged_on_whole_tasks_that_they_have_not_seen() -> None:
    """The figures of a turn are those of tasks, all their rows, under what the others gave."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 120), 4.0))
    likelihood = dp.Linear(noise_std=1.0)
    found = search_mixture(logs, likelihood, candidates=[Candidate(num_components=2)])
    fold = folds(logs.hashes, 3, salt=11)
    expected = []
    for turn in range(3):
        start = gaussian_of(blocks_of(logs, likelihood))
        own, out = (
            blocks_of(logs.select(part), likelihood) for part in (fold != turn, fold == turn)
        )
        expected.append(log_evidences(out, gaussian_of(own, start=start)))
    np.testing.assert_allclose(found.log_evidence[:, 0], np.concatenate(expected), rtol=1e-9)


def test_an_average_of_mixtures_explains_tasks_held_out_best() -> None:
    """Shares by EM are those of the greatest mean log of the averaged evidence."""
    rng = np.random.default_rng(0)
    table = np.column_stack([np.zeros(400), rng.normal(0.1, 1.0, 400), rng.normal(0.0, 1.0, 400)])
    table[:, 0] -= 9.0  # a Gaussian that explains nothing
    tried = [Candidate(num_components=count) for count in (1, 2, 5)]
    shares = averaging_shares(tried, table)
    assert sum(shares.values()) == pytest.approx(1.0) and 0 not in shares

    def value(share: float) -> float:
        both = np.logaddexp(np.log(share) + table[:, 1], np.log1p(-share) + table[:, 2])
        return float(both.mean())

    grid_ = np.linspace(0.05, 0.95, 91)
    assert value(shares[1]) > max(map(value, grid_)) - 1e-3
    one = Components(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    both = averaged([one, mixture(2)], shares)
    np.testing.assert_allclose(both.weights.sum(), 1.0)
    assert len(both) == 4


def test_a_gaussian_may_have_a_share_and_kernels_stay_alone() -> None:
    rng = np.random.default_rng(0)
    gaussian, other = rng.normal(0.0, 1.0, (2, 400))
    tried = [Candidate(num_components=1), Candidate(num_components=5), Candidate(width=0.1)]
    table = np.column_stack([gaussian, other, np.full(400, -9.0)])
    assert averaging_shares(tried, table).keys() == {0, 1}
    table[:, 2] = np.maximum(gaussian, other) + 1.0
    assert averaging_shares(tried, table) == {2: 1.0}
    table[:, 1:] = gaussian[:, None] - 9.0
    assert averaging_shares(tried, table) == {1: 1.0}  # which does not pay
