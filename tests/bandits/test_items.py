"""Items: what they choose, against posteriors computed elsewhere; and how a catalog changes."""

import datetime
import itertools
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.special import ndtr

import diffprior as dp
import reference
from cases import GLMS, LINEAR, LOGISTIC, POISSON, LikelihoodCase
from diffprior.bandits.best import Mixtures, best_probabilities
from statistic import Z, assert_moments

WEIGHTS = np.array([0.6, 0.4])
MEANS = np.array([[1.0, 0.0], [-1.0, 0.5]])
COVS = np.array([[[0.3, 0.1], [0.1, 0.2]], [[0.2, 0.0], [0.0, 0.4]]])
CONTEXT = np.array([0.8, -0.6])
NAMES = ["a", "b", "c", "d"]
DRAWS = 1024


def mixture() -> dp.MixturePrior:
    return dp.MixturePrior(WEIGHTS, MEANS, COVS)


def history(
    case: LikelihoodCase, names: Sequence[str] = NAMES, seed: int = 0
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Rows of every item but each fourth, which is new."""
    rng = np.random.default_rng(seed)
    rows = {}
    for name, count in zip(names, itertools.cycle((5, 2, 9, 0)), strict=False):
        features = rng.standard_normal((count, 2))
        rows[name] = (features, case.draw(rng, features @ rng.standard_normal(2)))
    return rows


def filled(case: LikelihoodCase, names: Sequence[str] = NAMES, **options: object) -> dp.Items:
    """Items that have seen their rows."""
    items = dp.Items(mixture(), case.make(), seed=1, **options)
    items.add(names)
    for name, (features, rewards) in history(case, names).items():
        if len(rewards):
            items.update(name, features, rewards)
    return items


def posterior_draws(
    case: LikelihoodCase, rows: tuple[np.ndarray, np.ndarray], seed: int, num: int
) -> np.ndarray:
    """Draws of an item's parameters without the package: the prior's, resampled by likelihood."""
    rng = np.random.default_rng(seed)
    which = rng.choice(2, size=8 * num, p=WEIGHTS)
    noise = rng.standard_normal((8 * num, 2, 1))
    thetas = MEANS[which] + (np.linalg.cholesky(COVS)[which] @ noise)[:, :, 0]
    features, rewards = rows
    eta = thetas @ features.T
    logs = reference.family_log_density(rewards, eta, case.family, case.dispersion).sum(axis=1)
    weights = np.exp(logs - logs.max())
    return thetas[rng.choice(len(thetas), size=num, p=weights / weights.sum())]


def true_probabilities(
    case: LikelihoodCase, names: Sequence[str] = NAMES, num: int = 50_000
) -> np.ndarray:
    """How often each item is best."""
    rows = history(case, names).values()
    draws = [posterior_draws(case, own, place, num) @ CONTEXT for place, own in enumerate(rows)]
    return np.bincount(np.stack(draws).argmax(axis=0), minlength=len(names)) / num


def chosen_as_often(counts: np.ndarray, expected: np.ndarray) -> bool:
    """Whether counts fit expected ones, by chi-square; those of rare items are pooled."""
    rare = expected < 5
    if rare.any():
        pairs = ((part[~rare], part[rare].sum()) for part in (counts, expected))
        counts, expected = (np.append(*pair) for pair in pairs)
    chi_square = ((counts - expected) ** 2 / np.maximum(expected, 1)).sum()
    freedom = len(counts) - 1
    return bool(chi_square < freedom + Z * np.sqrt(2 * freedom) + Z**2 / 2)


@pytest.mark.parametrize("case", [LINEAR, LOGISTIC], ids=lambda case: case.name)
def test_items_are_chosen_as_often_as_they_are_best(case: LikelihoodCase) -> None:
    items = filled(case, num_draws=DRAWS)
    chosen = [items.choose(CONTEXT).item for _ in range(DRAWS)]  # each joint draw once
    counts = np.array([chosen.count(name) for name in NAMES])
    assert chosen_as_often(counts, DRAWS * true_probabilities(case))
    again = items.choose(CONTEXT)  # by the first draw, which its propensity leaves out
    hits = counts[NAMES.index(str(again.item))] - 1
    assert again.propensity == hits / (DRAWS - 1)


@pytest.mark.parametrize("count", [2, 20])
def test_few_and_many_items_are_chosen_as_often_as_they_are_best(count: int) -> None:
    names = [f"item {place}" for place in range(count)]
    items = filled(LINEAR, names, num_draws=DRAWS)
    chosen = [items.choose(CONTEXT).item for _ in range(DRAWS)]
    counts = np.array([chosen.count(name) for name in names])
    assert chosen_as_often(counts, DRAWS * true_probabilities(LINEAR, names))


def test_a_learned_prior_chooses_as_bandits_with_its_sampler() -> None:
    prior = dp.DiffusionPrior.from_prior(mixture())
    items = dp.Items(dp.EvidenceDPS(prior), LINEAR.make(), num_draws=512, seed=0)
    items.add(NAMES)
    for name, (features, rewards) in history(LINEAR).items():
        if len(rewards):
            items.update(name, features, rewards)
    shares = np.zeros(len(NAMES))
    for _ in range(512):
        shares[NAMES.index(str(items.choose(CONTEXT).item))] += 1 / 512
    expected = true_probabilities(LINEAR)
    error = np.sqrt(expected * (1 - expected) / 512)
    assert np.all(np.abs(shares - expected) < Z * error + 0.01)


def test_exact_propensities_are_those_of_many_draws() -> None:
    items = filled(LINEAR, num_draws=DRAWS)
    found = {}
    expected = true_probabilities(LINEAR, num=200_000)
    for _ in range(DRAWS):
        choice = items.choose(CONTEXT, propensity="exact")
        if choice.item not in found:
            found[choice.item] = choice.propensity
            assert choice.propensity_se == 0.0
    for name, share in zip(NAMES, expected, strict=True):
        assert items.choose(CONTEXT, among=[name], propensity="exact").propensity == 1.0
        assert abs(found[name] - share) < Z * np.sqrt(share * (1 - share) / 2e5) + 1e-4
    total = sum(found.values())
    assert abs(total - 1.0) < 1e-6


def test_exact_propensities_follow_exclusions_and_rewards() -> None:
    items, rows = filled(LINEAR, num_draws=64), history(LINEAR)

    def share(name: str, other: str) -> float:
        """Of the first of two items, from closed forms in one dimension."""
        parts = []
        for each in (name, other):
            weights, means, covs, _ = reference.mixture_posterior(
                WEIGHTS, MEANS, COVS, *rows[each], LINEAR.dispersion**0.5
            )
            parts.append((weights, means @ CONTEXT, covs @ CONTEXT @ CONTEXT))
        (w, m, v), (u, n, q) = parts
        z = (m[:, None] - n) / np.sqrt(v[:, None] + q)
        return float(w @ ndtr(z) @ u)

    def check() -> None:
        for kwargs in ({"exclude": ["a", "c"]}, {"among": ["d", "b"]}):
            choice = items.choose(CONTEXT, propensity="exact", **kwargs)
            other = "d" if choice.item == "b" else "b"
            assert choice.propensity == pytest.approx(share(str(choice.item), other), abs=1e-4)

    check()
    items.update("d", CONTEXT, 2.5)
    rows["d"] = (CONTEXT[None], np.array([2.5]))
    check()


def test_quadrature_agrees_with_draws_of_wide_and_narrow_mixtures() -> None:
    rng = np.random.default_rng(3)
    for spread in (0.0, 3.0):
        means = rng.standard_normal((30, 3))
        stds = 0.4 * np.exp(-spread * rng.random((30, 3)))
        weights = rng.dirichlet(np.ones(3), 30)
        found = best_probabilities(Mixtures(weights, means, stds))
        uniform = rng.random((50_000, 30, 1))
        which = np.minimum((uniform > np.cumsum(weights, axis=1)).sum(axis=2), 2)
        rows = np.arange(30)
        values = means[rows, which] + stds[rows, which] * rng.standard_normal(which.shape)
        shares = np.bincount(values.argmax(axis=1), minlength=30) / len(values)
        error = np.sqrt(np.maximum(found, 1e-5) / len(values))
        assert np.all(np.abs(found - shares) < Z * error + 5e-4) and abs(found.sum() - 1) < 1e-12


def test_quadrature_with_one_sure_winner_and_with_ties() -> None:
    sure = Mixtures(np.ones((3, 1)), np.array([[0.0], [9.0], [1.0]]), np.full((3, 1), 0.1))
    np.testing.assert_allclose(best_probabilities(sure), [0.0, 1.0, 0.0], atol=1e-9)
    equal = Mixtures(np.ones((4, 1)), np.zeros((4, 1)), np.full((4, 1), 1e-3))
    np.testing.assert_allclose(best_probabilities(equal), np.full(4, 0.25), atol=1e-9)


def test_the_posterior_of_an_item_is_that_of_its_own_rows() -> None:
    items = filled(LINEAR)
    for name in NAMES:
        weights, means, covs, _ = reference.mixture_posterior(
            WEIGHTS, MEANS, COVS, *history(LINEAR)[name], LINEAR.dispersion**0.5
        )
        mean, cov = reference.mixture_moments(weights, means, covs)
        draws = items.posterior(name, 4000, seed=2).draws
        assert np.all(np.abs(draws.mean(axis=0) - mean) < Z * np.sqrt(np.diag(cov) / 4000))


def test_rewards_may_come_late_in_any_order_and_many_at_once() -> None:
    rows = history(LINEAR)
    names = [name for name in NAMES for _ in rows[name][1]]
    features = np.concatenate([rows[name][0] for name in NAMES])
    rewards = np.concatenate([rows[name][1] for name in NAMES])
    order = np.random.default_rng(0).permutation(len(names))
    items = dp.Items(mixture(), LINEAR.make(), seed=1)
    items.update([names[i] for i in order], features[order], rewards[order])
    one_by_one = filled(LINEAR)
    for name in NAMES[:3]:
        one, other = (each.posterior(name, 10, seed=3).draws for each in (items, one_by_one))
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_contexts_of_their_own_masks_and_rankings() -> None:
    items = filled(LINEAR)
    rows = np.zeros((3, 2))
    rows[1] = 100 * items.posterior("a", 100, seed=0).mean  # far better than 0
    assert items.choose(rows, among=["d", "a", "b"]).item == "a"
    assert items.choose(np.zeros((4, 2)), exclude=["a", "b", "c"]).item == "d"
    ranking = items.choose(CONTEXT, top_k=3)
    assert len(set(ranking.item)) == 3 and list(ranking.score) == sorted(ranking.score)[::-1]
    assert ranking.propensity.shape == (3,)
    # Excluded items are rows of the panel, which are not their places among the candidates.
    assert items.choose(CONTEXT, among=["d", "a", "b"], exclude=["a", "b"]).item == "d"
    assert items.choose(CONTEXT, among=["d", "a"], exclude=["d", "c"]).item == "a"
    everything = items.choose(CONTEXT, top_k=4)
    np.testing.assert_array_equal(everything.propensity, np.ones(4))
    batch = items.choose(np.tile(CONTEXT, (5, 1, 1)))
    assert len(batch.item) == 5 and batch.score.shape == batch.propensity.shape == (5,)


def test_a_batch_is_its_decisions_one_by_one() -> None:
    contexts = np.random.default_rng(0).standard_normal((6, 2))
    together = filled(LINEAR)
    batch = together.choose(contexts[:, None])
    assert together.num_decisions == 6
    items = filled(LINEAR)
    alone = [items.choose(context) for context in contexts]
    assert batch.item == [choice.item for choice in alone]
    assert filled(LINEAR).choose(contexts[:, None], top_k=2).propensity.shape == (6, 2)
    np.testing.assert_allclose(batch.propensity, [choice.propensity for choice in alone])


def test_removed_items_are_not_chosen_and_return_with_their_evidence() -> None:
    items = filled(LINEAR)
    before = items.posterior("c", 5, seed=0).draws
    items.remove("c")
    assert "c" not in items and len(items) == 3
    assert "c" not in {items.choose(CONTEXT).item for _ in range(100)}
    with pytest.raises(ValueError, match="`among`: expected items that can be chosen, got 'c'"):
        items.choose(CONTEXT, among=["a", "c"])
    np.testing.assert_array_equal(items.posterior("c", 5, seed=0).draws, before)
    items.update("c", CONTEXT, 3.0)  # a late reward
    items.add("c")
    assert not np.array_equal(items.posterior("c", 5, seed=0).draws, before)
    items.forget("c")
    with pytest.raises(ValueError, match="`name`: expected a known item, got 'c'"):
        items.posterior("c")
    assert sorted(map(str, items.names)) == ["a", "b", "d"]


def test_unknown_names_start_at_the_prior_or_raise() -> None:
    items = dp.Items(mixture(), dp.Linear(1.0), seed=0)
    assert items.choose(CONTEXT, among=["new", 7]).item in ("new", 7)
    items.update("newer", CONTEXT, 1.0)
    assert items.names == ["new", 7, "newer"]
    strict = dp.Items(mixture(), dp.Linear(1.0), unknown="raise")
    for call in (
        lambda: strict.choose(CONTEXT, among=["new"]),
        lambda: strict.update("new", CONTEXT, 1.0),
    ):
        with pytest.raises(ValueError, match="expected a known item, got 'new'; add it first"):
            call()
    assert len(strict) == 0


def test_calls_that_make_no_sense_say_why_and_change_nothing() -> None:
    items = filled(LOGISTIC)
    wrong: dict[str, Callable[[], object]] = {
        "`names`: expected names once each, got 'x' twice": lambda: items.add(["x", "x"]),
        "`names`: expected names that are strings or integers, got True": lambda: items.add([True]),
        "`names`: expected a known item, got 'zebra'": lambda: items.remove("zebra"),
        "`among`: expected at least one name": lambda: items.choose(CONTEXT, among=[]),
        "`top_k`: expected at most 4, the number of items": lambda: items.choose(CONTEXT, top_k=5),
        "`items`: expected some that can be chosen": lambda: items.choose(CONTEXT, exclude=NAMES),
        "`context`: expected .*2": lambda: items.choose([1.0, 2.0, 3.0]),
        "`context`: expected 2 numbers, or a row": lambda: items.choose(np.zeros((3, 2))),
        '`propensity`: expected "panel", got "exact"': lambda: items.choose(
            CONTEXT, propensity="exact"
        ),
        "`item`: expected one name, or one for each of 3": lambda: items.update(
            ["a", "b"], np.zeros((3, 2)), np.zeros(3)
        ),
        "`rewards`: expected 0 or 1": lambda: items.update("a", CONTEXT, 2.0),
        "`num_draws`: expected 2 to 65536": lambda: dp.Items(
            mixture(), dp.Linear(1.0), num_draws=1
        ),
    }
    before = items.num_decisions, items.posterior("a", 4, seed=0).draws
    for message, call in wrong.items():
        with pytest.raises(ValueError, match=message):
            call()
    assert items.num_decisions == before[0] and items.names == NAMES
    np.testing.assert_array_equal(items.posterior("a", 4, seed=0).draws, before[1])


def test_propensities_are_read_before_items_change() -> None:
    items = filled(LINEAR)
    choice = items.choose(CONTEXT)
    items.update("a", CONTEXT, 1.0)
    with pytest.raises(RuntimeError, match="`propensity`: expected to be read before items change"):
        choice.propensity  # noqa: B018


def test_extreme_rows_are_rejected_whole() -> None:
    items = filled(POISSON)
    before = {name: items.posterior(name, 4, seed=0).draws for name in NAMES}
    features = np.array([[1.0, 0.0], [0.0, -1e6]])
    with pytest.raises(ValueError, match="`update`: expected observations given which"):
        items.update(["a", "b"], features, [1.0, 1e30])
    for name, draws in before.items():
        np.testing.assert_array_equal(items.posterior(name, 4, seed=0).draws, draws)
    assert np.isfinite(items.choose(CONTEXT).score)


@pytest.mark.parametrize("make", [dp.LinUCB, dp.EpsilonGreedy, dp.Uniform])
def test_other_agents_choose_too(make: Callable[..., dp.AbstractAgent]) -> None:
    likelihood = dp.Linear(1.0)
    mean, cov = np.zeros(2), np.eye(2)
    if make is dp.Uniform:
        items = dp.Items(dp.Uniform(likelihood, dim=2), seed=0)
    else:
        items = dp.Items(make(dp.GaussianPrior(mean, cov), likelihood), seed=0)
    items.add(NAMES)
    for _ in range(30):
        for name, reward in zip(NAMES, (0.0, 3.0, 0.0, 0.0), strict=True):
            items.update(name, CONTEXT, reward)
    chosen = [items.choose(CONTEXT) for _ in range(200)]
    share = np.mean([choice.item == "b" for choice in chosen])
    expected = {dp.LinUCB: 1.0, dp.EpsilonGreedy: 0.95 + 0.05 / 4, dp.Uniform: 0.25}[make]
    assert abs(share - expected) <= Z * np.sqrt(expected * (1 - expected) / 200)
    best = next(choice for choice in chosen if choice.item == "b")
    assert best.propensity == pytest.approx(expected)


def test_other_agents_heed_exclusions_and_what_is_not_known() -> None:
    prior, likelihood = dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Linear(1.0)
    optimist = dp.Items(dp.LinUCB(prior, likelihood), seed=0)
    greedy = dp.Items(dp.EpsilonGreedy(prior, likelihood, epsilon=0.5), seed=0)
    uniform = dp.Items(dp.Uniform(likelihood, dim=2), seed=0)
    for items in (optimist, greedy, uniform):
        items.add(NAMES)
        items.update(["a", "b"] * 9, np.tile(CONTEXT, (18, 1)), [1.0, 0.0] * 9)
    assert optimist.choose(CONTEXT, among=["b", "c"]).item == "c"  # of equal means
    assert optimist.choose(CONTEXT, among=["a", "c"], exclude="c").item == "a"
    optimist.remove("a")  # "d" takes its row
    assert optimist.choose(CONTEXT, among=["b", "d"]).item == "d"
    shares = {"a": 0.5 + 0.5 / 3, "c": 0.5 / 3, "d": 0.5 / 3}
    for _ in range(30):
        choice = greedy.choose(CONTEXT, exclude="b")
        assert choice.propensity == pytest.approx(shares[str(choice.item)])
        choice = uniform.choose(CONTEXT, exclude="b")
        assert choice.item != "b" and choice.propensity == pytest.approx(1 / 3)


def test_evidence_fades_to_the_prior() -> None:
    items = dp.Items(mixture(), dp.Linear(0.1), seed=0, half_life=2, num_draws=512)
    items.add(["a", "b"])
    items.update("a", np.tile(CONTEXT, (50, 1)), np.full(50, 9.0))
    assert {items.choose(CONTEXT).item for _ in range(100)} == {"a"}
    items.refresh()
    shares = [items.choose(CONTEXT).item for _ in range(200)].count("a") / 200
    assert 0.2 < shares < 0.8


def test_temperature_and_age_count_rewards_less_or_more() -> None:
    """Two rewards four decisions apart, at a half-life of two: the first counts a quarter."""
    other = np.array([0.3, 1.0])
    items = dp.Items(mixture(), dp.Linear(0.7), seed=0, half_life=2, temperature=0.5)
    items.update("a", CONTEXT, 2.0)
    for _ in range(4):
        items.choose(CONTEXT)
    items.update("a", other, -1.0)
    scales = np.sqrt([2.0 * 0.25, 2.0])  # of features and rewards, for the noise of weight one
    weights, means, covs, _ = reference.mixture_posterior(
        WEIGHTS, MEANS, COVS, np.stack([CONTEXT, other]) * scales[:, None], [2, -1] * scales, 0.7
    )
    mean, cov = reference.mixture_moments(weights, means, covs)
    draws = items.posterior("a", 8000, seed=1).draws
    assert_moments(draws, mean, cov)
    panel = np.stack([draw[0] for draw in items._panel.draws])
    assert np.all(np.abs(panel.mean(axis=0) - mean) < Z * np.sqrt(np.diag(cov) / 64))


@pytest.mark.parametrize("case", GLMS[1:2], ids=lambda case: case.name)
def test_rows_are_bounded_per_item(case: LikelihoodCase) -> None:
    rng = np.random.default_rng(0)
    items = dp.Items(mixture(), case.make(), seed=0, max_rows=128)
    features = rng.standard_normal((300, 2))
    rewards = case.draw(rng, features @ [1.0, -1.0])
    for start in range(0, 300, 60):
        items.update("a", features[start : start + 60], rewards[start : start + 60])
    state = items._items["a"].state
    assert state is not None and state.evidence.capacity <= 128
    bandit = dp.Bandit(mixture(), case.make(), seed=0, max_rows=128)
    bandit.update(features, rewards)
    one, other = items.posterior("a", 2000, seed=1), bandit.posterior(2000, seed=1)
    spread = np.sqrt(np.diag(other.cov) * 2 / 2000)
    assert np.all(np.abs(one.mean - other.mean) < Z * spread + 0.02)


@pytest.mark.parametrize("case", [LINEAR, LOGISTIC], ids=lambda case: case.name)
def test_saved_items_decide_as_they_would_have(case: LikelihoodCase, tmp_path: Path) -> None:
    items = filled(case)
    items.remove("b")
    items.save(tmp_path / "items.dprior")
    loaded = dp.load(tmp_path / "items.dprior")
    assert isinstance(loaded, dp.Items) and loaded.names == items.names and "b" not in loaded
    for one in (items, loaded):
        one.add("b")
    for _ in range(20):
        one, other = items.choose(CONTEXT), loaded.choose(CONTEXT)
        assert one.item == other.item and one.score == pytest.approx(other.score, rel=1e-4)
    items.update("d", CONTEXT, 1.0)
    loaded.update("d", CONTEXT, 1.0)
    assert items.choose(CONTEXT).score == pytest.approx(loaded.choose(CONTEXT).score, rel=1e-4)


def test_saved_items_fade_as_they_would_have(tmp_path: Path) -> None:
    for half_life in (7, datetime.timedelta(seconds=90)):
        items = dp.Items(mixture(), dp.Linear(1.0), seed=0, half_life=half_life)
        items.save(tmp_path / "items.dprior")
        assert dp.load(tmp_path / "items.dprior")._forgetting == items._forgetting


def test_threads_choose_while_others_update_and_add() -> None:
    items = filled(LINEAR)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(20):
                items.update(f"own-{number}", CONTEXT, float(step))
                assert items.choose(CONTEXT).item in items
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and items.num_decisions == 80 and len(items) == len(NAMES) + 4
    weights, means, covs, _ = reference.mixture_posterior(
        WEIGHTS, MEANS, COVS, np.tile(CONTEXT, (20, 1)), np.arange(20.0), LINEAR.dispersion**0.5
    )
    mean, cov = reference.mixture_moments(weights, means, covs)
    found = items.posterior("own-0", 2000, seed=0)
    assert np.all(np.abs(found.mean - mean) < Z * np.sqrt(np.diag(cov) / 2000))


def test_many_items_of_a_learned_prior_share_a_pool_of_draws() -> None:
    prior = dp.DiffusionPrior.from_prior(mixture())
    items = dp.Items(dp.EvidenceDPS(prior, steps=4), dp.Linear(1.0), num_draws=64, seed=0)
    items.add(range(600))  # 38,400 draws of a pool of 16,384
    panel = np.stack([array[:600] for array in items._panel.draws], axis=1)
    assert len(np.unique(panel.reshape(-1, 2), axis=0)) == 2**14
    equal = (panel[:300, None, :, 0] == panel[None, 300:, :, 0]).mean(axis=2)
    assert equal.max() < 0.2  # no two items have the same row of draws


@pytest.mark.parametrize("case", [LINEAR, LOGISTIC], ids=lambda case: case.name)
def test_attributes_move_the_prior_of_an_item(case: LikelihoodCase, tmp_path: Path) -> None:
    prior = dp.ConditionalPrior(mixture(), np.array([[2.0, -1.0]]), np.zeros(1))
    items = dp.Items(prior, case.make(), seed=1, num_draws=256)
    items.add(["a", "b"], attributes=[[1.5], [np.nan]])

    def drawn(name: str) -> np.ndarray:
        return np.stack([draw[items.names.index(name)] for draw in items._panel.draws])

    mean, cov = reference.mixture_moments(WEIGHTS, MEANS, COVS)
    assert_moments(drawn("a"), mean + [3.0, -1.5], cov)
    assert_moments(drawn("b"), mean, cov)
    rows = history(case)
    items.update("a", *rows["c"])
    bandit = dp.Bandit(prior.given([1.5]), case.make(), seed=0)
    bandit.update(*rows["c"])
    one, other = items.posterior("a", 4000, seed=2), bandit.posterior(4000, seed=3)
    spread = np.sqrt(np.diag(other.cov) * 2 / 4000)
    assert np.all(np.abs(one.mean - other.mean) < Z * spread)
    average = items.posterior("b", 4000, seed=2)
    np.testing.assert_allclose(average.mean, WEIGHTS @ MEANS, atol=0.1)
    items.save(tmp_path / "items.dprior")
    loaded = dp.load(tmp_path / "items.dprior")
    np.testing.assert_allclose(
        loaded.posterior("a", 5, seed=0).draws, items.posterior("a", 5, seed=0).draws, rtol=1e-5
    )
    items.add("b", attributes=[1.5])  # known by now
    assert_moments(drawn("b"), mean + [3.0, -1.5], cov)
    assert abs(items.posterior("b", 4000, seed=2).mean[0] - average.mean[0] - 3.0) < 0.2
    if case is LINEAR:
        items.add(["p", "q"], attributes=[[5.0], [-5.0]])  # 40 standard deviations apart
        choice = items.choose(CONTEXT, among=["q", "p"], propensity="exact")
        assert choice.item == "p" and choice.propensity == pytest.approx(1.0)
    with pytest.raises(ValueError, match="`attributes`: expected a row for each of 1 names, got 2"):
        items.add("c", attributes=[[1.0], [2.0]])
    with pytest.raises(ValueError, match="`attributes`: expected None with a prior that was not"):
        filled(case).add("x", attributes=[1.0])


def test_simulated_items_cost_less_from_a_prior_that_knows_them() -> None:
    problem = dp.ItemProblem(mixture(), dp.Linear(0.5), num_items=12, turnover=0.02)
    agents = {
        "warm": mixture(),
        "cold": dp.GaussianPrior(np.zeros(2), 9 * np.eye(2)),
        "greedy": dp.EpsilonGreedy(dp.GaussianPrior(np.zeros(2), np.eye(2)), dp.Linear(0.5)),
        "random": dp.Uniform(dp.Linear(0.5), dim=2),
    }
    result = dp.simulate(problem, agents, num_runs=12, num_rounds=40, seed=0, progress=False)
    again = dp.simulate(problem, agents, num_runs=2, num_rounds=40, seed=0, progress=False)
    for name in agents:
        np.testing.assert_array_equal(result.regret[name][:2], again.regret[name])
        assert np.all(np.diff(result.regret[name], axis=1) >= 0)
    gains, errors = result.paired_difference("cold", "warm")
    assert gains[-1] > 3 * errors[-1] > 0
    assert result.mean("random")[-1] > result.mean("warm")[-1]
    assert result.actions["warm"].max() >= 12  # items that arrived were shown


def test_a_problem_of_items_checks_its_turnover() -> None:
    with pytest.raises(ValueError, match="`turnover`: expected a share from 0 to 1, got 2.0"):
        dp.ItemProblem(mixture(), dp.Linear(1.0), turnover=2.0)


def test_refresh_draws_anew_what_programs_draw() -> None:
    items = filled(LOGISTIC, num_draws=DRAWS)
    before = np.stack(items._panel.draws)[:, :4].copy()
    items.refresh(["a", "d"])  # one with rewards and a new one
    after = np.stack(items._panel.draws)[:, :4]
    assert not np.any((after[:, 0] == before[:, 0]) | (after[:, 3] == before[:, 3]))


def test_refresh_draws_anew_and_in_the_background() -> None:
    items = filled(LINEAR)
    before = np.stack(items._panel.draws)[:, :4].copy()
    items.refresh("a")
    after = np.stack(items._panel.draws)[:, :4].copy()
    assert not np.any(after[:, 0] == before[:, 0])
    np.testing.assert_array_equal(after[:, 1:], before[:, 1:])
    items.refresh(background=True)
    assert items._refreshing is not None
    items._refreshing.join()
    assert not np.any(np.stack(items._panel.draws)[:, :4] == after)
    values = np.stack(items._panel.draws)[:, 3]  # a new item's: those of the prior
    assert_moments(values, WEIGHTS @ MEANS, reference.mixture_moments(WEIGHTS, MEANS, COVS)[1])
