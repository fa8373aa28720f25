"""A `Bandit` as a learner of bayesianbandits and of coba, and the service's log in coba."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from ..bandits.bandit import Bandit
from ..checks import on_device
from ..tables import arrow

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


class CobaLearner:
    """A learner of coba; actions are feature vectors, the context is ignored.

    Args:
        bandit: The bandit that decides and learns.
        propensity_draws: Most draws for the probability that goes with every action.
    """

    def __init__(self, bandit: Bandit, *, propensity_draws: int = 256) -> None:
        self.bandit = bandit
        self._num_draws = propensity_draws

    @property
    def params(self) -> dict[str, object]:
        """Description of the learner, for coba."""
        return {"family": "diffprior", "agent": repr(self.bandit), "seed": self.bandit.seed}

    def predict(self, context: object, actions: Sequence[object]) -> tuple[object, float]:
        """One of `actions`, and its propensity; `context` is ignored."""
        rows = np.array([_features(action) for action in actions])
        decision = self.bandit.decide(rows, propensity_draws=self._num_draws)
        return actions[int(decision.action)], float(np.asarray(decision.propensity))

    def learn(self, context: object, action: object, reward: float, probability: float) -> None:
        """Learn the `reward` of an `action`; `context` and `probability` are not needed."""
        self.bandit.update(_features(action), reward)


class LoggedEnvironment:
    """The decisions of a Parquet file of `diffprior export` as coba's logged interactions.

    The context is the task; actions are feature vectors, those that were allowed.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    @property
    def params(self) -> dict[str, object]:
        """Description of the environment, for coba."""
        return {"env_type": "diffprior", "path": str(self._path)}

    def read(self) -> Iterator[object]:
        """Interactions with a propensity, in the order of the file, a few in memory."""
        from coba.primitives import LoggedInteraction

        columns = ["task", "taken", "reward", "propensity", "actions", "mask"]
        for batch in arrow("parquet").ParquetFile(self._path).iter_batches(1000, columns=columns):
            for row in batch.to_pylist():
                if row["propensity"] is None:
                    continue
                rows = [tuple(action) for action in row["actions"]]
                allowed = [a for a, valid in zip(rows, row["mask"], strict=True) if valid]
                taken, about = rows[row["taken"]], (row["reward"], row["propensity"])
                yield LoggedInteraction(row["task"], taken, *about, actions=allowed)


def _features(action: object) -> np.ndarray:
    numbers = list(action) if isinstance(action, Iterable) else [action]
    return np.asarray(numbers, float)
