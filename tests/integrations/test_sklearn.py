"""A prior as an estimator of scikit-learn: closed forms, and scikit-learn's own tools."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import diffprior as dp
import reference
from diffprior.integrations.sklearn import PriorRegressor

MEAN, COV = np.array([1.0, -0.5]), np.array([[1.0, 0.3], [0.3, 0.5]])
PRIOR = dp.GaussianPrior(MEAN, COV)
RNG = np.random.default_rng(0)
X, NEW = RNG.standard_normal((12, 2)), RNG.standard_normal((5, 2))
Y = X @ np.array([0.8, 0.1]) + 0.5 * RNG.standard_normal(12)


def test_predictions_are_those_of_bayes() -> None:
    model = PriorRegressor(PRIOR, dp.Linear(0.5), n_draws=20_000).fit(X, Y)
    mean, cov = reference.linear_posterior(MEAN, COV, X, Y, 0.5)
    std = np.sqrt(np.einsum("ni,ij,nj->n", NEW, cov, NEW))
    found, spread = model.predict(NEW, return_std=True)
    assert np.all(np.abs(found - NEW @ mean) < 5 * std / np.sqrt(20_000))
    assert_allclose(spread, std, rtol=5 / np.sqrt(2 * 20_000))
    assert_allclose(model.coef_, mean, atol=5 * np.sqrt(np.diagonal(cov).max() / 20_000))
    sampled = model.sample_y(NEW, 4000, random_state=1)
    assert sampled.shape == (5, 4000)
    assert np.all(np.abs(sampled.mean(axis=1) - NEW @ mean) < 5 * std / np.sqrt(4000))


def test_rewards_may_come_in_parts_and_of_any_kind() -> None:
    for likelihood, rewards in ((dp.Linear(0.5), Y), (dp.Logistic(), (Y > 0).astype(float))):
        at_once = PriorRegressor(PRIOR, likelihood).fit(X, rewards)
        parts = PriorRegressor(PRIOR, likelihood)
        for piece in (slice(0, 5), slice(5, 12)):
            parts.partial_fit(X[piece], rewards[piece])
        assert_allclose(parts.predict(NEW), at_once.predict(NEW), rtol=1e-6)
    assert np.all((at_once.predict(NEW) > 0) & (at_once.predict(NEW) < 1))


def test_scikit_learns_tools_take_it() -> None:
    model = PriorRegressor(PRIOR, dp.Linear(0.5), n_draws=500)
    assert clone(model).get_params() == model.get_params()
    piped = make_pipeline(FunctionTransformer(np.tanh), model).fit(X, Y)
    assert_allclose(piped.predict(NEW), clone(model).fit(np.tanh(X), Y).predict(np.tanh(NEW)))
    many = np.random.default_rng(1).standard_normal((60, 2))
    scores = cross_val_score(model, many, many @ np.array([0.8, 0.1]), cv=3)
    assert np.all(scores > 0.9)  # R^2 of rewards without noise


def test_errors() -> None:
    model = PriorRegressor(PRIOR, dp.Linear(0.5))
    with pytest.raises(NotFittedError):
        model.predict(NEW)
    with pytest.raises(ValueError, match="2 features"):
        model.fit(X, Y).predict(np.ones((2, 3)))
    with pytest.raises(ValueError, match="`n_draws`"):
        PriorRegressor(PRIOR, dp.Linear(0.5), n_draws=0).fit(X, Y)
