"""A `Bandit` as a learner of coba, and the service's log as one of its environments."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ..bandits.bandit import Bandit
from ..tables import arrow


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
