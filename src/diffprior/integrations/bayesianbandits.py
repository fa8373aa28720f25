"""A `Bandit` as a learner of bayesianbandits."""

from typing import Any

import numpy as np
from jaxtyping import Float

from ..bandits.bandit import Bandit
from ..checks import on_device

NUM_DRAWS = 1000  # of the posterior, for predictions


class BanditLearner:
    """What bayesianbandits calls a learner: `sample`, `partial_fit` and `predict` of rewards.

    One learner is shared by all arms, whose features its rows are, as in `LipschitzContextualAgent`
    with `ThompsonSampling`; that agent then decides as the bandit does.

    Args:
        bandit: What decides and learns. Its seed fixes the draws: agents hand their generator to
            `random_state`, where it is not used.
    """

    def __init__(self, bandit: Bandit) -> None:
        self.bandit = bandit
        self.random_state: Any = bandit.seed

    def sample(self, X: Any, size: int = 1) -> Float[np.ndarray, "size n"]:
        """Mean rewards of rows `X` (n, d) under `size` draws; each draw is a decision."""
        rows = np.broadcast_to(np.asarray(X, float), (size, *np.shape(X)))
        return np.asarray(self.bandit.decide(rows).scores)

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> "BanditLearner":
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

    def predict(self, X: Any) -> Float[np.ndarray, " n"]:
        """Posterior mean rewards of rows `X` (n, d), from draws that change no decision."""
        draws = self.bandit.posterior(NUM_DRAWS, seed=0).draws
        eta = np.asarray(X, float) @ draws.T
        return np.asarray(self.bandit.likelihood.mean(on_device(eta))).mean(axis=1)

    def decay(self, forgetting: Any = None, *, decay_rate: Any = None, steps: float = 1) -> None:
        """Refused: forgetting is a setting of the bandit.

        Raises:
            ValueError: Always; `forgetting`, `decay_rate` and `steps` are of other learners.
        """
        raise ValueError("`decay`: expected no call, because a bandit forgets by its own settings")
