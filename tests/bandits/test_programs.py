"""Few programs serve all requests, they are not held for ever, and padding is never seen."""

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Counting, standard_prior
from diffprior.bandits._dispatch import compiled, partition
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.decisions import WINS, WinCount, host_mean, pieces, wins

RNG = np.random.default_rng(11)
FEATURES = RNG.standard_normal((200, 2))


class Part(eqx.Module):
    small: jax.Array
    whole: jax.Array
    name: str


def part(seed: int, name: str = "a") -> Part:
    rng = np.random.default_rng(seed)
    return Part(jnp.asarray(rng.standard_normal((3, 4))), jnp.asarray(rng.integers(0, 9, 5)), name)


def test_a_module_is_combined_again() -> None:
    """And structures are equal if only numbers differ."""
    module = part(0)
    arrays, structure = partition(module)
    assert eqx.tree_equal(structure.combine(arrays), module)
    traced = jax.jit(lambda arrays: structure.combine(arrays).small)
    np.testing.assert_array_equal(traced(arrays), module.small)
    same, other = partition(part(1))[1], partition(part(1, "b"))[1]
    assert structure == same and hash(structure) == hash(same) and structure != other


def test_the_number_of_programs_is_small() -> None:
    """All numbers of actions need one, batches and draws of any number four sizes more."""
    sampler = Counting()
    bandit = Bandit(sampler, dp.Linear(0.5), seed=0)
    for k in range(1, 201):
        bandit.decide(FEATURES[:k])
    assert sampler.tally.count == 1
    for b in (*range(1, 20), 65, 200, 1000):
        bandit.decide(np.broadcast_to(FEATURES[:5], (b, 5, 2)))
    assert sampler.tally.count == 1 + 3
    for n in (1, 2, 30, 31, 32, 33, 40, 128, 129, 777, 2000):
        bandit.decide(FEATURES[:5], propensity_draws=n, top_k=1 + n % 5)
    assert sampler.tally.count == 4
    for n in range(1, 40):
        bandit.posterior(30 * n, seed=0)
    assert sampler.tally.count <= 4 + 3


def test_programs_that_were_not_used_for_long_are_freed() -> None:
    """Memory maps, as Linux counts them, stay flat however many programs come."""

    def maps() -> int:
        return len(Path("/proc/self/maps").read_text().splitlines())

    def make(size: int) -> Callable[..., Any]:
        return jax.jit(lambda x: jnp.sort(x) + size)

    for size in range(compiled.cache_info().maxsize):
        compiled(make, size)
    before = maps()
    for size in range(1000, 1000 + compiled.cache_info().maxsize + 20):
        compiled(make, size)(jnp.ones(3)) if size < 1010 else compiled(make, size)
    gc.collect()
    assert maps() <= before + 100
    assert compiled.cache_info().currsize == compiled.cache_info().maxsize


@pytest.mark.parametrize("likelihood", [dp.Linear(1.0), dp.Poisson()], ids=repr)
def test_nothing_is_compiled_after_warming_up(
    likelihood: dp.AbstractLikelihood, compilations: list[str]
) -> None:
    """Neither as rows come, nor when they are merged and folded, nor with an extreme one."""
    bandit = Bandit(standard_prior(), likelihood, seed=0, max_rows=128)
    bandit.warm_up(20, propensity_draws=10)
    assert "jit(draws)" in compilations  # the count sees what it should
    compilations.clear()
    for i in range(300):
        bandit.update(FEATURES[i % 200] + i // 200, float(i % 2))
        if i % 30 == 0:
            bandit.decide(FEATURES[: 17 + i % 4])
    bandit.decide(FEATURES[:20], propensity_draws=3)
    bandit.update([3e3, 3e3], 1.0)
    assert not compilations
    if isinstance(bandit.evidence, dp.GLMEvidence):
        assert int(bandit.evidence.num_rows) <= 128 and np.any(bandit.evidence.folded.precision)


def test_the_first_compaction_is_compiled_beside_the_rows_before_it(
    compilations: list[str],
) -> None:
    bandit = Bandit(standard_prior(), dp.Poisson(), seed=0, max_rows=136)
    for i in range(70):
        bandit.update(FEATURES[i], 1.0)
    for thread in threading.enumerate():
        if thread.name == "first compaction":
            thread.join()
    assert compilations
    compilations.clear()
    for i in range(70, 140):
        bandit.update(FEATURES[i], 1.0)
    assert not compilations and np.any(bandit.evidence.folded.precision)


def test_pieces_cover_every_draw_and_waste_few() -> None:
    for count in (1, 2, 7, 8, 9, 32, 33, 64, 65, 128, 257, 512, 513, 2000):
        found = list(pieces(count))
        starts, sizes = zip(*found, strict=True)
        assert list(starts) == np.cumsum([0, *sizes])[:-1].tolist()
        assert count <= sum(sizes) < 2 * count + 7 and {*sizes} <= {1, 8, 64, 512}


def test_a_decision_after_a_longer_one_has_its_own_numbers() -> None:
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    long, short = bandit.decide(FEATURES), bandit.decide(FEATURES[:3])
    kept = long.scores.copy()
    bandit.decide(-FEATURES)
    np.testing.assert_array_equal(long.scores, kept)
    assert short.scores.shape == (3,)


def test_any_number_of_actions_is_ranked_whole() -> None:
    bandit = Bandit(standard_prior(), dp.Linear(0.01), seed=0)
    bandit.update(np.eye(2), np.array([-30.0, -30.0]))
    features = 1.0 + np.abs(FEATURES)
    for k in (1, 2, 3, 9, 17):
        decision = bandit.decide(features[:k], propensity_draws=40)
        assert decision.action < k and np.all(decision.scores < 0)
        order = bandit.decide(features[:k], top_k=k, propensity_draws=40)
        assert sorted(order.action) == list(range(k))
        np.testing.assert_array_equal(order.propensity, np.ones(k))
    assert bandit.decide(features[:1], propensity_draws=33).propensity == 1.0


def test_wins_of_all_actions_sum_to_the_number_chosen() -> None:
    """Batches share the draws; and the first of equal actions wins."""
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    features = np.stack([FEATURES[:5], FEATURES[5:10], FEATURES[10:15]])
    for num_draws in (1, 33, 300):
        shares = bandit.decide(features, top_k=5, propensity_draws=num_draws).propensity
        np.testing.assert_array_equal(shares, np.ones((3, 5)))
    values, mask = RNG.standard_normal((65, 5)), np.array([True, False, True, True, True])
    for top_k in (1, 2, 3):
        won = wins(values, mask, top_k, np.arange(5)).sum(axis=0)
        assert won.sum() == 65 * top_k and won[1] == 0
        ranks = np.argsort(np.argsort(-np.where(mask, values, -np.inf), axis=1), axis=1)
        np.testing.assert_array_equal(won, np.sum(ranks < top_k, axis=0))


def test_of_equal_actions_the_first_come_first() -> None:
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    same = np.ones((6, 2))
    np.testing.assert_array_equal(bandit.decide(same, top_k=4).action, np.arange(4))
    decision = bandit.decide(same, top_k=4, propensity_draws=50)
    np.testing.assert_array_equal(decision.propensity, np.ones(4))
    assert bandit.decide(same).action == 0


class Cube(dp.AbstractFamily):
    """A family of one's own, which knows JAX only."""

    def mean(self, eta: jax.Array) -> jax.Array:
        return jnp.power(eta, 3)

    def log_density(self, y: jax.Array, eta: jax.Array) -> jax.Array:
        return -0.5 * (y - eta) ** 2

    def sample(self, key: jax.Array, eta: jax.Array) -> jax.Array:
        return eta

    def check_rewards(self, rewards: np.ndarray) -> None:
        pass


@pytest.mark.parametrize(
    "likelihood",
    [dp.Linear(1.0), dp.Logistic(), dp.Poisson(), dp.NegativeBinomial(2.0), Cube()],
    ids=lambda value: type(value).__name__,
)
def test_means_on_the_host_are_those_of_programs(likelihood: dp.AbstractLikelihood) -> None:
    for shape in ((3,), (2, 7), (40,)):
        eta = 10 * RNG.standard_normal(shape).astype(jnp.result_type(float))
        found = host_mean(likelihood)(eta)
        assert isinstance(found, np.ndarray) and found.shape == shape
        np.testing.assert_allclose(found, likelihood.mean(jnp.asarray(eta)), rtol=1e-5, atol=1e-9)


def test_inverse_propensities_are_unbiased() -> None:
    """Until the cap 1 / p, and beyond it only what no draw would have shown is missing."""
    rng, most, repeats = np.random.default_rng(0), 100, 1500
    for p in (0.6, 0.03):
        found = np.zeros(repeats)
        for i in range(repeats):
            count = WinCount(np.zeros((2, 1)), None, 1, np.zeros(1, int))
            while left := min(count.num_needed(most), 7 + count.num_draws % 5):
                count.add(np.stack([rng.random(left) < p, np.full(left, 0.5)], axis=1))
            assert count.num_draws <= most and count.hits[0] <= WINS
            found[i] = 1 / count.propensity[0][0]
        expected = (1 - (1 - p) ** (most + 1)) / p
        assert abs(found.mean() - expected) < 5 * found.std() / np.sqrt(repeats)
