"""A prior and a likelihood as an estimator of scikit-learn, for one task."""

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..checks import on_device, positive_int
from ..evidence.base import AbstractEvidence, AbstractLikelihood
from ..samplers.base import AbstractSampler
from ..samplers.choose import best_sampler


class PriorRegressor(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Rewards of one task, regressed on features under a prior learned from other tasks.

    As `GaussianProcessRegressor` it predicts means and standard deviations and samples functions;
    `partial_fit` continues from the evidence so far. Rewards may be of any likelihood.

    Args:
        prior: Any prior, or a sampler of one.
        likelihood: How rewards arise.
        n_draws: Draws from the posterior that predictions are averages over.
        random_state: Of the draws, a whole number.

    Attributes:
        coef_: Posterior mean of the parameters (d,).
        draws_: Draws from the posterior (n_draws, d).
        evidence_: Evidence of all rewards so far.
        n_features_in_: Number of features d.
    """

    evidence_: AbstractEvidence

    def __init__(
        self,
        prior: object,
        likelihood: AbstractLikelihood,
        *,
        n_draws: int = 1000,
        random_state: int = 0,
    ) -> None:
        self.prior = prior
        self.likelihood = likelihood
        self.n_draws = n_draws
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> "PriorRegressor":
        """Learn from rewards `y` (n,) of rows `X` (n, d), and from nothing before."""
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        return self._learned(self.likelihood.observe(X, y))

    def partial_fit(self, X: ArrayLike, y: ArrayLike) -> "PriorRegressor":
        """Learn from further rewards `y` (n,) of rows `X` (n, d)."""
        if not hasattr(self, "evidence_"):
            return self.fit(X, y)
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64, reset=False)
        return self._learned(self.evidence_.extend(X, y))

    def predict(
        self, X: ArrayLike, return_std: bool = False
    ) -> Float[np.ndarray, " n"] | tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        """Posterior mean of the mean reward of rows `X` (n, d), and its standard deviation."""
        means = self._mean_rewards(X, self._known_draws())
        return (means.mean(axis=1), means.std(axis=1)) if return_std else means.mean(axis=1)

    def sample_y(
        self, X: ArrayLike, n_samples: int = 1, random_state: int = 0
    ) -> Float[np.ndarray, "n n_samples"]:
        """Mean rewards of rows `X` (n, d) under draws of parameters, as Thompson sampling asks."""
        draws = self._known_draws()
        rng = np.random.default_rng(random_state)
        chosen = rng.integers(len(draws), size=positive_int("n_samples", n_samples))
        return self._mean_rewards(X, draws[chosen])

    def _learned(self, evidence: AbstractEvidence) -> "PriorRegressor":
        prior = self.prior
        sampler = (
            prior
            if isinstance(prior, AbstractSampler)
            else best_sampler(prior, likelihood=self.likelihood)
        )
        key = jax.random.key(self.random_state)
        count = positive_int("n_draws", self.n_draws)
        self.draws_ = np.asarray(sampler.sample_many(key, evidence, count)[0])
        self.coef_ = self.draws_.mean(axis=0)
        self.evidence_ = evidence
        return self

    def _known_draws(self) -> Float[np.ndarray, "m d"]:
        check_is_fitted(self, "draws_")
        return self.draws_

    def _mean_rewards(self, X: ArrayLike, draws: np.ndarray) -> Float[np.ndarray, "n m"]:
        X = np.asarray(validate_data(self, X, reset=False, dtype=np.float64))
        etas = jax.vmap(self.likelihood.predictors, (0, None))(on_device(draws), on_device(X))
        return np.asarray(self.likelihood.mean(etas)).T
