"""Whether linear rewards scatter as their likelihood says."""

import numpy as np

from ..evidence.base import AbstractEvidence
from ..evidence.linear import LinearEvidence

FIRST_LOOK = 64  # rewards
SURPRISE = 1e-9  # chance of a warning if the noise is what it is said to be
TOLERATED = 2.0  # factor by which the noise may be off without a word


class NoiseWarning(UserWarning):
    """Rewards contradict the noise that a linear likelihood was given."""


class NoiseWatch:
    """Looks at the rewards when there are 64, 128, 256 and so on, until it has warned."""

    def __init__(self) -> None:
        self._seen, self._next = 0, FIRST_LOOK

    def due(self, num_rewards: int) -> bool:
        """Whether to look, now that there are so many rewards more."""
        self._seen += num_rewards
        if self._seen < self._next:
            return False
        while self._next <= self._seen:
            self._next *= 2
        return True

    def look(self, evidence: AbstractEvidence) -> str | None:
        """What to say of rewards that contradict their noise, once; None if they do not."""
        if not isinstance(evidence, LinearEvidence):
            return None
        scatter, noise_std = residual_std(evidence, TOLERATED), float(evidence.noise_std)
        if scatter is None:
            return None
        self._next = np.iinfo(np.int64).max
        return (
            f"`noise_std`: expected rewards that scatter by {noise_std:.3g} around a linear "
            f"function of the features, got {scatter:.3g} in {float(evidence.count):.0f} rewards, "
            f"so that exploration is too {'little' if scatter > noise_std else 'much'}; "
            f"pass Linear(noise_std={scatter:.2g}), or learn it from logs with `learn`; if the "
            "task changes in time, pass Bandit(..., half_life=)"
        )


def residual_std(evidence: LinearEvidence, tolerated: float = 1.0) -> float | None:
    """The standard deviation of rewards around their least-squares fit, if it is beyond chance, and
    by a factor of `tolerated`, away from the noise of the likelihood; None if it is not, or cannot
    be told."""
    precision, shift = (np.asarray(a, np.float64) for a in (evidence.precision, evidence.shift))
    values, vectors = np.linalg.eigh(precision)
    rounding = len(values) * float(np.finfo(evidence.shift.dtype).eps)
    told = values > rounding * values[-1]
    explained = float(np.sum((shift @ vectors[:, told]) ** 2 / values[told]))
    squares, freedom = float(evidence.sum_squares), float(evidence.count) - np.sum(told)
    left = max(squares - explained, 0.0)
    if freedom < FIRST_LOOK / 2 or left < 100 * rounding * squares:
        return None
    ratio = float(np.sqrt(left / freedom))
    if 1.0 / tolerated < ratio < tolerated:
        return None
    from scipy.special import chdtr, chdtrc  # slow to import, and not needed to decide

    beyond = min(chdtr(freedom, left), chdtrc(freedom, left)) < SURPRISE
    return float(evidence.noise_std) * ratio if beyond else None
