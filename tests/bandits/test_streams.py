"""Seeds: fresh unless given, all of their bits used, and rejected by name."""

import functools

import jax
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Ball, standard_prior
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.decisions import checked_seed, stream_keys, stream_words

FEATURES = np.random.default_rng(2).standard_normal((50, 2))


def actions(seed: int | None) -> list[int]:
    bandit = Bandit(standard_prior(), dp.Linear(1.0), seed=seed)
    return list(bandit.decide(np.broadcast_to(FEATURES, (20, 50, 2))).action)


def test_bandits_explore_apart_unless_a_seed_is_given() -> None:
    assert actions(None) != actions(None)
    assert actions(7) == actions(7) != actions(8)
    assert Bandit(standard_prior(), dp.Linear(1.0), seed=7).seed == 7


def test_all_bits_of_a_seed_count() -> None:
    seeds = (7, 7 + 2**32, 7 + 2**33, 7 + 2**62, 2**31 + 7, 2**63 - 1, 2**32 - 1)
    data = [np.asarray(jax.random.key_data(stream_keys(seed, 0).decisions)) for seed in seeds]
    assert len({tuple(row) for row in data}) == len(seeds)


def test_small_seeds_are_those_of_jax() -> None:
    """So that files of before decide as they did."""
    for seed in (0, 7, 2**31 + 7, 2**32 - 1):
        expected = jax.random.split(jax.random.fold_in(jax.random.key(seed), 3), 3)
        found = stream_keys(seed, 3)
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(jax.random.key_data(ours), jax.random.key_data(theirs))


def test_streams_are_the_same_in_numpy() -> None:
    """Of the default generator, and of others."""
    for impl in ("threefry2x32", "rbg"):
        with jax.default_prng_impl(impl):
            for seed in (0, 2**32 - 1, 2**32, 2**62 + 7):
                keys = [jax.random.key_data(key) for key in stream_keys(seed, 0)]
                np.testing.assert_array_equal(stream_words(seed), np.stack(keys))


@pytest.mark.parametrize("seed", [-1, 2**63, 2**70, 1.0, True, "7", None])
def test_what_is_no_seed_is_rejected(seed: object) -> None:
    with pytest.raises(ValueError, match=r"`seed`: expected an integer from 0 to 2\*\*63 - 1, got"):
        checked_seed(seed)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_every_entry_rejects_such_a_seed(seed: int) -> None:
    bandit = Bandit(standard_prior(), dp.Linear(1.0))
    for call in (functools.partial(Bandit, standard_prior(), dp.Linear(1.0)), bandit.posterior):
        with pytest.raises(ValueError, match="`seed`"):
            call(seed=seed)
    task = Ball(dp.Linear(0.5), fresh_actions=False)
    with pytest.raises(ValueError, match="`seed`"):
        dp.simulate(task, {"TS": dp.Exact(standard_prior())}, 2, 2, seed=seed)
