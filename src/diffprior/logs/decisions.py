"""A decision as a log keeps it: all that was offered, what was taken, how likely, what it paid."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class LoggedDecision(NamedTuple):
    """One decision with its reward.

    `propensity` is None where it is not known how likely the action was. `version` is that of the
    model which decided; `learned` is when the reward became known to the policy.
    """

    decision_id: str
    task: str
    version: int
    features: Float[np.ndarray, "k d"]
    mask: Bool[np.ndarray, " k"]
    taken: int
    action: str
    propensity: float | None
    reward: float
    source: str
    predicted: float
    created: float
    learned: float

    @property
    def phi(self) -> Float[np.ndarray, " d"]:
        """Features of the action taken."""
        return self.features[self.taken]


def counted_propensity(share: float, num_draws: int) -> float:
    """The propensity to weigh a decision by, from the share of `num_draws` further draws.

    The draw that decided is counted with the others: (hits + 1) / (draws + 1). It is never zero,
    and of an action of probability p its inverse has the mean (1 - (1 - p)^(draws + 1)) / p, almost
    1 / p; the inverse of the share itself has none, because no draw may have hit.
    """
    return (share * num_draws + 1.0) / (num_draws + 1.0)
