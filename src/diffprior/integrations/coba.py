"""A `Bandit` as a learner of coba, and the service's log as one of its environments."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..bandits.bandit import Bandit
from ..logs.decisions import counted_propensity
from ..logs.tables import arrow


class BanditLearner:
    """What coba calls a learner; actions are feature vectors, the context is not looked at.

    Args:
        bandit: What decides and learns.
        propensity_draws: Draws for the probability that goes with every action.
    """

    def __init__(self, bandit: Bandit, *, propensity_draws: int = 16) -> None:
        self.bandit = bandit
        self._num_draws = propensity_draws

    @property
    def params(self) -> dict[str, Any]:
        """What coba shows of the learner."""
        return {"family": "diffprior", "agent": repr(self.bandit), "seed": self.bandit.seed}

    def predict(self, context: Any, actions: Sequence[Any]) -> tuple[Any, float]:
        """One of `actions`, and how likely it was; `context` is not looked at."""
        rows = np.array([_features(action) for action in actions])
        decision = self.bandit.decide(rows, propensity_draws=self._num_draws)
        share = counted_propensity(float(decision.propensity), self._num_draws)
        return actions[decision.action], share

    def learn(self, context: Any, action: Any, reward: float, probability: float) -> None:
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
    def params(self) -> dict[str, Any]:
        """What coba shows of the environment."""
        return {"env_type": "diffprior", "path": str(self._path)}

    def read(self) -> Iterator[Any]:
        """Interactions with a propensity, in the order of the file, a few in memory."""
        from coba.primitives import LoggedInteraction

        columns = ["task", "taken", "reward", "propensity", "actions", "mask"]
        for batch in arrow("parquet").ParquetFile(self._path).iter_batches(1000, columns=columns):
            for row in batch.to_pylist():
                if row["propensity"] is None:
                    continue
                rows = [tuple(action) for action in row["actions"]]
                allowed = [a for a, kept in zip(rows, row["mask"], strict=True) if kept]
                taken, about = rows[row["taken"]], (row["reward"], row["propensity"])
                yield LoggedInteraction(row["task"], taken, *about, actions=allowed)


def _features(action: Any) -> np.ndarray:
    return np.asarray(list(action) if np.ndim(action) else [action], float)
