"""The E-step of a diffusion model: which samplers are exact enough; shards do not change draws."""

import dataclasses

import numpy as np

import diffprior as dp
from diffprior.fitting.config import LOGS_SEARCH, LearningConfig
from diffprior.learning.distill import HERE, e_step, posterior_draws
from worlds_of_tasks import blobs, rows

PRIOR = dp.MixturePrior([0.5, 0.5], [[1.5, 1.5], [-1.5, -1.5]], 0.09 * np.eye(2)[None].repeat(2, 0))


def test_draws_of_a_task_depend_on_its_label_and_the_round_alone() -> None:
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 30), 4.0))
    sampler, likelihood = dp.Exact(PRIOR), dp.Linear(noise_std=1.0)
    whole = posterior_draws(sampler, logs, likelihood, 1)
    for shard in (np.arange(0, 30, 3), np.arange(29, 9, -2)):
        part = posterior_draws(sampler, logs.select(shard), likelihood, 1)
        np.testing.assert_allclose(part, whole[shard], rtol=1e-6)
    assert np.all(posterior_draws(sampler, logs, likelihood, 2) != whole)
    assert np.all(posterior_draws(sampler, logs, likelihood, 1, copy=1) != whole)


def test_an_e_step_with_half_the_variance_shrinks_the_prior() -> None:
    """Why the sampler is exact: one round loses variance where exact draws do not."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, rng.standard_normal((4000, 2)), 6.0))
    likelihood = dp.Linear(noise_std=1.0)
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    draws = posterior_draws(dp.Exact(prior), logs, likelihood, 0)
    np.testing.assert_allclose(np.cov(draws.T), np.eye(2), atol=0.1)
    from diffprior.fitting.rows import block_order, blocks_of
    from diffprior.mixture import GaussianMixture

    block = blocks_of(logs, likelihood)
    given = [b.condition(GaussianMixture.single(np.zeros(2), np.eye(2))) for b in block]
    means = np.empty_like(draws)
    means[block_order(logs)] = np.concatenate([g.mean_z[:, 0].T for g in given])
    narrow = means + np.sqrt(0.5) * (draws - means)
    assert np.all(np.diagonal(np.cov(narrow.T)) < 0.9)


def test_draws_of_one_task_are_held_out_together() -> None:
    """Several draws given a task are one label, so that none of them scores another."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 30), 4.0))
    likelihood, sampler = dp.Linear(noise_std=1.0), dp.Exact(PRIOR)
    drawn = e_step(sampler, [logs], likelihood, 2, HERE, 100)
    copies = -(-100 // 30)
    assert drawn.points.shape == (30 * copies, 2) and len(np.unique(drawn.hashes)) == 30
    for copy in (0, copies - 1):
        draws = posterior_draws(sampler, logs, likelihood, 2, copy)
        for label, draw in zip(logs.hashes, draws, strict=True):
            assert np.any(np.all(drawn.points[drawn.hashes == label] == draw, axis=1))


def test_a_diffusion_model_is_learned_where_it_is_all_that_is_allowed() -> None:
    """Distilled, improved in rounds of EM, scored on held-out tasks and simulated."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 220), 3.0))
    search = dataclasses.replace(LOGS_SEARCH, max_components=2)
    config = LearningConfig(search=search, max_rounds=1, round_steps=20, round_draws=200)
    learned = dp.learn(
        logs,
        dp.Linear(noise_std=1.0),
        families=("diffusion",),
        simulate=True,
        progress=False,
        config=config,
    )
    report = learned.report
    assert report.chosen == "diffusion" and isinstance(learned.prior, dp.DiffusionPrior)
    names = [family.name for family in report.families]
    assert names == ["cold start", "Gaussian", "mixture of 2", "diffusion"]
    mixture, diffusion = report.families[2:]
    difference = diffusion.log_evidence - mixture.log_evidence
    assert abs(difference) < 0.1 and mixture.over_gaussian.mean > 0
    assert report.simulation is not None
    assert {regret.family for regret in report.simulation.regrets} == set(names)
    assert "recommended temperature" in str(report)
