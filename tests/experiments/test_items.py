"""Replays of ratings and simulated catalogs, small enough to be worked out by hand."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

import diffprior as dp
from experiments import items as module
from experiments.items import (
    Catalog,
    Generator,
    Greedy,
    Ratings,
    Visit,
    insteval_ratings,
    learned_priors,
    movielens_ratings,
    regret_of,
    run_items,
)
from experiments.movielens import Catalog as Movies
from experiments.movielens import Ratings as Rated
from experiments.results import Results


@pytest.fixture
def ratings() -> Ratings:
    """60 visitors rate most of 40 items, whose mean is in their attribute."""
    rng = np.random.default_rng(0)
    visitors, items = np.nonzero(rng.random((60, 40)) < 0.9)
    attributes = rng.standard_normal((40, 1))
    thetas = np.column_stack([attributes[:, 0], rng.standard_normal((40, 2))])
    features = np.column_stack([np.ones(len(items)), rng.standard_normal((len(items), 2))])
    rewards = (features * thetas[items]).sum(axis=1) + 0.05 * rng.standard_normal(len(items))
    return Ratings(visitors, items, features, rewards, attributes, np.arange(40) >= 20)


def test_past_rows_and_visits_share_no_item(ratings: Ratings) -> None:
    logs = ratings.past(np.random.default_rng(0), attributes=True, most=30)
    assert logs.labels.tolist() == list(range(20)) and logs.counts.max() == 30
    assert logs.attributes is not None
    np.testing.assert_array_equal(logs.attributes, ratings.attributes[:20])
    catalog = ratings.replay(np.random.default_rng(0), 5, 7)
    assert catalog.items.tolist() == list(range(20, 40))
    visits = list(catalog.visits())
    assert {len(visit.means) for visit in visits} == {7} and len(visits) == 60
    for visit in visits:
        assert visit.items is not None and visit.items.min() >= 20
        for x, item, reward in zip(visit.features, visit.items, visit.means, strict=True):
            (row,) = np.flatnonzero((ratings.features == x).all(axis=1))
            assert (ratings.items[row], ratings.rewards[row]) == (item, reward)


def test_the_greedy_choice_is_by_the_posterior_mean() -> None:
    mean, cov = np.array([0.5, -1.0]), np.array([[1.0, 0.2], [0.2, 0.5]])
    prior = dp.ConditionalPrior(dp.GaussianPrior(mean, cov), [[1.0, 2.0]], [0.0])
    z = np.array([[0.3], [-0.4]])
    greedy = Greedy(prior, 0.7, Catalog(np.array([5, 3]), z, lambda: iter(())))
    rng = np.random.default_rng(1)
    rows, rewards = rng.standard_normal((4, 2)), rng.standard_normal(4)
    for x, reward in zip(rows, rewards, strict=True):
        greedy.update(3, x, float(reward))
    precision = np.linalg.inv(cov)
    center = mean + z[1] @ [[1.0, 2.0]]
    right = precision @ center + rows.T @ rewards / 0.49
    expected = np.linalg.solve(precision + rows.T @ rows / 0.49, right)
    np.testing.assert_allclose(greedy._means[1], expected, rtol=1e-6)
    np.testing.assert_allclose(greedy._means[0], mean + z[0] @ [[1.0, 2.0]])
    x = expected - greedy._means[0]  # higher for the item that was updated
    both = Visit(np.stack([x, x]), np.array([5, 3]), np.zeros(2))
    assert greedy.choose(both) == 1 and greedy.choose(both._replace(items=np.array([3, 5]))) == 0


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_regret_is_against_the_best_item(temperature: float) -> None:
    """Of two items with known parameters 1 and -1, the better one is chosen, or never."""
    visits = [Visit(np.array([x]), None, np.array([x, -x]), 0.3) for x in (1.0, -2.0, 0.5)]
    catalog = Catalog(np.arange(2), np.array([[1.0], [-1.0]]), lambda: iter(visits))
    for sign, expected in ((1.0, [0.0, 0.0, 0.0]), (-1.0, [2.0, 4.0, 1.0])):
        known = dp.ConditionalPrior(dp.GaussianPrior([0.0], [[1e-8]]), [[sign]], [0.0])
        assert regret_of(known, dp.Linear(1.0), catalog, temperature, 0) == expected


def test_movielens_has_tastes_from_past_movies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    tastes, movies = rng.standard_normal((80, 2)), rng.standard_normal((60, 2))
    values = 3.5 + tastes @ movies.T + 0.1 * rng.standard_normal((80, 60))
    users, rated = np.nonzero(rng.random(values.shape) < 0.8)

    def load(folder: object, change: float = 0.0) -> tuple[Rated, Movies]:
        known = Movies(("z",), np.zeros((60, 1)))
        new = np.random.default_rng(0).random(60) < module.NEW_SHARE
        return Rated(users, rated, values[users, rated] + change * new[rated]), known

    monkeypatch.setattr(module, "load_catalog", load)
    found = movielens_ratings(None, 0)
    design = np.column_stack([np.ones(80), tastes])
    own = found.features[np.unique(users, return_index=True)[1]]
    residual = design[:, 1:] - own @ np.linalg.lstsq(own, design[:, 1:])[0]
    assert np.mean(residual**2) < 0.1  # tastes are found, up to a linear map
    monkeypatch.setattr(module, "load_catalog", lambda folder: load(folder, 1.0))
    other = movielens_ratings(None, 0)
    np.testing.assert_allclose(other.features, found.features)


def test_lecturers_have_departments(monkeypatch: pytest.MonkeyPatch) -> None:
    text = {
        "s": ["1", "1", "2", "2"],
        "d": ["10", "11", "10", "11"],
        "studage": ["2", "2", "4", "4"],
        "lectage": ["1", "2", "3", "6"],
        "service": ["0", "1", "0", "1"],
        "dept": ["5", "1", "5", "1"],
        "y": ["5", "1", "3", "3"],
    }
    table = pa.table({name: [int(cell) for cell in column] for name, column in text.items()})
    monkeypatch.setattr(module, "read_table", lambda file, folder: table)
    found = insteval_ratings(None, 0)
    assert found.attributes.tolist() == [[0.0, 1.0], [1.0, 0.0]]
    np.testing.assert_array_equal(found.features[:, :2], [[1, 0], [1, 1], [1, 0], [1, 1]])
    np.testing.assert_allclose(found.features[:, 2:].mean(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize("linear", [True, False])
def test_items_of_a_catalog_share_its_center(linear: bool) -> None:
    generator = Generator(3, linear, 7)
    centers = generator.center(np.random.default_rng(0), 20_000)
    if linear:
        fixed = np.random.default_rng(7)
        second, first = (fixed.uniform(-1, 1, (3, 3)) for _ in range(2))
        expected = first.T @ (second.T @ second + np.eye(3)) @ first
        scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        assert np.all(np.abs(np.cov(centers.T) - expected) < 5 * np.sqrt(2 / 20_000) * scale)
    catalog = generator.catalog(centers[0], 5000, 3, 1)
    first_visits, again = list(catalog.visits()), list(catalog.visits())
    features = np.stack([visit.features for visit in first_visits])
    thetas = np.linalg.solve(features, np.stack([visit.means for visit in first_visits])).T
    assert np.all(np.abs(thetas.mean(axis=0) - centers[0]) < 5 / np.sqrt(5000))
    assert [visit.noise for visit in again] == [visit.noise for visit in first_visits]


def test_priors_are_learned_with_and_without_attributes(
    ratings: Ratings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def learn(logs: dp.Logs, likelihood: dp.Linear, **options: object) -> SimpleNamespace:
        assert options["quick"] and logs.labels.tolist() == list(range(20))
        gaussian, ends = dp.GaussianPrior(np.zeros(3), np.eye(3)), [""]
        ends += [" given attributes"] if logs.attributes is not None else []
        found = {name + end: gaussian for name in ("Gaussian", "mixture of 3") for end in ends}
        return SimpleNamespace(families=found, likelihood=dp.Linear(0.5))

    monkeypatch.setattr(dp, "learn", learn)
    priors, likelihood = learned_priors(ratings, 0, quick=True)
    kinds = [kind + end for end in ("", " given attributes") for kind in ("Gaussian", "mixture")]
    assert list(priors) == ["N(0, s I)", *kinds] and float(likelihood.noise_std) == 0.5


def test_the_report_has_a_table_for_each_catalog(
    ratings: Ratings, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module.SOURCES, "insteval", lambda folder, seed: ratings)
    priors = {"Gaussian": dp.GaussianPrior(np.zeros(3), np.eye(3))}, dp.Linear(0.5)
    monkeypatch.setattr(module, "learned_priors", lambda *given, **options: priors)
    found = run_items(results, source=["insteval"], quick=True)["catalogs"]["insteval, split 0"]
    assert found.windows == [60] and found.num_items == 20
    assert found.regret["Gaussian, 0"] < found.regret["random"]
    assert "insteval, split 0, 20 items" in (results.out / "report.html").read_text()
