"""A `Bandit` as a learner of bayesianbandits."""

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..bandits.bandit import Bandit
from ..checks import on_device

NUM_DRAWS = 1000  # of the posterior, for predictions


class BanditLearner:
    """A learner of bayesianbandits: `sample`, `partial_fit` and `predict` of rewards.

    One learner is shared by all arms, whose features its rows are, as in `LipschitzContextualAgent`
    with `ThompsonSampling`; that agent then decides as the bandit does.

    Args:
        bandit: The bandit that decides and learns. Its seed fixes the draws: agents pass their
            generator to `random_state`, where it is not used.
    """

    def __init__(self, bandit: Bandit) -> None:
        self.bandit = bandit
        self.random_state: object = bandit.seed

    def sample(self, X: ArrayLike, size: int = 1) -> Float[np.ndarray, "size n"]:
        """Mean rewards of rows `X` (n, d) under `size` draws; each draw is a decision."""
        rows = np.broadcast_to(np.asarray(X, float), (size, *np.shape(X)))
        return np.asarray(self.bandit.decide(rows).scores)

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "BanditLearner":
        """Learn from rewards `y` (n,) of rows `X` (n, d).

        Raises:
            ValueError: `sample_weight` is not one: a bandit counts every reward once.
        """
        if sample_weight is not None and np.any(np.asarray(sample_weight) != 1):
            raise ValueError(
                "`sample_weight`: expected ones, because a bandit counts every reward once, got "
                "others; leave it out"
            )
        self.bandit.update(np.asarray(X, float), np.asarray(y, float))
        return self

    def predict(self, X: ArrayLike) -> Float[np.ndarray, " n"]:
        """Posterior mean rewards of rows `X` (n, d), from draws that change no decision."""
        draws = self.bandit.posterior(NUM_DRAWS, seed=0).draws
        eta = np.asarray(X, float) @ draws.T
        return np.asarray(np.mean(self.bandit.likelihood.mean(on_device(eta)), axis=1))

    def decay(
        self, forgetting: object = None, *, decay_rate: object = None, steps: float = 1
    ) -> None:
        """Not supported: forgetting is a setting of the bandit.

        Raises:
            ValueError: Always; `forgetting`, `decay_rate` and `steps` are of other learners.
        """
        raise ValueError("`decay`: expected no call, because a bandit forgets by its own settings")
