"""The E-step of a diffusion model: which samplers are exact enough; shards do not change draws."""

import numpy as np
import pytest

import diffprior as dp
from diffprior.learning.distill import check_exact, em_round, posterior_draws
from worlds_of_tasks import blobs, rows

PRIOR = dp.MixturePrior([0.5, 0.5], [[1.5, 1.5], [-1.5, -1.5]], 0.09 * np.eye(2)[None].repeat(2, 0))


def test_samplers_that_are_too_narrow_are_rejected_with_the_reason() -> None:
    diffusion = dp.DiffusionPrior.from_prior(PRIOR)
    for sampler in (dp.LaplaceDPS(diffusion), dp.DPS(diffusion)):
        with pytest.raises(ValueError, match="half the variance.*the prior collapses"):
            check_exact(sampler)
    exact = dp.TwistedSMC(diffusion)
    assert check_exact(exact) is exact


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
    """Why those samplers are rejected: one round loses variance where exact draws do not."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, rng.standard_normal((4000, 2)), 6.0))
    likelihood = dp.Linear(noise_std=1.0)
    prior = dp.GaussianPrior(np.zeros(2), np.eye(2))
    draws = posterior_draws(dp.Exact(prior), logs, likelihood, 0)
    np.testing.assert_allclose(np.cov(draws.T), np.eye(2), atol=0.1)
    from diffprior.learning.tasks import block_order, blocks_of
    from diffprior.mixture import GaussianMixture

    block = blocks_of(logs, likelihood)
    given = [b.condition(GaussianMixture.single(np.zeros(2), np.eye(2))) for b in block]
    means = np.empty_like(draws)
    means[block_order(logs)] = np.concatenate([g.mean_z[:, 0].T for g in given])
    narrow = means + np.sqrt(0.5) * (draws - means)
    assert np.all(np.diagonal(np.cov(narrow.T)) < 0.9)


def test_draws_of_one_task_are_held_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several draws given a task are one label, so that none of them scores another."""
    rng = np.random.default_rng(0)
    logs = dp.Logs(*rows(rng, blobs(rng, 30), 4.0))
    likelihood, sampler = dp.Linear(noise_std=1.0), dp.Exact(PRIOR)
    start, seen = dp.DiffusionPrior.from_prior(PRIOR), dict[str, np.ndarray]()

    def record(samples: np.ndarray, *, groups: np.ndarray, **_: object) -> dp.DiffusionPrior:
        seen.update(samples=samples, groups=groups)
        return start

    monkeypatch.setattr(dp.DiffusionPrior, "fit", staticmethod(record))
    em_round(start, [logs], likelihood, 2, sampler=sampler)
    copies = -(-4000 // 30)
    assert seen["samples"].shape == (30 * copies, 2) and len(np.unique(seen["groups"])) == 30
    for copy in (0, copies - 1):
        draws = posterior_draws(sampler, logs, likelihood, 2, copy)
        for place, task in enumerate(np.argsort(logs.hashes)):
            own = seen["samples"][seen["groups"] == place]
            assert np.any(np.all(own == draws[task], axis=1))
