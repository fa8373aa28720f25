"""Few programs serve all requests, they are not kept for ever, and padding is never seen."""

import gc
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diffprior as dp
from bandits.helpers import Counting, standard_prior
from diffprior.bandits import decisions, requests
from diffprior.bandits.bandit import Bandit
from diffprior.bandits.requests import Request

RNG = np.random.default_rng(11)
FEATURES = RNG.standard_normal((200, 2))
AGENTS = {
    "thompson": lambda: dp.ThompsonSampling(dp.Exact(standard_prior()), dp.Linear(0.5)),
    "linucb": lambda: dp.LinUCB(standard_prior(), dp.Linear(0.5)),
    "epsilon": lambda: dp.EpsilonGreedy(standard_prior(), dp.Linear(0.5), epsilon=0.5),
    "uniform": lambda: dp.Uniform(dp.Linear(0.5), dim=2),
}


def memory_maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def test_the_number_of_programs_is_logarithmic() -> None:
    """All K up to 200, batches up to 20 and draws up to 2,000 in ten sizes."""
    sampler = Counting()
    bandit = Bandit(sampler, dp.Linear(0.5), seed=0)
    for k in range(1, 201):
        bandit.decide(FEATURES[:k])
    assert sampler.tally.count == 4  # 8, 32, 128, 512
    for b in (*range(1, 20), 65, 200, 1000):
        bandit.decide(np.broadcast_to(FEATURES[:5], (b, 5, 2)))
    assert sampler.tally.count == 4 + 2  # blocks of 8 and 128; one alone was there
    for n in (1, 2, 30, 31, 32, 33, 40, 128, 129, 777, 2000):
        bandit.decide(FEATURES[:5], propensity_draws=n, top_k=1 + n % 5)
    assert sampler.tally.count <= 6 + 3  # a loop of dynamic length may be traced more than once
    before = sampler.tally.count
    for n in range(1, 9):
        bandit.posterior(30 * n, seed=0)
    assert sampler.tally.count <= before + 2


def test_programs_beyond_the_bound_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory maps, as Linux tells them, stay flat however many sizes come."""
    small = decisions.functools.lru_cache(maxsize=2)(decisions.compiled.__wrapped__)
    monkeypatch.setattr(decisions, "compiled", small)
    counts = []
    for size in range(1, 7):
        Bandit(standard_prior(), dp.Linear(0.5), seed=0).decide(np.ones((2 * 4**size, 2)))
        gc.collect()
        counts.append(memory_maps())
    assert max(counts[3:]) <= max(counts[:3]) + 100  # three programs more have some 400
    assert small.cache_info().currsize == 2


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """The names of the programs compiled so far."""
    names: list[str] = []

    def listen(event: str, duration: float, **details: str) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(str(details.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("likelihood", [dp.Linear(1.0), dp.Logistic(), dp.Poisson()], ids=repr)
def test_nothing_is_compiled_after_warming_up(
    likelihood: dp.AbstractLikelihood, compilations: list[str]
) -> None:
    """Neither as rows come, nor when they are merged and folded, nor with an extreme one."""
    bandit = Bandit(standard_prior(), likelihood, seed=0, max_rows=128)
    bandit.warm_up(20, propensity_draws=10)
    assert "jit(decide)" in compilations  # the count sees what it should
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


@pytest.mark.parametrize("size", [2, 7, 8, 9, 64, 65, 128, 129, 200])
def test_blocks_hold_every_decision_once(size: int) -> None:
    features = np.arange(size * 3.0).reshape(size, 3, 1)
    request = Request(features, None, None, None, 1)
    blocks = request.blocks(np.dtype(float), room=5)
    assert {block.shape for block in blocks} <= {(8, 8), (128, 8)}
    assert sum(block.shape[0] for block in blocks) < 2 * size + 7
    unpacked = [decisions.unpacked_actions(jnp.asarray(b.actions), b.shape) for b in blocks]
    found = [np.concatenate([f[..., 0], f[:, :1, 0]], axis=1) for f, _ in unpacked]
    each, first = request.joined(found, blocks)
    np.testing.assert_array_equal(each, features[..., 0])
    np.testing.assert_array_equal(first, features[:, 0, 0])
    assert [block.first for block in blocks] == np.cumsum([0] + [b.size for b in blocks])[
        :-1
    ].tolist()
    for _, allowed in unpacked:
        assert np.all(allowed[:, :3]) and not np.any(allowed[:, 3:])


@pytest.mark.parametrize("masked", [False, True])
def test_what_memory_held_before_is_never_seen(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in single decisions, which use the same memory again, nor in batches."""
    held = np.full(10**4, np.nan)

    def numbers(size: int, dtype: np.dtype) -> np.ndarray:
        return held.astype(dtype)[:size]

    features = RNG.standard_normal((5, 3, 2))
    mask = np.array([False, True, True]) if masked else None
    clean, dirty = (Bandit(standard_prior(), dp.Linear(0.5), seed=4) for _ in range(2))
    expected = [clean.decide(one, mask=mask) for one in (features[0], features)]
    monkeypatch.setattr(requests._SCRATCH, "numbers", numbers)
    monkeypatch.setattr(requests.np, "empty", numbers)
    got = [dirty.decide(one, mask=mask) for one in (features[0], features)]
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours.action, theirs.action)
        np.testing.assert_array_equal(ours.scores, theirs.scores)


def test_a_decision_after_a_longer_one_has_its_own_numbers() -> None:
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    long, short = bandit.decide(FEATURES), bandit.decide(FEATURES[:3])
    kept = long.scores.copy()
    bandit.decide(-FEATURES)
    np.testing.assert_array_equal(long.scores, kept)
    assert short.scores.shape == (3,)


def test_an_option_that_the_compiler_does_not_know_is_left_out() -> None:
    assert decisions.known_options("xla_no_such_option", True) == {}
    assert len(decisions.known_options("xla_cpu_enable_fast_math", False)) == 1


@pytest.mark.parametrize("name", AGENTS)
def test_padding_changes_no_decision(name: str) -> None:
    """One more action, which is not allowed, takes the arrays to another size."""
    near = 1.0 + np.abs(FEATURES[:8])
    far = np.concatenate([near, [[50.0, 50.0]]])
    plain, wider = (Bandit(AGENTS[name](), seed=3) for _ in range(2))
    for bandit in (plain, wider):
        bandit.update(near, near @ np.array([2.0, 2.0]))
    allowed = np.arange(9) < 8
    for _ in range(40):
        few = plain.decide(near, top_k=8)
        more = wider.decide(far, top_k=8, mask=allowed)
        np.testing.assert_array_equal(few.action, more.action)
        np.testing.assert_allclose(few.scores, more.scores[:8], rtol=1e-9)
        assert more.scores.shape == (9,)


def test_padded_actions_are_never_chosen() -> None:
    """Scores are all negative, and what is added would be worth zero, were it features of zero;
    and a single action is chosen, its propensity one."""
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


def test_propensities_of_all_actions_sum_to_the_number_chosen() -> None:
    """However many draws the last chunk lacks, and whatever the batch is padded with."""
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    features = np.stack([FEATURES[:5], FEATURES[5:10], FEATURES[10:15]])
    for num_draws in (1, 31, 33, 300):
        shares = bandit.decide(features, top_k=5, propensity_draws=num_draws).propensity
        np.testing.assert_array_equal(shares, np.ones((3, 5)))
    programs, state = bandit._programs, bandit._state
    (block,) = bandit._blocks(Request(features, None, None, None, 2), state)
    for top_k, num_draws in ((1, 31), (2, 65), (3, 300)):
        hits = np.asarray(programs.count_hits(state, 0, block, top_k, num_draws))[:, :-1]
        assert hits.shape == (8, 8) and not np.any(hits[:, 5:])
        np.testing.assert_array_equal(hits.sum(axis=1), np.full(8, top_k * num_draws))


def test_of_equal_actions_the_first_come_first() -> None:
    bandit = Bandit(standard_prior(), dp.Linear(0.5), seed=0)
    same = np.ones((6, 2))
    np.testing.assert_array_equal(bandit.decide(same, top_k=4).action, np.arange(4))
    decision = bandit.decide(same, top_k=4, propensity_draws=50)
    np.testing.assert_array_equal(decision.propensity, np.ones(4))
    assert bandit.decide(same).action == 0
