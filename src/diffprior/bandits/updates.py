"""Rewards taken into evidence: all of them or none, in few compiled programs."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from ..checks import on_device, positive_int, real_numbers
from ..evidence.base import AbstractEvidence
from ..gaussian import Gaussian
from .requests import dimensions

MIN_ROWS = 128  # fewer are too few for a Gaussian term to be accurate
LARGE = 1e3  # prior standard deviations, or standard deviations of the noise


class Observations:
    """Checked features (n, d) and rewards (n,)."""

    def __init__(self, phi: Any, reward: Any, dim: int) -> None:
        axes = (dim,) if dimensions("phi", phi) < 2 else ("n", dim)
        phi = real_numbers("phi", phi, axes, f"{dim} numbers for each reward")
        reward = real_numbers("reward", reward, phi.shape[:-1], "one reward for each row of `phi`")
        self.features = np.reshape(np.asarray(phi), (-1, dim))
        self.rewards = np.reshape(np.asarray(reward), -1)

    def large(self, stds: Float[np.ndarray, " d"], noise_std: float) -> bool:
        """Whether a number is so far from what the prior expects that inference might fail."""
        if len(self.rewards) == 0:
            return False
        spread = np.max(np.abs(self.features) @ stds)
        return bool(max(spread, np.max(np.abs(self.rewards))) > LARGE * noise_std)

    def __str__(self) -> str:
        """How large they are."""
        features, rewards = (np.max(np.abs(a), initial=0) for a in (self.features, self.rewards))
        return f"features up to {features:.3g} and rewards up to {rewards:.3g}"


def with_observations(
    evidence: AbstractEvidence, new: Observations, max_rows: int | None, moments: Gaussian
) -> AbstractEvidence:
    """The evidence with these observations, in at most `max_rows` rows."""
    n = len(new.rewards)
    evidence.check_rewards(new.rewards)
    for piece in _binary_pieces(n, max_rows // 2 if max_rows else n):
        if max_rows is not None:
            evidence = evidence.bounded(max_rows - (piece.stop - piece.start), moments)
        evidence = evidence.extend(new.features[piece], new.rewards[piece])
    return evidence


def rehearse(evidence: AbstractEvidence, max_rows: int | None, moments: Gaussian) -> None:
    """Compile what updates need, by learning from made-up rows and forgetting them."""

    def grown(n: int) -> AbstractEvidence:
        features = np.random.default_rng(0).standard_normal((n, evidence.dim))
        rows = (features, np.zeros(n), np.ones(n))
        return evidence.add(*map(on_device, rows))

    one = grown(1)
    if max_rows is not None and one.bounded(0, moments) is not one:
        grown(max_rows).bounded(max_rows - 1, moments)


def checked_max_rows(max_rows: Any) -> int | None:
    """`max_rows` as None or an integer that is large enough."""
    if max_rows is None:
        return None
    max_rows = positive_int("max_rows", max_rows)
    if max_rows < MIN_ROWS:
        raise ValueError(
            f"`max_rows`: expected at least {MIN_ROWS}, got {max_rows}; older rows are approximated"
            " by a Gaussian term, which needs that many to be accurate; None keeps all"
        )
    return max_rows


def _binary_pieces(n: int, at_most: int) -> Iterator[slice]:
    """Slices of lengths 2^i that make up n, so that few programs serve batches of all sizes."""
    start = 0
    while start < n:
        length = 1 << (min(n - start, at_most).bit_length() - 1)
        yield slice(start, start + length)
        start += length
